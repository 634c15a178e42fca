"""uvicorn's HTTP with the limits it lacks: a request's head is bounded in bytes and in time.

Without them anybody who can connect, key or no key, could fill the tracker's memory with one endless header, or keep
connections for ever by sending a little of one now and then. What is no HTTP at all is told so in JSON, as
everything else is.
"""

import asyncio
import uuid
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from meshnet_protocol.patience import Patience
from meshnet_tracker.openai_errors import HttpError, error_object

HEAD_BYTES_MAX = 64 * 1024
"""Beyond what arrives in one piece with a request's first bytes."""
HEAD_S_MAX = 30.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    """Set as long as a request's head is due."""
    _head_bytes = 0
    _begins_now = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._begins_now = False
        super().data_received(data)
        if self._head_timer is None or self._begins_now:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, f"The request's headers exceed {HEAD_BYTES_MAX} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begins_now = True
        self._head_bytes = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _await_head(self) -> None:
        self._stop_timer()
        self._look_later(Patience(HEAD_S_MAX, self.loop.time()))

    def _look_later(self, patience: Patience) -> None:
        self._head_timer = self.loop.call_later(patience.next_look_s, self._look, patience)

    def _look(self, patience: Patience) -> None:
        patience.look(self.loop.time())
        if patience.is_over:
            self._give_up()
        else:
            self._look_later(patience)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        """Unless an earlier request of the same connection is still being answered."""
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timer()
        body = HttpError(status, error_object(message, kind="invalid_request_error")).body()
        headers: dict[str, Any] = {
            "content-type": "application/json",
            "content-length": len(body),
            "x-request-id": f"req_{uuid.uuid4().hex}",
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {headers[name]}" for name in headers)]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
