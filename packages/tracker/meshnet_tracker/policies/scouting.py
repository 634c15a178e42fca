"""Which request of the adaptive policy scouts, and where: what the quickest route would never find out.

    trial           a node that failed and has been kept off since: has it mended?
    first request   a node never measured: the cheapest one that can be paid for
    second look     a node that seemed slow and may have become good enough, as far as silence and noise allow

They are sought in this order, and ``ScoutBudget`` says what may be spent. Nothing is spent here: who carries out the
plan pays. At most one request at a time is the first one of a node.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshnet_tracker.layer_graph import Costs, Edge, LayerGraph
from meshnet_tracker.policies.node_beliefs import NodeBelief
from meshnet_tracker.policies.scout_budget import Expense, ScoutBudget
from meshnet_tracker.routing_stats import DecisionMode

UNPROVEN_AND_BUSY = 6.0
UNPROVEN = 1.3
"""Caution: by how much longer a request is priced on a node that nothing is known of."""
OPTIMISM_SDS = 2.0
FIRST_REQUEST, TRIAL = "first request of a node", "trial of a node that failed"
SECOND_LOOK = "second look at a node"


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a request shall go, and what that spends if it is carried out."""

    chain: tuple[int, ...]
    mode: DecisionMode
    reason: str
    expense: Expense | None = None
    on_trial: NodeBelief | None = None
    has_looked: bool = False
    """A second look was sought, if in vain."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Everything a scout is chosen by."""

    graph: LayerGraph
    beliefs: Sequence[NodeBelief]
    """Of the graph's nodes, by their places."""
    costs: Costs
    best_s: float
    """What the quickest route should take."""
    now: float
    half_life_s: float

    def idle(self, *, is_unproven: bool) -> list[int]:
        """Nodes with nothing on them, as far as they are trusted."""
        return [
            place
            for place, belief in enumerate(self.beliefs)
            if not belief.in_flight and belief.is_unproven is is_unproven and belief.distrusted_until <= self.now
        ]

    def quickest_through(self, places: list[int]) -> dict[int, tuple[float, float, Edge]]:
        return self.graph.quickest_through(places, self.costs)

    def chain_over(self, edge: Edge) -> tuple[int, ...]:
        return self.graph.chain_over(edge, self.costs)


def find_scout(outlook: Outlook, budget: ScoutBudget) -> Plan | None:
    return _trial(outlook, budget) or _first_request(outlook, budget)


def find_second_look(outlook: Outlook, budget: ScoutBudget) -> Plan | None:
    """The one that promises most for what it costs."""
    best_gain, best_edge, best_detour_s = 0.0, None, 0.0
    for place, (seconds, own_s, edge) in outlook.quickest_through(outlook.idle(is_unproven=False)).items():
        # It may have become faster; what it may cost is the detour if it has not.
        hope = 1 - math.exp(-OPTIMISM_SDS * outlook.beliefs[place].deviation(outlook.now, outlook.half_life_s))
        detour_s = max(0.0, seconds - outlook.best_s)
        gain_s = own_s * hope - detour_s
        if gain_s > 0 and 0 < detour_s <= budget.second_looks.seconds and gain_s / detour_s > best_gain:
            best_gain, best_edge, best_detour_s = gain_s / detour_s, edge, detour_s
    if best_edge is None:
        return None
    expense = Expense(budget.second_looks, outlook.best_s, best_detour_s)
    return Plan(outlook.chain_over(best_edge), DecisionMode.SCOUT, SECOND_LOOK, expense, has_looked=True)


def _trial(outlook: Outlook, budget: ScoutBudget) -> Plan | None:
    for place, belief in enumerate(outlook.beliefs):
        if belief.distrusted_until > outlook.now and not belief.in_flight and budget.is_trial_due(belief.tried_at):
            for _, _, edge in outlook.quickest_through([place]).values():
                expense = Expense(budget.first_requests, outlook.best_s, 0.0)
                return Plan(outlook.chain_over(edge), DecisionMode.SCOUT, TRIAL, expense, on_trial=belief)
    return None


def _first_request(outlook: Outlook, budget: ScoutBudget) -> Plan | None:
    waiting = outlook.idle(is_unproven=True)
    if not waiting:
        return None
    beliefs = outlook.beliefs
    affordable: list[tuple[float, float, tuple[int, ...]]] = []
    for place, (seconds, own_s, edge) in outlook.quickest_through(waiting).items():
        # What it should cost is what the node says of itself, without the caution that keeps others off it.
        price_s = max(0.0, seconds - own_s * (1 - 1 / UNPROVEN) - outlook.best_s)
        if seconds <= outlook.best_s or budget.can_pay_first_request(price_s, beliefs[place].tried_at):
            chain = outlook.chain_over(edge)
            if not any(beliefs[other].is_unproven and beliefs[other].in_flight for other in chain):
                affordable.append((seconds, price_s, chain))
    if not affordable:
        return None
    _, price_s, chain = min(affordable)
    return Plan(chain, DecisionMode.SCOUT, FIRST_REQUEST, Expense(budget.first_requests, outlook.best_s, price_s))
