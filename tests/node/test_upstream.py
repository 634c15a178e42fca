"""A node in front of another server hands on chats and errors as they are, and counts what is under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from meshnet_node.errors import UpstreamError, UpstreamRefusalError
from meshnet_node.upstream import Upstream, find_card

CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'
END = b"data: [DONE]\n\n"


class Vendor:
    """A small server of ours that speaks the protocol; the mesh tests meet a real one."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = [{"id": "big", "max_model_len": 32768}]
        self.status = 200
        self.stream = CHUNK + CHUNK + END
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    def build(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": self.models})

    async def _chat(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.json_response({"error": {"message": "no such thing"}}, status=self.status)
        return web.Response(body=self.stream, content_type="text/event-stream")


@asynccontextmanager
async def upstream_of(vendor: Vendor, *, name: str | None = None) -> AsyncIterator[Upstream]:
    async with TestServer(vendor.build()) as server, aiohttp.ClientSession() as http:
        url = str(server.make_url(""))
        yield Upstream(http, url, await find_card(http, url, name), key="secret")


async def chat(upstream: Upstream, **body: Any) -> list[dict[str, Any]]:
    async with upstream.open_chat({"messages": [], **body}) as events:
        return [msgspec.json.decode(data) async for data in events]


async def test_chunks_come_back_as_they_are_and_usage_is_made_where_it_lacks() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as upstream:
        events = await chat(upstream, model="big@1234", temperature=0.5, seed=None, meshnet={"ticket": "private"})

    assert [event["choices"][0]["delta"]["content"] for event in events[:2]] == ["Hi", "Hi"]
    assert events[2]["usage"]["completion_tokens"] == 2
    assert vendor.bodies[0]["model"] == "big"
    assert not {"meshnet", "seed"} & vendor.bodies[0].keys()
    assert vendor.keys == ["Bearer secret"]


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


@pytest.mark.parametrize("stream", [CHUNK, CHUNK + b"data: {broken\n\n" + END], ids=["cut-short", "unreadable"])
async def test_a_stream_that_breaks_is_an_error_and_not_an_end(stream: bytes) -> None:
    vendor = Vendor()
    vendor.stream = stream
    async with upstream_of(vendor) as upstream:
        with pytest.raises(UpstreamError, match=r"early|unreadable"):
            await chat(upstream)

    assert upstream.queue_depth == 0


async def test_chats_under_way_are_counted_and_a_client_that_leaves_is_no_longer() -> None:
    async with upstream_of(Vendor()) as upstream:
        async with upstream.open_chat({"messages": []}) as events:
            await anext(events)
            during = upstream.queue_depth
        await asyncio.sleep(0)

        assert (during, upstream.queue_depth) == (1, 0)


async def test_the_card_names_the_model_and_its_context() -> None:
    vendor = Vendor()
    async with upstream_of(vendor) as one:
        vendor.models.append({"id": "small"})
        with pytest.raises(UpstreamError, match="--model-name: big, small"):
            async with upstream_of(vendor):
                pass
        async with upstream_of(vendor, name="small") as other:
            pass

    assert (one.card.name, one.card.context_tokens, one.card.layer_count) == ("big", 32768, 1)
    assert other.card.fingerprint != one.card.fingerprint
