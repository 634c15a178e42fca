"""One answer from its prompt to its last token: replay, prefill, draw, text.

    ids ──prefill in chunks──> first token ──one step per token──> text, probabilities, finish reason

Text lags behind tokens where a character or a possible stop string is unfinished; the ids of drawn tokens
always travel at once, on the side. Probabilities of a token wait for its text, so that they never tell a
stop string.

An answer that another head has begun is *replayed* first: its tokens go through the same text machinery, so that
what was held back there is held back here, and the first word after them is the very next one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshnet_node.chunking import chunk_rows
from meshnet_node.engine.api import Engine, StepInput, Vocabulary
from meshnet_node.relay import STEPS_IN_FLIGHT_MAX, HopReply, HopSession, PendingStep
from meshnet_node.text_stream import TextStream
from meshnet_protocol.messages import ChoiceSoFar, ContentLogprob, TokenLogprobs, TopLogprob

TEXT_LAG_S = 0.002
"""Between the next step's beginning and a token's text: to write that takes the interpreter's lock, which the engine's
thread needs to begin. A token over two hops takes 2 to 3 % less time."""
NOT_BEGUN = ChoiceSoFar()
_SEEN_ALREADY = TokenLogprobs(logprob=0.0, top=())
"""Stands for probabilities that the client has got from another head."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """So many rows, of the prompt and of what is resumed, are computed on every hop."""

    tokens: int


@dataclass(frozen=True, slots=True)
class TokenText:
    """What one token brought: text that may be shown now, and the token itself.

    ``finish_reason`` is set on the last one.
    """

    text: str
    token_id: int | None
    logprobs: tuple[ContentLogprob, ...] = ()
    finish_reason: str | None = None
    raw_logprobs: TokenLogprobs | None = None
    """Of this token, also while its text is held back."""
    is_replayed: bool = False
    """Drawn and told by another head."""
    is_cut: bool = False
    """Of the last one: a limit or a stop string ended the answer, and not the model."""


@dataclass(slots=True)
class HeadChoice:
    """An answer whose session is open on every hop and whose prompt fits."""

    session: HopSession
    engine: Engine
    prompt: Sequence[int]
    token_limit: int
    """Most tokens to draw, those drawn elsewhere included."""
    stop: Sequence[str]
    ignore_eos: bool
    markers: Mapping[int, bytes]
    so_far: ChoiceSoFar = NOT_BEGUN
    wants_logprobs: bool = False
    replies: list[HopReply] = field(default_factory=list)
    """Since the caller last took them."""
    rows: list[int] = field(default_factory=list)
    """Token ids of the rows that every hop has computed."""
    _drawn: int = 0
    _reply: HopReply | None = None
    """The latest one of the prefill."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that need no computing."""
        return min(self._held_rows, len(self.prompt))

    @property
    def _held_rows(self) -> int:
        """Rows that need no computing. The last one always does: the next token is drawn from it."""
        return min(self.session.held_tokens, len(self.prompt) + len(self.so_far.token_ids) - 1)

    async def stream(self) -> AsyncGenerator[TokenText | Prefilled, None]:
        """One ``TokenText`` for every token; raises NodeError, LinkError or RemoteHopError."""
        if self.token_limit == 0:
            yield TokenText("", None, finish_reason="length", is_cut=True)
            return
        text = _TextAndLogprobs(self.engine.vocabulary, TextStream(self.stop))
        for replayed in self._replay(text):
            yield replayed
            if replayed.finish_reason is not None:
                return
        async for prefilled in self._prefill([*self.prompt, *self.so_far.token_ids]):
            yield prefilled
        reply = self._reply
        while True:
            assert reply is not None
            token = self._read(text, _token_of(reply), reply.logprobs)
            if token.finish_reason is not None:
                yield token
                return
            token_id = _token_of(reply)
            step = StepInput(len(self.prompt) + self._drawn - 1, (token_id,), None, wants_token=True)
            submitted = self.session.submit_step(step)
            await asyncio.sleep(TEXT_LAG_S)
            yield token
            reply = await self.session.run_step(step, 1, submitted)
            self.replies.append(reply)
            self.rows.append(token_id)

    def _replay(self, text: "_TextAndLogprobs") -> Iterator[TokenText]:
        so_far = self.so_far
        told_elsewhere = len(so_far.token_ids) - len(so_far.logprobs)
        for number, token_id in enumerate(so_far.token_ids):
            logprobs = so_far.logprobs[number - told_elsewhere] if number >= told_elsewhere else _SEEN_ALREADY
            token = self._read(text, token_id, logprobs if self.wants_logprobs else None)
            yield replace(token, is_replayed=True)

    def _read(self, text: "_TextAndLogprobs", token_id: int, logprobs: TokenLogprobs | None) -> TokenText:
        self._drawn += 1
        if self.engine.vocabulary.is_end(token_id) and not self.ignore_eos:
            return text.end(token_id, "", "stop", logprobs)
        shown = text.push(token_id, self._piece(token_id), logprobs)
        if text.has_stopped or self._drawn == self.token_limit:
            return replace(text.end(token_id, shown, "stop" if text.has_stopped else "length", logprobs), is_cut=True)
        return TokenText(shown, token_id, text.take_logprobs(), raw_logprobs=logprobs)

    def _piece(self, token_id: int) -> bytes:
        return self.markers.get(token_id) or self.engine.vocabulary.piece(token_id)

    async def _prefill(self, rows: Sequence[int]) -> AsyncGenerator[Prefilled, None]:
        """Send the rows down the route in chunks, a few ahead of the replies; the last one draws a token."""
        pending: deque[tuple[int, PendingStep]] = deque()
        size = chunk_rows(
            len(rows) - self._held_rows,
            hop_count=self.session.hop_count,
            overhead_rows=self.engine.chunk_overhead_rows,
            rows_max=self.engine.options.chunk_tokens,
            has_tiles=not self.engine.options.is_exact,
        )
        for start in range(self._held_rows, len(rows), size):
            while pending and (len(pending) == STEPS_IN_FLIGHT_MAX or pending[0][1].is_answered):
                yield await self._prefilled(pending)
            end = min(start + size, len(rows))
            step = StepInput(position=start, tokens=rows[start:end], hidden=None, wants_token=end == len(rows))
            pending.append((end, await self.session.begin_step(step, end - start)))
        while pending:
            yield await self._prefilled(pending)
        self.rows.extend(rows)

    async def _prefilled(self, pending: deque[tuple[int, PendingStep]]) -> Prefilled:
        end, step = pending.popleft()
        self._reply = await step.wait()
        self.replies.append(self._reply)
        return Prefilled(end)


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

    def end(self, token_id: int, shown: str, finish_reason: str, logprobs: TokenLogprobs | None) -> TokenText:
        """The last token: of what was held back all comes out, unless it is a stop string's."""
        shown += self._count(self._text.finish())
        return TokenText(shown, token_id, self.take_logprobs(), finish_reason, raw_logprobs=logprobs)

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
