"""How an answer reaches the client: as a stream of chunks, or whole.

Both kinds are fed the same words, in this order, by the proxy:

    (accept  write*)*  (finish | fail)

``accept`` when a head took the chat; another one that takes over goes on with ``write`` where the last one broke
off. A choice's finish reason waits until the next choice begins or all is well: behind an error nothing may look
finished. Ids, times and names are the tracker's own throughout, so that a change of head behind the scenes does
not show.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from meshnet_protocol.messages import Choice, Delta, Usage
from meshnet_protocol.whole_choice import WholeChoice
from meshnet_tracker.asgi import Headers, Send, send_error, send_json
from meshnet_tracker.openai_errors import HttpError
from meshnet_tracker.reply_shape import ReplyIdentity, ReplyShape
from meshnet_tracker.sse import COMMENT, DONE, write_event

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ChatReply(Protocol):
    """See the module's text for the order of calls. All raise ClientGoneError if nobody reads."""

    async def accept(self, headers: Headers) -> None: ...
    async def write(self, choice: Choice) -> None: ...
    async def finish(self, usage: Usage) -> None: ...
    async def fail(self, error: HttpError, headers: Headers) -> None: ...


class StreamedReply:
    """Chunks as server-sent events, each flushed at once."""

    def __init__(
        self,
        send: Send,
        shape: ReplyShape,
        identity: ReplyIdentity,
        *,
        includes_usage: bool,
        clock: Callable[[], float],
    ) -> None:
        self._send = send
        self._shape = shape
        self._identity = identity
        self._includes_usage = includes_usage
        self._clock = clock
        self._is_open = False
        self._index = 0
        self._finished: Choice | None = None
        self._sent_at = 0.0

    async def accept(self, headers: Headers) -> None:
        """The 200 with its headers, a comment that makes proxies flush them, and the role; only the first time."""
        if self._is_open:
            return
        self._is_open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *headers]})
        await self._send_bytes(COMMENT)
        await self._begin(0)

    async def write(self, choice: Choice) -> None:
        if choice.index != self._index:
            await self._end_choice()
            await self._begin(choice.index)
        if not choice.delta.is_empty or choice.logprobs is not None:
            await self._send_chunk([msgspec.structs.replace(choice, finish_reason=None)])
        if choice.finish_reason is not None:
            self._finished = Choice(index=choice.index, delta=Delta(), finish_reason=choice.finish_reason)

    async def finish(self, usage: Usage) -> None:
        await self._end_choice()
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

    async def _begin(self, index: int) -> None:
        self._index = index
        if (opening := self._shape.opening(index)) is not None:
            await self._send_chunk([opening])

    async def _end_choice(self) -> None:
        if self._finished is not None:
            await self._send_chunk([self._finished])
            self._finished = None

    async def _send_chunk(self, choices: list[Choice], usage: Usage | msgspec.UnsetType = msgspec.UNSET) -> None:
        await self._send_bytes(write_event(self._shape.chunk(self._identity, choices, usage)))

    async def _send_bytes(self, body: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        self._sent_at = self._clock()


class WholeReply:
    """One object at the end."""

    def __init__(self, send: Send, shape: ReplyShape, identity: ReplyIdentity | None) -> None:
        """Without an identity it can only fail: for a request that was never understood."""
        self._send = send
        self._shape = shape
        self._identity = identity
        self._choices: dict[int, WholeChoice] = {}
        self._headers: Headers = ()

    async def accept(self, headers: Headers) -> None:
        self._headers = headers

    async def write(self, choice: Choice) -> None:
        self._choices.setdefault(choice.index, WholeChoice()).take(choice)

    async def finish(self, usage: Usage) -> None:
        assert self._identity is not None
        body = self._shape.whole(self._identity, self._choices, usage)
        await send_json(self._send, 200, body, self._headers)

    async def fail(self, error: HttpError, headers: Headers) -> None:
        await send_error(self._send, error, headers)
