"""How an answer reaches the client: as a stream of chunks, or whole.

Both kinds are fed the same words, in this order, by the proxy:

    (restart  accept  write*)*  (finish | fail)

``restart`` begins an attempt and forgets the one before, which is allowed until the answer
``is_committed``: until the client saw a part of it. That is the first piece of text of a stream, and the
end of a whole answer. ``accept`` when a head took the chat. Ids, times and names are the tracker's
own throughout, so that a change of head behind the scenes does not show.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from meshnet_protocol.messages import ChatChunk, Choice, Delta, Usage
from meshnet_tracker.asgi import Headers, Send, send_error, send_json
from meshnet_tracker.openai_errors import HttpError
from meshnet_tracker.sse import COMMENT, DONE, write_event

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True, slots=True)
class ReplyIdentity:
    """What every chunk of one answer repeats. ``created`` is Unix time in seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatReply(Protocol):
    """See the module's text for the order of calls. All raise ClientGoneError if nobody reads."""

    @property
    def is_committed(self) -> bool: ...
    async def accept(self, headers: Headers) -> None: ...
    async def write(self, text: str) -> None: ...
    def restart(self) -> None: ...
    async def finish(self, finish_reason: str, usage: Usage) -> None: ...
    async def fail(self, error: HttpError, headers: Headers) -> None: ...


class StreamedReply:
    """Chunks as server-sent events, each flushed at once."""

    def __init__(
        self, send: Send, identity: ReplyIdentity, *, includes_usage: bool, clock: Callable[[], float]
    ) -> None:
        self._send = send
        self._identity = identity
        self._includes_usage = includes_usage
        self._clock = clock
        self._is_open = False
        self._sent_at = 0.0
        self.is_committed = False

    async def accept(self, headers: Headers) -> None:
        """The 200 with its headers, a comment that makes proxies flush them, and the role; only the first time."""
        if self._is_open:
            return
        self._is_open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *headers]})
        await self._send_bytes(COMMENT)
        await self._send_choice(Delta(role="assistant", content=""))

    async def write(self, text: str) -> None:
        self.is_committed = True
        await self._send_choice(Delta(content=text))

    def restart(self) -> None:
        assert not self.is_committed

    async def finish(self, finish_reason: str, usage: Usage) -> None:
        self.is_committed = True
        await self._send_choice(Delta(), finish_reason)
        if self._includes_usage:
            await self._send_chunk([], usage)
        await self._send_bytes(write_event(DONE), is_last=True)

    async def fail(self, error: HttpError, headers: Headers) -> None:
        """A plain error response, or, once the 200 is out, an error event and the end."""
        if not self._is_open:
            await send_error(self._send, error, headers)
            return
        await self._send_bytes(write_event(error.body()))
        await self._send_bytes(write_event(DONE), is_last=True)

    async def keep_alive(self, period_s: float) -> None:
        """Sends a comment after every ``period_s`` of silence, until it is cancelled."""
        while True:
            silent_s = self._clock() - self._sent_at if self._is_open else 0.0
            if silent_s >= period_s:
                await self._send_bytes(COMMENT)
                silent_s = 0.0
            await asyncio.sleep(period_s - silent_s)

    async def _send_choice(self, delta: Delta, finish_reason: str | None = None) -> None:
        await self._send_chunk([Choice(index=0, delta=delta, finish_reason=finish_reason)])

    async def _send_chunk(self, choices: list[Choice], usage: Usage | msgspec.UnsetType = msgspec.UNSET) -> None:
        chunk = ChatChunk(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            system_fingerprint=self._identity.system_fingerprint,
            choices=choices,
            usage=usage,
        )
        await self._send_bytes(write_event(msgspec.json.encode(chunk)))

    async def _send_bytes(self, body: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        self._sent_at = self._clock()


class WholeReply:
    """One ``chat.completion`` at the end; until then a broken attempt leaves no trace."""

    def __init__(self, send: Send, identity: ReplyIdentity | None) -> None:
        """Without an identity it can only fail: for a request that was never understood."""
        self._send = send
        self._identity = identity
        self._texts: list[str] = []
        self._headers: Headers = ()
        self.is_committed = False

    async def accept(self, headers: Headers) -> None:
        self._headers = headers

    async def write(self, text: str) -> None:
        self._texts.append(text)

    def restart(self) -> None:
        self._texts.clear()

    async def finish(self, finish_reason: str, usage: Usage) -> None:
        assert self._identity is not None
        self.is_committed = True
        message = {"role": "assistant", "content": "".join(self._texts)}
        completion = {
            "id": self._identity.id,
            "object": "chat.completion",
            "created": self._identity.created,
            "model": self._identity.model,
            "system_fingerprint": self._identity.system_fingerprint,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
            "usage": usage,
        }
        await send_json(self._send, 200, msgspec.json.encode(completion), self._headers)

    async def fail(self, error: HttpError, headers: Headers) -> None:
        await send_error(self._send, error, headers)
