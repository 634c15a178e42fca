"""What a stream looks like on the wire, and that its words are whole."""

import json

import pytest

from .endpoint import FRANCE, STORY, Endpoint

CHUNK_FIELDS = ("id", "created", "model", "object", "system_fingerprint")


def test_the_chunks_of_a_stream_come_in_their_order(endpoint: Endpoint) -> None:
    answer = endpoint.chat(stream=True, stream_options={"include_usage": True})
    *chunks, usage = answer.events
    choices = [chunk["choices"][0] for chunk in chunks]

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["content-encoding"] is None
    assert answer.text.startswith(":"), "a comment flushes the headers"
    assert {line.split(":")[0] for line in answer.text.split("\n") if line} <= {"data", ""}
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1] | {"delta": {}, "finish_reason": "stop"} == choices[-1]
    assert all(set(choice["delta"]) == {"content"} and choice["finish_reason"] is None for choice in choices[1:-1])
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    assert len({json.dumps([chunk[name] for name in CHUNK_FIELDS]) for chunk in answer.events}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_comes_only_where_it_is_asked_for(endpoint: Endpoint, options: object) -> None:
    events = endpoint.chat(stream=True, stream_options=options, max_tokens=2).events

    assert all("usage" not in event and len(event["choices"]) == 1 for event in events)


def test_options_of_a_stream_mean_nothing_without_one(endpoint: Endpoint) -> None:
    whole = endpoint.chat(stream=False, stream_options={"include_usage": True}, max_tokens=2, cache_prompt=False).json

    assert set(whole) == {*CHUNK_FIELDS, "choices", "usage"}
    assert whole["object"] == "chat.completion"
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_answers_of_one_stream_first_appear_in_order_and_each_ends_once(endpoint: Endpoint) -> None:
    answer = endpoint.chat(STORY, stream=True, n=3, temperature=1, seed=4, max_tokens=3)
    whole = endpoint.chat(STORY, n=3, temperature=1, seed=4, max_tokens=3).json
    choices = [chunk["choices"][0] for chunk in answer.events]

    assert list(dict.fromkeys(choice["index"] for choice in choices)) == [0, 1, 2]
    assert [choice["index"] for choice in choices if choice["finish_reason"]] == [0, 1, 2]
    assert [choice["index"] for choice in choices if "role" in choice["delta"]] == [0, 1, 2]
    for index, expected in enumerate(whole["choices"]):
        texts = [choice["delta"].get("content", "") for choice in choices if choice["index"] == index]
        assert "".join(texts) == expected["message"]["content"]


def test_characters_are_never_split(endpoint: Endpoint) -> None:
    grammar = 'root ::= "naïve 🎉 日本 é 🧑‍🚀"'
    answer = endpoint.chat(FRANCE, stream=True, grammar=grammar, max_tokens=60, route=endpoint.routes[3])

    assert answer.joined() == "naïve 🎉 日本 é 🧑‍🚀"


def test_what_only_looked_like_a_stop_string_is_not_lost(endpoint: Endpoint) -> None:
    grammar = 'root ::= "one two three"'
    answer = endpoint.chat(stream=True, grammar=grammar, max_tokens=30, stop=["two four", "three five", "threes"])

    assert answer.joined() == "one two three"
