"""A node's life as a member of the mesh, whatever it serves with: it has a name, registers, beats, drains and leaves.

    run_process ──> serve (a composition root) ──> live_until_stopped: register, beat ──stop──> drain ──> leave

Nodes with layers (``server.py``) and nodes in front of another server (``upstream_server.py``) live the same one.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import aiohttp
import structlog

from meshnet_node.errors import NodeError
from meshnet_node.settings import NodeSettings
from meshnet_node.tracker_client import Queue, TrackerClient
from meshnet_node.wallet import Wallet
from meshnet_protocol.ids import Incarnation, NodeId, make_node_id
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Exactness, LayerSpan, ModelCard, Registration

DRAIN_LOOK_PERIOD_S = 0.05
CONNECT_S_MAX = 5.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who a running node is: fixed once its port is known."""

    wallet: Wallet
    instance: str
    incarnation: Incarnation
    url: str
    shard: LayerRange

    @classmethod
    def of(cls, settings: NodeSettings, wallet: Wallet, shard: LayerRange, listener: socket.socket) -> "NodeIdentity":
        port = int(listener.getsockname()[1])
        return cls(
            wallet=wallet,
            instance=settings.instance_name(port),
            incarnation=Incarnation(uuid4().hex),
            url=settings.advertised_url(port),
            shard=shard,
        )

    @property
    def node_id(self) -> NodeId:
        return make_node_id(wallet=self.wallet.wallet_id, instance=self.instance, shard=self.shard)

    def registration(
        self,
        card: ModelCard,
        *,
        layer_tokens_per_s: float,
        entry_layers: tuple[int, ...],
        slots: int,
        exactness: Exactness | None = None,
    ) -> Registration:
        return Registration(
            wallet=self.wallet.wallet_id,
            instance=self.instance,
            incarnation=self.incarnation,
            shard=LayerSpan.of(self.shard),
            model=card,
            url=self.url,
            layer_tokens_per_s=layer_tokens_per_s,
            entry_layers=entry_layers,
            slots=slots,
            exactness=exactness or Exactness(),
        )


def client_session(settings: NodeSettings, *, read_bytes: int = 2**16) -> aiohttp.ClientSession:
    """What a node talks to tracker, nodes and upstream with.

    A chat may take as long as its text needs; what is bounded is each step's wait, and connecting.
    """
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX),
        connector=aiohttp.TCPConnector(ssl=settings.client_tls or True),
        read_bufsize=read_bytes,
    )


async def live_until_stopped(
    client: TrackerClient,
    queue: Queue,
    stop: asyncio.Event,
    *,
    drain_timeout_s: float,
    can_drain: Callable[[], bool] = lambda: True,
) -> None:
    """Be a member until ``stop``; then take nothing new, let running chats end, and leave.

    Raises an ExceptionGroup with RegistrationRefusedError or TrackerKeyError.
    """
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.run(), name="membership")
        await stop.wait()
        if can_drain():
            await _drain(client, queue, drain_timeout_s)
        running.cancel()
        await client.leave()


async def _drain(client: TrackerClient, queue: Queue, timeout_s: float) -> None:
    client.start_draining()
    log.info("draining", sessions=queue.queue_depth)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while queue.queue_depth:  # noqa: ASYNC110 - a look at a count, not worth an event of its own
                await asyncio.sleep(DRAIN_LOOK_PERIOD_S)


class Serve(Protocol):
    """What runs a node until ``stop``; ``on_loaded`` is called when an orderly end begins to matter."""

    async def __call__(self, settings: NodeSettings, stop: asyncio.Event, *, on_loaded: Callable[[], None]) -> None: ...


def run_process(settings: NodeSettings, serve: Serve) -> None:
    """Serve until SIGTERM or SIGINT; a second one does not wait for running chats.

    Raises NodeError, fit to be shown to a person.
    """
    # While a model is hashed, sliced and loaded nothing needs an orderly end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(_run(settings, serve))
    except ExceptionGroup as group:
        ours, others = group.split(NodeError)
        if ours is None or others is not None:
            raise
        raise _first_leaf(ours) from group


async def _run(settings: NodeSettings, serve: Serve) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def begin_to_stop() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def watch_signals() -> None:
        for number in numbers:
            loop.add_signal_handler(number, begin_to_stop)

    await serve(settings, stop, on_loaded=watch_signals)


def _first_leaf(group: BaseExceptionGroup[NodeError]) -> NodeError:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, BaseExceptionGroup) else first


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not made for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
