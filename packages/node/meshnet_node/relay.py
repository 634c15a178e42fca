"""A hop's life: a session opens, its steps run through this node's layers and on to the next hop, it closes.

The head of a route and every hop behind it live the same life; they differ only in where steps come
from. A head makes them from tokens (``head.py``), the others receive them on a link (``LinkServer``).

    step ──> engine (this hop's layers) ──hidden──> link ──> next hop
    reply <── own timing added <─────────────────── link <──

Steps of one session enter the engine and leave on the link in order; replies are awaited outside that
order, so hop 2 computes one chunk of a prompt while hop 1 computes the next.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter

import structlog
from aiohttp import WSMsgType, web

from meshnet_node.engine.api import Engine, EngineSession, StepInput, StepResult
from meshnet_node.errors import LinkError, NodeError, PlanError, RemoteHopError
from meshnet_node.link import PING_PERIOD_S, DownstreamSession, LinkPool
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import (
    FRAME_BYTES_MAX,
    CloseSession,
    FrameHeader,
    OpenSession,
    SessionFailed,
    SessionOpened,
    Step,
    StepReply,
    check_step_payload,
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import NodeId, SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import HopTiming, RoutePlan, TokenLogprobs

STEPS_IN_FLIGHT_MAX = 8
"""Steps of one session that may wait at one hop: what a head may send ahead of the replies."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HopReply:
    """What came back for one step: the token, if one was asked for, and timings from this hop to the tail."""

    token_id: int | None
    logprobs: TokenLogprobs | None
    timings: tuple[HopTiming, ...]


class HopSession:
    """One session at one hop. ``open_hop_session`` makes it and closes it on every hop from here on."""

    def __init__(self, node_id: NodeId, engine: Engine, at_engine: EngineSession, downstream: DownstreamSession | None):
        self._node_id = node_id
        self._engine = engine
        self._at_engine = at_engine
        self._downstream = downstream
        self._in_order = asyncio.Lock()

    async def run_step(self, step: StepInput, token_count: int) -> HopReply:
        """Run the rows here and on all later hops. Raises NodeError, LinkError or RemoteHopError."""
        async with self._in_order:
            result = await self._engine.step(self._at_engine, step)
            if self._downstream is None:
                return HopReply(result.token_id, result.logprobs, (self._timing(result, link_s=0.0),))
            assert result.hidden is not None
            onward = Step(
                session_id=self._downstream.session_id,
                position=step.position,
                token_count=token_count,
                wants_token=step.wants_token,
            )
            sent_at = perf_counter()
            waiting = await self._downstream.send_step(onward, result.hidden)
        reply = await self._downstream.wait_reply(waiting)
        elsewhere_s = sum(hop.queue_s + hop.compute_s + hop.link_s for hop in reply.timings)
        link_s = max(0.0, perf_counter() - sent_at - elsewhere_s)
        return HopReply(reply.token_id, reply.logprobs, (self._timing(result, link_s=link_s), *reply.timings))

    def _timing(self, result: StepResult, *, link_s: float) -> HopTiming:
        return HopTiming(
            node_id=self._node_id, steps=1, queue_s=result.queue_s, compute_s=result.compute_s, link_s=link_s
        )


class HopService:
    """Opens sessions at this node, whoever asks for them."""

    def __init__(self, node_id: NodeId, engine: Engine, links: LinkPool) -> None:
        self.node_id = node_id
        self.engine = engine
        self._links = links

    @asynccontextmanager
    async def open_hop_session(self, request: OpenSession) -> AsyncIterator[HopSession]:
        """A session on this hop and all later ones; whatever happens inside, all of them forget it at the end.

        Raises NodeError if this node cannot take it, LinkError or RemoteHopError if a later one cannot.
        """
        layers = _own_layers(self.node_id, request.plan, request.hop_index)
        is_last = request.hop_index == len(request.plan.hops) - 1
        at_engine = self.engine.open_session(request.plan.session_id, layers, request.sampling if is_last else None)
        downstream: DownstreamSession | None = None
        try:
            if not is_last:
                downstream = await self._open_downstream(request)
            yield HopSession(self.node_id, self.engine, at_engine, downstream)
        finally:
            self.engine.close_session(at_engine)
            if downstream is not None:
                await downstream.close()

    async def _open_downstream(self, request: OpenSession) -> DownstreamSession:
        following = request.plan.hops[request.hop_index + 1]
        link = await self._links.wait_link(following.node_id, following.url)
        downstream = link.add_session(request.plan.session_id)
        onward = OpenSession(
            plan=request.plan,
            hop_index=request.hop_index + 1,
            sampling=request.sampling,
            token_limit=request.token_limit,
        )
        try:
            await downstream.wait_opened(onward)
        except BaseException:
            await downstream.close()
            raise
        return downstream


def _own_layers(node_id: NodeId, plan: RoutePlan, hop_index: int) -> LayerRange:
    if not 0 <= hop_index < len(plan.hops):
        raise PlanError(f"hop {hop_index} of a plan of {len(plan.hops)} hops")
    hop = plan.hops[hop_index]
    if hop.node_id != node_id:
        raise PlanError(f"the plan's hop {hop_index} is {hop.node_id}, and this is {node_id}")
    try:
        return hop.layers()
    except ValueError as error:
        raise PlanError(f"the plan's hop {hop_index}: {error}") from error


class LinkServer:
    """The receiving end of links: takes other hops' sessions and steps, sends replies back."""

    def __init__(self, hops: HopService) -> None:
        self._hops = hops

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """One link, until the other end closes it or breaks the protocol; its sessions end with it."""
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES_MAX, heartbeat=PING_PERIOD_S, compress=False)
        await socket.prepare(request)
        async with asyncio.TaskGroup() as tasks:
            link = _InboundLink(self._hops, socket, tasks)
            try:
                async for message in socket:
                    if message.type is WSMsgType.BINARY:
                        link.accept(*decode_frame(message.data))
            except RemoteProtocolError as error:
                log.warning("link refused", peer=request.remote, error=str(error))
                await socket.close(code=1002, message=str(error).encode()[:120])
            finally:
                link.end_sessions()
        return socket


class _InboundLink:
    """Sessions that arrived on one link. Each has one task that owns it, and one task per step in flight."""

    def __init__(self, hops: HopService, socket: web.WebSocketResponse, tasks: asyncio.TaskGroup) -> None:
        self._hops = hops
        self._socket = socket
        self._tasks = tasks
        self._owners: dict[SessionId, asyncio.Task[None]] = {}
        self._open: dict[SessionId, HopSession] = {}
        self._in_flight: Counter[SessionId] = Counter()

    def accept(self, header: FrameHeader, payload: memoryview) -> None:
        """Raises RemoteProtocolError for a frame the previous hop may not send now."""
        match header:
            case OpenSession():
                session_id = header.plan.session_id
                if session_id in self._owners:
                    raise RemoteProtocolError(f"session {session_id} is open already")
                self._owners[session_id] = self._tasks.create_task(self._own(header), name=f"session {session_id}")
            case Step():
                self._accept_step(header, payload)
            case CloseSession():
                if (owner := self._owners.get(header.session_id)) is not None:
                    owner.cancel()
            case SessionOpened() | StepReply() | SessionFailed():
                raise RemoteProtocolError(f"{type(header).__name__} travels upstream only")

    def end_sessions(self) -> None:
        for owner in self._owners.values():
            owner.cancel()

    def _accept_step(self, step: Step, payload: memoryview) -> None:
        engine = self._hops.engine
        check_step_payload(step, payload, hidden_size=engine.hidden_size, rows_max=engine.options.chunk_tokens)
        session = self._open.get(step.session_id)
        if session is None:
            return  # failed or closed here; the previous hop has been told, or said so itself
        if self._in_flight[step.session_id] >= STEPS_IN_FLIGHT_MAX:
            raise RemoteProtocolError(f"more than {STEPS_IN_FLIGHT_MAX} steps of one session in flight")
        self._in_flight[step.session_id] += 1
        self._tasks.create_task(self._run_step(session, step, payload))

    async def _own(self, request: OpenSession) -> None:
        session_id = request.plan.session_id
        try:
            async with self._hops.open_hop_session(request) as session:
                self._open[session_id] = session
                await self._send(SessionOpened(session_id=session_id))
                await asyncio.Event().wait()  # until closed: the owner is cancelled
        except NodeError as error:
            await self._send(self._failure(session_id, error))
        finally:
            self._open.pop(session_id, None)
            self._owners.pop(session_id, None)
            self._in_flight.pop(session_id, None)

    async def _run_step(self, session: HopSession, step: Step, payload: memoryview) -> None:
        rows = StepInput(position=step.position, tokens=None, hidden=payload, wants_token=step.wants_token)
        try:
            reply = await session.run_step(rows, step.token_count)
        except NodeError as error:
            if step.session_id in self._open:
                await self._send(self._failure(step.session_id, error))
                self._owners[step.session_id].cancel()
            return
        finally:
            if step.session_id in self._in_flight:
                self._in_flight[step.session_id] -= 1
        await self._send(
            StepReply(
                session_id=step.session_id,
                position=step.position,
                token_id=reply.token_id,
                logprobs=reply.logprobs,
                timings=reply.timings,
            )
        )

    def _failure(self, session_id: SessionId, error: NodeError) -> SessionFailed:
        match error:
            case RemoteHopError():
                culprit = error.culprit
            case LinkError():
                culprit = error.node_id
            case _:
                culprit = self._hops.node_id
        return SessionFailed(session_id=session_id, code=error.code, message=str(error), culprit=culprit)

    async def _send(self, header: FrameHeader) -> None:
        # When the link is gone, serve() is ending and takes the sessions with it.
        with suppress(ConnectionError, RuntimeError):
            await self._socket.send_bytes(encode_frame(header))
