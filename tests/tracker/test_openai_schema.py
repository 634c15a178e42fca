"""What clients in the field send, and what becomes of it."""

import json
from random import Random
from typing import Any

import pytest

from meshnet_protocol.messages import PENALTY_TOKENS_MAX
from meshnet_tracker.errors import InvalidRouteError, MalformedRequestError
from meshnet_tracker.openai_schema import ChatCall, Dialect, parse_chat, parse_completion

USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ChatCall:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode(), seed_rng=Random(1))


def test_null_means_absent_and_unknown_fields_are_ignored() -> None:
    names = ["temperature", "top_p", "max_tokens", "stop", "seed", "n", "tools", "logprobs", "stream", "route", "model"]
    nulls: dict[str, Any] = dict.fromkeys(names)

    assert parse(**nulls, reasoning_effort="low", metadata={"a": 1}) == parse()


def test_content_parts_join_with_a_newline_in_every_role() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    roles = ["system", "developer", "user", "assistant", "tool", "function"]
    call = parse(messages=[{"role": role, "content": parts, "name": "x"} for role in roles])

    assert {message["content"] for message in call.head_request.messages} == {"a\nb"}
    assert [m["role"] for m in call.head_request.messages] == ["system", "system", *roles[2:]]


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, None),
        ({"max_tokens": -1.0, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": 2**40}, 2**31 - 1),
        ({"max_tokens": 2**63}, 2**31 - 1),
        ({"max_tokens": 1e30, "max_completion_tokens": 9}, 9),
    ],
)
def test_the_smaller_token_limit_wins(fields: dict[str, Any], limit: int | None) -> None:
    assert parse(**fields).head_request.max_tokens == limit


@pytest.mark.parametrize("huge", ["1e999", "9" * 5000])
def test_a_number_beyond_all_floats_is_no_error_where_nobody_reads_it(huge: str) -> None:
    body = '{"messages": [{"role": "user", "content": "hi"}], "metadata": {"a": [-%s, %s]}, "max_tokens": %s}'
    call = parse_chat((body % (huge, huge, huge)).encode(), seed_rng=Random(1))

    assert call.head_request.max_tokens == 2**31 - 1


@pytest.mark.parametrize("rest", ["NaN", '"\\ud800"', "[", "01"])
def test_json_is_read_strictly_whatever_numbers_are_in_it(rest: str) -> None:
    with pytest.raises(MalformedRequestError, match="not valid JSON"):
        parse_chat(b'{"messages": [], "a": 1e999, "b": %s}' % rest.encode(), seed_rng=Random(1))


@pytest.mark.parametrize("values", ["[]," * 300_000, '{"a":{}},' * 130_000, "1," * 2_100_000])
def test_a_body_of_countless_tiny_values_is_refused_before_they_are_made(values: str) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}], "x": [%s1]}' % values.encode()
    with pytest.raises(MalformedRequestError, match="at most"):
        parse_chat(body, seed_rng=Random(1))


def test_a_long_text_is_read_however_many_commas_it_has() -> None:
    lorem = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, " * 580_000
    assert parse(messages=[{"role": "user", "content": lorem}]).head_request.messages[0]["content"] == lorem


@pytest.mark.parametrize(("stop", "texts"), [("x", ["x"]), (["a", "", "b"], ["a", "b"]), ([], []), ("", [])])
def test_stop_comes_in_every_form(stop: Any, texts: list[str]) -> None:
    assert parse(stop=stop).head_request.stop == texts


def test_a_missing_seed_is_drawn_from_the_dice_and_a_given_one_kept() -> None:
    assert parse().head_request.seed == Random(1).getrandbits(53)
    assert parse(seed=-(2**63)).head_request.seed == -(2**63)
    assert parse(seed=0).head_request.seed == 0


def test_fields_that_ask_for_nothing_new_are_accepted() -> None:
    neutral = {
        "n": 1,
        "tools": [],
        "tool_choice": "none",
        "logprobs": False,
        "logit_bias": {},
        "presence_penalty": 0,
        "response_format": {"type": "text"},
        "frequency_penalty": 0.0,
        "stream_options": None,
        "top_k": -1,
    }
    assert parse(**neutral) == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": [], "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": {}, "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages[0].tool_calls"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": 1}, "stop"),
        ({"stop": ["x"] * 257}, "stop"),
        ({"stop": "x" * 16385}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 1}, "stream_options"),
        ({"model": 1}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].function.name"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"tools": [{"function": {"name": "a"}}] * 2}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"function": {"name": "auto"}}, "tools": [{"function": {"name": "auto"}}]}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice"),
        (
            {
                "tool_choice": {"type": "allowed_tools", "tools": [{"name": "x"}]},
                "tools": [{"function": {"name": "a"}}],
            },
            "tool_choice",
        ),
        ({"tool_choice": {"function": {"name": "b"}}, "tools": [{"function": {"name": "a"}}]}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"function": {"name": "a"}}], "grammar": "x"}, "grammar"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "a"}}, "function_call"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "grammar": "x"}, "grammar"),
        ({"grammar": 1}, "grammar"),
        ({"logit_bias": {"a": 2}}, "logit_bias"),
        ({"logit_bias": {"-1": 2}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": []}, "logit_bias"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(MalformedRequestError) as caught:
        parse(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"messages": NaN}',
        b'{"messages": 1e999}',
        b"[" * 100_000,
        rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        parse_chat(body, seed_rng=Random(1))


@pytest.mark.parametrize("route", [[], "a", [""], [1], ["a", "a"], {"a": 1}, ["n"] * 1001])
def test_a_route_that_is_no_list_of_different_node_ids_is_refused(route: Any) -> None:
    with pytest.raises(InvalidRouteError):
        parse(route=route)


def complete(**fields: Any) -> ChatCall:
    return parse_completion(json.dumps(fields).encode(), seed_rng=Random(1))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), ("", [""]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_comes_in_every_form(prompt: Any, prompts: list[Any]) -> None:
    call = complete(prompt=prompt)
    assert (call.head_request.prompts, call.dialect) == (prompts, Dialect.COMPLETION)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt": "a", "best_of": 3, "n": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": "all"}, "logprobs"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_a_prompt_that_cannot_be_gone_on_with_is_refused_with_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(MalformedRequestError) as caught:
        complete(**fields)
    assert caught.value.param == param


def test_logprobs_are_a_claim_in_chats_and_a_number_in_completions() -> None:
    assert parse(logprobs=True).head_request.top_logprobs == 0
    assert parse(logprobs=True, top_logprobs=4).head_request.top_logprobs == 4
    assert parse(logprobs=False, top_logprobs=0).head_request.top_logprobs is None
    counts = [complete(prompt="a", logprobs=wanted).head_request.top_logprobs for wanted in (0, 3, True, None)]
    assert counts == [0, 3, 0, None]


def test_tools_reach_the_head_unless_none_may_be_called() -> None:
    tools = [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}]
    named = {"type": "function", "function": {"name": "a"}}

    assert [tool.name for tool in parse(tools=tools).head_request.tools] == ["a"]
    assert parse(tools=tools, tool_choice="none").head_request.tools == []
    assert parse(tools=tools, tool_choice="any").head_request.tool_choice == "required"
    assert parse(tools=tools, tool_choice=named).head_request.tool_choice == "a"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_the_tools_some_may_be_allowed(mode: str) -> None:
    offered = [{"type": "function", "function": {"name": name}} for name in "abc"]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "b"}}, {"name": "c"}]}

    for choice in ({"type": "allowed_tools", "allowed_tools": allowed}, {"type": "allowed_tools", **allowed}):
        request = parse(tools=offered, tool_choice=choice).head_request
        assert ([tool.name for tool in request.tools], request.tool_choice) == (["b", "c"], mode)


def test_a_call_in_the_older_form_is_one_all_the_same() -> None:
    call = {"name": "now", "arguments": "{}"}
    (message,) = parse(messages=[{"role": "assistant", "content": None, "function_call": call}]).head_request.messages

    assert message["tool_calls"] == [{"id": "", "type": "function", "function": call}]


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'

    assert parse_chat(b"\xef\xbb\xbf" + body, seed_rng=Random(0)) == parse_chat(body, seed_rng=Random(0))


def test_what_a_model_refused_in_words_is_read_like_its_text() -> None:
    parts = [{"type": "text", "text": "No:"}, {"type": "refusal", "refusal": "I cannot."}]
    (message,) = parse(messages=[{"role": "assistant", "content": parts}]).head_request.messages

    assert message["content"] == "No:\nI cannot."


def test_penalties_look_as_far_back_as_llama_cpp_would() -> None:
    assert parse().head_request.penalty_tokens == 64
    assert parse(repeat_last_n=0).head_request.penalty_tokens == 0
    assert parse(repeat_last_n=-1).head_request.penalty_tokens == PENALTY_TOKENS_MAX
