"""Links: one persistent WebSocket from a hop to the next, carrying the frames of many sessions.

The link speaks for its sessions: it matches replies to steps, and when the connection breaks it fails
every step still waiting, naming the node at the other end. A WebSocket on the node's own HTTP port, and
not a socket of its own, so that a node needs one open port and one certificate.
"""

import asyncio
from contextlib import suppress
from time import monotonic

import aiohttp
import structlog

from meshnet_node.errors import LinkError, RemoteHopError
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import (
    CloseSession,
    FrameHeader,
    Greeting,
    LinkProof,
    OpenSession,
    SessionFailed,
    SessionOpened,
    Step,
    StepReply,
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import NodeId, SessionId
from meshnet_protocol.messages import RoutePlan
from meshnet_protocol.patience import LOOK_S_MAX, AwakeTime

LINK_PATH = "/v1/link"
SILENCE_S_MAX = 60.0
"""Longest time a session waits without any reply, if its plan sets none. Replies reset it, so steps may queue."""
SILENCE_SHARE_NEXT, SILENCE_SHARE_LATER = 0.5, 0.4
"""Of the tracker's own patience: what a hop next to a silent one waits, and how much more if it is further away.
So the hop next to it is the first to notice, and names the right culprit before the tracker gives up on the head."""
IDLE_FACTOR = 2.0
IDLE_S_MIN = 90.0
"""Longer than a head waits for a reader that takes nothing."""
CLOSE_S_MAX = 1.0
"""For saying good-bye to an end that may be dead."""
GREETING_S_MAX = 5.0
"""How long the other end may take to say which protocol and which weights it has."""
PING_PERIOD_S = 60.0
"""Pongs queue behind the rows of a prompt on the same socket, and a slow uplink may take half a minute for those."""

_OPENED = -1
"""The position under which a session's opening waits: no step has it."""

log = structlog.get_logger()


def silence_s_max(plan: RoutePlan, hop_index: int) -> float:
    """How long hop ``hop_index`` waits for any word from the next one."""
    patience_s = SILENCE_S_MAX if plan.token_timeout_s is None else plan.token_timeout_s
    later_hops = len(plan.hops) - hop_index - 2
    return patience_s * (SILENCE_SHARE_NEXT + SILENCE_SHARE_LATER * later_hops / len(plan.hops))


def idle_s_max(plan: RoutePlan) -> float:
    """How long a hop keeps a session for which no step comes."""
    return max(IDLE_S_MIN, IDLE_FACTOR * (plan.token_timeout_s or 0.0))


class DownstreamSession:
    """One session as seen from the hop before: open it, send steps, close it.

    Once it has failed, everything asked of it fails with the same error.
    """

    def __init__(self, link: "HopLink", session_id: SessionId, *, silence_s_max: float) -> None:
        self._link = link
        self.session_id = session_id
        self._silence_s_max = silence_s_max
        self._heard_at = link.awake_s()
        self._frames_before = 0
        """Of the link, when the session last heard something or began to wait."""
        self._waiting: dict[int, asyncio.Future[StepReply | SessionOpened]] = {}
        self._failure: LinkError | RemoteHopError | None = None
        self.held_tokens = 0
        """Of the prompt, held by the next hop and all after it; known once the session is open."""

    async def wait_opened(self, request: OpenSession) -> SessionOpened:
        """Open the session on every hop from the next on. Raises RemoteHopError or LinkError."""
        opened = self._expect(_OPENED)
        await self._send(request)
        answer = await self._wait(opened)
        assert isinstance(answer, SessionOpened)
        return answer

    async def send_step(self, step: Step, hidden: memoryview) -> asyncio.Future[StepReply | SessionOpened]:
        """Send the rows on; ``wait_reply`` takes what this returns. Raises RemoteHopError or LinkError."""
        reply = self._expect(step.position)
        await self._send(step, hidden)
        return reply

    async def wait_reply(self, reply: asyncio.Future[StepReply | SessionOpened]) -> StepReply:
        """Raises RemoteHopError if a later hop gave up, LinkError if the session is silent for too long."""
        answer = await self._wait(reply)
        assert isinstance(answer, StepReply)
        return answer

    async def close(self, *, remember: tuple[bytes, ...] = ()) -> None:
        """Forget the session here and tell the next hop; never raises for a broken link."""
        self._link.forget(self.session_id)
        self.fail(LinkError(self._link.node_id, "the session was closed"))
        # The other end frees its sessions when the link breaks. A frame that is written is on its way, whatever the
        # socket's buffers hold, so there is no need to wait for them.
        with suppress(LinkError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._link.send(CloseSession(session_id=self.session_id, remember=remember))

    def accept(self, header: FrameHeader) -> None:
        """A frame of this session arrived from the next hop."""
        match header:
            case SessionOpened():
                self.held_tokens = header.held_tokens
                self._resolve(_OPENED, header)
            case StepReply():
                self._resolve(header.position, header)
            case SessionFailed():
                culprit = header.culprit or self._link.node_id
                self.fail(RemoteHopError(culprit, header.code, header.message, reporter=header.reporter))
            case OpenSession() | Step() | CloseSession():
                raise RemoteProtocolError(f"{type(header).__name__} travels downstream only")

    def fail(self, error: LinkError | RemoteHopError) -> None:
        self._failure = self._failure or error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # whoever waits still gets it; nobody may be waiting any more

    async def _send(self, header: FrameHeader, payload: bytes | memoryview = b"") -> None:
        """A peer that does not read fills the socket's buffers, and would hold the sender for ever."""
        try:
            async with AwakeTimeout(self._silence_s_max):
                await self._link.send(header, payload)
        except TimeoutError as error:
            raise LinkError(self._link.node_id, f"takes nothing any more, for {self._silence_s_max:g} s") from error

    async def _wait(self, future: asyncio.Future[StepReply | SessionOpened]) -> StepReply | SessionOpened:
        while not future.done():
            patience_s = self._heard_at + self._silence_s_max - self._link.awake_s()
            if patience_s <= 0:
                if self._link.frames_heard == self._frames_before:
                    await self._link.give_up()
                raise LinkError(self._link.node_id, f"no reply within {self._silence_s_max:g} s")
            await asyncio.wait((future,), timeout=min(patience_s, LOOK_S_MAX))
        return future.result()

    def _expect(self, position: int) -> asyncio.Future[StepReply | SessionOpened]:
        if self._failure is not None:
            raise self._failure
        if not self._waiting:
            self._note_life()
        future: asyncio.Future[StepReply | SessionOpened] = asyncio.get_running_loop().create_future()
        self._waiting[position] = future
        return future

    def _resolve(self, position: int, reply: StepReply | SessionOpened) -> None:
        self._note_life()
        future = self._waiting.pop(position, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def _note_life(self) -> None:
        self._heard_at = self._link.awake_s()
        self._frames_before = self._link.frames_heard


class HopLink:
    """The connection to one node, shared by all sessions that go there."""

    def __init__(self, node_id: NodeId, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.node_id = node_id
        self._socket = socket
        self._awake = AwakeTime(monotonic())
        self._looking: asyncio.TimerHandle | None = None
        self.frames_heard = 0
        self._sessions: dict[SessionId, DownstreamSession] = {}

    @property
    def is_broken(self) -> bool:
        return self._socket.closed

    def add_session(self, session_id: SessionId, *, silence_s_max: float | None = None) -> DownstreamSession:
        """``silence_s_max``: how long the session bears no word from the other end; None: ``SILENCE_S_MAX``."""
        patience_s = SILENCE_S_MAX if silence_s_max is None else silence_s_max
        session = DownstreamSession(self, session_id, silence_s_max=patience_s)
        self._sessions[session_id] = session
        return session

    def forget(self, session_id: SessionId) -> None:
        self._sessions.pop(session_id, None)

    async def send(self, header: FrameHeader, payload: bytes | memoryview = b"") -> None:
        """Raises LinkError if the connection is gone."""
        try:
            await self._socket.send_bytes(encode_frame(header, payload))
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            raise LinkError(self.node_id, f"the link broke: {error}") from error

    def awake_s(self) -> float:
        """Time by which the other end's silence is measured: this node's own sleep is none of it."""
        return self._awake.look(monotonic())

    async def give_up(self) -> None:
        """A link that brings no word of any session leads nowhere: the next chat must try to connect anew."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._socket.close()

    async def close(self) -> None:
        await self._socket.close()

    async def read(self) -> None:
        """Hand frames to their sessions until the connection ends, then fail what still waits."""
        reason = "the link was closed by the other end"
        self._keep_looking()
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise RemoteProtocolError(f"a {message.type.name} message where a binary frame is due")
                header, _ = decode_frame(message.data)
                if isinstance(header, Greeting | LinkProof):
                    raise RemoteProtocolError(f"a second {type(header).__name__}")
                self.frames_heard += 1
                if (session := self._sessions.get(_session_of(header))) is not None:
                    session.accept(header)
        except RemoteProtocolError as error:
            reason = f"the other end broke the protocol: {error}"
        except Exception as error:
            # Whatever a peer brings about costs the link to it, and never this node.
            log.exception("a link failed", node_id=self.node_id)
            reason = f"reading failed: {error!r}"
        finally:
            for session in self._sessions.values():
                session.fail(LinkError(self.node_id, reason))
            self._sessions.clear()
            if self._looking is not None:
                self._looking.cancel()
            await self._socket.close()

    def _keep_looking(self) -> None:
        self.awake_s()
        self._looking = asyncio.get_running_loop().call_later(LOOK_S_MAX, self._keep_looking)


def _session_of(header: OpenSession | SessionOpened | Step | StepReply | SessionFailed | CloseSession) -> SessionId:
    return header.plan.session_id if isinstance(header, OpenSession) else header.session_id
