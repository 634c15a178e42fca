"""How long one route choice takes, and how long it takes to enumerate a large mesh from nothing.

Ceilings: 100 us for a choice at 100 heads and 1,000 nodes with the route structure cached, because it is
paid by every chat; 50 ms for a full enumeration at 10,000 nodes, because it is paid at every change of
topology. The choice is timed twice: with nothing changed since the last one, and (``choose_loaded``) with
a heartbeat in between, so that every prior is computed again. ``adaptive_us_p50`` is the adaptive policy's choice,
reservation and release, by the number of routes there are. Run it: ``python benchmarks/route_choice.py``.
"""

import json
import statistics
import time
from collections.abc import Callable
from random import Random

from meshnet_protocol.messages import Heartbeat
from meshnet_tracker.bench.contenders import ADAPTIVE, CONTENDERS
from meshnet_tracker.bench.decision_time import decision_us
from meshnet_tracker.candidates import enumerate_routes
from meshnet_tracker.fleet import Fleet, FleetNode, HeartbeatReceived, NodeRegistered, ServedModel
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteSample, RouteStatsStore, RoutingConfig
from meshnet_tracker.testing import make_card, make_registration

LAYER_COUNT = 40
CUTS = (10, 16, 20, 22, 28, 32)
ROUNDS = 2000
ENUMERATIONS = 15
ROUTE_COUNTS = (6, 48, 756, 5040)


def build_fleet(*, node_count: int, head_count: int, rng: Random) -> tuple[Fleet, ServedModel]:
    """Heads that end at some cut; all others start at one, and can be entered at every cut they contain."""
    fleet = Fleet()
    model = make_card(layer_count=LAYER_COUNT)
    for index in range(node_count):
        first = 0 if index < head_count else rng.choice(CUTS)
        last = rng.choice([cut - 1 for cut in CUTS if cut > first] + [LAYER_COUNT - 1])
        registration = make_registration(
            f"node{index}",
            f"{first}-{last}",
            model=model,
            layer_tokens_per_s=rng.uniform(100, 2000),
            entry_layers=tuple(cut for cut in CUTS if first < cut <= last),
            wallet=f"w{index:015}",
        )
        fleet.handle(NodeRegistered(registration), now=0.0)
    return fleet, fleet.models()[0]


def choose_us(*, is_load_changing: bool) -> float:
    """Median microseconds of one choice with its reservation and release."""
    rng = Random(1)
    fleet, model = build_fleet(node_count=1000, head_count=100, rng=rng)
    config = RoutingConfig()
    stats = RouteStatsStore(config)
    router = Router(fleet=fleet, stats=stats, config=config, rng=rng)
    for candidate in router.candidates(model):
        stats.observe(RouteSample(model.model_key, candidate.signature, 100, rng.uniform(1, 5), 0), now=0.0)
    nodes = list(fleet.nodes())
    taken_us: list[float] = []
    for round_number in range(ROUNDS):
        if is_load_changing:
            fleet.handle(HeartbeatReceived(_heartbeat_of(nodes[round_number % 1000], round_number)), now=1.0)
        started = time.perf_counter()
        router.release(router.choose(model, now=1.0))
        taken_us.append((time.perf_counter() - started) * 1e6)
    return statistics.median(taken_us)


def enumerate_ms() -> float:
    """Median milliseconds of a full enumeration at 10,000 nodes, 1,000 of them heads."""
    _, model = build_fleet(node_count=10_000, head_count=1000, rng=Random(2))
    return statistics.median(_timed_ms(lambda: enumerate_routes(model)) for _ in range(ENUMERATIONS))


def _heartbeat_of(node: FleetNode, queue_depth: int) -> Heartbeat:
    return Heartbeat(
        node_id=node.node_id,
        incarnation=node.registration.incarnation,
        queue_depth=queue_depth % 7 + 1,
        entry_layers=node.registration.entry_layers,
    )


def _timed_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    figures = {
        "choose_us_p50": round(choose_us(is_load_changing=False), 1),
        "choose_loaded_us_p50": round(choose_us(is_load_changing=True), 1),
        "enumerate_10000_nodes_ms_p50": round(enumerate_ms(), 1),
        "adaptive_us_p50": {routes: round(decision_us(CONTENDERS[ADAPTIVE], routes)[1], 1) for routes in ROUTE_COUNTS},
        "choose_us_max": 100,
        "enumerate_10000_nodes_ms_max": 50,
    }
    print(json.dumps({"benchmark": "route_choice", **figures}))
