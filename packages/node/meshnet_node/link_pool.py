"""A node's links to its neighbours: made when first needed, shared, made again after they broke."""

import asyncio
from dataclasses import dataclass, field
from time import monotonic

import aiohttp

from meshnet_node.errors import LinkError
from meshnet_node.link import CLOSE_S_MAX, LINK_PATH, PING_PERIOD_S, HopLink
from meshnet_node.link_identity import NO_WALLET, LinkIdentity, check_answer
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import FRAME_BYTES_MAX, Greeting, check_greeting, decode_frame, encode_frame
from meshnet_protocol.ids import NodeId, WalletId

CONNECT_TIMEOUT_S = 5.0
NEIGHBOURS_MAX = 1024
"""Neighbours remembered; beyond it, those without a live link are forgotten."""


@dataclass(slots=True)
class _Neighbour:
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    link: HopLink | None = None
    failure: LinkError | None = None
    failed_at: float = 0.0

    @property
    def is_linked(self) -> bool:
        return self.link is not None and not self.link.is_broken


class LinkPool:
    """The tasks that read the links belong to ``tasks``; ``close`` ends them."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        tasks: asyncio.TaskGroup,
        identity: LinkIdentity,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._identity = identity
        self._connect_timeout_s = connect_timeout_s
        self._http = http
        self._tasks = tasks
        self._neighbours: dict[tuple[NodeId, str, WalletId], _Neighbour] = {}

    async def wait_link(self, node_id: NodeId, url: str, wallet: WalletId = NO_WALLET) -> HopLink:
        """The live link to a node that has proven this wallet, or any if none is given.

        Raises LinkError if it cannot be reached, is somebody else, or holds other weights.

        All who wait for one attempt to connect share its outcome, so that many chats towards a dead node
        fail together and not one after the other.
        """
        asked_at = monotonic()
        neighbour = self._neighbour((node_id, url, wallet))
        async with neighbour.connecting:
            if neighbour.link is not None and not neighbour.link.is_broken:
                return neighbour.link
            if neighbour.failure is not None and neighbour.failed_at >= asked_at:
                raise LinkError(node_id, neighbour.failure.reason)
            try:
                neighbour.link = await self._connect(node_id, url, wallet)
            except LinkError as error:
                neighbour.failure, neighbour.failed_at = error, monotonic()
                raise
            return neighbour.link

    async def close(self) -> None:
        """Close every link; the tasks that read them end by themselves."""
        links = [neighbour.link for neighbour in self._neighbours.values() if neighbour.link is not None]
        await asyncio.gather(*(link.close() for link in links))

    def _neighbour(self, key: tuple[NodeId, str, WalletId]) -> _Neighbour:
        if key not in self._neighbours and len(self._neighbours) >= NEIGHBOURS_MAX:
            idle = [k for k, n in self._neighbours.items() if not n.is_linked and not n.connecting.locked()]
            for stale in idle:
                del self._neighbours[stale]
        return self._neighbours.setdefault(key, _Neighbour())

    async def _connect(self, node_id: NodeId, url: str, wallet: WalletId) -> HopLink:
        try:
            async with AwakeTimeout(self._connect_timeout_s):
                socket = await self._http.ws_connect(
                    url.rstrip("/") + LINK_PATH,
                    max_msg_size=FRAME_BYTES_MAX,
                    heartbeat=PING_PERIOD_S,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S_MAX),
                )
                await self._greet(socket, node_id, wallet)
        except RemoteProtocolError as error:
            raise LinkError(node_id, f"the greeting failed: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LinkError(node_id, f"cannot reach {url}: {error or type(error).__name__}") from error
        link = HopLink(node_id, socket)
        self._tasks.create_task(link.read(), name=f"link to {node_id}")
        return link

    async def _greet(self, socket: aiohttp.ClientWebSocketResponse, node_id: NodeId, wallet: WalletId) -> None:
        """Raises RemoteProtocolError, with the socket closed, unless the right node answers in agreement."""
        try:
            mine = self._identity.greet()
            await socket.send_bytes(encode_frame(mine))
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise RemoteProtocolError(message.extra or f"{message.type.name} instead of an answer")
            theirs, _ = decode_frame(message.data)
            if not isinstance(theirs, Greeting):
                raise RemoteProtocolError(f"{type(theirs).__name__} instead of a greeting; update that node")
            check_greeting(theirs, mine)
            if theirs.node_id != node_id:
                raise RemoteProtocolError(f"{theirs.node_id} answers at this address")
            check_answer(mine, theirs, wanted=wallet)
            if mine.wallet:
                await socket.send_bytes(encode_frame(self._identity.prove(mine, theirs)))
        except BaseException:
            await socket.close()
            raise
