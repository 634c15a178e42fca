"""A node in front of another server hands on chats and errors as they are, and counts what is under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from meshnet_node.chat_writer import error_body
from meshnet_node.errors import UpstreamError, UpstreamRefusalError
from meshnet_node.member_life import NodeIdentity
from meshnet_node.ticket_gate import TicketGate
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.upstream import Upstream, find_card
from meshnet_node.upstream_server import UpstreamApp
from meshnet_node.wallet import Wallet
from meshnet_protocol.ids import Incarnation
from meshnet_protocol.messages import ChatChunk, HeadRequest, Tool, Usage

CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
END = b"data: [DONE]\n\n"


class Vendor:
    """A small server of ours that speaks the protocol; the mesh tests meet a real one."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] | None = [{"id": "big", "max_model_len": 32768}]
        self.status = 200
        self.error: dict[str, Any] = {"message": "no such thing"}
        self.stream = CHUNK + CHUNK + END
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    def build(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._chat)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        if self.models is None:
            raise web.HTTPBadGateway
        return web.json_response({"data": self.models})

    async def _chat(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json() | {"path": request.path})
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.json_response({"error": self.error}, status=self.status)
        return web.Response(body=self.stream, content_type="text/event-stream")


@asynccontextmanager
async def upstream_of(vendor: Vendor, *, name: str | None = None) -> AsyncIterator[Upstream]:
    async with TestServer(vendor.build()) as server, aiohttp.ClientSession() as http:
        url = str(server.make_url(""))
        yield Upstream(http, url, await find_card(http, url, name), key="secret")


async def chat(upstream: Upstream, **fields: Any) -> list[ChatChunk]:
    prompt = {} if "prompts" in fields else {"messages": [{"role": "user", "content": "hi"}]}
    async with upstream.open_chat(HeadRequest(**{**prompt, **fields})) as chunks:
        return [chunk async for chunk in chunks]


def event(choice: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choices = [] if choice is None else [{"index": 0} | choice]
    return b"data: " + msgspec.json.encode({"choices": choices} | fields) + b"\n\n"


def usage_of(chunks: list[ChatChunk]) -> Usage:
    assert isinstance(chunks[-1].usage, Usage)
    return chunks[-1].usage


def texts_of(chunks: list[ChatChunk]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


def thoughts_of(chunks: list[ChatChunk]) -> str:
    return "".join(choice.delta.reasoning_content or "" for chunk in chunks for choice in chunk.choices)


def ends_of(chunks: list[ChatChunk]) -> list[tuple[int, str]]:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return [(choice.index, choice.finish_reason) for choice in choices if choice.finish_reason]


async def test_a_plain_request_asks_for_nothing_that_every_server_must_know() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream, model="big@1234", temperature=0.5)

    assert texts_of(chunks) == {0: "HiHi"}
    assert ends_of(chunks) == [(0, "stop")]
    assert usage_of(chunks).completion_tokens == 2
    assert vendor.bodies == [
        {
            "path": "/v1/chat/completions",
            "model": "big",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert vendor.keys == ["Bearer secret"]


async def test_everything_else_is_asked_for_in_openais_words() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as upstream:
        await chat(
            upstream,
            tools=[Tool(name="f", description="d", parameters={"type": "object"})],
            tool_choice="f",
            response_schema={"type": "string"},
            top_logprobs=2,
            logit_bias={7: -1.5},
            repeat_penalty=1.1,
            seed=2**53,
            stop=["x"],
            top_k=5,
            max_tokens=9,
        )
    body = vendor.bodies[0]

    assert body["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    ]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["response_format"]["json_schema"]["schema"] == {"type": "string"}
    assert (body["logprobs"], body["top_logprobs"], body["logit_bias"]) == (True, 2, {"7": -1.5})
    assert (body["repeat_penalty"], body["repetition_penalty"]) == (1.1, 1.1)
    assert (body["seed"], body["stop"], body["top_k"], body["max_tokens"]) == (0, ["x"], 5, 9)


async def test_several_answers_are_asked_for_one_by_one_and_their_prompt_counts_once() -> None:
    vendor = Vendor()
    vendor.stream = CHUNK + event(usage={"prompt_tokens": 10, "completion_tokens": 3}) + END
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream, n=3, seed=4)

    assert texts_of(chunks) == {0: "Hi", 1: "Hi", 2: "Hi"}
    assert [body["seed"] for body in vendor.bodies] == [4, 5, 6]
    assert usage_of(chunks) == Usage(prompt_tokens=10, completion_tokens=9, total_tokens=19)
    assert upstream.queue_depth == 0


async def test_text_completions_go_to_their_own_endpoint_prompt_by_prompt() -> None:
    vendor = Vendor()
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -1.0}]}
    vendor.stream = event({"text": "a", "logprobs": logprobs}) + event({"text": "", "finish_reason": "length"}) + END
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream, prompts=["one", [1, 2]], top_logprobs=2)

    assert [(body["path"], body["prompt"], body["logprobs"]) for body in vendor.bodies] == [
        ("/v1/completions", "one", 2),
        ("/v1/completions", [1, 2], 2),
    ]
    assert ends_of(chunks) == [(0, "length"), (1, "length")]
    found = chunks[0].choices[0].logprobs
    assert found is not None
    assert [top.token for top in found.content[0].top_logprobs] == ["a", "b"]


async def test_tool_calls_in_pieces_leave_whole_and_thinking_apart() -> None:
    vendor = Vendor()

    def call(**function: str) -> dict[str, Any]:
        return {"delta": {"tool_calls": [{"index": 0, "function": function}]}}

    vendor.stream = event({"delta": {"role": "assistant", "content": None, "reasoning": "hm"}}, usage=None)
    vendor.stream += event({"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f"}}]}})
    vendor.stream += event(call(arguments='{"a":')) + event(call(arguments=" 1}"))
    vendor.stream += event({"delta": {}, "finish_reason": "tool_calls"}) + END
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream, tools=[Tool(name="f")])
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]

    assert deltas[0].reasoning_content == "hm"
    assert [(c.id, c.function.name, c.function.arguments) for d in deltas for c in d.tool_calls] == [
        ("c1", "f", '{"a": 1}')
    ]
    assert ends_of(chunks) == [(0, "tool_calls")]


THOUGHTFUL = "<think>\nLet me see, 1 < 2.\n</think>\n\nYes, <b>it is</b>."


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, len(THOUGHTFUL)])
async def test_thoughts_in_the_text_are_taken_out_of_it_wherever_it_is_cut(size: int) -> None:
    vendor = Vendor()
    pieces = [THOUGHTFUL[start : start + size] for start in range(0, len(THOUGHTFUL), size)]
    vendor.stream = b"".join(event({"delta": {"content": piece}}) for piece in pieces)
    vendor.stream += event({"delta": {}, "finish_reason": "stop"}) + END
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream)
        told = await chat(upstream, prompts=["a"])

    assert thoughts_of(chunks) == "Let me see, 1 < 2."
    assert texts_of(chunks) == {0: "Yes, <b>it is</b>."}
    assert ends_of(chunks) == [(0, "stop")]
    assert usage_of(chunks).completion_tokens == len(pieces)
    assert (texts_of(told), thoughts_of(told)) == ({0: THOUGHTFUL}, "")


async def test_thoughts_without_an_end_and_half_a_mark_come_out_as_what_they_are() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as upstream:
        vendor.stream = event({"delta": {"content": "<think>so </thi"}, "finish_reason": "length"}) + END
        unfinished = await chat(upstream)
        vendor.stream = event({"delta": {"content": "<thin"}, "finish_reason": "length"}) + END
        half = await chat(upstream)

    assert (thoughts_of(unfinished), texts_of(unfinished)[0]) == ("so </thi", "")
    assert (thoughts_of(half), texts_of(half)[0]) == ("", "<thin")


async def test_a_server_that_tells_thoughts_apart_is_believed() -> None:
    vendor = Vendor()
    vendor.stream = event({"delta": {"content": "<"}}) + event({"delta": {"reasoning_content": "hm"}})
    vendor.stream += event({"delta": {"content": "think> is a tag"}}) + END
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream)

    assert (thoughts_of(chunks), texts_of(chunks)[0]) == ("hm", "<think> is a tag")


async def test_no_tokens_at_all_are_not_asked_for() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as upstream:
        chunks = await chat(upstream, max_tokens=0, n=2)

    assert ends_of(chunks) == [(0, "length"), (1, "length")]
    assert usage_of(chunks).total_tokens == 0
    assert vendor.bodies == []


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, UpstreamRefusalError, "upstream"),
        (500, UpstreamError, "upstream"),
        (401, UpstreamError, "upstream"),
        (503, UpstreamError, "no_free_slot"),
    ],
)
async def test_errors_of_the_upstream_keep_their_meaning(status: int, kind: type[UpstreamError], code: str) -> None:
    vendor = Vendor()
    vendor.status = status
    async with upstream_of(vendor) as upstream:
        with pytest.raises(kind, match="no such thing") as failure:
            await chat(upstream)

    assert failure.value.code == code
    assert upstream.queue_depth == 0


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        ({"message": "no", "code": "invalid_value", "param": "top_p"}, "invalid_value", "top_p"),
        ({"message": "no", "code": 400, "param": None}, "upstream", None),
        ({"message": "maximum context length is 64", "code": 400}, "context_length_exceeded", None),
        ({"message": "too big", "type": "exceed_context_size_error", "n_ctx": 64}, "context_length_exceeded", None),
    ],
)
async def test_a_refusal_of_the_upstream_reaches_the_client_in_openais_words(
    error: dict[str, Any], code: str, param: str | None
) -> None:
    vendor = Vendor()
    vendor.status, vendor.error = 400, error
    async with upstream_of(vendor) as upstream:
        with pytest.raises(UpstreamRefusalError) as failure:
            await chat(upstream)

    told = error_body(failure.value)
    assert (told["code"], told["param"]) == (code, param)
    assert ("maximum context length is 64" in str(told["message"])) == (code == "context_length_exceeded")


@pytest.mark.parametrize(
    "stream",
    [
        CHUNK,
        CHUNK + b"data: {broken\n\n" + END,
        b'data: {"choices": [{"delta": {"content": 5}}]}\n\n' + END,
        b'data: {"choices": [{"delta": {"tool_calls": 7}}]}\n\n' + END,
        b'data: {"error": {"message": "unreadable and early"}}\n\n' + END,
    ],
    ids=["cut-short", "unreadable", "no-text", "no-calls", "error"],
)
async def test_a_stream_that_breaks_is_an_error_and_not_an_end(stream: bytes) -> None:
    vendor = Vendor()
    vendor.stream = stream
    async with upstream_of(vendor) as upstream:
        with pytest.raises(UpstreamError, match=r"early|unreadable"):
            await chat(upstream)

    assert upstream.queue_depth == 0


async def test_chats_under_way_are_counted_and_a_client_that_leaves_is_no_longer() -> None:
    async with upstream_of(Vendor()) as upstream:
        async with upstream.open_chat(HeadRequest(messages=[{"role": "user", "content": "hi"}])) as events:
            await anext(events)
            during = upstream.queue_depth
        await asyncio.sleep(0)

        assert (during, upstream.queue_depth) == (1, 0)


async def test_the_card_names_the_model_and_its_context() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as one:
        vendor.models = [{"id": "big"}, {"id": "small"}]
        with pytest.raises(UpstreamError, match="--model-name: big, small"):
            async with upstream_of(vendor):
                pass
        async with upstream_of(vendor, name="small") as other:
            pass

    assert (one.card.name, one.card.context_tokens, one.card.layer_count) == ("big", 32768, 1)
    assert other.card.fingerprint != one.card.fingerprint


async def test_servers_with_the_same_model_stand_in_for_each_other_wherever_they_are() -> None:
    async with upstream_of(Vendor()) as one, upstream_of(Vendor()) as other:
        assert one.card.model_key == other.card.model_key


@pytest.mark.parametrize(("models", "status"), [([{"id": "big"}], 200), (None, 503)])
async def test_the_health_of_such_a_node_is_that_of_its_upstream(
    models: list[dict[str, Any]] | None, status: int, tmp_path: Path
) -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as upstream:
        wallet = Wallet.load_or_create(tmp_path / "wallet.pem")
        identity = NodeIdentity(wallet, "up", Incarnation("1"), "http://127.0.0.1", upstream.shard)
        app = UpstreamApp(identity, upstream, TicketGate(TrackerTrust(), allows_direct=True)).build()
        vendor.models = models
        async with (
            TestServer(app) as node,
            aiohttp.ClientSession() as http,
            http.get(node.make_url("/health")) as response,
        ):
            told = await response.json()

    assert (response.status, told["node_id"]) == (status, identity.node_id)
