"""One answer from its prompt to its last token: prefill, draw, text.

    ids ──prefill in chunks──> first token ──one step per token──> text, probabilities, finish reason

Text lags behind tokens where a character or a possible stop string is unfinished; the ids of drawn tokens
always travel at once, on the side. Probabilities of a token wait for its text, so that they never tell a
stop string.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from meshnet_node.engine.api import Engine, StepInput, Vocabulary
from meshnet_node.relay import STEPS_IN_FLIGHT_MAX, HopReply, HopSession
from meshnet_node.text_stream import TextStream
from meshnet_protocol.messages import ContentLogprob, TokenLogprobs, TopLogprob


@dataclass(frozen=True, slots=True)
class TokenText:
    """What one token brought: text that may be shown now, and the token itself.

    ``finish_reason`` is set on the last one.
    """

    text: str
    token_id: int | None
    logprobs: tuple[ContentLogprob, ...] = ()
    finish_reason: str | None = None


@dataclass(slots=True)
class Choice:
    """An answer whose session is open on every hop and whose prompt fits."""

    session: HopSession
    engine: Engine
    prompt: Sequence[int]
    token_limit: int
    """Most tokens to draw."""
    stop: Sequence[str]
    ignore_eos: bool
    markers: Mapping[int, bytes]
    replies: list[HopReply] = field(default_factory=list)
    """Since the caller last took them."""
    rows: list[int] = field(default_factory=list)
    """Token ids of the rows that every hop has computed."""
    _drawn: int = 0

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that need no computing. The last one always does: the answer is drawn from it."""
        return min(self.session.held_tokens, len(self.prompt) - 1)

    async def stream(self) -> AsyncGenerator[TokenText, None]:
        """One for every token; raises NodeError, LinkError or RemoteHopError."""
        if self.token_limit == 0:
            yield TokenText("", None, finish_reason="length")
            return
        text = _TextAndLogprobs(self.engine.vocabulary, TextStream(self.stop))
        reply = await self._prefill()
        while True:
            self._drawn += 1
            token_id = _token_of(reply)
            if self.engine.vocabulary.is_end(token_id) and not self.ignore_eos:
                yield text.end(token_id, "", "stop")
                return
            shown = text.push(token_id, self._piece(token_id), reply.logprobs)
            if text.has_stopped or self._drawn == self.token_limit:
                yield text.end(token_id, shown, "stop" if text.has_stopped else "length")
                return
            yield TokenText(shown, token_id, text.take_logprobs())
            reply = await self._run((token_id,), len(self.prompt) + self._drawn - 1, wants_token=True)
            self.rows.append(token_id)

    def _piece(self, token_id: int) -> bytes:
        return self.markers.get(token_id) or self.engine.vocabulary.piece(token_id)

    async def _prefill(self) -> HopReply:
        """Send the prompt down the route in chunks, a few ahead of the replies; the last one draws a token."""
        size = self.engine.options.chunk_tokens
        starts = range(self.cached_tokens, len(self.prompt), size)
        window = asyncio.Semaphore(STEPS_IN_FLIGHT_MAX)
        try:
            async with asyncio.TaskGroup() as tasks:
                chunks = [
                    tasks.create_task(self._prefill_chunk(window, start, is_last=start == starts[-1]))
                    for start in starts
                ]
        except ExceptionGroup as group:
            # When one chunk fails its session fails, and the others only repeat it.
            raise group.exceptions[0] from None
        self.rows.extend(self.prompt)
        return chunks[-1].result()

    async def _prefill_chunk(self, window: asyncio.Semaphore, start: int, *, is_last: bool) -> HopReply:
        tokens = self.prompt[start : start + self.engine.options.chunk_tokens]
        async with window:
            return await self._run(tokens, start, wants_token=is_last)

    async def _run(self, tokens: Sequence[int], position: int, *, wants_token: bool) -> HopReply:
        step = StepInput(position=position, tokens=tokens, hidden=None, wants_token=wants_token)
        reply = await self.session.run_step(step, len(tokens))
        self.replies.append(reply)
        return reply


class _TextAndLogprobs:
    """A text stream, and the probabilities of tokens whose text has been let out."""

    def __init__(self, vocabulary: Vocabulary, text: TextStream) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._shown_chars = 0
        self._waiting: deque[tuple[int, ContentLogprob]] = deque()

    @property
    def has_stopped(self) -> bool:
        return self._text.has_stopped

    def push(self, token_id: int, piece: bytes, logprobs: TokenLogprobs | None) -> str:
        shown = self._count(self._text.push(piece))
        if logprobs is not None and not self.has_stopped:
            ends_at = self._shown_chars + self._text.held_chars
            self._waiting.append((ends_at, content_logprob(self._vocabulary, token_id, logprobs)))
        return shown

    def end(self, token_id: int, shown: str, finish_reason: str) -> TokenText:
        """The last token: of what was held back all comes out, unless it is a stop string's."""
        shown += self._count(self._text.finish())
        return TokenText(shown, token_id, self.take_logprobs(), finish_reason)

    def take_logprobs(self) -> tuple[ContentLogprob, ...]:
        taken = []
        while self._waiting and self._waiting[0][0] <= self._shown_chars:
            taken.append(self._waiting.popleft()[1])
        return tuple(taken)

    def _count(self, text: str) -> str:
        self._shown_chars += len(text)
        return text


def content_logprob(vocabulary: Vocabulary, token_id: int, logprobs: TokenLogprobs) -> ContentLogprob:
    token = top_logprob(vocabulary, token_id, logprobs.logprob)
    return ContentLogprob(
        token=token.token,
        logprob=token.logprob,
        bytes=token.bytes,
        top_logprobs=[top_logprob(vocabulary, token_id, logprob) for token_id, logprob in logprobs.top],
    )


def top_logprob(vocabulary: Vocabulary, token_id: int, logprob: float) -> TopLogprob:
    piece = vocabulary.piece(token_id, special=True)
    return TopLogprob(token=piece.decode("utf-8", errors="replace"), logprob=logprob, bytes=list(piece))


def _token_of(reply: HopReply) -> int:
    assert reply.token_id is not None
    return reply.token_id
