"""A node's port is anybody's to call: what strangers may make it hold is bounded in bytes and in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from meshnet_node import http_face, http_limits, link_server
from meshnet_node.errors import NodeError
from meshnet_node.http_face import bind, error_response, serving
from meshnet_node.http_limits import BodyReader
from meshnet_node.link import LINK_PATH
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.link_server import LinkServer
from meshnet_node.relay import HopService
from meshnet_protocol.frames import Greeting, decode_frame, encode_frame
from meshnet_protocol.ids import NodeId

GREETING = Greeting(node_id=NodeId("n"), fingerprint="f00d", hidden_size=64)


@asynccontextmanager
async def port_of_a_node() -> AsyncIterator[str]:
    """What a node does with bodies and links, without the model behind it."""
    bodies = BodyReader()
    hops = SimpleNamespace(identity=LinkIdentity(GREETING))

    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response(len(await bodies.read(request)))
        except NodeError as error:
            return error_response(error)

    app = web.Application()
    app.router.add_post("/chat", answer)
    app.router.add_get(LINK_PATH, LinkServer(cast(HopService, hops)).serve)
    with bind("127.0.0.1", 0) as listener:
        async with serving(app, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert bodies._held_bytes == 0


async def trickle(url: str, beginning: bytes) -> bytes:
    """What the node answers to a few bytes, and one more now and then until it has had enough."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(beginning)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(reader.read(4096))
        while not answer.done():
            writer.write(b" ")
            await asyncio.wait([answer], timeout=0.02)
    writer.close()
    return answer.result()


async def post(url: str, body: bytes) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/chat", data=body) as response:
        return response.status, await response.json()


async def test_a_body_that_trickles_in_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "BODY_SILENCE_S_MAX", 0.2)
    async with port_of_a_node() as url:
        answer = await trickle(
            url, b"POST /chat HTTP/1.1\r\nHost: n\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n{"
        )

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_too_slow" in answer


async def test_a_head_that_trickles_in_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_face, "HEAD_S_MAX", 0.2)
    async with port_of_a_node() as url:
        assert await trickle(url, b"POST /chat HTTP/1.1\r\nX-Header: ") == b""


async def test_bodies_are_bounded_one_by_one_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "BODY_BYTES_MAX", 2000)
    monkeypatch.setattr(http_limits, "BODIES_BYTES_MAX", 1000)
    async with port_of_a_node() as url:
        assert await post(url, b"x" * 1000) == (200, 1000), "as long as there is room"
        together, alone = await post(url, b"x" * 1500), await post(url, b"x" * 2500)

    assert (together[0], together[1]["error"]["code"]) == (503, "overloaded")
    assert (alone[0], alone[1]["error"]["code"]) == (413, "body_too_large")


async def test_who_opens_a_link_and_never_greets_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_server, "GREETING_S_MAX", 0.2)
    async with port_of_a_node() as url, aiohttp.ClientSession() as http, http.ws_connect(url + LINK_PATH) as socket:
        async with asyncio.timeout(5):
            while not socket.closed:
                await socket.ping()
                message = await _receive_or_none(socket)
                if message is not None:
                    assert message.type is aiohttp.WSMsgType.CLOSE
                    assert "greeting" in str(message.extra)
                    return
    raise AssertionError("the link was left open")


async def test_links_from_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_server, "LINKS_MAX", 1)
    async with port_of_a_node() as url, aiohttp.ClientSession() as http:
        async with http.ws_connect(url + LINK_PATH) as socket:
            await socket.send_bytes(encode_frame(GREETING))
            greeting, _ = decode_frame((await socket.receive()).data)
            assert isinstance(greeting, Greeting)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(url + LINK_PATH)
            assert refused.value.status == 503
        async with asyncio.timeout(5):
            while True:
                try:
                    async with http.ws_connect(url + LINK_PATH):
                        return
                except aiohttp.WSServerHandshakeError:
                    await asyncio.sleep(0.01)


async def _receive_or_none(socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage | None:
    try:
        return await socket.receive(timeout=0.05)
    except TimeoutError:
        return None
