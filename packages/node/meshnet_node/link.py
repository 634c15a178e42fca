"""Links: one persistent WebSocket from a hop to the next, carrying the frames of many sessions.

The link speaks for its sessions: it matches replies to steps, and when the connection breaks it fails
every step still waiting, naming the node at the other end. A WebSocket on the node's own HTTP port, and
not a socket of its own, so that a node needs one open port and one certificate.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

from meshnet_node.errors import LinkError, RemoteHopError
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
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import NodeId, SessionId

LINK_PATH = "/v1/link"
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 60.0
"""Longest wait for one step's reply: far above any honest step, so that a dead hop is not waited on for ever."""
PING_PERIOD_S = 10.0

_OPENED = -1
"""The position under which a session's opening waits: no step has it."""


class DownstreamSession:
    """One session as seen from the hop before: open it, send steps, close it."""

    def __init__(self, link: "HopLink", session_id: SessionId) -> None:
        self._link = link
        self.session_id = session_id
        self._waiting: dict[int, asyncio.Future[StepReply | None]] = {}
        self.held_tokens = 0
        """Of the prompt, held by the next hop and all after it; known once the session is open."""

    async def wait_opened(self, request: OpenSession) -> None:
        """Open the session on every hop from the next on. Raises RemoteHopError or LinkError."""
        async with self._link.deadline():
            opened = self._expect(_OPENED)
            await self._link.send(request)
            await opened

    async def send_step(self, step: Step, hidden: memoryview) -> asyncio.Future[StepReply | None]:
        """Send the rows on; the future ends with the reply, or with RemoteHopError or LinkError."""
        reply = self._expect(step.position)
        await self._link.send(step, hidden)
        return reply

    async def wait_reply(self, reply: asyncio.Future[StepReply | None]) -> StepReply:
        async with self._link.deadline():
            answer = await reply
        assert answer is not None
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
                self._resolve(_OPENED, None)
            case StepReply():
                self._resolve(header.position, header)
            case SessionFailed():
                culprit = header.culprit or self._link.node_id
                self.fail(RemoteHopError(culprit, header.code, header.message))
            case OpenSession() | Step() | CloseSession():
                raise RemoteProtocolError(f"{type(header).__name__} travels downstream only")

    def fail(self, error: LinkError | RemoteHopError) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits still gets it; nobody may be waiting any more

    def _expect(self, position: int) -> asyncio.Future[StepReply | None]:
        future: asyncio.Future[StepReply | None] = asyncio.get_running_loop().create_future()
        self._waiting[position] = future
        return future

    def _resolve(self, position: int, reply: StepReply | None) -> None:
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

    def add_session(self, session_id: SessionId) -> DownstreamSession:
        session = DownstreamSession(self, session_id)
        self._sessions[session_id] = session
        return session

    def forget(self, session_id: SessionId) -> None:
        self._sessions.pop(session_id, None)

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                yield
        except TimeoutError as error:
            raise LinkError(self.node_id, f"no reply within {REPLY_TIMEOUT_S:g} s") from error

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
                    continue
                header, _ = decode_frame(message.data)
                if (session := self._sessions.get(_session_of(header))) is not None:
                    session.accept(header)
        except RemoteProtocolError as error:
            reason = f"the other end broke the protocol: {error}"
        finally:
            await self._socket.close()
            for session in self._sessions.values():
                session.fail(LinkError(self.node_id, reason))
            self._sessions.clear()


class LinkPool:
    """The links of one node to its neighbours, opened when first needed and again after they broke."""

    def __init__(self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        self._http = http
        self._tasks = tasks
        self._links: dict[str, HopLink] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    async def wait_link(self, node_id: NodeId, url: str) -> HopLink:
        """The live link to ``url``. Raises LinkError if it cannot be reached."""
        async with self._connecting.setdefault(url, asyncio.Lock()):
            link = self._links.get(url)
            if link is None or link.is_broken or link.node_id != node_id:
                link = self._links[url] = await self._connect(node_id, url)
            return link

    async def close(self) -> None:
        """Close every link; the tasks that read them end by themselves."""
        for link in self._links.values():
            await link.close()

    async def _connect(self, node_id: NodeId, url: str) -> HopLink:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await self._http.ws_connect(
                    url.rstrip("/") + LINK_PATH, max_msg_size=FRAME_BYTES_MAX, heartbeat=PING_PERIOD_S
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LinkError(node_id, f"cannot reach {url}: {error or type(error).__name__}") from error
        link = HopLink(node_id, socket)
        self._tasks.create_task(link.read(), name=f"link to {node_id}")
        return link


def _session_of(header: FrameHeader) -> SessionId:
    return header.plan.session_id if isinstance(header, OpenSession) else header.session_id
