"""Head duties: a chat, or a text completion, from words to tokens to words.

    messages ──template──> prompt ──tokenize──> ids ──choice by choice, each a session──> text ──parse──> parts

``open_chat`` settles everything that can be refused (template, grammar, context, every hop's slot) before the
caller says 200; ``stream`` then yields parts. Answers of one request (``n``, or several prompts) are drawn one
after the other, each in a session of its own: a request takes one slot of each hop, however many answers it
wants, and a busy mesh stays fair.

A request that another head has begun comes with its answers so far (``HeadRequest.so_far``): those that are finished
are left alone, the first that is not goes on where it was broken off, and nothing that was said is said again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec

from meshnet_node.answer_parser import AnswerParser, Content, Part
from meshnet_node.choice import NOT_BEGUN, HeadChoice, Prefilled, TokenText
from meshnet_node.errors import ContextOverflowError, NodeError, NoFreeSlotError, PlanError, RequestError
from meshnet_node.own_plan import plan_alone
from meshnet_node.prompt import Work, check_context, sampling_of, understand
from meshnet_node.relay import HopService, HopSession
from meshnet_protocol.frames import OpenSession
from meshnet_protocol.ids import SessionId
from meshnet_protocol.messages import (
    ChoiceSoFar,
    ContentLogprob,
    HeadRequest,
    HopTiming,
    PromptTokensDetails,
    RoutePlan,
    TokenLogprobs,
    Usage,
)
from meshnet_protocol.prefix import prefix_chain

NEXT_SLOT_WAIT_S_MAX = 60.0
"""How long an accepted request's further answers wait for a slot that others took meanwhile."""
NEXT_SLOT_WAIT_SHARE = 0.5
"""At most this share of the tracker's patience: a busy route is to say so, and not to be taken for a dead one."""
NEXT_SLOT_LOOK_PERIOD_S = 0.02


@dataclass(frozen=True, slots=True)
class ChatBegun:
    """The first word: what is asked for is understood, and there is room for it."""

    prompt_tokens: int
    resumed_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """A part of a prompt is done. Says nothing to a client, but it is a sign of life."""

    tokens: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one token brought to one answer."""

    index: int
    parts: tuple[Part, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[ContentLogprob, ...]
    raw_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of ``token_ids``, whatever is shown of them."""
    is_replayed: bool = False
    """Another head has said so before."""


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The last word of one answer."""

    index: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The last word of all."""

    usage: Usage
    timings: tuple[HopTiming, ...]


ChatEvent = ChatBegun | PrefillProgress | ChoiceDelta | ChoiceEnd | ChatEnd


@dataclass(slots=True)
class HeadChat:
    """An accepted request: its prompts fit, and the route is open for its first answer."""

    hops: HopService
    plan: RoutePlan
    request: HeadRequest
    work: Work
    sessions: AsyncExitStack
    """Closes the session that is open; whoever opened the chat closes this."""
    first: HopSession | None = None
    context_tokens: int = 0
    """The smallest context of all hops."""
    cached_tokens: int = 0
    """Of the prompt of the first answer, those that every hop still held."""
    _drawn: int = 0
    _timings: tuple[HopTiming, ...] = field(default=())

    @property
    def choice_count(self) -> int:
        return len(self.work.prompts) * self.request.n

    @property
    def first_index(self) -> int:
        """Of the answers, the first that is not finished."""
        return next(
            (i for i, choice in enumerate(self.request.so_far) if not choice.is_finished), len(self.request.so_far)
        )

    def check_resumption(self) -> None:
        """Raises RequestError, ContextOverflowError among them, if what is so far cannot be gone on from."""
        so_far, size = self.request.so_far, self.hops.engine.vocabulary.size
        if self.first_index >= self.choice_count or any(not choice.is_finished for choice in so_far[:-1]):
            raise RequestError("only the last answer so far may be unfinished, and one must be left to draw", "so_far")
        for index, choice in enumerate(so_far):
            if not all(0 <= token < size for token in choice.token_ids):
                raise RequestError(f"tokens so far must be from 0 to {size - 1}", "so_far")
            rows = len(self._prompt(index)) + len(choice.token_ids)
            if rows > self.context_tokens:
                raise ContextOverflowError(rows, self.context_tokens)

    async def stream(self) -> AsyncGenerator[ChatEvent, None]:
        """``ChatBegun``, each answer's deltas and end, then one ``ChatEnd``. Raises what the hops may raise."""
        yield ChatBegun(self._prompt_tokens, self.request.resumed_tokens)
        for index in range(self.first_index, self.choice_count):
            session = self.first
            if index > self.first_index or session is None:
                await self.sessions.aclose()
                session = await self._wait_session(index)
            async with aclosing(self._answer(index, session)) as events:
                async for event in events:
                    yield event
        yield self._end()

    async def _answer(
        self, index: int, session: HopSession
    ) -> AsyncGenerator[PrefillProgress | ChoiceDelta | ChoiceEnd, None]:
        choice = self._choice(index, session)
        if index == self.first_index:
            self.cached_tokens = choice.cached_tokens
        parser = self.work.reading.new_parser() if self.work.reading else None
        async with self._remembering(choice), aclosing(choice.stream()) as tokens:
            async for token in tokens:
                self._note(choice)
                if isinstance(token, Prefilled):
                    yield PrefillProgress(token.tokens)
                    continue
                parts = _parts_of(parser, token)
                yield self._delta(index, token, parts)
                if token.finish_reason is not None:
                    calls_tools = parser is not None and parser.call_count and token.finish_reason == "stop"
                    yield ChoiceEnd(index, "tool_calls" if calls_tools else token.finish_reason)

    def _delta(self, index: int, token: TokenText, parts: Sequence[Part]) -> ChoiceDelta:
        if token.is_replayed:
            return ChoiceDelta(index, tuple(parts), (), token.logprobs, is_replayed=True)
        ids = () if token.token_id is None else (token.token_id,)
        self._drawn += len(ids)
        raw = () if token.raw_logprobs is None else (token.raw_logprobs,)
        return ChoiceDelta(index, tuple(parts), ids, token.logprobs, raw)

    async def open_session(self, index: int) -> HopSession:
        """Raises NodeError, LinkError or RemoteHopError."""
        return await self.sessions.enter_async_context(self.hops.open_hop_session(self._opening(index)))

    async def _wait_session(self, index: int) -> HopSession:
        patience_s = NEXT_SLOT_WAIT_S_MAX
        if self.plan.token_timeout_s is not None:
            patience_s = min(patience_s, NEXT_SLOT_WAIT_SHARE * self.plan.token_timeout_s)
        give_up_at = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                return await self.open_session(index)
            except NodeError as error:
                if error.code != NoFreeSlotError.code or asyncio.get_running_loop().time() > give_up_at:
                    raise
            await asyncio.sleep(NEXT_SLOT_LOOK_PERIOD_S)

    def _choice(self, index: int, session: HopSession) -> HeadChoice:
        return HeadChoice(
            session=session,
            engine=self.hops.engine,
            prompt=self._prompt(index),
            token_limit=self._limit(index),
            stop=tuple(self.request.stop),
            ignore_eos=self.request.ignore_eos,
            markers=self.work.reading.markers if self.work.reading else {},
            so_far=self._so_far(index),
            wants_logprobs=self.request.top_logprobs is not None,
        )

    @asynccontextmanager
    async def _remembering(self, choice: HeadChoice) -> AsyncIterator[None]:
        """Let every hop keep what it has computed, in case the next chat goes on from there."""
        try:
            yield
        finally:
            if self.request.cache_prompt:
                choice.session.remember = prefix_chain(choice.rows)

    def _opening(self, index: int) -> OpenSession:
        prompt = self._prompt(index)
        drawn = self._so_far(index).token_ids
        # The draws of a prompt's first answer are those it would have alone.
        choice = index % self.request.n
        size = self.hops.engine.vocabulary.size
        plan = self.plan
        if index > self.first_index:
            plan = msgspec.structs.replace(plan, session_id=SessionId(f"{plan.session_id}-{index}"))
        sampling = sampling_of(
            self.request, grammar=self.work.grammar, prompt=prompt, choice=choice, vocabulary_size=size
        )
        if sampling.has_penalties or sampling.grammar:
            sampling = msgspec.structs.replace(sampling, drawn=drawn)
        prefix = prefix_chain([*prompt, *drawn]) if self.request.cache_prompt else ()
        return OpenSession(plan=plan, hop_index=0, sampling=sampling, prefix=prefix)

    def _prompt(self, index: int) -> Sequence[int]:
        return self.work.prompts[index // self.request.n]

    def _so_far(self, index: int) -> ChoiceSoFar:
        return self.request.so_far[index] if index < len(self.request.so_far) else NOT_BEGUN

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.work.prompts)

    def _limit(self, index: int) -> int:
        room = self.context_tokens - len(self._prompt(index))
        limit = self.request.max_tokens
        return room if limit is None or limit < 0 else min(limit, room)

    def _note(self, choice: HeadChoice) -> None:
        for reply in choice.replies:
            self._timings = add_timings(self._timings, reply.timings)
        choice.replies.clear()

    def _end(self) -> ChatEnd:
        prompt, drawn = self._prompt_tokens, self.request.resumed_tokens + self._drawn
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=drawn,
            total_tokens=prompt + drawn,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cached_tokens),
        )
        return ChatEnd(usage, self._timings)


class ChatService:
    """Accepts chats at this head."""

    def __init__(self, hops: HopService) -> None:
        self._hops = hops

    @asynccontextmanager
    async def open_chat(self, request: HeadRequest) -> AsyncIterator[HeadChat]:
        """An accepted chat, open on every hop of its route until the context ends.

        Raises RequestError, PlanError, NoFreeSlotError and what a hop may raise.
        """
        engine = self._hops.engine
        plan = request.meshnet or self._own_plan()
        # A long text takes seconds to tokenize, and heartbeats and other chats must not wait for it.
        work = await asyncio.to_thread(
            understand,
            engine.vocabulary,
            request,
            context_tokens=engine.options.context_tokens,
            check_grammar=engine.check_grammar,
        )
        async with AsyncExitStack() as sessions:
            chat = HeadChat(self._hops, plan, request, work, sessions)
            chat.context_tokens = engine.options.context_tokens
            chat.check_resumption()
            chat.first = await chat.open_session(chat.first_index)
            # Known only now: the smallest context of all hops.
            chat.context_tokens = chat.first.context_tokens
            check_context(work.prompts, chat.context_tokens)
            chat.check_resumption()
            yield chat

    def _own_plan(self) -> RoutePlan:
        """A route of this node alone, for whoever talks to it directly."""
        engine = self._hops.engine
        if engine.shard.layer_count != engine.card.layer_count:
            raise PlanError(f"this node holds layers {engine.shard} only; send the chat to the tracker")
        return plan_alone(self._hops.node_id, engine.card.model_key, engine.shard)


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


def _parts_of(parser: AnswerParser | None, token: TokenText) -> list[Part]:
    if parser is None:
        return [Content(token.text)] if token.text else []
    parts = parser.push(token.text)
    return parts if token.finish_reason is None else [*parts, *parser.finish(is_cut=token.is_cut)]
