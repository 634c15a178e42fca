"""What routing remembers is bounded by what lives, not by what has been."""

import gc
import tracemalloc

import pytest

from meshnet_tracker.bench.contenders import ADAPTIVE, CONTENDERS, DEFAULT
from meshnet_tracker.bench.life import live
from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.bench.worlds import make_world

REQUESTS = 1000
GROWTH_BYTES_MAX = 40_000


@pytest.mark.parametrize("policy", [ADAPTIVE, DEFAULT])
def test_later_requests_leave_nothing_behind(policy: str) -> None:
    world = make_world("B", "stationary", seed=1, duration_s=60)
    simulation = Simulation(world, [], CONTENDERS[policy], seed=1)
    live(simulation, 2 * REQUESTS, seed=1)
    tracemalloc.start()
    try:
        live(simulation, REQUESTS, seed=2)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        live(simulation, REQUESTS, seed=3)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < GROWTH_BYTES_MAX
    assert simulation.router.in_flight_total == 0
