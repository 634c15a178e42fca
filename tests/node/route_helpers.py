"""A route of nodes in one process: real engines behind real sockets, without a tracker."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.admission import Admission
from meshnet_node.engine.api import Engine
from meshnet_node.http_face import bind, serving
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.link_pool import LinkPool
from meshnet_node.member_life import NodeIdentity
from meshnet_node.relay import greeting_of
from meshnet_node.server import NodeApp
from meshnet_node.ticket_gate import TicketGate
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.wallet import Wallet
from meshnet_protocol.ids import Incarnation, SessionId
from meshnet_protocol.messages import HeadRequest, PlannedHop, RoutePlan, TrackerGreeting
from meshnet_tracker.ticket_office import TicketOffice

IDLE_S_MAX = 2.0
ANSWERS_MAX = 16

_session_numbers = count()


@dataclass
class RouteNode:
    """One node of the route."""

    identity: NodeIdentity
    engine: Engine
    admission: Admission
    links: LinkPool

    @property
    def planned(self) -> PlannedHop:
        shard = self.engine.shard
        return PlannedHop(
            node_id=self.identity.node_id,
            url=self.identity.url,
            start_layer=shard.first,
            end_layer=shard.last,
            wallet=self.identity.wallet.wallet_id,
        )


@dataclass
class LocalRoute:
    """Nodes in route order, and a client that talks to the head."""

    nodes: list[RouteNode]
    http: aiohttp.ClientSession
    office: TicketOffice
    """Signs as the tracker that all the nodes trust."""

    def plan(self, *, last: PlannedHop | None = None, **request: Any) -> RoutePlan:
        """With a ticket for ``request``: by default many answers of any length. ``last`` takes the tail's place."""
        hops = [node.planned for node in self.nodes]
        plan = RoutePlan(
            session_id=SessionId(f"session{next(_session_numbers)}"),
            model_key=self.nodes[0].engine.card.model_key,
            hops=tuple(hops if last is None else [*hops[:-1], last]),
        )
        return self.office.issue(plan, HeadRequest(**({"n": ANSWERS_MAX} | request)), now=time.time())

    @property
    def chat_url(self) -> str:
        return f"{self.nodes[0].identity.url}/v1/chat/completions"

    def body(self, content: str, *, plan: RoutePlan | None = None, **fields: Any) -> dict[str, Any]:
        chat = {"messages": [{"role": "user", "content": content}], "temperature": 0, "stream": False}
        return chat | {"meshnet": msgspec.to_builtins(plan or self.plan())} | fields

    async def wait_idle(self) -> None:
        """Until every node's slots are free; fails if that takes long."""
        async with asyncio.timeout(IDLE_S_MAX):
            while any(node.admission.queue_depth for node in self.nodes):  # noqa: ASYNC110 - a look at a count
                await asyncio.sleep(0.005)

    async def chat(self, content: str, **fields: Any) -> dict[str, Any]:
        """The whole answer, or the error object, as JSON."""
        async with self.http.post(self.chat_url, json=self.body(content, **fields)) as response:
            return dict(await response.json())


@asynccontextmanager
async def local_route(
    engines: Sequence[Engine],
    folder: Path,
    *,
    queue_max: int = 8,
    queue_timeout_s: float = 2.0,
    allows_direct: bool = True,
) -> AsyncIterator[LocalRoute]:
    wallet = Wallet.load_or_create(folder / "wallet.pem")
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        office = TicketOffice(Ed25519PrivateKey.generate())
        nodes = []
        for number, engine in enumerate(engines):
            listener = stack.enter_context(bind("127.0.0.1", 0))
            identity = NodeIdentity(
                wallet=wallet,
                instance=f"node{number}",
                incarnation=Incarnation(str(number)),
                url=f"http://127.0.0.1:{listener.getsockname()[1]}",
                shard=engine.shard,
            )
            links = await stack.enter_async_context(_links(http, identity, engine))
            admission = Admission(engine, queue_max=queue_max, queue_timeout_s=queue_timeout_s)
            trust = TrackerTrust()
            trust.greet(TrackerGreeting(tracker_key=office.public_key, boot="boot", time_s=time.time()))
            tickets = TicketGate(trust, allows_direct=allows_direct)
            app = NodeApp(identity, engine, links, admission, tickets)
            await stack.enter_async_context(serving(app.build(), listener))
            nodes.append(RouteNode(identity, engine, admission, links))
        try:
            yield LocalRoute(nodes, http, office)
        finally:
            # A server that stops waits for connections that are still open.
            await http.close()


@asynccontextmanager
async def _links(http: aiohttp.ClientSession, node: NodeIdentity, engine: Engine) -> AsyncIterator[LinkPool]:
    async with asyncio.TaskGroup() as tasks:
        links = LinkPool(http, tasks, LinkIdentity(greeting_of(node.node_id, engine), node.wallet))
        try:
            yield links
        finally:
            await links.close()
