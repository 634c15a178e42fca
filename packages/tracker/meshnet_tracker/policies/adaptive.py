"""The adaptive policy: every request takes the route that should be quickest for it, as things stand now.

What a route takes is composed of what its nodes take, so what is learnt on one route serves every other one
through the same nodes, and the choice is a shortest path over the layer graph:

    seconds(node) = layers x pace x (output + prompt share x prompt) x crowd(in flight + 1) x doubts  (+ links)

``NodeBelief`` holds pace and faults. *Doubts* are factors of at least 1: requests in flight that are overdue, a
node that nothing is known of and that has a first request on it already. Failures add a price of their own.

The quickest route is not always taken: a request *scouts* where a node has never been measured (one at a time
for each), where a node that failed is due for a trial, and where a node that was slow may have become good enough, as
far as silence and noise allow. ``ScoutBudget`` says how often, and what that may cost: short requests and quiet times
are cheap, so they come first.

There is no epoch: a node that joins is unproven by itself, one that restarts is doubted, all others stay as known.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from meshnet_protocol.ids import ModelKey, NodeId, Signature
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.layer_graph import UNREACHABLE, Costs, LayerGraph
from meshnet_tracker.policies.faults import FaultLedger
from meshnet_tracker.policies.node_beliefs import NodeBelief
from meshnet_tracker.policies.overdue import overdue_factors
from meshnet_tracker.policies.scout_budget import Expense, ScoutBudget
from meshnet_tracker.policies.scouting import (
    OPTIMISM_SDS,
    UNPROVEN,
    UNPROVEN_AND_BUSY,
    Outlook,
    Plan,
    find_scout,
    find_second_look,
)
from meshnet_tracker.policies.sharing_out import credit_hops
from meshnet_tracker.route_policy import ArmOpinion, Completion, Failure, Flight, RouteRequest
from meshnet_tracker.routing_stats import PROVEN_MASS_MIN, ArmStatus, DecisionMode, RouteChoice, RoutingConfig

ADAPTIVE = "adaptive"
OVERDUE_PERIOD_S = 0.5
JITTER = 0.002
KINDNESS = 1.0
TOKENS_GAIN = 0.02
OUTPUT_TOKENS_FIRST, PROMPT_TOKENS_FIRST = 128.0, 128.0
BELIEFS_MAX = 20_000
DISTRUST_PRICE = 1000.0
EXCLUSION_STEPS_MAX = 24
OVERDUE_WORTH_TELLING = 1.5


@dataclass(slots=True)
class FlightNote:
    """What the policy remembers of a request until it ends."""

    flight: Flight
    beliefs: tuple[NodeBelief, ...]
    crowd_clocks: tuple[float, ...]
    expected_s: float
    expense: Expense | None = None
    has_ended: bool = False


class AdaptivePolicy:
    """See the module. One instance serves every model of a tracker."""

    name = ADAPTIVE
    learns_from_failures = True

    def __init__(self, *, config: RoutingConfig) -> None:
        self._half_life_s = config.stats_half_life_s
        self._graphs: dict[ModelKey, LayerGraph] = {}
        self._beliefs: dict[NodeId, NodeBelief] = {}
        self._notes: dict[int, FlightNote] = {}
        self._faults = FaultLedger()
        self._overdue: dict[NodeId, float] = {}
        self._overdue_at = -math.inf
        self._budget = ScoutBudget()
        self._expense: Expense | None = None
        self._output_tokens = OUTPUT_TOKENS_FIRST
        self._prompt_tokens = PROMPT_TOKENS_FIRST

    def choose(self, request: RouteRequest, rng: Random, now: float) -> RouteChoice[Candidate] | None:
        if self._expense is not None:
            self._expense.give_up(0.0)  # The router wanted another route than the one chosen last.
            self._expense = None
        graph = self._graph(request.model, now)
        plan = self._plan(graph, request, rng, now)
        if plan is None:
            return None
        if plan.on_trial is not None:
            plan.on_trial.tried_at = self._budget.requests
        self._budget.decided(now, plan.expense, has_looked=plan.has_looked)
        self._expense = plan.expense
        return RouteChoice(Candidate(graph.route(plan.chain), 0.0), plan.mode, plan.reason)

    def taken(self, flight: Flight) -> None:
        now = flight.taken_at
        beliefs = tuple(self._belief(node_id, now) for node_id in flight.route.node_ids)
        clocks = tuple(belief.run_crowd_clock(now) for belief in beliefs)
        for belief, incarnation in zip(beliefs, flight.incarnations, strict=True):
            belief.incarnation = belief.incarnation or incarnation
            if belief.incarnation == incarnation:
                belief.in_flight += 1
                belief.scouts += flight.is_scout
        expected_s = self._expected_s(flight, beliefs, now)
        # The route was chosen in the same call: what is paid for is this flight.
        expense, self._expense = self._expense if flight.is_scout else None, None
        self._notes[flight.reservation] = FlightNote(flight, beliefs, clocks, expected_s, expense)

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        note = self._notes.get(flight.reservation)
        if note is None:
            return
        note.has_ended = True
        for belief in note.beliefs:
            belief.run_crowd_clock(now)
        self._faults.succeeded(note.beliefs, flight.taken_at, now)
        if note.expense is not None:
            note.expense.settle(completion.seconds, work=self._work(flight, completion, note.beliefs))
        credit_hops(note, completion, now, self._half_life_s)
        self._output_tokens += TOKENS_GAIN * (completion.completion_tokens - self._output_tokens)
        self._prompt_tokens += TOKENS_GAIN * (completion.prompt_tokens - self._prompt_tokens)
        self._budget.completed(completion.seconds)

    def failed(self, flight: Flight, failure: Failure, now: float) -> None:
        note = self._notes.get(flight.reservation)
        if note is None or failure.is_overload:
            return
        note.has_ended = True
        suspected = [node_id in failure.suspects for node_id in flight.route.node_ids]
        self._faults.failed(note.beliefs, suspected, now)
        for belief in note.beliefs:
            belief.tried_at = self._budget.requests

    def released(self, flight: Flight, now: float) -> None:
        note = self._notes.pop(flight.reservation, None)
        if note is None:
            return
        if note.expense is not None and not note.has_ended:
            note.expense.give_up(now - flight.taken_at)
        for belief, incarnation in zip(note.beliefs, flight.incarnations, strict=True):
            belief.run_crowd_clock(now)
            if belief.incarnation == incarnation:
                belief.in_flight = max(0, belief.in_flight - 1)
                belief.scouts = max(0, belief.scouts - flight.is_scout)

    def prune(self, now: float) -> None:
        if len(self._beliefs) > BELIEFS_MAX:
            known = {node.node_id for graph in self._graphs.values() for node in graph.nodes}
            for node_id in [node_id for node_id in self._beliefs if node_id not in known]:
                del self._beliefs[node_id]

    def in_flight(self) -> int:
        """Of all nodes together: one request counts on each of its hops."""
        return sum(belief.in_flight for belief in self._beliefs.values())

    def explain(
        self, model: ServedModel, candidates: Sequence[Candidate], now: float
    ) -> Mapping[Signature, ArmOpinion]:
        graph = self._graph(model, now)
        plan = self._plan(graph, RouteRequest(model, candidates), Random(0), now)
        next_signature = graph.route(plan.chain).signature if plan else None
        return {
            candidate.signature: self._opinion(candidate, plan if candidate.signature == next_signature else None, now)
            for candidate in candidates
        }

    # Choosing.

    def _plan(self, graph: LayerGraph, request: RouteRequest, rng: Random, now: float) -> Plan | None:
        """What ``choose`` would do. To be asked is not to do it: nothing is spent here."""
        has_looked = False
        beliefs = [self._beliefs[node.node_id] for node in graph.nodes]
        costs = self._costs(graph, beliefs, request.prompt_tokens, rng, now)
        if request.exclude:
            seconds, chain = self._quickest_not_excluded(graph, costs, request)
        else:
            seconds, chain = graph.quickest(costs)
            outlook = Outlook(graph, beliefs, costs, seconds, now, self._half_life_s)
            scout = find_scout(outlook, self._budget)
            if scout is None and self._budget.may_look(now):
                has_looked = True
                scout = find_second_look(outlook, self._budget)
            if scout is not None:
                return scout
        if not chain:
            return None
        is_least_bad = any(beliefs[place].distrusted_until > now for place in chain)
        reason = "least bad: all ways failed lately" if is_least_bad else "quickest"
        return Plan(chain, DecisionMode.EXPLOIT, reason, has_looked=has_looked)

    def _costs(
        self, graph: LayerGraph, beliefs: list[NodeBelief], prompt_tokens: int | None, rng: Random, now: float
    ) -> Costs:
        """Per node, what this request would take there; ties are broken by a little noise."""
        self._find_overdue(now)
        prompt = self._prompt_tokens if prompt_tokens is None else prompt_tokens
        output = self._output_tokens
        half_life_s, overdue, draw = self._half_life_s, self._overdue, rng.random
        per_layer: list[float] = []
        per_joint: list[float] = []
        for node, belief in zip(graph.nodes, beliefs, strict=True):
            count = belief.in_flight
            crowd = (count + 1) / belief.slots
            if crowd <= 1:
                crowd = 1.0
            else:
                # Kindness: what the newcomer costs those who are there counts too, in part.
                crowd += KINDNESS * min(1.0 / belief.slots, crowd - 1) * count
            cost = belief.base_s(now, half_life_s) * (output + belief.prompt_share * prompt) * crowd
            if belief.is_unproven:
                cost *= UNPROVEN_AND_BUSY if count else UNPROVEN
            if overdue:
                cost *= overdue.get(node.node_id, 1.0)
            price_s = belief.fault_price(now) * self._budget.request_s / node.shard.layer_count
            if belief.distrusted_until > now:
                price_s += DISTRUST_PRICE * self._budget.request_s / node.shard.layer_count
            per_layer.append(cost * (1 + JITTER * draw()) + price_s)
            per_joint.append(belief.access_s * output)
        return per_layer, per_joint

    def _quickest_not_excluded(
        self, graph: LayerGraph, costs: Costs, request: RouteRequest
    ) -> tuple[float, tuple[int, ...]]:
        """A path with none of the nodes that may have failed; without one, the quickest that is not excluded.

        For that, each excluded path that comes up is split into paths that avoid one of its nodes, quickest first.
        """
        per_layer, per_joint = costs
        tried = graph.places_of(request.exclude)
        apart = graph.quickest(([UNREACHABLE if p in tried else c for p, c in enumerate(per_layer)], per_joint))
        if tried and apart[1]:
            return apart
        waiting: list[tuple[float, tuple[int, ...], frozenset[int]]] = []
        banned: frozenset[int] = frozenset()
        seconds, chain = graph.quickest(costs)
        for _ in range(EXCLUSION_STEPS_MAX):
            if not chain or graph.route(chain).signature not in request.exclude:
                return seconds, chain
            for place in chain:
                without = banned | {place}
                priced = [UNREACHABLE if p in without else cost for p, cost in enumerate(per_layer)]
                found = graph.quickest((priced, per_joint))
                if found[1]:
                    heapq.heappush(waiting, (*found, without))
            if not waiting:
                break
            seconds, chain, banned = heapq.heappop(waiting)
        return UNREACHABLE, ()

    # Remembering.

    def _graph(self, model: ServedModel, now: float) -> LayerGraph:
        graph = self._graphs.get(model.model_key)
        if graph is None or graph.structure_version != model.structure_version:
            graph = self._graphs[model.model_key] = LayerGraph(model)
            for node in graph.nodes:
                registration = node.registration
                self._belief(node.node_id, now).start(
                    registration.incarnation,
                    layer_tokens_per_s=registration.layer_tokens_per_s,
                    slots=registration.slots,
                    requests=self._budget.requests,
                    now=now,
                )
        return graph

    def _belief(self, node_id: NodeId, now: float) -> NodeBelief:
        belief = self._beliefs.get(node_id)
        if belief is None:
            belief = self._beliefs[node_id] = NodeBelief(now)
        return belief

    def _expected_s(self, flight: Flight, beliefs: tuple[NodeBelief, ...], now: float) -> float:
        """What the flight should take if its answer is as long as most, as things stand at its start."""
        prompt = self._prompt_tokens if flight.prompt_tokens is None else flight.prompt_tokens
        steps = self._output_tokens
        return sum(
            hop.layers.layer_count
            * math.exp(belief.log_pace(now, self._half_life_s))
            * (steps + belief.prompt_share * prompt)
            * belief.crowd()
            + 2 * belief.access_s * steps
            for hop, belief in zip(flight.route.hops, beliefs, strict=True)
        )

    def _work(self, flight: Flight, completion: Completion, beliefs: tuple[NodeBelief, ...]) -> float:
        """How much more there was to do than was expected when the route was chosen."""
        share = sum(belief.prompt_share for belief in beliefs) / len(beliefs)
        guess = self._prompt_tokens if flight.prompt_tokens is None else flight.prompt_tokens
        expected = self._output_tokens + share * guess
        return (max(0, completion.completion_tokens) + share * max(0, completion.prompt_tokens)) / expected

    def _find_overdue(self, now: float) -> None:
        if now - self._overdue_at >= OVERDUE_PERIOD_S:
            self._overdue_at = now
            self._overdue = overdue_factors(
                (note.flight.route.node_ids, (now - note.flight.taken_at) / max(1e-6, note.expected_s))
                for note in self._notes.values()
                if not note.has_ended
            )

    # Explaining.

    def _opinion(self, candidate: Candidate, plan: Plan | None, now: float) -> ArmOpinion:
        hops = candidate.route.hops
        beliefs = [self._belief(hop.node_id, now) for hop in hops]
        paces = [math.exp(belief.log_pace(now, self._half_life_s)) for belief in beliefs]
        sd = max(belief.deviation(now, self._half_life_s) for belief in beliefs)
        token_s = sum(
            hop.layers.layer_count * pace * belief.crowd(1) + 2 * belief.access_s
            for hop, pace, belief in zip(hops, paces, beliefs, strict=True)
        )
        spread = math.exp(min(20.0, OPTIMISM_SDS * sd))
        return ArmOpinion(
            probability=1.0 if plan else 0.0,
            reason=plan.reason if plan else self._why_not(candidate, beliefs, now),
            expected_tps=1 / token_s,
            interval_tps=(1 / token_s / spread, spread / token_s),
            status=self._status(beliefs, now),
        )

    def _why_not(self, candidate: Candidate, beliefs: list[NodeBelief], now: float) -> str:
        for hop, belief in zip(candidate.route.hops, beliefs, strict=True):
            if belief.distrusted_until > now:
                return (
                    f"{hop.node_id} failed lately: only trials for {belief.distrusted_until - now:.0f} s more at most"
                )
            if belief.is_unproven:
                return f"{hop.node_id} {'has' if belief.in_flight else 'waits for'} its first request"
            if hop.node_id in self._overdue and self._overdue[hop.node_id] > OVERDUE_WORTH_TELLING:
                return f"{hop.node_id} is overdue: {self._overdue[hop.node_id]:.1f} times as slow, it seems"
        return "another route is quicker now"

    def _status(self, beliefs: list[NodeBelief], now: float) -> ArmStatus:
        """Of its least known node: an arm is stale only if one of its own nodes has changed."""
        if any(belief.sampled_at is None for belief in beliefs):
            return ArmStatus.UNSAMPLED
        if any(belief.is_unproven for belief in beliefs):
            return ArmStatus.STALE
        if any(belief.mass(now, self._half_life_s) < PROVEN_MASS_MIN for belief in beliefs):
            return ArmStatus.DECAYED
        return ArmStatus.PROVEN
