"""Answers that must have a shape: grammars, JSON, tool calls, and thoughts kept apart."""

import json
import re
from typing import Any

import pytest

from .endpoint import FRANCE, Endpoint

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["human", "robot"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}
CLOCK = {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": CLOCK}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
THOUGHT = 'root ::= "<think>\\n" [a-z ]{4,12} "\\n</think>\\n\\n" [A-Z] [a-z]{2,6} "."'


def test_a_grammar_shapes_the_text(endpoint: Endpoint) -> None:
    text = endpoint.chat(grammar='root ::= [0-9]{3} "-" [0-9]{4}', temperature=1, seed=1).content

    assert re.fullmatch(r"\d{3}-\d{4}", text)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_makes_json_of_it(endpoint: Endpoint, temperature: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = endpoint.chat(FRANCE, response_format=wanted, temperature=temperature, seed=2, max_tokens=80)
    person = json.loads(answer.content)

    assert answer.choice["finish_reason"] == "stop"
    assert set(person) == {"name", "kind"}
    assert person["kind"] in ("human", "robot")


def test_json_object_makes_any_object(endpoint: Endpoint) -> None:
    text = endpoint.chat(FRANCE, response_format={"type": "json_object"}, max_tokens=200).content

    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("cut", [{"max_tokens": 1}, {"max_tokens": 3}, {"max_tokens": 12}, {"stop": "_call"}])
def test_the_beginning_of_a_required_call_that_was_cut_short_never_shows(
    endpoint: Endpoint, cut: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", **cut}
    whole = endpoint.chat(QUESTION, **asked).choice
    streamed = endpoint.chat(QUESTION, **asked, stream=True)

    assert whole["message"] == {"role": "assistant", "content": ""}
    assert whole["finish_reason"] == ("stop" if "stop" in cut else "length")
    assert streamed.joined() == ""


def test_a_required_call_is_made_on_every_route_streamed_or_not(endpoint: Endpoint) -> None:
    """By a model whose own template knows no tools."""
    calls = []
    for route in (endpoint.routes[1], endpoint.routes[3]):
        asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60, "route": route}
        whole = endpoint.chat(QUESTION, **asked).choice
        assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
        (call,) = whole["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
        assert isinstance(json.loads(call["function"]["arguments"])["city"], str)
        calls.append(call["function"])
    assert calls[0] == calls[1]

    choices = [event["choices"][0] for event in endpoint.chat(QUESTION, **asked, stream=True).events]
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [(delta["index"], delta["type"], delta["function"]) for delta in deltas] == [(0, "function", calls[0])]
    assert deltas[0]["id"]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert all(not choice["delta"].get("content") for choice in choices)


def test_a_named_function_is_the_one_called(endpoint: Endpoint) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    message = endpoint.chat(QUESTION, tools=TOOLS[1:], tool_choice=choice, max_tokens=60).choice["message"]

    assert message["tool_calls"][0]["function"] == {"name": "get_time", "arguments": "{}"}


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_model_that_need_not_call_may_answer(endpoint: Endpoint, choice: str) -> None:
    answer = endpoint.chat(tools=TOOLS, tool_choice=choice, max_tokens=4)

    assert answer.choice["finish_reason"] in ("stop", "length")
    assert answer.content


def test_a_model_that_need_not_call_may_call(endpoint: Endpoint) -> None:
    """The model is made to write its call down by a grammar of our own; nothing else tells the server about it."""
    call = '{\\"name\\": \\"get_time\\", \\"arguments\\": {}}'
    grammar = f'root ::= "Well: <tool_call>{call}</tool_call>"'
    answer = endpoint.chat(QUESTION, tools=TOOLS[1:], grammar=grammar, max_tokens=60, stream=True)
    choices = [event["choices"][0] for event in answer.events]

    assert answer.joined() == "Well:"
    assert [call["function"]["name"] for choice in choices for call in choice["delta"].get("tool_calls", [])] == [
        "get_time"
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("cut", [{"max_tokens": 8}, {"max_tokens": 14}, {"stop": "get_"}])
def test_the_beginning_of_a_call_that_was_cut_short_never_shows(endpoint: Endpoint, cut: dict[str, Any]) -> None:
    """Nor where the model was free to call: as before, a grammar makes it write a call down."""
    call = '{\\"name\\": \\"get_time\\", \\"arguments\\": {}}'
    asked: dict[str, Any] = {"tools": TOOLS[1:], "grammar": f'root ::= "Well: <tool_call>{call}</tool_call>"', **cut}
    whole = endpoint.chat(QUESTION, **asked).choice
    streamed = endpoint.chat(QUESTION, **asked, stream=True)

    assert whole["message"] == {"role": "assistant", "content": "Well:"}
    assert whole["finish_reason"] == ("stop" if "stop" in cut else "length")
    assert streamed.joined() == "Well:"


def test_a_result_can_be_talked_about(endpoint: Endpoint) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is noon."},
    ]
    assert endpoint.chat(messages, tools=TOOLS[1:], max_tokens=2).status == 200


def test_thoughts_go_to_their_own_field_streamed_or_not(endpoint: Endpoint) -> None:
    asked: dict[str, Any] = {"grammar": THOUGHT, "max_tokens": 40, "temperature": 1, "seed": 3}
    message = endpoint.chat(**asked).choice["message"]
    stream = endpoint.chat(**asked, stream=True)

    assert re.fullmatch(r"[a-z][a-z ]*", message["reasoning_content"].strip())
    assert re.fullmatch(r"[A-Z][a-z]{2,6}\.", message["content"])
    assert stream.joined("reasoning_content") == message["reasoning_content"]
    assert stream.joined() == message["content"]


def test_an_answer_cut_off_while_thinking_has_no_content(endpoint: Endpoint) -> None:
    for stream in (False, True):
        answer = endpoint.chat(grammar=THOUGHT, max_tokens=8, stream=stream)
        content = answer.joined() if stream else answer.content
        thought = answer.joined("reasoning_content") if stream else answer.choice["message"]["reasoning_content"]
        assert (content, bool(thought)) == ("", True)
        assert "think" not in thought
