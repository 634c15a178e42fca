"""Over what has failed goes one chat at a time, until it has brought a token.

A node or link that failed lately is *in doubt* until a token comes over it. Where there is another way, it is left
out; where there is none, refusing for ever would be as wrong as sending everybody there: one chat is let through as a
*trial*, and the others wait for its verdict.

    trial brings a token ──> no doubt is left, and everybody may follow
    trial fails          ──> the next in turn is the next trial
    neither, for long    ──> those who wait are refused when their patience ends

The tracker's own live probes are trials too. Decides; the router asks before it chooses, and tells it in the same call.
"""

from collections.abc import Callable, Collection

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route
from meshnet_tracker.fleet import Fleet
from meshnet_tracker.link_faults import Link, LinkFaults

Doubted = NodeId | Link
DoubtsAbout = Callable[[Route, float], Collection[Doubted]]
"""What of a route is in doubt, at a time."""


def doubts_of(fleet: Fleet, links: LinkFaults) -> DoubtsAbout:
    """By what the fleet and its links have suffered."""

    def doubts_about(route: Route, now: float) -> Collection[Doubted]:
        nodes = (fleet.node(node_id) for node_id in route.node_ids)
        return [*(node.node_id for node in nodes if node and node.is_in_doubt(now)), *links.doubted(route, now)]

    return doubts_about


class Trials:
    """Those that run, by their reservations. Without ``doubts_about`` nothing ever is in doubt."""

    def __init__(self, doubts_about: DoubtsAbout = lambda _route, _now: ()) -> None:
        self._doubts_about = doubts_about
        self._running: dict[int, frozenset[Doubted]] = {}

    def is_in_doubt(self, route: Route, now: float) -> bool:
        return bool(self._doubts_about(route, now))

    def is_open(self, route: Route, now: float) -> bool:
        """Whether a chat may go there now: nothing is in doubt, or nobody is trying it."""
        doubted = self._doubts_about(route, now)
        return not doubted or all(tried.isdisjoint(doubted) for tried in self._running.values())

    def begin(self, reservation: int, route: Route, now: float) -> bool:
        """A chat takes the route; whether that is a trial."""
        doubted = frozenset(self._doubts_about(route, now))
        if doubted:
            self._running[reservation] = doubted
        return bool(doubted)

    def end(self, reservation: int) -> None:
        self._running.pop(reservation, None)
