"""Reading request bodies: refused by their announced size before a byte is read, bounded all together, and in time.

Every body may be large (images, long documents), but not every one at a time: beyond ``BODIES_BYTES_MAX`` in all, a
further one is told to come again, whatever its size.
"""

import asyncio

from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.patience import BODY_BYTES_PER_S_MIN, BODY_SILENCE_S_MAX, Patience
from meshnet_tracker.asgi import Message, Receive, Scope
from meshnet_tracker.errors import BodyTooLargeError, BodyTooSlowError, ClientGoneError, OverloadedError

BODY_BYTES_MAX = 32 * 1024 * 1024
BODIES_BYTES_MAX = 256 * 1024 * 1024
TOO_SLOW = f"The body came too slowly, or stopped: send at least {BODY_BYTES_PER_S_MIN} bytes/s."


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
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError("the client left while it was sending")
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


def paced(receive: Receive) -> Receive:
    """``receive`` of a request whose body must come at a least rate: no byte now and then may hold a place for ever.

    It raises BodyTooSlowError. What comes behind the body may take as long as it likes.
    """
    patience = Patience(BODY_SILENCE_S_MAX, asyncio.get_running_loop().time())
    is_whole = False

    async def receive_in_time() -> Message:
        nonlocal is_whole
        if is_whole:
            return await receive()
        try:
            async with AwakeTimeout(patience):
                message = await receive()
        except TimeoutError as error:
            raise BodyTooSlowError(TOO_SLOW) from error
        patience.earn(len(message.get("body", b"")) / BODY_BYTES_PER_S_MIN)
        is_whole = not message.get("more_body", False)
        return message

    return receive_in_time


def _announced_bytes(scope: Scope) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _check_size(byte_count: int) -> None:
    if byte_count > BODY_BYTES_MAX:
        raise BodyTooLargeError(f"The body exceeds {BODY_BYTES_MAX} bytes.")
