"""The best fixed split of the traffic: what could be reached by who knows all speeds and the load, but sees no crowd.

Requests are dealt to routes in fixed shares by dice, whatever is under way. The shares are made in ``PARTS`` equal
parts: each goes down the route on which it adds least to everybody's time, with what is dealt out already on its
nodes (incremental assignment, as in planning roads). How crowded a node is follows from its mean number of requests
(Little's law), which vary as a Poisson number does. Whenever a machine changes speed, joins or leaves, it is all
worked out anew: the split is static between changes.
"""

import math
from collections.abc import Sequence
from random import Random

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route, chain_hops
from meshnet_tracker.bench.baselines import Baseline
from meshnet_tracker.bench.machines import Machine
from meshnet_tracker.bench.traffic import OUTPUT_TOKENS_MEAN, PROMPT_TOKENS_MEAN
from meshnet_tracker.bench.worlds import LAYER_COUNT
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.route_policy import RouteRequest

PARTS = 60
POISSON_TERMS = 60
SETTLING_ROUNDS = 3

Way = tuple[Machine, ...]


class BestStaticSplit(Baseline):
    name = "best-static-split"

    def __init__(self, machines: dict[NodeId, Machine], *, requests_per_s: float) -> None:
        super().__init__()
        self._machines = machines
        self._requests_per_s = requests_per_s
        self._made_for: object = None
        self._ways: list[Way] = []

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        nodes = request.model.nodes
        good = [
            machine
            for machine in self._machines.values()
            if machine.node_id in nodes and nodes[machine.node_id].is_ready and not machine.is_faulty
        ]
        state = [(machine.node_id, machine.layer_s) for machine in good]
        if state != self._made_for:
            self._made_for, self._ways = state, split(good, self._requests_per_s)
        if not self._ways:
            return rng.choice(request.candidates)
        way = rng.choice(self._ways)
        hops = chain_hops([(machine.node_id, nodes[machine.node_id].shard) for machine in way])
        return Candidate(Route(request.model.model_key, hops), 0.0)


def split(machines: Sequence[Machine], requests_per_s: float) -> list[Way]:
    """``PARTS`` ways, as often as they should be taken; empty if nothing leads to the end."""
    ways: list[Way] = []
    present = {machine.node_id: 0.0 for machine in machines}
    for _ in range(PARTS):
        way = _cheapest(machines, present)
        if way is None:
            return []
        ways.append(way)
        for _ in range(SETTLING_ROUNDS):
            present = _present(ways, present, requests_per_s / PARTS)
    return ways


def _present(ways: Sequence[Way], before: dict[NodeId, float], part_per_s: float) -> dict[NodeId, float]:
    """Requests on each machine on average: a request is on all of its route for as long as it runs."""
    present = dict.fromkeys(before, 0.0)
    for way in ways:
        start, seconds = 0, 0.0
        for machine in way:
            layers = machine.spec.last + 1 - start
            seconds += layers * _layer_s(machine) * crowding(before[machine.node_id], machine.spec.cap)
            start = machine.spec.last + 1
        for machine in way:
            present[machine.node_id] += part_per_s * seconds
    # Half-way, so that full nodes do not swing.
    return {node_id: (before[node_id] + count) / 2 for node_id, count in present.items()}


def _layer_s(machine: Machine) -> float:
    """For one layer of a typical request."""
    return machine.layer_s * (OUTPUT_TOKENS_MEAN + machine.spec.prompt_share * PROMPT_TOKENS_MEAN)


def crowding(mean: float, cap: int) -> float:
    """By what factor a newcomer is slowed down where there are Poisson many with this mean."""
    if mean > POISSON_TERMS / 2:
        return max(1.0, (mean + 1) / cap)
    chance, total, slowed = math.exp(-mean), 0.0, 0.0
    for count in range(POISSON_TERMS):
        total += chance
        slowed += chance * max(1.0, (count + 1) / cap)
        chance *= mean / (count + 1)
    return slowed / total


def _cheapest(machines: Sequence[Machine], present: dict[NodeId, float]) -> Way | None:
    """The way that adds least to the time of all: its own, and what it costs those who are there."""
    by_start: dict[int, list[Machine]] = {}
    for machine in machines:
        for layer in (machine.spec.first, *machine.spec.entry_layers):
            by_start.setdefault(layer, []).append(machine)
    best: dict[int, tuple[float, Way]] = {LAYER_COUNT: (0.0, ())}
    costs: dict[NodeId, float] = {}
    for machine in machines:
        mean, cap = present[machine.node_id], machine.spec.cap
        now = crowding(mean, cap)
        costs[machine.node_id] = _layer_s(machine) * (now + mean * (crowding(mean + 1, cap) - now))
    for layer in sorted(by_start, reverse=True):
        for machine in by_start[layer]:
            onward = best.get(machine.spec.last + 1)
            if onward is None:
                continue
            links = (layer > 0) + (machine.spec.last + 1 < LAYER_COUNT)
            cost = (machine.spec.last + 1 - layer) * costs[machine.node_id] + onward[0]
            cost += links * machine.spec.access_s * OUTPUT_TOKENS_MEAN
            if layer not in best or cost < best[layer][0]:
                best[layer] = (cost, (machine, *onward[1]))
    return best[0][1] if 0 in best else None
