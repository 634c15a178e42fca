"""Many requests through a router without simulating machines: for what adds up over time, memory above all.

Of a hundred requests some fail, some clients leave, a few dozen are under way at once; every so often a node
restarts, so that whatever is kept per process has to be given up again.
"""

from collections import deque
from random import Random

from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.router import RouteDecision

IN_FLIGHT = 24
STEP_S = 0.05
REQUESTS_PER_RESTART = 500
FAILING_SHARE, LEAVING_SHARE = 0.02, 0.05


def live(simulation: Simulation, requests: int, *, seed: int) -> None:
    """Run so many requests from where the simulation stands; none is left under way."""
    rng = Random(f"{seed} life")
    router, model = simulation.router, simulation.model
    under_way: deque[RouteDecision] = deque()
    for number in range(requests):
        now = simulation.pass_time(STEP_S)
        under_way.append(router.choose(model, now=now, prompt_tokens=rng.randint(1, 500)))
        if len(under_way) > IN_FLIGHT:
            _end(simulation, under_way.popleft(), rng, now)
        if number % REQUESTS_PER_RESTART == 0:
            simulation.restart(rng)
            router.prune(now)
    now = simulation.pass_time(STEP_S)
    while under_way:
        _end(simulation, under_way.popleft(), rng, now)


def _end(simulation: Simulation, decision: RouteDecision, rng: Random, now: float) -> None:
    fate = rng.random()
    if fate < FAILING_SHARE:
        simulation.router.note_failure(decision, suspects=decision.route.node_ids[:2], now=now)
    elif fate > LEAVING_SHARE + FAILING_SHARE:
        seconds = rng.uniform(0.5, 5.0)
        simulation.router.observe(decision, completion_tokens=100, seconds=seconds, now=now, prompt_tokens=100)
    simulation.router.release(decision, now)
