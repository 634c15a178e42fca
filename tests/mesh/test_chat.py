"""Chats through real layer shards: the model's own words, whichever route they take."""

import json
import subprocess
import urllib.request
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from meshnet_cli.demo.processes import Mesh
from meshnet_cli.tracker_api import get_json

from .conftest import client_of, wait_until

MODEL = "SmolLM2-135M-Instruct"
FRANCE_QUESTION = "What is the capital of France? Answer in one sentence."
FRANCE: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
STORY: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a long story about the sea."}]


def node_id(mesh: Mesh, name: str) -> str:
    nodes = get_json(mesh.url, "/v1/nodes")["nodes"]
    return str(next(node["node_id"] for node in nodes if node["node_id"].startswith(f"{name}.")))


def both_routes(mesh: Mesh) -> list[list[str]]:
    fast, slow = node_id(mesh, "fast"), node_id(mesh, "slow")
    return [[slow], [fast, slow]]


def ask(mesh: Mesh, **options: Any) -> openai.types.chat.ChatCompletion:
    arguments: dict[str, Any] = {"model": MODEL, "messages": FRANCE, "max_tokens": 24, "temperature": 0} | options
    answer = client_of(mesh).chat.completions.create(**arguments)
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    return answer


def streamed(mesh: Mesh, **options: Any) -> str:
    arguments: dict[str, Any] = {"model": MODEL, "messages": FRANCE, "max_tokens": 24, "temperature": 0} | options
    chunks = client_of(mesh).chat.completions.create(stream=True, **arguments)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_model_answers_in_its_own_words(mesh: Mesh) -> None:
    answer = ask(mesh)

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_text_is_the_same_on_every_route_streamed_or_not(mesh: Mesh) -> None:
    texts = set()
    for route in both_routes(mesh):
        extra = {"route": route}
        texts.add(ask(mesh, messages=STORY, max_tokens=48, extra_body=extra).choices[0].message.content)
        texts.add(streamed(mesh, messages=STORY, max_tokens=48, extra_body=extra))

    assert len(texts) == 1


def test_a_seed_gives_the_same_text_on_every_route_and_another_seed_another(mesh: Mesh) -> None:
    def text(seed: int, route: list[str]) -> str | None:
        options = {"messages": STORY, "max_tokens": 32, "temperature": 0.9, "top_p": 0.95, "seed": seed}
        return ask(mesh, **options, extra_body={"route": route}).choices[0].message.content

    whole, hybrid = both_routes(mesh)

    assert text(7, whole) == text(7, hybrid)
    assert text(7, hybrid) != text(8, hybrid)


def test_the_hybrid_route_enters_the_slow_node_right_after_the_fast_ones_shard(mesh: Mesh) -> None:
    route = both_routes(mesh)[1]
    answer = client_of(mesh).chat.completions.with_raw_response.create(
        model=MODEL, messages=FRANCE, max_tokens=16, temperature=0, extra_body={"route": route}
    )

    request_id = answer.headers["x-request-id"]
    events = get_json(mesh.url, "/v1/events?limit=1000")["events"]
    (selected,) = [e for e in events if e["event"] == "proxy route selected" and e["request_id"] == request_id]
    assert selected["mode"] == "pinned"
    assert selected["signature"] == answer.headers["x-meshnet-route"]
    assert [(hop["start_layer"], hop["end_layer"]) for hop in selected["hops"]] == [(0, 16), (17, 29)]


def test_both_arms_of_the_mixed_topology_are_learnt(mesh: Mesh) -> None:
    for route in both_routes(mesh):
        ask(mesh, messages=STORY, max_tokens=16, extra_body={"route": route, "ignore_eos": True})

    (model,) = get_json(mesh.url, "/v1/routing")["models"]
    assert {arm["status"] for arm in model["candidates"]} == {"proven"}
    assert len(model["candidates"]) == 2
    assert max(arm["coefficient"] for arm in model["candidates"]) == 1.0
    assert sum(arm["expected_share"] for arm in model["candidates"]) == pytest.approx(1)


def test_max_tokens_ends_an_answer_with_length_and_a_stop_string_never_shows(mesh: Mesh) -> None:
    cut = ask(mesh, messages=STORY, max_tokens=5)
    stopped = ask(mesh, messages=FRANCE, stop=["Paris"])

    assert (cut.choices[0].finish_reason, cut.usage and cut.usage.completion_tokens) == ("length", 5)
    assert "Par" not in (stopped.choices[0].message.content or "")
    assert stopped.choices[0].finish_reason == "stop"


def test_a_prompt_longer_than_the_context_is_a_clear_400(mesh: Mesh) -> None:
    long: list[ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 6000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as refused:
        ask(mesh, messages=long)
    assert refused.value.code == "context_length_exceeded"


def test_plain_curl_without_a_content_type_gets_an_answer(mesh: Mesh) -> None:
    body = json.dumps({"messages": FRANCE, "max_tokens": 24, "temperature": 0})
    done = subprocess.run(
        ["curl", "-sS", f"{mesh.url}/v1/chat/completions", "-d", body], capture_output=True, text=True, check=True
    )
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_several_users_at_once_get_what_each_would_get_alone(mesh: Mesh) -> None:
    from concurrent.futures import ThreadPoolExecutor

    questions = [
        "What is the capital of France? Answer in one sentence.",
        "What do bees make?",
        "Tell me about the moon.",
        "Count to ten.",
    ]
    messages: list[list[ChatCompletionMessageParam]] = [[{"role": "user", "content": text}] for text in questions]
    alone = [streamed(mesh, messages=message, max_tokens=20) for message in messages]

    with ThreadPoolExecutor(len(messages)) as pool:
        together = list(pool.map(lambda message: streamed(mesh, messages=message, max_tokens=20), messages))

    assert together == alone


def test_a_client_that_leaves_frees_every_hop(mesh: Mesh) -> None:
    chunks = client_of(mesh).chat.completions.create(
        model=MODEL, messages=STORY, max_tokens=2000, stream=True, extra_body={"route": both_routes(mesh)[1]}
    )
    next(iter(chunks))
    assert sum(sessions_of(mesh)) == 2

    chunks.close()

    wait_until(lambda: sum(sessions_of(mesh)) == 0, timeout_s=2)


def sessions_of(mesh: Mesh) -> list[int]:
    urls = [node["url"] for node in get_json(mesh.url, "/v1/nodes")["nodes"]]
    sessions = []
    for url in urls:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            sessions.append(int(json.load(response)["sessions"]))
    return sessions
