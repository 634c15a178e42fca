"""The head of a request has limits, whoever sends it."""

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from meshnet_tracker import bounded_http
from meshnet_tracker.bounded_http import HEAD_BYTES_MAX, BoundedHttpProtocol


async def never_asked(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


class Wire(asyncio.Transport):
    """The other end of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed.set()


def connect() -> tuple[BoundedHttpProtocol, Wire]:
    wire = Wire()
    protocol = BoundedHttpProtocol(uvicorn.Config(never_asked, log_config=None), ServerState(), {})
    protocol.connection_made(wire)
    return protocol, wire


def answer_of(wire: Wire) -> tuple[int, Any]:
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert b"x-request-id: req_" in head
    return int(head.split()[1]), json.loads(body)["error"]["message"]


@pytest.mark.parametrize("piece", [b"a" * 1000, b"a: b\r\n" * 200])
async def test_headers_without_end_are_refused(piece: bytes) -> None:
    protocol, wire = connect()
    protocol.data_received(b"GET /health HTTP/1.1\r\nX: ")
    for _ in range(1 + HEAD_BYTES_MAX // len(piece)):
        assert not wire.closed.is_set()
        protocol.data_received(piece)

    assert wire.closed.is_set()
    assert answer_of(wire) == (431, f"The request's headers exceed {HEAD_BYTES_MAX} bytes.")
    protocol.connection_lost(None)


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nX: "])
async def test_a_connection_on_which_no_request_comes_is_closed(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_S_MAX", 0.01)
    protocol, wire = connect()
    if begun:
        protocol.data_received(begun)
    async with asyncio.timeout(5):
        await wire.closed.wait()
    protocol.connection_lost(None)


async def test_what_is_no_http_is_told_so_in_json() -> None:
    protocol, wire = connect()
    protocol.data_received(b"\x00\x01nonsense\r\n\r\n")

    assert answer_of(wire) == (400, "Invalid HTTP request received.")
    protocol.connection_lost(None)
