"""The composition root: makes every part of the tracker, joins them, and runs them under one server.

Only here meet the clock, the dice, the sockets and the parts that decide. ``TrackerServer.handle`` is the
one way in for everything about nodes; it carries out the fleet's effects.
"""

import asyncio
import importlib
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from types import ModuleType
from typing import assert_never

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI

from meshnet_protocol.hosts import is_loopback
from meshnet_protocol.ids import ModelKey, NodeId
from meshnet_protocol.messages import HeadRequest, RoutePlan
from meshnet_protocol.routes import Route
from meshnet_tracker.access import Access
from meshnet_tracker.app import TrackerApp
from meshnet_tracker.blame import Blame
from meshnet_tracker.call_texts import CallTexts
from meshnet_tracker.calls import CALLS_KEPT_MAX, CallRecord
from meshnet_tracker.candidates import Candidate, CandidateCache
from meshnet_tracker.chain_fill import FilledCandidates
from meshnet_tracker.errors import AttemptFailedError, SettingsError
from meshnet_tracker.events import EventLog
from meshnet_tracker.fleet import (
    Fleet,
    FleetEffect,
    FleetEvent,
    NodeNoted,
    NodesServed,
    ServedModel,
    Tick,
    TopologyChanged,
)
from meshnet_tracker.guesses import Guesses
from meshnet_tracker.head_client import open_session
from meshnet_tracker.http_api import add_endpoints
from meshnet_tracker.http_server import HttpServer, listen, url_of
from meshnet_tracker.live_probe import LiveProbes
from meshnet_tracker.node_auth import JoinRule, NodeAuth
from meshnet_tracker.node_probe import NodeProbe
from meshnet_tracker.observers import Observers
from meshnet_tracker.policies.adaptive import ADAPTIVE, AdaptivePolicy
from meshnet_tracker.policies.proportional import ProportionalPolicy
from meshnet_tracker.prober import Prober
from meshnet_tracker.proxy import ChatProxy
from meshnet_tracker.pulse import SAMPLE_PERIOD_S
from meshnet_tracker.readiness import Readiness
from meshnet_tracker.route_policy import RoutePolicy
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.spans import writer_from_environment
from meshnet_tracker.ticket_office import TicketOffice
from meshnet_tracker.trials import Trials, doubts_of

TICKS_PER_HEARTBEAT = 2

_log = structlog.get_logger("meshnet.tracker")


class TrackerServer:
    """One tracker. ``app`` is its ASGI application. ``key`` signs its tickets; without one, it draws its own."""

    def __init__(
        self, settings: TrackerSettings, *, route_rng: Random | None = None, key: Ed25519PrivateKey | None = None
    ) -> None:
        self.settings = settings
        self._is_stopping = False
        self._call_takers: list[Callable[[CallRecord], None]] = []
        if settings.database is not None:
            _store().prepare(settings.database)
        self.access = Access(api_keys=settings.api_keys, admin_keys=settings.admin_keys)
        self.guesses = Guesses(_warn_of_guesses)
        join = JoinRule(settings.join_tokens, settings.allowed_wallets)
        self.node_auth = NodeAuth(boot=secrets.token_hex(16), join=join)
        self.tickets = TicketOffice(key or Ed25519PrivateKey.generate())
        self.probe = NodeProbe()
        self.events = EventLog(wall_clock=time.time)
        self.fleet = Fleet(
            heartbeat_period_s=settings.heartbeat_period_s, believes_newcomers=not settings.probes_models
        )
        self.prober = Prober(self.fleet, self.handle)
        self.blame = Blame()
        self.trials = Trials(doubts_of(self.fleet, self.blame.links))
        self.stats = RouteStatsStore(settings.routing)
        self.router = self._make_router(route_rng or Random())
        self.readiness = Readiness(
            fleet=self.fleet, links=self.blame.links, candidates=self.router.candidates, is_busy=self._is_busy
        )
        self.live_probes = self._make_live_probes()
        self.texts = CallTexts() if settings.show_texts else None
        self.proxy = self._make_proxy()
        self.observers = Observers(
            fleet=self.fleet,
            router=self.router,
            stats=self.stats,
            events=self.events,
            running_tokens=self.proxy.running_tokens,
            on_call_finished=self._hand_on_call,
        )
        self.app = self._make_app()

    def _make_router(self, rng: Random) -> Router:
        self._candidates, policy = _routing_parts(self.settings, self.stats)
        return Router(
            fleet=self.fleet,
            stats=self.stats,
            config=self.settings.routing,
            rng=rng,
            enumerate_routes=self._enumerate_routes,
            policy=policy,
            links=self.blame.links,
            trials=self.trials,
            aliases=self.settings.model_aliases,
        )

    def _make_live_probes(self) -> LiveProbes:
        return LiveProbes(
            readiness=self.readiness,
            router=self.router,
            events=self.events,
            served=self._note_served,
            blame=self._blame_for,
            add_ticket=self._add_ticket,
            token_timeout_s=self.settings.token_timeout_s,
        )

    def _make_proxy(self) -> ChatProxy:
        settings = self.settings
        return ChatProxy(
            router=self.router,
            events=self.events,
            blame=self._blame_for,
            served=self._note_served,
            add_ticket=self._add_ticket,
            seed_rng=Random(),
            comment_period_s=settings.comment_period_s,
            token_timeout_s=settings.token_timeout_s,
            chat_timeout_s=settings.chat_timeout_s,
            texts=self.texts,
        )

    def _make_app(self) -> TrackerApp:
        rest = FastAPI(
            title="meshnet tracker", docs_url=None, redoc_url=None, lifespan=self._lifespan, redirect_slashes=False
        )
        add_endpoints(rest, self)
        return TrackerApp(
            chat=self.proxy,
            rest=rest,
            access=self.access,
            guesses=self.guesses,
            check_reader=self._check_reader,
            allowed_hosts=self.settings.allowed_hosts | {socket.gethostname().lower()},
        )

    def _check_reader(self, headers: Mapping[str, str], asked: str) -> None:
        self.node_auth.check_reader(headers, asked=asked, now=time.time())

    @property
    def route_rng(self) -> Random:
        """The dice that choose routes. Seed it, or put another in its place, to make choices repeatable."""
        return self.router.rng

    @route_rng.setter
    def route_rng(self, rng: Random) -> None:
        self.router.rng = rng

    def handle(self, event: FleetEvent) -> None:
        """Tell the fleet and carry out what follows. Raises RegistrationRefusedError."""
        for effect in self.fleet.handle(event, time.monotonic()):
            self._carry_out(effect)

    def _enumerate_routes(self, model: ServedModel) -> tuple[Candidate, ...]:
        """What the next request of this model can choose among: the router asks here, once per choice."""
        return self._candidates.candidates(model)

    def _carry_out(self, effect: FleetEffect) -> None:
        match effect:
            case TopologyChanged(model_key, reason, node_id):
                epoch = self.stats.bump_epoch(model_key)
                self.events.append(f"node {reason}", node_id=node_id, model=model_key, epoch=epoch)
                self._follow_up(model_key, node_id, reason)
            case NodeNoted(model_key, reason, node_id):
                epoch = self.stats.epoch(model_key)
                self.events.append(f"node {reason}", node_id=node_id, model=model_key, epoch=epoch)
                self._follow_up(model_key, node_id, reason)
            case _:
                assert_never(effect)

    def _follow_up(self, model_key: ModelKey, node_id: NodeId, reason: str) -> None:
        self.live_probes.look()
        match reason:
            case "lost" | "left" | "restarted" | "shard-change" | "settling":
                self.proxy.cut_off(node_id)
                self.proxy.let_waiting_in(model_key)
            case "suspected":
                self.prober.look()
            case "joined" | "settled" | "recut" | "cleared":
                self.proxy.let_waiting_in(model_key)
            case "condemned":
                for event in self.blame.condemned(node_id):
                    self.handle(event)

    def _blame_for(self, route: Route, failure: AttemptFailedError) -> tuple[NodeId, ...]:
        suspects, events = self.blame.judge(route, failure, time.monotonic())
        for event in events:
            self.handle(event)
        self.live_probes.look()
        return tuple(suspects)

    def _is_busy(self, route: Route) -> bool:
        """Somebody is about to find out whether it works."""
        return self.router.in_flight(route.signature) > 0 or not self.trials.is_open(route, time.monotonic())

    def _note_served(self, route: Route) -> None:
        was_in_doubt = self.trials.is_in_doubt(route, time.monotonic())
        self.handle(NodesServed(route.node_ids))
        self.blame.links.note_served(route)
        if was_in_doubt:
            self.proxy.let_waiting_in(route.model_key)

    def _add_ticket(self, plan: RoutePlan, request: HeadRequest) -> RoutePlan:
        return self.tickets.issue(plan, request, now=time.time())

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        tls = self.settings.client_tls
        async with (
            self._open_call_store(),
            self._open_spans(),
            open_session(tls) as session,
            asyncio.TaskGroup() as tasks,
        ):
            self.proxy.session = self.probe.session = session
            loops = [self._tick_forever(), self._sample_forever(), self.prober.run(session)]
            if self.settings.probes_models:
                loops.append(self.live_probes.run(session))
            companions = [tasks.create_task(loop) for loop in loops]
            yield
            for companion in companions:
                companion.cancel()

    @asynccontextmanager
    async def _open_call_store(self) -> AsyncIterator[None]:
        """The calls of an earlier run come back; those of this one are written down, the last at the end."""
        if self.settings.database is None:
            yield
            return
        async with _store().open_call_store(self.settings.database) as store:
            self._call_takers.append(store.put_nowait)
            self.observers.calls.restore(await store.latest(CALLS_KEPT_MAX))
            yield

    @asynccontextmanager
    async def _open_spans(self) -> AsyncIterator[None]:
        """Finished calls become spans, where the environment names a collector."""
        writer = writer_from_environment()
        if writer is None:
            yield
            return
        self._call_takers.append(writer.put_nowait)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.flush_forever())
            yield
            writing.cancel()
        await writer.close()

    def _hand_on_call(self, call: CallRecord) -> None:
        for take in self._call_takers:
            take(call)

    def begin_to_stop(self) -> None:
        """From here on nobody is let in, heartbeats included: silence says nothing about a node any more."""
        self._is_stopping = True

    def http_server(self) -> HttpServer:
        return HttpServer(
            self.app,
            self.settings,
            on_stop=self.begin_to_stop,
            end_watchers=self.observers.watchers.close,
            end_chats=self.proxy.cut_off_all,
        )

    async def _tick_forever(self) -> None:
        while not self._is_stopping:
            self.handle(Tick())
            self.router.prune(time.monotonic())
            await asyncio.sleep(self.settings.heartbeat_period_s / TICKS_PER_HEARTBEAT)

    async def _sample_forever(self) -> None:
        while True:
            self.observers.sample()
            await asyncio.sleep(SAMPLE_PERIOD_S)


def _warn_of_guesses(address: str) -> None:
    _log.warning("somebody tries one wrong key after the other", address=address)


def _store() -> ModuleType:
    """Imported late: SQLAlchemy and Alembic take as long to load as all the rest, and every command would wait."""
    return importlib.import_module("meshnet_tracker.store.opening")


def _routing_parts(
    settings: TrackerSettings, stats: RouteStatsStore
) -> tuple[CandidateCache | FilledCandidates, RoutePolicy]:
    """What a policy chooses among, and the policy: the proportional one has exactly one candidate per head."""
    limit = settings.route_candidates_max
    if settings.route_policy == ADAPTIVE:
        return FilledCandidates(limit=limit), AdaptivePolicy(config=settings.routing)
    return CandidateCache(limit=limit), ProportionalPolicy(stats=stats, config=settings.routing)


def run_tracker(
    settings: TrackerSettings,
    *,
    key: Ed25519PrivateKey | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, let running chats end within the drain timeout, and return.

    ``on_listening`` is told the base URL. Raises SettingsError if the port is taken or the database unusable.
    Call it in the main thread.
    """
    tracker = TrackerServer(settings, key=key)
    try:
        listener = listen(settings)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port} ({error.strerror or error}); choose another --port"
        ) from error
    with listener, _quiet_signals():
        url = url_of(listener, "http" if settings.server_tls is None else "https")
        _log.info("tracker listening", url=url, tracker_key=tracker.tickets.public_key)
        if settings.is_open and not is_loopback(settings.host):
            _log.warning("open to everybody who can reach this machine: no keys, any node may join")
        if settings.has_short_keys:
            _log.warning("a key or join token is short, and can be guessed: use 16 random characters or more")
        if settings.show_texts:
            _log.warning("prompts and answers of the latest calls are shown to whoever may see the dashboard")
        if on_listening is not None:
            on_listening(url)
        tracker.http_server().run(sockets=[listener])


class _Stopped(Exception):  # noqa: N818 - nothing is wrong
    """Somebody asked the process to end."""


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """A tracker that was asked to end has not failed: uvicorn raises its signals once more when it is done."""

    def stop(*_: object) -> None:
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with suppress(_Stopped):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
