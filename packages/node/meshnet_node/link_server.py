"""The receiving end of links: takes other hops' sessions and steps, runs them, sends replies back.

Both ends greet first. What a peer may do wrong with a frame ends the link, with a reason; what goes wrong with one
session ends that session only. The sessions of a link end with it.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import assert_never

import structlog
from aiohttp import WSMessage, WSMsgType, web

from meshnet_node.engine.api import StepInput
from meshnet_node.errors import LinkError, NodeError, RemoteHopError, SessionForsakenError, TicketError
from meshnet_node.link import GREETING_S_MAX, PING_PERIOD_S, idle_s_max
from meshnet_node.link_identity import NO_WALLET, proven_wallet
from meshnet_node.relay import STEPS_IN_FLIGHT_MAX, HopService, HopSession
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import (
    FRAME_BYTES_MAX,
    CloseSession,
    FrameHeader,
    Greeting,
    LinkProof,
    OpenSession,
    SessionFailed,
    SessionOpened,
    Step,
    StepReply,
    check_greeting,
    check_step_payload,
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import NodeId, SessionId, WalletId
from meshnet_protocol.patience import Patience

CLOSE_REASON_BYTES_MAX = 120
LOOK_PERIOD_S_MIN = 0.05
LINKS_MAX = 1024
"""From others, at a time."""

log = structlog.get_logger()


class LinkServer:
    """The receiving end of links: takes other hops' sessions and steps, sends replies back."""

    def __init__(self, hops: HopService) -> None:
        self._hops = hops
        self._link_count = 0

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """One link, until the other end closes it or breaks the protocol; its sessions end with it."""
        if request.headers.get("Origin"):
            # Browsers send it and hops do not: a web page must not reach a node on its reader's machine.
            raise web.HTTPForbidden(text="links are for nodes, not for web pages")
        if self._link_count >= LINKS_MAX:
            raise web.HTTPServiceUnavailable(text=f"{LINKS_MAX} nodes are linked to this one already")
        self._link_count += 1
        try:
            return await self._serve(request)
        finally:
            self._link_count -= 1

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES_MAX, heartbeat=PING_PERIOD_S, compress=False)
        await socket.prepare(request)
        try:
            async with AwakeTimeout(GREETING_S_MAX):
                peer = await self._greet(socket)
        except (RemoteProtocolError, TimeoutError, ConnectionError) as error:
            await _refuse(request, socket, str(error) or f"no greeting within {GREETING_S_MAX:g} s")
            return socket
        async with asyncio.TaskGroup() as tasks:
            link = _InboundLink(self._hops, socket, tasks, peer)
            try:
                async for message in socket:
                    link.accept(*_frame_of(message))
            except RemoteProtocolError as error:
                link.end_sessions()
                await _refuse(request, socket, str(error))
            finally:
                link.end_sessions()
        return socket

    async def _greet(self, socket: web.WebSocketResponse) -> WalletId:
        """The wallet that the other end has proven, if it names one.

        Raises RemoteProtocolError unless it begins with a greeting that this node can agree with.
        """
        theirs, _ = _frame_of(await socket.receive())
        if not isinstance(theirs, Greeting):
            raise RemoteProtocolError(f"the first frame is {type(theirs).__name__}, not a greeting; update that node")
        check_greeting(theirs, self._hops.identity.greeting)
        mine = self._hops.identity.answer(theirs)
        await socket.send_bytes(encode_frame(mine))
        if not theirs.wallet:
            return NO_WALLET
        proof, _ = _frame_of(await socket.receive())
        if not isinstance(proof, LinkProof):
            raise RemoteProtocolError(f"{type(proof).__name__} instead of a proof of its wallet")
        return proven_wallet(theirs, mine, proof)


@dataclass(slots=True)
class _Inbound:
    """A session that arrived on a link."""

    owner: asyncio.Task[None]
    """Keeps the session open; to cancel it is to close the session."""
    idle: Patience
    """With the hop before, as long as it sends no step."""
    session: HopSession | None = None
    steps_in_flight: int = 0


async def _wait_until_forsaken(inbound: _Inbound) -> None:
    """A hop that froze, or whose network is gone, closes nothing: its sessions must not keep their slots for ever.

    Raises SessionForsakenError when no step has come for as long as that is borne.
    """
    while not inbound.idle.is_over or inbound.steps_in_flight:
        await asyncio.sleep(max(inbound.idle.next_look_s, LOOK_PERIOD_S_MIN))
        inbound.idle.look(monotonic())
    raise SessionForsakenError(inbound.idle.seconds)


class _InboundLink:
    """Sessions that arrived on one link. Each has one task that owns it, and one task per step in flight."""

    def __init__(
        self, hops: HopService, socket: web.WebSocketResponse, tasks: asyncio.TaskGroup, peer: WalletId
    ) -> None:
        self._hops = hops
        self._peer = peer
        self._socket = socket
        self._tasks = tasks
        self._sessions: dict[SessionId, _Inbound] = {}

    def accept(self, header: FrameHeader, payload: memoryview) -> None:
        """Raises RemoteProtocolError for a frame the previous hop may not send now."""
        match header:
            case OpenSession():
                self._open(header)
            case Step():
                self._accept_step(header, payload)
            case CloseSession():
                self._end(header.session_id, remember=header.remember)
            case Greeting() | LinkProof():
                raise RemoteProtocolError(f"a second {type(header).__name__}")
            case SessionOpened() | StepReply() | SessionFailed():
                raise RemoteProtocolError(f"{type(header).__name__} travels upstream only")
            case _:
                assert_never(header)

    def end_sessions(self) -> None:
        for session_id in list(self._sessions):
            self._end(session_id)

    def _open(self, request: OpenSession) -> None:
        session_id = request.plan.session_id
        if session_id in self._sessions:
            raise RemoteProtocolError(f"session {session_id} is open already")
        owner = self._tasks.create_task(self._own(request), name=f"session {session_id}")
        self._sessions[session_id] = _Inbound(owner, Patience(idle_s_max(request.plan), monotonic()))

    def _end(self, session_id: SessionId, *, remember: tuple[bytes, ...] = ()) -> None:
        if (inbound := self._sessions.pop(session_id, None)) is not None:
            if inbound.session is not None:
                inbound.session.remember = remember
            inbound.owner.cancel()

    def _accept_step(self, step: Step, payload: memoryview) -> None:
        check_step_payload(step, payload, hidden_size=self._hops.engine.hidden_size)
        inbound = self._sessions.get(step.session_id)
        if inbound is None or inbound.session is None:
            return  # failed or closed here; the previous hop has been told, or said so itself
        if inbound.steps_in_flight >= STEPS_IN_FLIGHT_MAX:
            raise RemoteProtocolError(f"more than {STEPS_IN_FLIGHT_MAX} steps of one session in flight")
        inbound.steps_in_flight += 1
        inbound.idle.renew(monotonic())
        self._tasks.create_task(self._run_step(inbound, inbound.session, step, payload))

    async def _own(self, request: OpenSession) -> None:
        session_id = request.plan.session_id
        try:
            self._check_previous_hop(request)
            async with self._hops.open_hop_session(request) as session:
                if (inbound := self._sessions.get(session_id)) is None:
                    return
                inbound.session = session
                await self._send(
                    SessionOpened(
                        session_id=session_id, context_tokens=session.context_tokens, held_tokens=session.held_tokens
                    )
                )
                await _wait_until_forsaken(inbound)  # closed before: the owner is cancelled
        except Exception as error:
            await self._fail(session_id, error)

    def _check_previous_hop(self, request: OpenSession) -> None:
        """Raises TicketError if the link is not from the hop that the plan has before this one."""
        before = request.plan.hops[request.hop_index - 1] if 0 < request.hop_index < len(request.plan.hops) else None
        if before is not None and before.wallet not in ("", self._peer):
            raise TicketError(f"the plan has {before.node_id} before this hop, and the link is not from there")

    async def _run_step(self, inbound: _Inbound, session: HopSession, step: Step, payload: memoryview) -> None:
        rows = StepInput(position=step.position, tokens=None, hidden=payload, wants_token=step.wants_token)
        try:
            reply = await session.run_step(rows, step.token_count)
        except Exception as error:
            await self._fail(step.session_id, error)
            return
        finally:
            inbound.steps_in_flight -= 1
        await self._send(
            StepReply(
                session_id=step.session_id,
                position=step.position,
                token_id=reply.token_id,
                logprobs=reply.logprobs,
                timings=reply.timings,
            )
        )

    async def _fail(self, session_id: SessionId, error: Exception) -> None:
        """End the session and say why, once: what its other steps say then would only repeat it.

        An error that is not ours is a bug, and costs this session, not the link with everybody else's.
        """
        if session_id not in self._sessions:
            return
        if not isinstance(error, NodeError):
            log.error("a session failed by a bug", session_id=session_id, exc_info=error)
        failed = SessionFailed(
            session_id=session_id,
            code=error.code if isinstance(error, NodeError) else NodeError.code,
            message=str(error) or type(error).__name__,
            culprit=self._culprit_of(error),
            reporter=self._reporter_of(error),
        )
        inbound = self._sessions.pop(session_id)
        await self._send(failed)
        inbound.owner.cancel()

    def _culprit_of(self, error: Exception) -> NodeId | None:
        match error:
            case RemoteHopError():
                return error.culprit
            case LinkError():
                return error.node_id
            case _:
                return self._hops.node_id

    def _reporter_of(self, error: Exception) -> NodeId | None:
        match error:
            case RemoteHopError():
                return error.reporter
            case LinkError():
                return self._hops.node_id
            case _:
                return None

    async def _send(self, header: FrameHeader) -> None:
        # When the link is gone, serve() is ending and takes the sessions with it.
        with suppress(ConnectionError, RuntimeError):
            await self._socket.send_bytes(encode_frame(header))


def _frame_of(message: WSMessage) -> tuple[FrameHeader, memoryview]:
    """Raises RemoteProtocolError if the message is no frame."""
    if message.type is not WSMsgType.BINARY:
        raise RemoteProtocolError(f"a {message.type.name} message where a binary frame is due")
    return decode_frame(message.data)


async def _refuse(request: web.Request, socket: web.WebSocketResponse, reason: str) -> None:
    log.warning("link refused", peer=request.remote, error=reason)
    await socket.close(code=1002, message=reason.encode()[:CLOSE_REASON_BYTES_MAX])
