"""Reading request bodies: refused by their announced size before a byte is read, and bounded all together.

Every body may be large (images, long documents), but not every one at a time: beyond ``BODIES_BYTES_MAX`` in all, a
further one is told to come again, whatever its size.
"""

import asyncio

from meshnet_tracker.asgi import Message, Receive, Scope
from meshnet_tracker.errors import BodyTooLargeError, ClientGoneError, OverloadedError

BODY_BYTES_MAX = 32 * 1024 * 1024
BODIES_BYTES_MAX = 256 * 1024 * 1024
BODY_SILENCE_S_MAX = 30.0
"""How long a client may send nothing in the middle of its body."""


class BodyReader:
    """All bodies that are being read, or belong to a chat that has not been understood yet."""

    def __init__(self) -> None:
        self._held_bytes = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. Raises BodyTooLargeError, OverloadedError, or ClientGoneError if it never came."""
        _check_size(_announced_bytes(scope))
        parts: list[bytes] = []
        received_bytes = 0
        try:
            while True:
                message = await _receive_in_time(receive)
                part = message.get("body", b"")
                received_bytes += len(part)
                self._held_bytes += len(part)
                _check_size(received_bytes)
                if self._held_bytes > BODIES_BYTES_MAX:
                    raise OverloadedError("The tracker is reading too many large requests; ask again in a moment.")
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            self._held_bytes -= received_bytes


async def _receive_in_time(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_SILENCE_S_MAX):
            message = await receive()
    except TimeoutError as error:
        raise ClientGoneError("the client stopped in the middle of its request") from error
    if message["type"] == "http.disconnect":
        raise ClientGoneError("the client left while it was sending")
    return message


def _announced_bytes(scope: Scope) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _check_size(byte_count: int) -> None:
    if byte_count > BODY_BYTES_MAX:
        raise BodyTooLargeError(f"The body exceeds {BODY_BYTES_MAX} bytes.")
