"""A small mesh in memory with a router of any policy, for laws that are told in requests and their ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from meshnet_protocol.messages import Leave
from meshnet_tracker.chain_fill import FilledCandidates
from meshnet_tracker.fleet import Fleet, NodeLeft, NodeRegistered, ServedModel
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.policies.proportional import ProportionalPolicy
from meshnet_tracker.route_policy import RoutePolicy
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.routing_stats import RouteStatsStore, RoutingConfig
from meshnet_tracker.testing import make_card, make_registration

LAYERS = 12
CARD = make_card(layer_count=LAYERS)
CONFIG = RoutingConfig()
POLICIES: dict[str, Callable[[RouteStatsStore], RoutePolicy]] = {
    "proportional": lambda stats: ProportionalPolicy(stats=stats, config=CONFIG),
    "adaptive": lambda _: AdaptivePolicy(config=CONFIG),
}
every_policy = pytest.mark.parametrize("policy", POLICIES)
# The default scouts by its share of traffic and starts cold at the best prior, and it does not learn from failures.
learns_from_failures = pytest.mark.parametrize("policy", [name for name in POLICIES if name != "proportional"])


@dataclass
class Mesh:
    """A small mesh with a router of the given policy, and the requests that are out."""

    policy: str
    fleet: Fleet = field(default_factory=Fleet)
    stats: RouteStatsStore = field(default_factory=lambda: RouteStatsStore(CONFIG))
    held: list[RouteDecision] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    now: float = 100.0

    def __post_init__(self) -> None:
        self.router = Router(
            fleet=self.fleet,
            stats=self.stats,
            config=CONFIG,
            rng=Random(3),
            enumerate_routes=FilledCandidates(limit=8).candidates if self.policy == "adaptive" else None,
            policy=POLICIES[self.policy](self.stats),
        )

    def join(self, instance: str, layers: str, speed: float = 1000.0, slots: int = 4) -> None:
        self.runs[instance] = self.runs.get(instance, 0) + 1
        registration = make_registration(
            instance,
            layers,
            model=CARD,
            layer_tokens_per_s=speed,
            incarnation=f"{instance} {self.runs[instance]}",
        )
        self.fleet.handle(NodeRegistered(msgspec.structs.replace(registration, slots=slots)), self.now)
        self.stats.bump_epoch(CARD.model_key)

    def leave(self, instance: str) -> None:
        for node in [node for node in self.fleet.nodes() if node.registration.instance == instance]:
            registration = node.registration
            leave = Leave(node_id=node.node_id, incarnation=registration.incarnation)
            self.fleet.handle(NodeLeft(leave), self.now)
            self.stats.bump_epoch(CARD.model_key)

    @property
    def model(self) -> ServedModel:
        model = self.fleet.model(CARD.model_key)
        assert model is not None
        return model

    def choose(self, **how: object) -> RouteDecision:
        decision = self.router.choose(self.model, now=self.now, **how)  # type: ignore[arg-type]
        self.held.append(decision)
        return decision

    def end(self, decision: RouteDecision, *, seconds: float | None = None, fails: bool = False) -> None:
        if fails:
            self.router.note_failure(decision, suspects=(), now=self.now)
        elif seconds is not None:
            self.router.observe(decision, completion_tokens=100, seconds=seconds, now=self.now)
        self.router.release(decision, self.now)
        self.held.remove(decision)

    def run(self, speeds: dict[str, float], count: int, *, fails: tuple[str, ...] = ()) -> list[str]:
        """One request after the other on whole-model nodes; who took them. ``speeds``: seconds each takes."""
        taken: list[str] = []
        for _ in range(count):
            decision = self.choose()
            (instance,) = instances(decision)
            taken.append(instance)
            self.now += 0.05 if instance in fails else speeds[instance]
            self.end(decision, seconds=speeds[instance], fails=instance in fails)
        return taken


def instances(decision: RouteDecision) -> list[str]:
    return [node_id.split(".")[0] for node_id in decision.route.node_ids]


def whole_mesh(policy: str, *names: str, speed: float = 1000.0) -> Mesh:
    mesh = Mesh(policy)
    for name in names:
        mesh.join(name, "0-11", speed)
    return mesh
