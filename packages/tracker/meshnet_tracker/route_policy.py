"""The seam between the router and whatever chooses routes: what a policy is told, and what it must answer.

The router keeps everything that is the same under every policy: which routes are possible, pinned routes,
reservations, the fallbacks, the end-to-end statistics. A policy decides who takes the next request, is told
of every request's life (taken, completed or failed, released), and explains itself to the routing table.

    choose ──> taken ──> completed | failed | neither (a client that left) ──> released

Policies are plain synchronous code: they are told the time and handed their dice. They never raise for what
a node or a client did; should one raise all the same, the router serves the request by the best prior.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from meshnet_protocol.ids import Incarnation, NodeId, Signature
from meshnet_protocol.messages import HopTiming
from meshnet_protocol.routes import Route
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.routing_stats import ArmStatus, RouteChoice


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """One request that wants a route. ``candidates`` are enumerated and not excluded: at least one."""

    model: ServedModel
    candidates: Sequence[Candidate]
    exclude: Collection[Signature] = ()
    """Arms that failed this very request already."""
    prompt_tokens: int | None = None
    """About how long the prompt is, where that is known before it is tokenized."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A request on its way: the reservation, its route, and which process of each node it runs on."""

    reservation: int
    route: Route
    incarnations: tuple[Incarnation, ...]
    taken_at: float
    is_scout: bool
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that one route ran from start to end. ``ttft_s`` and ``timings`` where the head reported them."""

    completion_tokens: int
    seconds: float
    prompt_tokens: int = 0
    ttft_s: float | None = None
    timings: Sequence[HopTiming] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that broke off or brought nothing. ``suspects`` are the hops at fault, where that is known."""

    suspects: Sequence[NodeId] = ()
    is_overload: bool = False


@dataclass(frozen=True, slots=True)
class ArmOpinion:
    """What a policy says about one candidate: null where it has no opinion."""

    probability: float
    """That the next unpinned request takes this arm."""
    reason: str
    expected_tps: float | None = None
    interval_tps: tuple[float, float] | None = None
    """The arm's speed lies in here, about 19 times out of 20, as far as is known."""
    status: ArmStatus | None = None
    """Where the policy's idea of proven is narrower or wider than the statistics'."""


class RoutePolicy(Protocol):
    """Who takes the next request."""

    @property
    def name(self) -> str: ...
    @property
    def learns_from_failures(self) -> bool:
        """It keeps nodes that fail away by itself; else the router leaves them out until they have cooled down."""
        ...

    def choose(self, request: RouteRequest, rng: Random, now: float) -> RouteChoice[Candidate] | None:
        """A route for the request; None if the policy knows none that is not excluded."""

    def taken(self, flight: Flight) -> None:
        """The route is reserved, pinned and fallback routes included."""

    def completed(self, flight: Flight, completion: Completion, now: float) -> None: ...

    def failed(self, flight: Flight, failure: Failure, now: float) -> None: ...

    def released(self, flight: Flight, now: float) -> None:
        """The last word on a flight, exactly once. Without a word before it: the client left."""

    def explain(
        self, model: ServedModel, candidates: Sequence[Candidate], now: float
    ) -> Mapping[Signature, ArmOpinion]: ...

    def prune(self, now: float) -> None:
        """Forget what cannot matter any more."""
