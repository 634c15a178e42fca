"""Head duties: a chat from messages to tokens to text.

    messages ──template──> prompt ──tokenize──> ids ──prefill in chunks──> first token
                                                        one step per token ──> ids, text, finish reason

``open_chat`` settles everything that can be refused (template, context, every hop's slot) before the
caller says 200; ``stream`` then yields chunks. Text lags behind tokens where a character or a possible
stop string is unfinished; the ids of drawn tokens always travel at once, on the side.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

from meshnet_node.engine.api import Engine, StepInput, Vocabulary
from meshnet_node.errors import ContextOverflowError, PlanError
from meshnet_node.relay import STEPS_IN_FLIGHT_MAX, HopReply, HopService, HopSession
from meshnet_node.text_stream import TextStream
from meshnet_protocol.frames import OpenSession
from meshnet_protocol.ids import SessionId
from meshnet_protocol.messages import HeadRequest, HopTiming, PlannedHop, RoutePlan, Sampling, Usage

TOKEN_CHARS_MAX = 256
"""More than the longest token of any vocabulary in use (long runs of spaces or dashes)."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one token brought: text that may be shown now, and the ids drawn since the last delta."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The last word of a chat."""

    finish_reason: str
    usage: Usage
    timings: tuple[HopTiming, ...]


@dataclass(slots=True)
class Chat:
    """An accepted chat: its route is open and its prompt fits."""

    session: HopSession
    engine: Engine
    prompt: Sequence[int]
    token_limit: int
    """Most tokens to draw."""
    stop: Sequence[str]
    ignore_eos: bool
    _drawn: int = 0
    _timings: tuple[HopTiming, ...] = field(default=())

    async def stream(self) -> AsyncIterator[TextDelta | ChatEnd]:
        """Deltas, then exactly one ``ChatEnd``. Raises NodeError, LinkError or RemoteHopError."""
        text = TextStream(self.stop)
        if self.token_limit == 0:
            yield self._end("length")
            return
        token_id = await self._prefill()
        while True:
            self._drawn += 1
            if self.engine.vocabulary.is_end(token_id) and not self.ignore_eos:
                yield TextDelta(text.finish(), (token_id,))
                yield self._end("stop")
                return
            shown = text.push(self.engine.vocabulary.piece(token_id))
            if text.has_stopped or self._drawn == self.token_limit:
                yield TextDelta(shown + text.finish(), (token_id,))
                yield self._end("stop" if text.has_stopped else "length")
                return
            yield TextDelta(shown, (token_id,))
            token_id = await self._draw(token_id)

    async def _prefill(self) -> int:
        """Send the prompt down the route in chunks, a few ahead of the replies; the last one draws a token."""
        size = self.engine.options.chunk_tokens
        starts = range(0, len(self.prompt), size)
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
        token_id = chunks[-1].result()
        assert token_id is not None
        return token_id

    async def _prefill_chunk(self, window: asyncio.Semaphore, start: int, *, is_last: bool) -> int | None:
        tokens = self.prompt[start : start + self.engine.options.chunk_tokens]
        async with window:
            return await self._run(tokens, start, wants_token=is_last)

    async def _draw(self, token_id: int) -> int:
        drawn = await self._run((token_id,), len(self.prompt) + self._drawn - 1, wants_token=True)
        assert drawn is not None
        return drawn

    async def _run(self, tokens: Sequence[int], position: int, *, wants_token: bool) -> int | None:
        step = StepInput(position=position, tokens=tokens, hidden=None, wants_token=wants_token)
        reply: HopReply = await self.session.run_step(step, len(tokens))
        self._timings = add_timings(self._timings, reply.timings)
        return reply.token_id

    def _end(self, finish_reason: str) -> ChatEnd:
        prompt, drawn = len(self.prompt), self._drawn
        usage = Usage(prompt_tokens=prompt, completion_tokens=drawn, total_tokens=prompt + drawn)
        return ChatEnd(finish_reason, usage, self._timings)


class ChatService:
    """Accepts chats at this head."""

    def __init__(self, hops: HopService) -> None:
        self._hops = hops

    @asynccontextmanager
    async def open_chat(self, request: HeadRequest) -> AsyncIterator[Chat]:
        """An accepted chat, open on every hop of its route until the context ends.

        Raises ContextOverflowError, TemplateError, PlanError, NoFreeSlotError and what a hop may raise.
        """
        engine = self._hops.engine
        plan = request.meshnet or self._own_plan()
        # A long text takes seconds to tokenize, and heartbeats and other chats must not wait for it.
        prompt = await asyncio.to_thread(encode_prompt, engine.vocabulary, request, engine.options.context_tokens)
        opening = OpenSession(plan=plan, hop_index=0, sampling=sampling_of(request))
        async with self._hops.open_hop_session(opening) as session:
            room = session.context_tokens - len(prompt)
            if room < 1:
                raise ContextOverflowError(len(prompt), session.context_tokens)
            limit = room if request.max_tokens is None else min(request.max_tokens, room)
            yield Chat(session, engine, prompt, limit, tuple(request.stop), request.ignore_eos)

    def _own_plan(self) -> RoutePlan:
        """A route of this node alone, for whoever talks to it directly."""
        engine = self._hops.engine
        if engine.shard.layer_count != engine.card.layer_count:
            raise PlanError(f"this node holds layers {engine.shard} only; send the chat to the tracker")
        alone = PlannedHop(node_id=self._hops.node_id, url="", start_layer=0, end_layer=engine.shard.last)
        return RoutePlan(session_id=new_session_id(), model_key=engine.card.model_key, hops=(alone,))


def encode_prompt(vocabulary: Vocabulary, request: HeadRequest, context_tokens: int) -> list[int]:
    """Token ids of the messages under the model's own template.

    Raises TemplateError, and ContextOverflowError if they do not leave room for one token.
    """
    prompt = vocabulary.render_chat(request.messages)
    # Told by its size before it is tokenized: a prompt of megabytes fits no context.
    tokens_min = len(prompt.text) // TOKEN_CHARS_MAX
    if tokens_min >= context_tokens:
        raise ContextOverflowError(tokens_min, context_tokens)
    tokens = vocabulary.tokenize(prompt.text, add_special=prompt.add_special, parse_special=True)
    if len(tokens) >= context_tokens:
        raise ContextOverflowError(len(tokens), context_tokens)
    return tokens


def sampling_of(request: HeadRequest) -> Sampling:
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed or 0,
    )


def add_timings(total: Sequence[HopTiming], step: Sequence[HopTiming]) -> tuple[HopTiming, ...]:
    """Hop by hop sums; both in route order, ``total`` empty at first."""
    return tuple(
        new
        if old is None
        else HopTiming(
            node_id=old.node_id,
            steps=old.steps + new.steps,
            queue_s=old.queue_s + new.queue_s,
            compute_s=old.compute_s + new.compute_s,
            link_s=old.link_s + new.link_s,
        )
        for old, new in zip_longest(total, step)
    )


def new_session_id() -> SessionId:
    return SessionId(uuid.uuid4().hex)
