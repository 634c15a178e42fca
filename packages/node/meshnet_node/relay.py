"""A hop's life: a session opens, its steps run through this node's layers and on to the next hop, it closes.

The head of a route and every hop behind it live the same life; they differ only in where steps come
from. A head makes them from tokens (``head.py``), the others receive them on a link (``link_server.py``).

    step ──> engine (this hop's layers) ──hidden──> link ──> next hop
    reply <── own timing added <─────────────────── link <──

Steps of one session enter the engine and leave on the link in order; replies are awaited outside that
order, so hop 2 computes one chunk of a prompt while hop 1 computes the next.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import msgspec

from meshnet_node.admission import Admission, SessionRequest
from meshnet_node.engine.api import Engine, EngineSession, StepInput, StepResult
from meshnet_node.errors import LinkError, PlanError, RemoteHopError, TicketError
from meshnet_node.link import DownstreamSession, silence_s_max
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.link_pool import LinkPool
from meshnet_node.ticket_gate import UNLIMITED, Permit, TicketGate
from meshnet_node.wallet import Wallet
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.frames import Greeting, OpenSession, SessionOpened, Step, StepReply
from meshnet_protocol.ids import NodeId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import HopTiming, RoutePlan, TokenLogprobs

STEPS_IN_FLIGHT_MAX = 8
"""Steps of one session that may wait at one hop: what a head may send ahead of the replies."""


@dataclass(frozen=True, slots=True)
class HopReply:
    """What came back for one step: the token, if one was asked for, and timings from this hop to the tail."""

    token_id: int | None
    logprobs: TokenLogprobs | None
    timings: tuple[HopTiming, ...]


class HopSession:
    """One session at one hop. ``open_hop_session`` makes it and closes it on every hop from here on."""

    def __init__(
        self,
        node_id: NodeId,
        engine: Engine,
        at_engine: EngineSession,
        downstream: DownstreamSession | None,
        context_tokens: int,
        draws: int = UNLIMITED,
    ) -> None:
        self.context_tokens = context_tokens
        """The smallest context of this hop and all later ones."""
        self._node_id = node_id
        self._engine = engine
        self._at_engine = at_engine
        self._downstream = downstream
        self._draws_left = draws
        self._in_order = asyncio.Lock()
        self.remember: tuple[bytes, ...] = ()
        """Set before the end: the chain of the session's rows, for every hop to keep."""

    @property
    def hop_count(self) -> int:
        """Of its route."""
        return self._at_engine.hop_count

    @property
    def held_tokens(self) -> int:
        """Of the prompt, held by this hop and all later ones."""
        mine = self._at_engine.held_tokens
        return mine if self._downstream is None else min(mine, self._downstream.held_tokens)

    def submit_step(self, step: StepInput) -> "asyncio.Future[StepResult]":
        """Let the rows be computed here already; ``run_step`` takes what this returns, and raises what comes of it."""
        return self._engine.step(self._at_engine, step)

    async def run_step(
        self, step: StepInput, token_count: int, submitted: "asyncio.Future[StepResult] | None" = None
    ) -> HopReply:
        """Run the rows here and on all later hops. Raises NodeError, LinkError or RemoteHopError."""
        return await (await self.begin_step(step, token_count, submitted)).wait()

    async def begin_step(
        self, step: StepInput, token_count: int, submitted: "asyncio.Future[StepResult] | None" = None
    ) -> "PendingStep":
        """Run the rows here and send them on. Raises NodeError, LinkError or RemoteHopError."""
        self._count_draw(step)
        arrived_s = perf_counter()
        async with self._in_order:
            turn_s = perf_counter() - arrived_s
            result = await (submitted or self.submit_step(step))
            mine = HopTiming(
                node_id=self._node_id,
                steps=1,
                # What it waited for earlier steps of its own session, and for those of others.
                queue_s=turn_s + result.queue_s,
                compute_s=result.compute_s,
                link_s=0.0,
            )
            if self._downstream is None:
                return PendingStep(step, mine, at_tail=result)
            assert result.hidden is not None
            onward = Step(
                session_id=self._downstream.session_id,
                position=step.position,
                token_count=token_count,
                wants_token=step.wants_token,
            )
            sent_at = perf_counter()
            waiting = await self._downstream.send_step(onward, result.hidden)
        return PendingStep(step, mine, downstream=self._downstream, waiting=waiting, sent_at=sent_at)

    def _count_draw(self, step: StepInput) -> None:
        if step.wants_token:
            self._draws_left -= 1
            if self._draws_left < 0:
                raise TicketError("the session asks for more tokens than its ticket allows")


@dataclass(slots=True)
class PendingStep:
    """A step whose rows this hop has computed and, unless it is the tail, sent on."""

    step: StepInput
    mine: HopTiming
    at_tail: StepResult | None = None
    downstream: DownstreamSession | None = None
    waiting: "asyncio.Future[StepReply | SessionOpened] | None" = None
    sent_at: float = 0.0

    @property
    def is_answered(self) -> bool:
        return self.waiting is None or self.waiting.done()

    async def wait(self) -> HopReply:
        """Raises LinkError or RemoteHopError."""
        if self.at_tail is not None:
            return HopReply(self.at_tail.token_id, self.at_tail.logprobs, (self.mine,))
        assert self.downstream is not None
        assert self.waiting is not None
        reply = await self.downstream.wait_reply(self.waiting)
        if self.step.wants_token and reply.token_id is None:
            raise RemoteHopError(reply.timings[-1].node_id if reply.timings else None, "no_token", "no token was drawn")
        elsewhere_s = sum(hop.queue_s + hop.compute_s + hop.link_s for hop in reply.timings)
        link_s = max(0.0, perf_counter() - self.sent_at - elsewhere_s)
        mine = msgspec.structs.replace(self.mine, link_s=link_s)
        return HopReply(reply.token_id, reply.logprobs, (mine, *reply.timings))


def greeting_of(node_id: NodeId, engine: Engine) -> Greeting:
    """What this node says first on every link."""
    return Greeting(node_id=node_id, fingerprint=engine.card.fingerprint, hidden_size=engine.hidden_size)


class HopService:
    """Opens sessions at this node, whoever asks for them: ``tickets`` says who may. Without it, anybody may."""

    def __init__(
        self,
        node_id: NodeId,
        engine: Engine,
        links: LinkPool,
        admission: Admission | None = None,
        tickets: TicketGate | None = None,
        wallet: Wallet | None = None,
    ) -> None:
        self.node_id = node_id
        self.engine = engine
        self.admission = admission or Admission(engine)
        self._links = links
        self._tickets = tickets
        self.identity = LinkIdentity(greeting_of(node_id, engine), wallet)

    @asynccontextmanager
    async def open_hop_session(self, request: OpenSession) -> AsyncIterator[HopSession]:
        """A session on this hop and all later ones; whatever happens inside, all of them forget it at the end.

        Raises NodeError if this node cannot take it, LinkError or RemoteHopError if a later one cannot.
        """
        layers = self._own_layers(request.plan, request.hop_index)
        with self._claim(request.plan) as permit:
            async with self._open_permitted(request, layers, permit) as session:
                yield session

    def _claim(self, plan: RoutePlan) -> AbstractContextManager[Permit]:
        return nullcontext(Permit()) if self._tickets is None else self._tickets.claim(plan)

    @asynccontextmanager
    async def _open_permitted(
        self, request: OpenSession, layers: LayerRange, permit: Permit
    ) -> AsyncIterator[HopSession]:
        is_last = request.hop_index == len(request.plan.hops) - 1
        wanted = SessionRequest(
            request.plan.session_id,
            layers,
            request.sampling if is_last else None,
            prefix=request.prefix,
            hop_count=len(request.plan.hops),
        )
        at_engine = await self.admission.wait_session(wanted)
        downstream: DownstreamSession | None = None
        session: HopSession | None = None
        context_tokens = self.engine.options.context_tokens
        try:
            if not is_last:
                downstream, theirs = await self._open_downstream(request)
                context_tokens = min(context_tokens, theirs)
            permit.is_spent = True
            session = HopSession(self.node_id, self.engine, at_engine, downstream, context_tokens, permit.draws)
            yield session
        finally:
            remember = session.remember if session is not None else ()
            self.admission.release(at_engine, remember=remember)
            if downstream is not None:
                await downstream.close(remember=remember)

    async def _open_downstream(self, request: OpenSession) -> tuple[DownstreamSession, int]:
        """The session on all later hops, and the smallest context among them."""
        following = request.plan.hops[request.hop_index + 1]
        patience_s = silence_s_max(request.plan, request.hop_index)
        try:
            async with AwakeTimeout(patience_s):
                link = await self._links.wait_link(following.node_id, following.url, following.wallet)
        except TimeoutError as error:
            raise LinkError(following.node_id, f"no connection within {patience_s:g} s") from error
        downstream = link.add_session(request.plan.session_id, silence_s_max=patience_s)
        try:
            opened = await downstream.wait_opened(
                OpenSession(
                    plan=request.plan,
                    hop_index=request.hop_index + 1,
                    sampling=request.sampling,
                    prefix=request.prefix,
                )
            )
        except BaseException:
            await downstream.close()
            raise
        return downstream, opened.context_tokens

    def _own_layers(self, plan: RoutePlan, hop_index: int) -> LayerRange:
        """The layers the plan has for this node. Raises PlanError unless it is a plan this node can be a hop of."""
        card = self.engine.card
        if plan.model_key != card.model_key:
            raise PlanError(f"the plan is for {plan.model_key}, and this node holds {card.model_key}")
        if not 0 <= hop_index < len(plan.hops):
            raise PlanError(f"hop {hop_index} of a plan of {len(plan.hops)} hops")
        hop = plan.hops[hop_index]
        if hop.node_id != self.node_id:
            raise PlanError(f"the plan's hop {hop_index} is {hop.node_id}, and this is {self.node_id}")
        is_last = hop_index == len(plan.hops) - 1
        if is_last != (hop.end_layer == card.layer_count - 1):
            raise PlanError(f"the plan's hop {hop_index} of {len(plan.hops)} ends at layer {hop.end_layer}")
        try:
            return hop.layers()
        except ValueError as error:
            raise PlanError(f"the plan's hop {hop_index}: {error}") from error
