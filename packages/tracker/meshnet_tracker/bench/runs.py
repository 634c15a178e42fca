"""Which policy meets which world with which seed, spread over the cores."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from meshnet_tracker.bench.contenders import CONTENDERS
from meshnet_tracker.bench.figures import Figures, figures_of
from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.bench.traffic import make_requests
from meshnet_tracker.bench.worlds import make_world

WARM_UP_S = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """One world, one seed, and all policies that shall meet it."""

    topology: str
    scenario: str
    seed: int
    policies: tuple[str, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Done:
    job: Job
    event_at_s: float | None
    by_policy: dict[str, Figures]


def run_job(job: Job) -> Done:
    world = make_world(job.topology, job.scenario, seed=job.seed, duration_s=job.duration_s)
    requests = make_requests(world, seed=job.seed, duration_s=job.duration_s)
    by_policy: dict[str, Figures] = {}
    for name in job.policies:
        record = Simulation(world, requests, CONTENDERS[name], seed=job.seed).run(job.duration_s)
        by_policy[name] = figures_of(record, world, warm_up_s=min(WARM_UP_S, job.duration_s / 6))
    return Done(job, world.event_at_s, by_policy)


def run_jobs(jobs: Sequence[Job], *, processes: int | None = None) -> Iterator[Done]:
    """In the order of ``jobs``."""
    count = processes or os.cpu_count() or 1
    if count == 1 or len(jobs) == 1:
        yield from map(run_job, jobs)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(run_job, jobs)


def make_jobs(
    topologies: Iterable[str], scenarios: Iterable[str], policies: Sequence[str], *, seeds: int, duration_s: float
) -> list[Job]:
    return [
        Job(topology, scenario, seed, tuple(policies), duration_s)
        for topology in topologies
        for scenario in scenarios
        for seed in range(seeds)
    ]
