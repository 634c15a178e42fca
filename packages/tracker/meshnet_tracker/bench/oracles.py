"""What could be reached by who knows the truth: the marks that regret is measured from.

``clairvoyant`` takes, for every single request, the way that is quickest at that moment, from the machines'
true speeds, faults and crowds and the request's true length. That is selfish: it heeds no one who is slowed
down by it. ``clairvoyant-kind`` adds what a newcomer costs those who are there already, and is the better mark
under load. ``clairvoyant-daring`` is told how often a node cuts streams off, and takes the way over it where that is
quicker all the same: what keeping off such a node costs.
"""

from random import Random

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route, chain_hops
from meshnet_tracker.bench.attempts import TRUNCATED_SHARE
from meshnet_tracker.bench.baselines import Baseline
from meshnet_tracker.bench.machines import Machine, best_route
from meshnet_tracker.bench.traffic import OUTPUT_TOKENS_MEAN
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.route_policy import RouteRequest


class Clairvoyant(Baseline):
    def __init__(self, machines: dict[NodeId, Machine], *, is_kind: bool = False, is_daring: bool = False) -> None:
        super().__init__()
        self.name = "clairvoyant-kind" if is_kind else "clairvoyant-daring" if is_daring else "clairvoyant"
        self._machines = machines
        self._is_kind = is_kind
        self._is_daring = is_daring
        self.request_tokens = (0, int(OUTPUT_TOKENS_MEAN))

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        nodes = request.model.nodes
        known = [machine for machine in self._machines.values() if machine.node_id in nodes]
        ready = [machine for machine in known if nodes[machine.node_id].is_ready]
        way = self._way(ready, request.prompt_tokens or 0)
        if not way:
            return rng.choice(request.candidates)
        hops = chain_hops([(node_id, nodes[node_id].shard) for node_id in way])
        return Candidate(Route(request.model.model_key, hops), 0.0)

    def _way(self, ready: list[Machine], prompt_tokens: int) -> tuple[NodeId, ...]:
        tokens = int(OUTPUT_TOKENS_MEAN)
        burdens = self._burdens(ready) if self._is_kind else None
        sound_s, sound = best_route(ready, prompt_tokens=prompt_tokens, output_tokens=tokens, burdens=burdens)
        if not self._is_daring:
            return sound
        any_s, any_way = best_route(ready, prompt_tokens=prompt_tokens, output_tokens=tokens, may_cut=True)
        # A stream that is cut off has come half of its way, on average, and goes the rest of it on a sound one.
        cut_s = (any_s + sound_s) / 2
        return any_way if (1 - TRUNCATED_SHARE) * any_s + TRUNCATED_SHARE * cut_s < sound_s else sound

    def _burdens(self, machines: list[Machine]) -> dict[NodeId, float]:
        """Seconds per layer that one more request costs the others on a machine, while both are there."""
        burdens: dict[NodeId, float] = {}
        for machine in machines:
            count = len(machine.runs)
            more = max(1.0, (count + 1) / machine.spec.cap) - max(1.0, count / machine.spec.cap)
            burdens[machine.node_id] = machine.layer_s * more * count * OUTPUT_TOKENS_MEAN
        return burdens
