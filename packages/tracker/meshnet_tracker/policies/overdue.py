"""What requests that have not come back say about the nodes they are on.

Nobody knows how long an answer will be, so a late one proves little; several late ones on the same node prove
much. For each flight: how much likelier is it to be still out if its nodes have become SLOWER times as slow?
Lengths of answers have long tails, so the chance to be still out after r times the expected time is taken as
log-logistic, 1 / (1 + (r / SCALE) ** SHAPE). A flight's evidence is shared among its hops.
"""

import math
from collections.abc import Iterable

from meshnet_protocol.ids import NodeId

SLOWER = 5.0
SCALE, SHAPE = 0.8, 2.5
CHANGE_ODDS = 0.001
LATE_FROM = 1.2


def overdue_factors(flights: Iterable[tuple[tuple[NodeId, ...], float]]) -> dict[NodeId, float]:
    """Per node by how much its pace should be multiplied; nodes without late flights are left out.

    ``flights``: each one's nodes, and its age over the time it was expected to take.
    """
    evidence: dict[NodeId, float] = {}
    for node_ids, lateness in flights:
        if lateness > LATE_FROM:
            likelier = math.log(_still_out(lateness / SLOWER) / _still_out(lateness)) / len(node_ids)
            for node_id in node_ids:
                evidence[node_id] = evidence.get(node_id, 0.0) + likelier
    return {node_id: 1 + (SLOWER - 1) * _probability(weight) for node_id, weight in evidence.items()}


def _still_out(lateness: float) -> float:
    return 1 / (1 + math.pow(min(lateness, 1e6) / SCALE, SHAPE))


def _probability(weight: float) -> float:
    odds = CHANGE_ODDS * math.exp(min(50.0, weight))
    return odds / (1 + odds)
