"""Who runs in the bench and what a run leaves behind: the words that simulator, policies and figures share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from meshnet_protocol.ids import NodeId, Signature
from meshnet_tracker.bench.machines import Machine
from meshnet_tracker.bench.traffic import Request
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.route_policy import RoutePolicy
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore, RoutingConfig


@dataclass(frozen=True, slots=True)
class Tracker:
    """The tracker's parts, as a policy's maker gets them. ``machines`` is the truth: for oracles only."""

    stats: RouteStatsStore
    config: RoutingConfig
    machines: dict[NodeId, Machine]
    requests_per_s: float = 0.0
    """How many there will be, on average: for oracles too."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy under test: its knobs, its enumeration (None: the tracker's own) and how it is made."""

    name: str
    make: Callable[[Tracker], RoutePolicy]
    config: RoutingConfig = field(default_factory=RoutingConfig)
    enumerate_routes: Callable[[], Callable[[ServedModel], tuple[Candidate, ...]]] | None = None
    cap: str = "8"
    """What it chooses among, for the table."""


@dataclass(slots=True)
class Asked:
    """One request's way through the tracker, and what became of it."""

    request: Request
    attempts: int = 0
    drawn: int = 0
    """Tokens drawn by attempts that broke off."""
    failed: list[Signature] = field(default_factory=list)
    """The arms that failed it since it last got on."""
    nodes: tuple[str, ...] = ()
    is_scout: bool = False
    excess_s: float = 0.0
    """What the routes it was given would take above the best way at that moment, by the truth."""
    is_near_best: bool = False
    seconds: float = 0.0
    outcome: str = "open"
    """completed, aborted (the client left), failed (the client saw it), open (the hour ended)."""
    touched: set[str] = field(default_factory=set)
    """Every node that any of its attempts was sent to."""


@dataclass(slots=True)
class Record:
    """Everything one run of the simulator brought."""

    asked: list[Asked]
    scouts_on_one_node_max: int
    router: Router
    model: ServedModel
