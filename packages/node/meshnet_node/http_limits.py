"""Limits of a node's HTTP port: how large requests are, how slowly they may come, how slowly answers may be taken.

Anybody who can reach the port may begin a request, ticket or not. What is held for such people is bounded in bytes,
all requests together, and in time: a body has to come at ``BODY_BYTES_PER_S_MIN``, but for pauses of half a minute.
"""

import asyncio

from aiohttp import ClientPayloadError, web

from meshnet_node.errors import BodyTooLargeError, BodyTooSlowError, OverloadedError
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.patience import BODY_BYTES_PER_S_MIN, BODY_SILENCE_S_MAX, Patience

BODY_BYTES_MAX = 64 * 1024 * 1024
BODIES_BYTES_MAX = 256 * 1024 * 1024
HEAD_S_MAX = 90.0
"""How long a request's head may take, and a connection be without one. Longer than trackers keep theirs."""
WRITE_S_MAX = 60.0
"""How long a reader may take nothing. The tracker gives up on its own clients sooner."""


class BodyReader:
    """All bodies that are being read."""

    def __init__(self) -> None:
        self._held_bytes = 0

    async def read(self, request: web.Request) -> bytes:
        """Raises BodyTooLargeError, BodyTooSlowError or OverloadedError; ConnectionResetError if it never came."""
        _check_size(request.content_length or 0)
        patience = Patience(BODY_SILENCE_S_MAX, asyncio.get_running_loop().time())
        parts: list[bytes] = []
        received_bytes = 0
        try:
            while part := await _read_in_time(request, patience):
                received_bytes += len(part)
                self._held_bytes += len(part)
                _check_size(received_bytes)
                if self._held_bytes > BODIES_BYTES_MAX:
                    raise OverloadedError("this node is reading too many large requests; try another one")
                parts.append(part)
                patience.earn(len(part) / BODY_BYTES_PER_S_MIN)
            return b"".join(parts)
        finally:
            self._held_bytes -= received_bytes


async def _read_in_time(request: web.Request, patience: Patience) -> bytes:
    try:
        async with AwakeTimeout(patience):
            return await request.content.readany()
    except TimeoutError as error:
        raise BodyTooSlowError(f"the body came at less than {BODY_BYTES_PER_S_MIN} bytes/s") from error
    except ClientPayloadError as error:
        raise ConnectionResetError("the sender left in the middle of its request") from error


def _check_size(byte_count: int) -> None:
    if byte_count > BODY_BYTES_MAX:
        raise BodyTooLargeError(f"the body exceeds {BODY_BYTES_MAX} bytes")


async def write_in_time(response: web.StreamResponse, data: bytes) -> None:
    """Raises ConnectionResetError if nobody takes it: a frozen reader must not hold the route's slots."""
    try:
        async with AwakeTimeout(WRITE_S_MAX):
            await response.write(data)
    except TimeoutError as error:
        raise ConnectionResetError(f"the reader took nothing for {WRITE_S_MAX:g} s") from error
