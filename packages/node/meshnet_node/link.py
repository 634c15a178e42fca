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
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import (
    CloseSession,
    FrameHeader,
    Greeting,
    OpenSession,
    SessionFailed,
    SessionOpened,
    Step,
    StepReply,
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import NodeId, SessionId

LINK_PATH = "/v1/link"
SILENCE_S_MAX = 60.0
"""Longest time a session waits without any reply. Replies reset it, so steps may queue behind each other."""
SILENCE_MARGIN_S = 5.0
"""More for each further hop: the hop next to a silent one is the first to notice, and names the right culprit."""
GREETING_S_MAX = 5.0
"""How long the other end may take to say which protocol and which weights it has."""
PING_PERIOD_S = 60.0
"""Pongs queue behind the rows of a prompt on the same socket, and a slow uplink may take half a minute for those."""

_OPENED = -1
"""The position under which a session's opening waits: no step has it."""

log = structlog.get_logger()


class DownstreamSession:
    """One session as seen from the hop before: open it, send steps, close it.

    Once it has failed, everything asked of it fails with the same error.
    """

    def __init__(self, link: "HopLink", session_id: SessionId, *, later_hops: int) -> None:
        self._link = link
        self.session_id = session_id
        self._silence_s_max = SILENCE_S_MAX + SILENCE_MARGIN_S * later_hops
        self._heard_at = monotonic()
        self._waiting: dict[int, asyncio.Future[StepReply | SessionOpened]] = {}
        self._failure: LinkError | RemoteHopError | None = None
        self.held_tokens = 0
        """Of the prompt, held by the next hop and all after it; known once the session is open."""

    async def wait_opened(self, request: OpenSession) -> SessionOpened:
        """Open the session on every hop from the next on. Raises RemoteHopError or LinkError."""
        opened = self._expect(_OPENED)
        await self._link.send(request)
        answer = await self._wait(opened)
        assert isinstance(answer, SessionOpened)
        return answer

    async def send_step(self, step: Step, hidden: memoryview) -> asyncio.Future[StepReply | SessionOpened]:
        """Send the rows on; ``wait_reply`` takes what this returns. Raises RemoteHopError or LinkError."""
        reply = self._expect(step.position)
        await self._link.send(step, hidden)
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
        with suppress(LinkError):  # the other end frees its sessions when the link breaks
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
                self.fail(RemoteHopError(culprit, header.code, header.message))
            case OpenSession() | Step() | CloseSession():
                raise RemoteProtocolError(f"{type(header).__name__} travels downstream only")

    def fail(self, error: LinkError | RemoteHopError) -> None:
        self._failure = self._failure or error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # whoever waits still gets it; nobody may be waiting any more

    async def _wait(self, future: asyncio.Future[StepReply | SessionOpened]) -> StepReply | SessionOpened:
        while not future.done():
            patience_s = self._heard_at + self._silence_s_max - monotonic()
            if patience_s <= 0:
                raise LinkError(self._link.node_id, f"no reply within {self._silence_s_max:g} s")
            await asyncio.wait((future,), timeout=patience_s)
        return future.result()

    def _expect(self, position: int) -> asyncio.Future[StepReply | SessionOpened]:
        if self._failure is not None:
            raise self._failure
        if not self._waiting:
            self._heard_at = monotonic()
        future: asyncio.Future[StepReply | SessionOpened] = asyncio.get_running_loop().create_future()
        self._waiting[position] = future
        return future

    def _resolve(self, position: int, reply: StepReply | SessionOpened) -> None:
        self._heard_at = monotonic()
        future = self._waiting.pop(position, None)
        if future is not None and not future.done():
            future.set_result(reply)


class HopLink:
    """The connection to one node, shared by all sessions that go there."""

    def __init__(self, node_id: NodeId, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.node_id = node_id
        self._socket = socket
        self._sessions: dict[SessionId, DownstreamSession] = {}

    @property
    def is_broken(self) -> bool:
        return self._socket.closed

    def add_session(self, session_id: SessionId, *, later_hops: int = 0) -> DownstreamSession:
        """``later_hops``: how many hops there are behind the one this link leads to."""
        session = DownstreamSession(self, session_id, later_hops=later_hops)
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

    async def close(self) -> None:
        await self._socket.close()

    async def read(self) -> None:
        """Hand frames to their sessions until the connection ends, then fail what still waits."""
        reason = "the link was closed by the other end"
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise RemoteProtocolError(f"a {message.type.name} message where a binary frame is due")
                header, _ = decode_frame(message.data)
                if isinstance(header, Greeting):
                    raise RemoteProtocolError("a second greeting")
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
            await self._socket.close()


def _session_of(header: OpenSession | SessionOpened | Step | StepReply | SessionFailed | CloseSession) -> SessionId:
    return header.plan.session_id if isinstance(header, OpenSession) else header.session_id
