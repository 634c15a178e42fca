"""What the tracker's policies are compared with: plain rules, published routers, textbook bandits.

All of them choose among every chain there is (up to ``CHAINS_MAX``), which the bench enumerates for them, and
all run behind the same router as the tracker's own policies. Per arm they keep m, a decayed mean of
seconds per token, and count what is in flight.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from random import Random

from meshnet_protocol.ids import NodeId, Signature
from meshnet_tracker.bench.worlds import CAP
from meshnet_tracker.candidates import Candidate, covering_chains
from meshnet_tracker.fleet import FleetNode, ServedModel
from meshnet_tracker.route_policy import ArmOpinion, Completion, Failure, Flight, RouteRequest
from meshnet_tracker.routing_stats import DecisionMode, RouteChoice

CHAINS_MAX = 6000
HALF_LIFE_S = 300.0
OUTPUT_TOKENS_TYPICAL = 120.0
NOISE_SD = 0.3
LITELLM_SAMPLES = 10
EPSILON = 0.05


def every_chain() -> Callable[[ServedModel], tuple[Candidate, ...]]:
    """An enumeration of all chains, with the prior of their slowest hop when idle; cached per structure."""
    cached: dict[int, tuple[Candidate, ...]] = {}

    def enumerate_all(model: ServedModel) -> tuple[Candidate, ...]:
        if model.structure_version not in cached:
            cached.clear()
            chains = covering_chains(
                model_key=model.model_key, layer_count=model.card.layer_count, nodes=model.ready_nodes()
            )
            priced = [
                Candidate(
                    route,
                    min(model.nodes[hop.node_id].layer_tokens_per_s / hop.layers.layer_count for hop in route.hops),
                )
                for route in islice(chains, CHAINS_MAX)
            ]
            cached[model.structure_version] = tuple(sorted(priced, key=lambda c: -c.prior_tps))
        return cached[model.structure_version]

    return enumerate_all


class Baseline:
    """What the simple policies share: counts in flight, and nothing to explain."""

    name = "baseline"
    learns_from_failures = True
    """As published: the router adds nothing of its own."""

    def __init__(self) -> None:
        self.on_arm: Counter[Signature] = Counter()
        self.on_node: Counter[NodeId] = Counter()
        self.now = 0.0

    def choose(self, request: RouteRequest, rng: Random, now: float) -> RouteChoice[Candidate] | None:
        self.now = max(self.now, now)
        chosen = self.pick(request, rng)
        return RouteChoice(chosen, DecisionMode.EXPLOIT, self.name)

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        raise NotImplementedError

    def taken(self, flight: Flight) -> None:
        self.on_arm[flight.route.signature] += 1
        self.on_node.update(flight.route.node_ids)

    def released(self, flight: Flight, now: float) -> None:
        self.on_arm[flight.route.signature] -= 1
        self.on_node.subtract(flight.route.node_ids)

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        pass

    def failed(self, flight: Flight, failure: Failure, now: float) -> None:
        pass

    def prune(self, now: float) -> None:
        pass

    def explain(
        self, model: ServedModel, candidates: Sequence[Candidate], now: float
    ) -> Mapping[Signature, ArmOpinion]:
        return {c.signature: ArmOpinion(probability=0.0, reason=self.name) for c in candidates}


def least(options: Sequence[Candidate], cost: Callable[[Candidate], float], rng: Random) -> Candidate:
    """The cheapest; equal ones at random."""
    return min(options, key=lambda option: (cost(option), rng.random()))


class Uniform(Baseline):
    name = "uniform"

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        return rng.choice(request.candidates)


class LeastInFlight(Baseline):
    name = "least-in-flight"

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        return least(request.candidates, lambda c: max(self.on_node[n] for n in c.route.node_ids), rng)


class Learner(Baseline):
    """Keeps m, v and mass per arm: discounted mean, variance and count of seconds per token."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[Signature, tuple[float, float, float, float]] = {}

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        pace = completion.seconds / completion.completion_tokens
        mass, first, second = self.moments(flight.route.signature, now)
        self.sums[flight.route.signature] = (mass + 1, first + pace, second + pace * pace, now)

    def moments(self, arm: Signature, now: float) -> tuple[float, float, float]:
        mass, first, second, at = self.sums.get(arm, (0.0, 0.0, 0.0, now))
        decay = math.exp2(-max(0.0, now - at) / HALF_LIFE_S)
        return mass * decay, first * decay, second * decay

    def mean(self, option: Candidate) -> float | None:
        mass, first, _ = self.moments(option.signature, self.now)
        return first / mass if mass > 0.05 else None


class EpsilonGreedy(Learner):
    name = "epsilon-greedy"

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        if rng.random() < EPSILON:
            return rng.choice(request.candidates)
        return least(request.candidates, lambda c: self.mean(c) or 1 / c.prior_tps, rng)


class PeakEwma(Learner):
    """Finagle's: the worst lately seen, forgotten slowly, times what waits there."""

    name = "peak-ewma"

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        pace = completion.seconds / completion.completion_tokens
        old = self.peak(flight.route.signature, now)
        self.sums[flight.route.signature] = (1.0, pace if old is None or pace > old else 0.7 * old + 0.3 * pace, 0, now)

    def peak(self, arm: Signature, now: float) -> float | None:
        if arm not in self.sums:
            return None
        _, peak, _, at = self.sums[arm]
        return peak * math.exp2(-max(0.0, now - at) / 60.0)

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        def cost(option: Candidate) -> float:
            peak = self.peak(option.signature, self.now) or 1 / option.prior_tps
            return peak * (self.on_arm[option.signature] + 1)

        return least(request.candidates, cost, rng)


class LeastWork(Learner):
    """Queued and running and own tokens over advertised tokens/s, as sglang's and vLLM's routers weigh workers."""

    name = "least-work"

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        def cost(option: Candidate) -> float:
            waiting = max(self.on_node[node_id] for node_id in option.route.node_ids)
            return (waiting + 1) * OUTPUT_TOKENS_TYPICAL / option.prior_tps

        return least(request.candidates, cost, rng)


class LiteLlm(Baseline):
    """Latency routing: mean of the last ten; what was never measured counts as 0."""

    name = "litellm"

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[Signature, deque[float]] = {}

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        last = self.last.setdefault(flight.route.signature, deque(maxlen=LITELLM_SAMPLES))
        last.append(completion.seconds / completion.completion_tokens)

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        def cost(option: Candidate) -> float:
            last = self.last.get(option.signature)
            return sum(last) / len(last) if last else 0.0

        return least(request.candidates, cost, rng)


class Petals(Baseline):
    """The shortest way by advertised speed, with nothing learnt."""

    name = "petals"

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        nodes = request.model.nodes
        return least(
            request.candidates,
            lambda c: sum(h.layers.layer_count / nodes[h.node_id].layer_tokens_per_s for h in c.route.hops),
            rng,
        )


class DiscountedUcb(Learner):
    name = "discounted-ucb"

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        moments = {c.signature: self.moments(c.signature, self.now) for c in request.candidates}
        total = math.log(1 + sum(mass for mass, _, _ in moments.values()))

        def cost(option: Candidate) -> float:
            mass, first, _ = moments[option.signature]
            if mass < 0.05:
                return -1 + 1 / (1 + option.prior_tps)
            return first / mass * (1 - min(0.99, 0.3 * math.sqrt(total / mass)))

        return least(request.candidates, cost, rng)


class ThompsonRoutes(Learner):
    """A draw per arm from what is believed of its pace; with load, times the crowd on its fullest node."""

    def __init__(self, *, with_load: bool) -> None:
        super().__init__()
        self.name = "thompson-route-load" if with_load else "thompson-route"
        self._with_load = with_load

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        def cost(option: Candidate) -> float:
            mass, first, _ = self.moments(option.signature, self.now)
            prior = 1 / option.prior_tps
            mean = (first + 0.3 * prior) / (mass + 0.3)
            drawn = mean * math.exp(rng.gauss(0, NOISE_SD / math.sqrt(mass + 0.3)))
            crowd = max(self.on_node[n] for n in option.route.node_ids) + 1 if self._with_load else 1
            return drawn * max(1.0, crowd / CAP)

        return least(request.candidates, cost, rng)


class ThompsonHops(Baseline):
    """A draw per node from what its own timings say, times its crowd; the shortest way over the draws."""

    name = "thompson-hop-load"

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[NodeId, tuple[float, float, float]] = {}

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        for hop, timing in zip(flight.route.hops, completion.timings, strict=True):
            mass, first = self._moments(hop.node_id, now)
            crowd = max(1.0, self.on_node[hop.node_id] / CAP)
            pace = timing.compute_s / completion.completion_tokens / hop.layers.layer_count / crowd
            self.sums[hop.node_id] = (mass + 1, first + pace, now)

    def _moments(self, node_id: NodeId, now: float) -> tuple[float, float]:
        mass, first, at = self.sums.get(node_id, (0.0, 0.0, now))
        decay = math.exp2(-max(0.0, now - at) / HALF_LIFE_S)
        return mass * decay, first * decay

    def _drawn(self, node: FleetNode, rng: Random) -> float:
        mass, first = self._moments(node.node_id, self.now)
        mean = (first + 0.3 / node.layer_tokens_per_s) / (mass + 0.3)
        return mean * math.exp(rng.gauss(0, NOISE_SD / math.sqrt(mass + 0.3)))

    def pick(self, request: RouteRequest, rng: Random) -> Candidate:
        pace = {
            node.node_id: self._drawn(node, rng) * max(1.0, (self.on_node[node.node_id] + 1) / CAP)
            for node in request.model.ready_nodes()
        }
        return least(
            request.candidates, lambda c: sum(pace[h.node_id] * h.layers.layer_count for h in c.route.hops), rng
        )
