"""Lenient in, strict out: whatever clients in the field send."""

from typing import Any

import openai
import pytest

from .conftest import ALIAS, MODEL
from .endpoint import CHAT, COMPLETION, FRANCE, STORY, Endpoint


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1//chat/completions"])
def test_slashes_are_forgiven(endpoint: Endpoint, path: str) -> None:
    assert endpoint.post(path, messages=FRANCE, max_tokens=2).status == 200


def test_null_is_absent_and_unknown_fields_are_ignored(endpoint: Endpoint) -> None:
    names = "temperature top_p n stop seed tools tool_choice logprobs logit_bias response_format grammar stream_options"
    nulls: dict[str, Any] = dict.fromkeys(names.split())
    ignored = {"user": "a", "metadata": {}, "store": True, "service_tier": "auto", "reasoning_effort": "low"}
    ignored |= {"parallel_tool_calls": False, "prompt_cache_key": "k", "cache_prompt": True, "what_is_this": [1]}
    messages = [{**FRANCE[0], "unknown": 1, "refusal": None}]

    plain = endpoint.chat(temperature=0)
    answer = endpoint.chat(messages, **(nulls | ignored | {"temperature": 0}))

    assert answer.content == plain.content


def test_every_role_and_form_of_content_is_read(endpoint: Endpoint) -> None:
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": parts},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": parts},
        {"role": "function", "name": "look", "content": "seen"},
        {"role": "user", "content": "Well?"},
    ]
    assert endpoint.chat(messages, max_tokens=2).status == 200


@pytest.mark.parametrize(("fields", "drawn"), [({"max_tokens": 0}, 0), ({"max_completion_tokens": 3}, 3)])
@pytest.mark.parametrize("stream", [False, True])
def test_the_smaller_limit_counts_and_zero_is_zero(
    endpoint: Endpoint, fields: dict[str, int], drawn: int, stream: bool
) -> None:
    limits = {"max_tokens": 5} | fields
    answer = endpoint.chat(STORY, **limits, stream=stream, stream_options={"include_usage": True})
    usage = answer.events[-1]["usage"] if stream else answer.json["usage"]
    last = answer.events[-2]["choices"][0] if stream else answer.choice

    assert usage["completion_tokens"] == drawn
    assert last["finish_reason"] == "length"


@pytest.mark.parametrize("limit", [10**12, -1])
def test_a_limit_beyond_the_context_is_cut_down_to_it_and_minus_one_is_none(endpoint: Endpoint, limit: int) -> None:
    assert endpoint.chat(max_tokens=limit).choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["Paris", ["Paris"], ["zzz", "", "aris", "Paris", "yyy", "xxx"]])
def test_the_earliest_stop_string_ends_the_text_and_never_shows(endpoint: Endpoint, stop: Any) -> None:
    whole = endpoint.chat().content
    for stream in (False, True):
        answer = endpoint.chat(stop=stop, stream=stream)
        text = answer.joined() if stream else answer.content
        assert text == whole[: whole.index("Paris")]


@pytest.mark.parametrize("stop", [None, [], "", [""]])
def test_no_stop_string_is_none_in_every_form(endpoint: Endpoint, stop: Any) -> None:
    assert endpoint.chat(stop=stop).content == endpoint.chat().content


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_repeats_its_text(endpoint: Endpoint, seed: int) -> None:
    first, second = (endpoint.chat(STORY, seed=seed, temperature=1, max_tokens=6).content for _ in range(2))
    assert first == second


def test_an_alias_stands_for_its_model(endpoint: Endpoint) -> None:
    models = endpoint.send("GET", "/v1/models").json["data"]

    assert endpoint.chat(model=ALIAS, max_tokens=1).json["model"] == MODEL
    assert [model["id"] for model in models] == [MODEL, ALIAS]
    assert all({"id", "object", "created", "owned_by"} <= set(model) for model in models)
    assert endpoint.send("GET", f"/v1/models/{ALIAS}").json["id"] == ALIAS


def test_bodies_of_32_mib_are_read_and_larger_ones_refused_as_json(endpoint: Endpoint) -> None:
    allowed = endpoint.chat(max_tokens=1, metadata="x" * (32 * 1024 * 1024 - 1000))
    refused = endpoint.chat(metadata="x" * (32 * 1024 * 1024))

    assert allowed.status == 200
    assert (refused.status, refused.error["type"]) == (413, "invalid_request_error")


def test_ignore_eos_goes_on_behind_the_end(endpoint: Endpoint) -> None:
    ended = endpoint.chat(max_tokens=40).json["usage"]["completion_tokens"]
    answer = endpoint.chat(max_tokens=40, ignore_eos=True)

    assert ended < 40
    assert (answer.json["usage"]["completion_tokens"], answer.choice["finish_reason"]) == (40, "length")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        (CHAT, {"temperature": 2.5}, "temperature"),
        (CHAT, {"logit_bias": {"Paris": 1}}, "logit_bias"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"response_format": {"type": "yaml"}}, "response_format.type"),
        (CHAT, {"response_format": {"type": "json_object", "schema": {"$ref": "#/nowhere"}}}, "response_format"),
        (CHAT, {"grammar": "root ::= nowhere"}, "grammar"),
        (CHAT, {"grammar": 'root ::= root "a"'}, "grammar"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (COMPLETION, {}, "prompt"),
        (COMPLETION, {"prompt": []}, "prompt"),
        (COMPLETION, {"prompt": [[]]}, "prompt"),
        (COMPLETION, {"prompt": [10**6]}, "prompt"),
        (COMPLETION, {"prompt": "a", "suffix": "b"}, "suffix"),
        (COMPLETION, {"prompt": "a", "echo": True}, "echo"),
        (COMPLETION, {"prompt": "a", "best_of": 2}, "best_of"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_a_400_that_names_the_field(
    endpoint: Endpoint, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    answer = endpoint.post(path, **({"messages": FRANCE} | fields), stream=stream)

    assert (answer.status, answer.error["param"]) == (400, param)
    assert set(answer.error) == {"message", "type", "param", "code"}


def test_the_openai_client_understands_all_of_it(endpoint: Endpoint) -> None:
    with openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(
            model=ALIAS,
            messages=[{"role": "user", "content": "Hi"}],
            n=2,
            logprobs=True,
            top_logprobs=2,
            max_tokens=3,
            extra_body={"cache_prompt": False},
        )
        text = client.completions.create(model=ALIAS, prompt="One, two,", logprobs=1, max_tokens=3)

    assert [choice.index for choice in chat.choices] == [0, 1]
    assert chat.choices[0].logprobs is not None
    assert chat.usage is not None
    assert chat.usage.prompt_tokens_details is not None
    assert chat.usage.prompt_tokens_details.cached_tokens == 0
    assert text.choices[0].logprobs is not None
