"""How long one decision takes, by the number of routes: the policy alone, and with its reservation and release."""

import statistics
import time
from dataclasses import replace
from random import Random

from meshnet_tracker.bench.contender import Contender
from meshnet_tracker.bench.worlds import TOPOLOGIES, World
from meshnet_tracker.route_policy import RouteRequest

TOPOLOGY_OF_ROUTES = {6: "A", 48: "B", 756: "C", 5040: "G"}
DECISIONS = 1500
STEP_S = 0.05


def decision_us(contender: Contender, routes: int) -> tuple[float, float]:
    """Median microseconds of a decision alone, and of one with reservation and release. Every node is proven."""
    from meshnet_tracker.bench.simulator import Simulation

    name = TOPOLOGY_OF_ROUTES[routes]
    nodes = tuple(replace(node, cap=8) for node in TOPOLOGIES[name](Random(7)))
    simulation = Simulation(World(name, "stationary", nodes), [], contender, seed=1)
    router, model = simulation.router, simulation.model
    alone_us: list[float] = []
    whole_us: list[float] = []
    now = 0.0
    for _ in range(DECISIONS):
        now += STEP_S
        started = time.perf_counter()
        decision = router.choose(model, now=now, prompt_tokens=100)
        chosen = time.perf_counter()
        router.observe(decision, completion_tokens=100, seconds=1.0, now=now, prompt_tokens=100)
        again = time.perf_counter()
        router.release(decision, now)
        whole_us.append((chosen - started + time.perf_counter() - again) * 1e6)
        candidates = router.candidates(model)
        started = time.perf_counter()
        router.policy.choose(RouteRequest(model, candidates, (), 100), router.rng, now)
        alone_us.append((time.perf_counter() - started) * 1e6)
    half = DECISIONS // 2
    return statistics.median(alone_us[half:]), statistics.median(whole_us[half:])
