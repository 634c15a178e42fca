"""The chat path over real sockets: what clients see, and what is left behind when something breaks."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from meshnet_protocol.messages import Leave
from meshnet_tracker import asgi, body_reader, proxy
from meshnet_tracker.fleet import NodeLeft, NodeRegistered
from meshnet_tracker.testing import (
    PROMPT_TOKENS,
    TEN_PIECES,
    FakeHead,
    RunningTracker,
    make_card,
    make_registration,
    running_head,
    running_tracker,
)

MESSAGES: list[Any] = [{"role": "user", "content": "a secret question"}]
CHAT = {"model": "tiny", "messages": MESSAGES}
TEXT = "".join(TEN_PIECES)
CONTEXT_ERROR = {
    "message": "This model's maximum context length is 512 tokens, and 600 were asked for",
    "type": "meshnet_node_error",
    "param": None,
    "code": "context_length_exceeded",
}


@asynccontextmanager
async def mesh(*heads: dict[str, Any], **settings: Any) -> AsyncIterator[tuple[RunningTracker, list[FakeHead]]]:
    """A tracker and whole-model heads ``h0``, ``h1``, ...; earlier ones have the better priors."""
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(running_tracker(**settings))
        running = [await stack.enter_async_context(running_head(**fields)) for fields in heads]
        for index, head in enumerate(running):
            tracker.register(f"h{index}", "0-39", url=head.url, layer_tokens_per_s=1000.0 - index)
        yield tracker, running


@asynccontextmanager
async def client_of(tracker: RunningTracker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{tracker.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@asynccontextmanager
async def post(tracker: RunningTracker, body: Any = None, **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    data = body if body is not None else json.dumps(CHAT | fields).encode()
    url = f"{tracker.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, data=data) as response:
        yield response


async def read_stream(response: aiohttp.ClientResponse) -> list[Any]:
    """The data of all events, decoded; ``[DONE]`` stays as it is."""
    lines = [line for line in (await response.text()).split("\n\n") if line.startswith("data: ")]
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


async def finished_chats(tracker: RunningTracker, count: int = 1) -> list[dict[str, Any]]:
    """The ``chat finished`` events, as soon as there are ``count``; by then nothing may be in flight."""
    async with asyncio.timeout(5), aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{tracker.url}/v1/events") as response:
                events = (await response.json())["events"]
            finished = [event for event in events if event["event"] == "chat finished"]
            if len(finished) >= count:
                assert tracker.server.router.in_flight_total == 0
                assert "secret" not in json.dumps(events)
                return finished


async def test_the_openai_client_gets_the_same_answer_streamed_and_whole() -> None:
    async with mesh({}) as (tracker, _), client_of(tracker) as client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES)
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (PROMPT_TOKENS, 10)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert chunks[0].model == whole.model == "tiny"


async def test_a_stream_has_exactly_the_events_clients_expect() -> None:
    async with mesh({"pieces": ("a", "b")}) as (tracker, _), post(tracker, stream=True) as response:
        text = await response.text()
        events = await read_stream(response)

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["x-meshnet-route"].startswith("tiny@")
    assert text.startswith(": ")
    assert text.endswith("data: [DONE]\n\n")
    assert "meshnet" not in text.replace(": meshnet", "")
    assert [event["choices"] for event in events[:-1]] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "b"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
    ]
    assert not any("usage" in event for event in events[:-1])


async def test_the_head_is_asked_to_stream_a_normalised_request_with_its_plan() -> None:
    async with mesh({}) as (tracker, (head,)), post(tracker, max_tokens=3, stop="x", temperature=0) as response:
        answer = await response.json()

    (request,) = head.requests
    assert (request.stream, request.max_tokens, request.stop, request.temperature) == (True, 3, ["x"], 0.0)
    assert request.seed is not None
    assert request.meshnet is not None
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 3,
        "total_tokens": PROMPT_TOKENS + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_no_tokens_wanted_is_an_empty_answer_and_no_sample() -> None:
    async with mesh({}) as (tracker, _), post(tracker, max_tokens=0) as response:
        answer = await response.json()
        (finished,) = await finished_chats(tracker)

    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert (finished["outcome"], finished["is_sampled"]) == ("completed", False)


async def test_an_empty_answer_where_tokens_were_due_is_an_error_and_never_a_200() -> None:
    async with mesh({"pieces": ()}) as (tracker, _), post(tracker) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "node_lost"
        (finished,) = await finished_chats(tracker)

    assert (finished["outcome"], finished["is_sampled"]) == ("degenerate", False)


async def test_an_empty_answer_is_asked_for_again_on_another_route() -> None:
    async with mesh({"pieces": ()}, {}) as (tracker, _), post(tracker) as response:
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"]
        (finished,) = await finished_chats(tracker)

    assert (finished["outcome"], finished["attempts"]) == ("completed", 2)


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("waits_for", ["go", "accepts"])
async def test_a_client_that_leaves_frees_the_head_at_once(is_stream: bool, waits_for: str) -> None:
    async with mesh({}) as (tracker, (head,)):
        getattr(head, waits_for).clear()
        async with asyncio.timeout(2), asyncio.TaskGroup() as tasks:
            client = tasks.create_task(_read_whole(tracker, is_stream))
            await head.was_asked.wait()
            client.cancel()
            await head.was_left.wait()
        (finished,) = await finished_chats(tracker)

    assert (finished["outcome"], finished["is_sampled"]) == ("client_gone", False)


async def _read_whole(tracker: RunningTracker, is_stream: bool) -> None:
    async with post(tracker, stream=is_stream) as response:
        await response.read()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    "failure",
    [
        {"breaks_after": 0},
        {"ends_after": 0},
        {"refusal": (500, {"message": "boom", "code": "decode"})},
        {"refusal": (503, {"message": "full", "code": "no_free_slot"})},
        {"refusal": (409, {"message": "not cut there", "code": "entry_layer"})},
        {"pieces": (), "stream_error": {"message": "link broke", "code": "link"}},
    ],
)
async def test_before_the_first_text_a_failure_is_retried_on_another_route_unseen(
    is_stream: bool, failure: dict[str, Any]
) -> None:
    async with mesh(failure, {}) as (tracker, (broken, sound)), post(tracker, stream=is_stream) as response:
        assert response.status == 200
        text = await response.text()
        (finished,) = await finished_chats(tracker)

    assert (len(broken.requests), len(sound.requests)) == (1, 1)
    assert text.count("word9") == 1
    assert "error" not in text
    assert text.count('"role":"assistant"') == 1
    assert (finished["outcome"], finished["attempts"], finished["is_sampled"]) == ("completed", 2, True)
    assert "h1." in finished["signature"]


async def test_a_grammar_that_nobody_can_follow_is_the_requests_fault_and_is_not_tried_elsewhere() -> None:
    failure = {"pieces": (), "stream_error": {"message": "the grammar took too long", "code": "invalid_grammar"}}
    async with mesh(failure, failure) as (tracker, heads), post(tracker) as response:
        answer = await response.json()
        (finished,) = await finished_chats(tracker)

    assert (response.status, answer["error"]["code"]) == (400, "invalid_grammar")
    assert sum(len(head.requests) for head in heads) == 1
    assert finished["outcome"] == "client_error"


async def test_a_whole_answer_is_retried_even_after_some_text() -> None:
    async with mesh({"breaks_after": 5}, {}) as (tracker, _), post(tracker) as response:
        answer = await response.json()

    assert answer["choices"][0]["message"]["content"] == TEXT


async def test_an_unreachable_head_is_left_out_until_it_is_heard_of_again() -> None:
    async with mesh({}, {}) as (tracker, heads):
        dead = tracker.register("dead", "0-39", url="http://127.0.0.1:9", layer_tokens_per_s=1e6)
        async with post(tracker) as response:
            assert response.status == 200
        node = tracker.server.fleet.node(dead)
        assert node is not None
        assert node.is_suspected
        async with post(tracker) as response:
            assert response.status == 200
        assert [chat["attempts"] for chat in await finished_chats(tracker, 2)] == [2, 1]
        assert sum(len(head.requests) for head in heads) == 2


async def test_the_hop_that_a_head_blames_is_left_out_and_the_head_is_not() -> None:
    async with running_tracker() as tracker, running_head() as head, running_head() as whole:
        head_id = tracker.register("head", "0-21", url=head.url, layer_tokens_per_s=9000.0)
        tail_id = tracker.register("tail", "22-39", layer_tokens_per_s=9000.0)
        tracker.register("whole", "0-39", url=whole.url)
        head.refusal = (502, {"message": "link broke", "code": "link", "culprit": tail_id, "reporter": ""})
        async with post(tracker) as response:
            assert response.status == 200
        states = {node.node_id: node.is_suspected for node in tracker.server.fleet.nodes()}

    assert (states[head_id], states[tail_id]) == (False, True)


async def test_when_every_route_fails_the_client_is_told_once() -> None:
    broken = {"breaks_after": 0}
    async with mesh(broken, broken, broken, broken) as (tracker, heads):
        async with post(tracker) as response:
            answer = await response.json()
        (finished,) = await finished_chats(tracker)

    assert (response.status, answer["error"]["code"]) == (503, "node_lost")
    assert response.headers["retry-after"] == "1"
    assert sum(len(head.requests) for head in heads) == 3, "two retries are enough"
    assert finished["outcome"] == "node_fault"


async def test_when_every_route_stays_full_the_client_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "PATIENCE_S_MAX", 0.05)
    full = {"refusal": (503, {"message": "all 4 slots are taken", "code": "no_free_slot"})}
    async with mesh(full, full) as (tracker, _), post(tracker, stream=True) as response:
        answer = await response.json()
        (finished,) = await finished_chats(tracker)
        faults = [node.faults.mass for node in tracker.server.fleet.nodes()]

    assert (response.status, answer["error"]["code"]) == (503, "overloaded")
    assert response.headers["retry-after"] == "1"
    assert finished["outcome"] == "overload"
    assert faults == [0.0, 0.0]


@pytest.mark.parametrize("failure", [{"breaks_after": 3}, {"ends_after": 3}])
async def test_a_stream_lost_midway_ends_with_an_error_and_done(
    monkeypatch: pytest.MonkeyPatch, failure: dict[str, Any]
) -> None:
    monkeypatch.setattr(proxy, "ROUTE_WAIT_S_MAX", 0.0)
    async with mesh(failure, failure) as (tracker, _), post(tracker, stream=True) as response:
        events = await read_stream(response)
        (finished,) = await finished_chats(tracker)

    *chunks, error, done = events
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", *TEN_PIECES[:3]]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["code"] == "node_lost"
    assert done == "[DONE]"
    assert (finished["is_sampled"], finished["completion_tokens"]) == (False, 3)
    assert finished["outcome"] == ("node_fault" if "breaks_after" in failure else "degenerate")


async def test_the_openai_client_raises_on_a_stream_lost_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "ROUTE_WAIT_S_MAX", 0.0)
    async with mesh({"breaks_after": 3}) as (tracker, _), client_of(tracker) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="The chat was lost"):
            async for _ in stream:
                pass


async def test_a_node_that_dies_silently_takes_no_chat_with_it() -> None:
    async with mesh({}, {}, heartbeat_period_s=30.0) as (tracker, (silent, sound)):
        silent.accepts.clear()
        async with asyncio.TaskGroup() as tasks:
            chat = tasks.create_task(_read_whole(tracker, is_stream=True))
            await silent.was_asked.wait()
            tracker.server.proxy.cut_off(_node_of(tracker, silent))
            await chat
        (finished,) = await finished_chats(tracker)

    assert len(sound.requests) == 1
    assert (finished["outcome"], finished["attempts"]) == ("completed", 2)


def _node_of(tracker: RunningTracker, head: FakeHead) -> Any:
    return next(node.node_id for node in tracker.server.fleet.nodes() if node.registration.url == head.url)


async def test_a_prompt_beyond_the_context_is_the_clients_error_and_is_not_retried() -> None:
    async with mesh({"refusal": (400, CONTEXT_ERROR)}, {}) as (tracker, (_, other)), client_of(tracker) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as caught:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        (finished,) = await finished_chats(tracker)

    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"
    assert other.requests == []
    assert finished["outcome"] == "client_error"


async def test_a_silent_stream_is_kept_alive_with_comments() -> None:
    async with mesh({}, comment_period_s=0.01) as (tracker, (head,)):
        head.go.clear()
        async with asyncio.timeout(5), post(tracker, stream=True) as response:
            received = b""
            while received.count(b": meshnet\n\n") < 4:
                received += await response.content.readany()
            head.go.set()
            received += await response.read()

    assert received.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_stops_reading_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "CLIENT_WRITE_S_MAX", 0.05)
    async with mesh({"pieces": ("x" * 1_000_000,) * 40}) as (tracker, (head,)), post(tracker, stream=True):
        async with asyncio.timeout(5):
            await head.was_left.wait()
        (finished,) = await finished_chats(tracker)

    assert finished["outcome"] == "client_gone"


async def test_a_model_that_has_gone_is_not_meant_by_a_request_without_a_name() -> None:
    async with mesh({}) as (tracker, _):
        gone = make_registration("gone", "0-39", model=make_card(name="gone"))
        tracker.server.handle(NodeRegistered(gone))
        async with post(tracker, model=None) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (404, "model")
        tracker.server.handle(NodeLeft(Leave(node_id=gone.node_id, incarnation=gone.incarnation)))
        async with post(tracker, model=None) as response:
            assert (await response.json())["model"] == "tiny"
        async with post(tracker, model="gone") as response:
            assert (await response.json())["error"]["code"] == "no_route"


async def test_many_chats_at_once_leave_nothing_behind_and_one_event_each() -> None:
    async with mesh({}, {}) as (tracker, _):
        async with asyncio.TaskGroup() as tasks:
            for number in range(40):
                tasks.create_task(_read_whole(tracker, is_stream=bool(number % 2)))
        finished = await finished_chats(tracker, 40)

    assert {chat["outcome"] for chat in finished} == {"completed"}
    assert len({chat["request_id"] for chat in finished}) == len(finished) == 40


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"messages": []}', 400, "empty_array"),
        (json.dumps(CHAT | {"model": "gpt-9"}).encode(), 404, "model_not_found"),
        (json.dumps(CHAT | {"temperature": 3}).encode(), 400, None),
        (json.dumps(CHAT | {"route": "h0"}).encode(), 400, "invalid_route"),
        (b" " * 2000 + b"{}", 413, None),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_in_openais_form(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, code: str | None
) -> None:
    monkeypatch.setattr(body_reader, "BODY_BYTES_MAX", 1000)
    async with mesh({}) as (tracker, _), post(tracker, body) as response:
        answer = await response.json()
        (finished,) = await finished_chats(tracker)

    assert (response.status, answer["error"]["code"]) == (status, code)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"].startswith("req_")
    assert finished["outcome"] == "client_error"
    assert (finished["error"]["status"], finished["error"]["code"]) == (status, code)


async def test_others_read_of_a_refused_request_which_field_was_wrong_and_nothing_that_it_held() -> None:
    refusal = (400, {"message": "no grammar from 'a secret'", "param": "response_format", "code": "invalid_grammar"})
    async with mesh({}, {"refusal": refusal}) as (tracker, (_, refuser)):
        for fields in ({"tools": "a secret"}, {"model": "gpt-9"}, {"route": [_node_of(tracker, refuser)]}):
            async with post(tracker, **fields) as response:
                assert not response.ok
        errors = [chat["error"] for chat in await finished_chats(tracker, 3)]

    assert [(error["param"], error["code"]) for error in errors] == [
        ("tools", None),
        ("model", "model_not_found"),
        ("response_format", "invalid_grammar"),
    ]
    assert [error["message"] is None for error in errors] == [True, False, True]


async def test_a_request_without_a_model_means_the_only_one() -> None:
    async with mesh({}) as (tracker, _), post(tracker, model=None) as response:
        assert (await response.json())["model"] == "tiny"


async def test_a_known_model_without_a_route_is_503_and_names_the_missing_layers() -> None:
    async with mesh() as (tracker, _):
        tracker.register("head", "0-16")
        async with post(tracker) as response:
            answer = await response.json()

    assert (response.status, answer["error"]["code"]) == (503, "no_route")
    assert "layers 17-39 are held by no ready node" in answer["error"]["message"]


async def test_a_bug_of_the_tracker_is_a_plain_500(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("secret detail")

    async with mesh({}) as (tracker, _):
        monkeypatch.setattr(tracker.server.router, "choose", broken)
        async with post(tracker) as response:
            answer = await response.json()

    assert response.status == 500
    assert "detail" not in json.dumps(answer)


async def test_a_node_that_falls_silent_leaves_the_candidates() -> None:
    async with mesh({}, heartbeat_period_s=0.01) as (tracker, _):
        async with asyncio.timeout(5):
            while list(tracker.server.fleet.nodes()):
                async with post(tracker) as response:
                    await response.read()
        async with post(tracker) as response:
            answer = await response.json()

    assert (response.status, answer["error"]["code"]) == (503, "no_route")


async def test_a_node_that_fails_chats_soon_loses_to_one_that_works_whatever_it_claims() -> None:
    """Nothing is ever proven here, so every choice is the best prior, without dice."""
    async with mesh({"pieces": ()}, {}, route_min_sample_tokens=1000) as (tracker, (broken, _)):
        tracker.register("h0", "0-39", url=broken.url, layer_tokens_per_s=1e7)
        for _ in range(8):
            async with post(tracker) as response:
                assert response.status == 200
        attempts = [chat["attempts"] for chat in await finished_chats(tracker, 8)]

    assert attempts[0] == 2
    assert attempts[-1] == 1
