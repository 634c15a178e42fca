"""Who is on its way where: requests in flight per arm and per node, taken and given back exactly once.

A node's count belongs to one incarnation: a process that restarts begins at nothing, and what ends late on
its predecessor is not subtracted from it. Heartbeats do not touch these counts.
"""

from collections import Counter
from typing import TypeVar

from meshnet_protocol.ids import Incarnation, NodeId, Signature
from meshnet_tracker.route_policy import Flight

T = TypeVar("T")


class Reservations:
    """Every flight between its choice and its release."""

    def __init__(self) -> None:
        self._flights: dict[int, Flight] = {}
        self._arms: Counter[Signature] = Counter()
        self._nodes: Counter[tuple[NodeId, Incarnation]] = Counter()

    def __len__(self) -> int:
        return len(self._flights)

    def take(self, flight: Flight) -> None:
        assert flight.reservation not in self._flights, f"reservation {flight.reservation} taken twice"
        self._flights[flight.reservation] = flight
        self._arms[flight.route.signature] += 1
        for node in zip(flight.route.node_ids, flight.incarnations, strict=True):
            self._nodes[node] += 1

    def give_back(self, reservation: int) -> Flight:
        """To do so twice is a bug of the caller."""
        assert reservation in self._flights, f"reservation {reservation} released twice"
        flight = self._flights.pop(reservation)
        _subtract_one(self._arms, flight.route.signature)
        for node in zip(flight.route.node_ids, flight.incarnations, strict=True):
            _subtract_one(self._nodes, node)
        return flight

    def flight(self, reservation: int) -> Flight | None:
        return self._flights.get(reservation)

    def on_arm(self, signature: Signature) -> int:
        return self._arms[signature]

    def on_node(self, node_id: NodeId, incarnation: Incarnation) -> int:
        return self._nodes[node_id, incarnation]


def _subtract_one(counts: "Counter[T]", key: T) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
