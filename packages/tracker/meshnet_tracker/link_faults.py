"""Links between nodes that broke, as the nodes before them tell.

A word of one node about another is no proof: the fault is booked to the link between the two, and routes over that
link are left out for a while, like routes over a node that failed. Who is to blame shows when others speak:

    two nodes find the same one unreachable      it is that one's fault
    one node finds two others unreachable        it is its own
    the tracker cannot reach the accused either  it is the accused's (whoever probes it tells us with ``condemn``)
"""

from collections.abc import Iterable

from meshnet_protocol.ids import NodeId
from meshnet_protocol.routes import Route
from meshnet_tracker.reputation import NO_FAULTS, FaultRecord

Link = tuple[NodeId, NodeId]
LINKS_MAX = 4096
WITNESSES_MIN = 2


class LinkFaults:
    """Told the time; forgets by itself."""

    def __init__(self) -> None:
        self._records: dict[Link, FaultRecord] = {}
        self._served: set[Link] = set()
        """Of these: those over which a token has come since."""

    def report(self, reporter: NodeId, accused: NodeId, now: float) -> NodeId | None:
        """``reporter`` found its link to ``accused`` broken. Whose fault that is, if the reports together tell."""
        link = (reporter, accused)
        known = self._records.pop(link, NO_FAULTS)
        self._records[link] = known.with_fault(now)
        self._served.discard(link)
        self._forget(now)
        if sum(1 for _, other in self._records if other == accused) >= WITNESSES_MIN:
            return accused
        if sum(1 for other, _ in self._records if other == reporter) >= WITNESSES_MIN:
            return reporter
        return None

    def condemn(self, node_id: NodeId) -> bool:
        """The node itself is the culprit: its links are innocent. False if none was accused."""
        links = [link for link in self._records if link[1] == node_id]
        for link in links:
            self._drop(link)
        return bool(links)

    def note_served(self, route: Route) -> None:
        """A token came over the route."""
        if self._records:
            self._served.update(link for link in _links_of(route) if link in self._records)

    def is_cooling(self, route: Route, now: float) -> bool:
        """Whether the route goes over a link that broke lately."""
        return bool(self._records) and any(
            link in self._records and self._records[link].is_cooling(now) for link in _links_of(route)
        )

    def doubted(self, route: Route, now: float) -> list[Link]:
        """Links of the route that broke lately, and over which no token has come since."""
        if not self._records:
            return []
        broken = (link for link in _links_of(route) if link in self._records and link not in self._served)
        return [link for link in broken if self._records[link].is_cooling(now)]

    def _forget(self, now: float) -> None:
        """Those whose faults are forgiven, and if there are too many, those that were reported longest ago."""
        for link in [link for link, record in self._records.items() if not record.seen(now).mass]:
            self._drop(link)
        while len(self._records) > LINKS_MAX:
            self._drop(next(iter(self._records)))

    def _drop(self, link: Link) -> None:
        del self._records[link]
        self._served.discard(link)


def _links_of(route: Route) -> Iterable[Link]:
    return zip(route.node_ids, route.node_ids[1:], strict=False)
