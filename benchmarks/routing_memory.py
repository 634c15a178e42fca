"""What routing keeps in memory after a million requests, per policy: 22 nodes, 5,040 routes, nodes that come and go.

Everything a policy keeps is bounded by the live arms and the requests in flight, so the second half of the requests
must add next to nothing to the first. Run it: ``python benchmarks/routing_memory.py [--requests 1000000]``.
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random

from meshnet_tracker.bench.contenders import ADAPTIVE, CONTENDERS, DEFAULT
from meshnet_tracker.bench.life import live
from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.bench.worlds import TOPOLOGIES, World

GROWTH_MB_MAX = 2.0


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth_mb(policy: str, requests: int) -> tuple[float, float]:
    """Resident megabytes after half of the requests, and what the other half added."""
    nodes = tuple(replace(node, cap=8) for node in TOPOLOGIES["G"](Random(7)))
    simulation = Simulation(World("G", "stationary", nodes), [], CONTENDERS[policy], seed=1)
    live(simulation, requests // 2, seed=1)
    half_mb = resident_mb()
    live(simulation, requests // 2, seed=2)
    return half_mb, resident_mb() - half_mb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args()
    figures = {}
    for policy in (ADAPTIVE, DEFAULT):
        half_mb, more_mb = growth_mb(policy, options.requests)
        figures[policy] = {"resident_mb": round(half_mb, 1), "second_half_mb": round(more_mb, 2)}
    print(
        json.dumps(
            {
                "benchmark": "routing_memory",
                "requests": options.requests,
                **figures,
                "second_half_mb_max": GROWTH_MB_MAX,
            }
        )
    )


if __name__ == "__main__":
    main()
