"""The graph that routes are paths of: its points are layers at which a hop may start, its edges are hops.

A decision is a shortest path from layer 0 to the end, so its cost grows with the number of nodes and entry
layers, and not with the number of routes, which is their product. The graph is built once per structure
version of a model; the costs are handed in with every question.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshnet_protocol.ids import Signature
from meshnet_protocol.routes import Hop, Route
from meshnet_tracker.fleet import FleetNode, ServedModel

UNREACHABLE = float("inf")
ROUTES_KEPT_MAX = 2000


@dataclass(frozen=True, slots=True)
class Edge:
    """A hop that is possible: a node (by its place in the graph's ``nodes``) entered at ``start``."""

    place: int
    start: int
    end: int
    """The layer after its last."""
    joints: int
    """With how many of its sides it hangs on a link: 0 for a whole model, 1 at the ends, 2 in the middle."""


Costs = tuple[Sequence[float], Sequence[float]]
"""Per node: seconds per layer run, and seconds per joint."""
_Found = dict[int, tuple[float, Edge | None]]
"""Per layer: seconds from there to an end, and the hop to take."""


class LayerGraph:
    """Every chain of a model's ready nodes, without listing them."""

    def __init__(self, model: ServedModel) -> None:
        self.model_key = model.model_key
        self.layer_count = model.card.layer_count
        self.structure_version = model.structure_version
        self.nodes: list[FleetNode] = model.ready_nodes()
        by_start: dict[int, list[Edge]] = {}
        for place, node in enumerate(self.nodes):
            for start in node.entry_layers:
                if start == 0 or node.shard.first <= start:
                    end = node.shard.next_layer
                    edge = Edge(place, start, end, (start > 0) + (end < self.layer_count))
                    by_start.setdefault(start, []).append(edge)
        self._rising = [by_start[start] for start in sorted(by_start)]
        # Plain tuples: this is the loop that every chat pays for.
        self._falling = [
            (edges[0].start, [(e.place, e.end - e.start, e.end, e.joints, e) for e in edges])
            for edges in reversed(self._rising)
        ]
        self._routes: dict[tuple[int, ...], Route] = {}
        self._left: tuple[Costs, _Found] | None = None
        self._reached: tuple[Costs, _Found] | None = None
        """What was found at the latest costs, because a choice asks several questions of the same."""

    def quickest(self, costs: Costs) -> tuple[float, tuple[int, ...]]:
        """Seconds and nodes (by place) of the shortest path; infinity and nothing if there is none."""
        to_end = self._to_end(costs)
        if 0 not in to_end:
            return UNREACHABLE, ()
        return to_end[0][0], self._walk(to_end, 0)

    def quickest_through(self, places: Sequence[int], costs: Costs) -> dict[int, tuple[float, float, Edge]]:
        """For each of some nodes, over paths that use it: seconds, the node's own part of them, and how it is used.

        Nodes without such a path are left out. ``chain_over`` tells the path, for the few that are taken.
        """
        per_layer, per_joint = costs
        to_end = self._to_end(costs)
        from_start = self._from_start(costs)
        wanted = set(places)
        through: dict[int, tuple[float, float, Edge]] = {}
        for edges in self._rising:
            for edge in edges:
                place = edge.place
                if place not in wanted or edge.start not in from_start or edge.end not in to_end:
                    continue
                own = (edge.end - edge.start) * per_layer[place] + edge.joints * per_joint[place]
                seconds = from_start[edge.start][0] + own + to_end[edge.end][0]
                if place not in through or seconds < through[place][0]:
                    through[place] = (seconds, own, edge)
        return through

    def chain_over(self, edge: Edge, costs: Costs) -> tuple[int, ...]:
        """The nodes of the shortest path over a hop."""
        from_start = self._from_start(costs)
        before: list[int] = []
        hop = from_start[edge.start][1]
        while hop is not None:
            before.append(hop.place)
            hop = from_start[hop.start][1]
        return (*reversed(before), edge.place, *self._walk(self._to_end(costs), edge.end))

    def route(self, chain: tuple[int, ...]) -> Route:
        route = self._routes.get(chain)
        if route is None:
            hops: list[Hop] = []
            start = 0
            for place in chain:
                node = self.nodes[place]
                hops.append(Hop(node.node_id, node.shard, node.shard.starting_at(start)))
                start = node.shard.next_layer
            if len(self._routes) > ROUTES_KEPT_MAX:
                self._routes.clear()
            route = self._routes[chain] = Route(self.model_key, tuple(hops))
        return route

    def places_of(self, signatures: Collection[Signature]) -> set[int]:
        """The nodes of those routes, as far as they were asked for lately."""
        return {p for chain, route in self._routes.items() if route.signature in signatures for p in chain}

    def _to_end(self, costs: Costs) -> _Found:
        """Per start layer: seconds from there to the end, and the hop to take."""
        if self._left is not None and self._left[0] is costs:
            return self._left[1]
        per_layer, per_joint = costs
        to_end: _Found = {self.layer_count: (0.0, None)}
        for start, edges in self._falling:
            best, best_edge = UNREACHABLE, None
            for place, layers, end, joints, edge in edges:
                onward = to_end.get(end)
                if onward is not None:
                    seconds = onward[0] + layers * per_layer[place] + joints * per_joint[place]
                    if seconds < best:
                        best, best_edge = seconds, edge
            if best_edge is not None:
                to_end[start] = (best, best_edge)
        self._left = costs, to_end
        return to_end

    def _from_start(self, costs: Costs) -> _Found:
        """Per layer: seconds from the start to there, and the last hop."""
        if self._reached is not None and self._reached[0] is costs:
            return self._reached[1]
        per_layer, per_joint = costs
        reached: _Found = {0: (0.0, None)}
        for edges in self._rising:
            if edges[0].start not in reached:
                continue
            so_far = reached[edges[0].start][0]
            for edge in edges:
                own = (edge.end - edge.start) * per_layer[edge.place] + edge.joints * per_joint[edge.place]
                seconds = so_far + own
                if edge.end not in reached or seconds < reached[edge.end][0]:
                    reached[edge.end] = (seconds, edge)
        self._reached = costs, reached
        return reached

    def _walk(self, to_end: _Found, start: int) -> tuple[int, ...]:
        chain: list[int] = []
        edge = to_end[start][1]
        while edge is not None:
            chain.append(edge.place)
            edge = to_end[edge.end][1]
        return tuple(chain)
