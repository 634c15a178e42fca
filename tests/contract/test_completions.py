"""``POST /v1/completions``: texts that go on, in that endpoint's own words."""

import json
from typing import Any

import pytest

from .endpoint import Endpoint

FRANCE = "The capital of France is"


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in sorted(answer.json["choices"], key=lambda choice: choice["index"])]


def test_a_text_goes_on_the_same_on_every_route(endpoint: Endpoint) -> None:
    answers = [endpoint.complete(FRANCE, route=route, logprobs=2).json for route in endpoint.routes.values()]

    assert answers[0]["choices"] == answers[1]["choices"] == answers[2]["choices"]
    assert answers[0]["choices"][0]["text"].startswith(" Paris")
    assert answers[0]["object"] == "text_completion"
    assert answers[0]["id"].startswith("cmpl-")
    assert answers[0]["choices"][0]["finish_reason"] == "length"


def test_several_prompts_give_what_each_would_alone(endpoint: Endpoint) -> None:
    prompts = [FRANCE, "One, two, three,"]
    alone = [endpoint.complete(prompt, temperature=1, seed=5) for prompt in prompts]
    together = endpoint.complete(prompts, temperature=1, seed=5)
    twice = endpoint.complete(prompts, temperature=1, seed=5, n=2)

    assert texts(together) == [texts(answer)[0] for answer in alone]
    assert texts(twice)[::2] == texts(together)
    for several in (together, twice):
        expected = sum(answer.json["usage"]["prompt_tokens"] for answer in alone)
        assert several.json["usage"]["prompt_tokens"] == expected


def test_prompts_may_be_token_ids(endpoint: Endpoint) -> None:
    one, two = endpoint.complete([504, 3575, 282]), endpoint.complete([[504, 3575, 282], [504, 3575, 282]])

    assert one.json["usage"]["prompt_tokens"] == 3
    assert texts(two) == texts(one) * 2


def test_logprobs_are_columns(endpoint: Endpoint) -> None:
    choice = endpoint.complete(FRANCE, logprobs=3).choice
    columns = choice["logprobs"]

    assert set(columns) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert "".join(columns["tokens"]) == choice["text"]
    places = zip(columns["text_offset"], columns["tokens"], strict=True)
    assert all(choice["text"][at:].startswith(token) for at, token in places)
    assert [max(top.values()) for top in columns["top_logprobs"]] == columns["token_logprobs"], "greedy"
    assert {len(top) for top in columns["top_logprobs"]} == {3}


def test_a_stream_says_the_same(endpoint: Endpoint) -> None:
    stream = endpoint.complete(FRANCE, stream=True, stream_options={"include_usage": True}, logprobs=1)
    *chunks, usage = stream.events
    choices = [chunk["choices"][0] for chunk in chunks]
    whole = endpoint.complete(FRANCE, logprobs=1).choice

    assert {chunk["object"] for chunk in stream.events} == {"text_completion"}
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    offsets = [at for choice in choices if choice["logprobs"] for at in choice["logprobs"]["text_offset"]]
    assert offsets == whole["logprobs"]["text_offset"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("prompt", ["", "<|im_start|>user\nHi<|im_end|>\n"])
def test_any_text_is_a_prompt(endpoint: Endpoint, prompt: str) -> None:
    assert endpoint.complete(prompt, max_tokens=1).status == 200


def test_a_grammar_shapes_completions_too(endpoint: Endpoint) -> None:
    answer = endpoint.complete("A person as JSON:", response_format={"type": "json_object"}, max_tokens=100)

    assert isinstance(json.loads(answer.choice["text"]), dict)


def test_a_prompt_beyond_the_context_is_refused_before_the_stream(endpoint: Endpoint) -> None:
    answer = endpoint.complete(["short", [5] * 5000], stream=True)

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 4096 tokens" in answer.error["message"]
