"""The same text, and the same probabilities, on routes of one, two and three hops, alone or beside others."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from meshnet_node.engine.api import Vocabulary
from meshnet_node.model_source import resolve_model

from .endpoint import STORY, Endpoint

SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 7, "max_tokens": 12}
PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repeat_penalty": 1.15}
WAYS: dict[str, dict[str, Any]] = {
    "truncated": SEEDED | {"top_k": 40, "min_p": 0.02},
    "penalties": SEEDED | PENALTIES,
    "greedy penalties": PENALTIES,
    "bias": SEEDED | {"logit_bias": {"338": -100, "260": 3}},
    "grammar": SEEDED | {"grammar": 'root ::= [A-Z] [a-z ]{8,16} "."'},
    "schema": SEEDED
    | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {}}}}},
    "two answers": SEEDED | PENALTIES | {"n": 2, "max_tokens": 8},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_gives_the_same_answer_on_every_route(endpoint: Endpoint, way: str) -> None:
    asked = {"logprobs": True, "top_logprobs": 3} | WAYS[way]
    answers = [endpoint.chat(STORY, **asked, route=route).json for route in endpoint.routes.values()]

    assert answers[0]["choices"] == answers[1]["choices"] == answers[2]["choices"]
    for count in (
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
    ):  # each route holds what it has seen of the prompt
        assert len({answer["usage"][count] for answer in answers}) == 1


def test_a_request_gives_the_same_answer_in_any_company(endpoint: Endpoint) -> None:
    ways = [WAYS[way] for way in ("penalties", "grammar", "bias")]
    route = endpoint.routes[3]
    alone = [endpoint.chat(STORY, **way, route=route).content for way in ways]
    with ThreadPoolExecutor(len(ways)) as pool:
        together = list(pool.map(lambda way: endpoint.chat(STORY, **way, route=route).content, ways))

    assert together == alone


def test_streamed_and_whole_are_the_same(endpoint: Endpoint) -> None:
    for way in ("penalties", "schema"):
        assert endpoint.chat(STORY, **WAYS[way], stream=True).joined() == endpoint.chat(STORY, **WAYS[way]).content


def test_answers_of_one_request_differ_and_the_first_is_the_one_it_would_have_alone(endpoint: Endpoint) -> None:
    alone = endpoint.chat(STORY, **SEEDED)
    both = endpoint.chat(STORY, **SEEDED, n=2).json

    first, second = (choice["message"]["content"] for choice in both["choices"])
    assert first == alone.content != second
    assert both["usage"]["prompt_tokens"] == alone.json["usage"]["prompt_tokens"]
    assert both["usage"]["completion_tokens"] == 2 * alone.json["usage"]["completion_tokens"]


def test_penalties_see_the_prompt(endpoint: Endpoint) -> None:
    """The word due next stands in the prompt: a penalty forbids it, unless it looks at no past at all."""
    prompt = "Paris is the capital of France. " * 3 + "Paris is the capital of"
    strong = {"presence_penalty": 2, "frequency_penalty": 2, "repeat_penalty": 2}

    plain, penalised, blind = (
        endpoint.complete(prompt, max_tokens=1, **fields).choice["text"]
        for fields in ({}, strong, strong | {"repeat_last_n": 0})
    )
    assert plain == blind == " France" != penalised


def test_a_bias_forbids_and_forces(endpoint: Endpoint) -> None:
    logprobs = endpoint.complete("The capital of France is", max_tokens=1, logprobs=1).choice["logprobs"]
    assert logprobs["tokens"] == [" Paris"]

    paris = token_of(" Paris")
    banned = endpoint.complete("The capital of France is", max_tokens=1, logit_bias={str(paris): -100})
    forced = endpoint.complete("Two and two is", max_tokens=3, logit_bias={str(paris): 100})

    assert banned.choice["text"] != " Paris"
    assert forced.choice["text"] == " Paris" * 3


def token_of(text: str) -> int:
    (token,) = Vocabulary(resolve_model("smollm2")).tokenize(text, add_special=False, parse_special=False)
    return token


def test_probabilities_are_the_models_own_whatever_the_draw_is_bent_by(endpoint: Endpoint) -> None:
    """Of the first token, which has the same past in all cases."""
    cases: list[dict[str, Any]] = [{}, WAYS["penalties"], {"logit_bias": {"5": 50}}, WAYS["grammar"]]
    tops = []
    for case in cases:
        choice = endpoint.chat(STORY, **(case | {"max_tokens": 1, "logprobs": True, "top_logprobs": 5})).choice
        tops.append(json.dumps(choice["logprobs"]["content"][0]["top_logprobs"]))
    assert len(set(tops)) == 1


def test_logprobs_tell_every_token_of_the_text_and_no_stop_string(endpoint: Endpoint) -> None:
    whole = endpoint.chat(logprobs=True, top_logprobs=2).choice
    stopped = endpoint.chat(logprobs=True, top_logprobs=2, stop="Paris").choice

    for choice in (whole, stopped):
        entries = choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries).startswith(choice["message"]["content"].rstrip())
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode()
        assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)
        assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] for entry in entries), "greedy"
    assert "Par" not in "".join(entry["token"] for entry in stopped["logprobs"]["content"])
