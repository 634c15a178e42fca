"""What could be reached by who knows the truth: the marks that regret is measured from.

``clairvoyant`` takes, for every single request, the way that is quickest at that moment, from the machines'
true speeds, faults and crowds and the request's true length. That is selfish: it heeds no one who is slowed
down by it. ``clairvoyant-kind`` adds what a newcomer costs those who are there already, and is the better mark
under load.
"""

from random import Random

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route, chain_hops
from meshnet_tracker.bench.baselines import Baseline
from meshnet_tracker.bench.machines import Machine, best_route
from meshnet_tracker.bench.traffic import OUTPUT_TOKENS_MEAN
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.route_policy import RouteRequest


class Clairvoyant(Baseline):
    def __init__(self, machines: dict[NodeId, Machine], *, is_kind: bool = False) -> None:
        super().__init__()
        self.name = "clairvoyant-kind" if is_kind else "clairvoyant"
        self._machines = machines
        self._is_kind = is_kind
        self.request_tokens = (0, int(OUTPUT_TOKENS_MEAN))

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        nodes = request.model.nodes
        known = [machine for machine in self._machines.values() if machine.node_id in nodes]
        ready = [machine for machine in known if nodes[machine.node_id].is_ready]
        _, way = best_route(
            ready,
            prompt_tokens=request.prompt_tokens or 0,
            output_tokens=int(OUTPUT_TOKENS_MEAN),
            burdens=self._burdens(ready) if self._is_kind else None,
        )
        if not way:
            return rng.choice(request.candidates)
        hops = chain_hops([(node_id, nodes[node_id].shard) for node_id in way])
        return Candidate(Route(request.model.model_key, hops), 0.0)

    def _burdens(self, machines: list[Machine]) -> dict[NodeId, float]:
        """Seconds per layer that one more request costs the others on a machine, while both are there."""
        burdens: dict[NodeId, float] = {}
        for machine in machines:
            count = len(machine.runs)
            more = max(1.0, (count + 1) / machine.spec.cap) - max(1.0, count / machine.spec.cap)
            burdens[machine.node_id] = machine.layer_s * more * count * OUTPUT_TOKENS_MEAN
        return burdens
