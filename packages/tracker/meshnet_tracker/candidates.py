"""Which routes are possible now: one candidate per head, completed greedily, at most 8 by prior.

The work is split by how often its input changes. ``RouteStructure`` answers which chains exist and is
built once per structure version of a model; ``rank`` prices those chains with the nodes' present load
and is cheap enough for every request. Both rest on one observation: which chain continues best at layer
L does not depend on how a route got to L. So there is one best completion per *start layer*, shared by
all heads, and 10,000 nodes cost one pass over their entry layers.

A completion is only ever built on a layer from which the end can be reached, so the greedy walk
("the longest-advancing hop") cannot run into a dead end that a shorter hop would have avoided.

A candidate's prior, in tokens/s, is that of its slowest hop:

    min over hops of  layer_tokens_per_s / layers_run / (1 + queue_depth) * reputation
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from meshnet_protocol.ids import ModelKey, NodeId, Signature
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.routes import Hop, Route
from meshnet_tracker.errors import NoRouteError
from meshnet_tracker.fleet import FleetNode, ServedModel

ROUTE_CANDIDATES_MAX = 8
CHAINS_TRIED_MAX = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A route that is possible now, and what its nodes' own figures promise of it."""

    route: Route
    prior_tps: float

    @property
    def model_key(self) -> ModelKey:
        return self.route.model_key

    @property
    def signature(self) -> Signature:
        return self.route.signature


@dataclass(frozen=True, slots=True)
class _Step:
    """The best hop at one start layer; the next one starts where its node's shard ends."""

    node: FleetNode
    start_layer: int

    @property
    def next_layer(self) -> int:
        return self.node.shard.next_layer


class _Head(NamedTuple):
    """A head with what does not change with its load: every chat after a heartbeat ranks them anew."""

    idle_tps: float
    """Of its own layers with nothing else to do, which no load can better."""
    place: int
    """The higher, the earlier its id."""
    next_layer: int
    node: FleetNode


class RouteStructure:
    """The chains that exist among some nodes, whatever their load."""

    def __init__(self, *, model_key: ModelKey, layer_count: int, nodes: Sequence[FleetNode]) -> None:
        self._model_key = model_key
        self._layer_count = layer_count
        steps = _best_steps(nodes, layer_count)
        # A head runs its whole shard: a node that merely contains layer 0 does not exist, shards start there.
        heads = [
            node
            for node in nodes
            if node.shard.first == 0
            and 0 in node.entry_layers
            and (node.shard.next_layer == layer_count or node.shard.next_layer in steps)
        ]
        self._steps = _reachable(steps, {head.shard.next_layer for head in heads})
        by_id = enumerate(sorted(heads, key=lambda head: head.node_id))
        self._heads = sorted(
            (_Head(_idle_tps(head), -place, head.shard.next_layer, head) for place, head in by_id), reverse=True
        )
        self._routes: dict[NodeId, Route] = {}

    def rank(self, limit: int) -> tuple[Candidate, ...]:
        """The ``limit`` best candidates by present prior, best first; equal priors in order of the head's id."""
        bottlenecks = {self._layer_count: float("inf")}
        for step in self._steps:
            layers_run = step.next_layer - step.start_layer
            bottlenecks[step.start_layer] = min(_hop_tps(step.node, layers_run), bottlenecks[step.next_layer])
        # A heap of the best so far, the worst of them on top. A head's place keeps equal ones in order of their ids.
        best: list[tuple[float, int, FleetNode]] = []
        for idle_tps, place, next_layer, node in self._heads:
            is_full = len(best) == limit
            if is_full and idle_tps < best[0][0]:
                break  # This head and all after it are slower even when idle.
            tps = idle_tps / (1 + node.queue_depth)
            if node.faults.mass:
                tps *= node.reputation
            tps = min(tps, bottlenecks[next_layer])
            if not is_full:
                heapq.heappush(best, (tps, place, node))
            elif (tps, place) > best[0][:2]:
                heapq.heapreplace(best, (tps, place, node))
        return tuple(Candidate(self._route_of(node), tps) for tps, _, node in sorted(best, reverse=True))

    def _route_of(self, head: FleetNode) -> Route:
        route = self._routes.get(head.node_id)
        if route is None:
            steps = {step.start_layer: step for step in self._steps}
            hops = [Hop(head.node_id, head.shard, head.shard)]
            while hops[-1].end_layer + 1 < self._layer_count:
                start_layer = hops[-1].end_layer + 1
                node = steps[start_layer].node
                hops.append(Hop(node.node_id, node.shard, node.shard.starting_at(start_layer)))
            route = self._routes[head.node_id] = Route(self._model_key, tuple(hops))
        return route


@dataclass(slots=True)
class _Cached:
    model: ServedModel
    """Compared by identity: a model that was forgotten and comes back counts its versions from 0 again."""
    structure_version: int
    structure: RouteStructure
    load_version: int = -1
    candidates: tuple[Candidate, ...] = ()


@dataclass(slots=True)
class CandidateCache:
    """``enumerate_routes`` with a memory: what did not change since the last call is not computed again."""

    limit: int = ROUTE_CANDIDATES_MAX
    _cached: dict[ModelKey, _Cached] = field(default_factory=dict)

    def candidates(self, model: ServedModel) -> tuple[Candidate, ...]:
        """Best prior first, at most ``limit``; empty if no chain of ready nodes holds all layers."""
        cached = self._cached.get(model.model_key)
        if cached is None or cached.model is not model or cached.structure_version != model.structure_version:
            cached = _Cached(model, model.structure_version, structure_of(model))
            self._cached[model.model_key] = cached
        if cached.load_version != model.load_version:
            cached.candidates = cached.structure.rank(self.limit)
            cached.load_version = model.load_version
        return cached.candidates


def structure_of(model: ServedModel) -> RouteStructure:
    return RouteStructure(model_key=model.model_key, layer_count=model.card.layer_count, nodes=model.ready_nodes())


def enumerate_routes(model: ServedModel, *, limit: int = ROUTE_CANDIDATES_MAX) -> tuple[Candidate, ...]:
    """All from scratch. Raises NoRouteError, naming the missing layers, if there is no route."""
    candidates = structure_of(model).rank(limit)
    if not candidates:
        raise NoRouteError(explain_no_route(model))
    return candidates


def covering_chains(*, model_key: ModelKey, layer_count: int, nodes: Sequence[FleetNode]) -> Iterator[Route]:
    """Every chain the nodes can form, in greedy order, those that the enumeration passes over included.

    There may be exponentially many: take what is needed and stop.
    """
    by_start = _by_start_layer(nodes)
    completable = _best_steps(nodes, layer_count)

    def extend(hops: tuple[Hop, ...], start_layer: int) -> Iterator[Route]:
        if start_layer == layer_count:
            yield Route(model_key, hops)
            return
        options = (
            by_start.get(start_layer, []) if hops else [node for node in by_start.get(0, []) if node.shard.first == 0]
        )
        for node in sorted(options, key=_greedy_rank):
            if node.shard.next_layer == layer_count or node.shard.next_layer in completable:
                hop = Hop(node.node_id, node.shard, node.shard.starting_at(start_layer))
                yield from extend((*hops, hop), node.shard.next_layer)

    return extend((), 0)


def find_chain(model: ServedModel, nodes: Sequence[FleetNode], is_excluded: Callable[[Route], bool]) -> Route | None:
    """The first chain in greedy order that is not excluded, among the first ``CHAINS_TRIED_MAX``."""
    chains = covering_chains(model_key=model.model_key, layer_count=model.card.layer_count, nodes=nodes)
    for _, route in zip(range(CHAINS_TRIED_MAX), chains, strict=False):
        if not is_excluded(route):
            return route
    return None


def explain_no_route(model: ServedModel) -> str:
    """Why no chain of ready nodes holds all layers: which are missing, or where they cannot be entered yet."""
    nodes = model.ready_nodes()
    missing = _missing_layers([node.shard for node in nodes], model.card.layer_count)
    name = f"model {model.card.name}"
    if missing:
        no_head = "no head: no ready node holds layer 0; " if missing[0].first == 0 else ""
        return f"{name}: {no_head}{_layers_text(missing)} held by no ready node; {_advice(missing)}"
    stuck_at = _furthest_layer(nodes)
    holders = sorted(
        f"{node.node_id} (enterable at {', '.join(map(str, sorted(node.entry_layers))) or 'no layer'})"
        for node in nodes
        if node.shard.first <= stuck_at <= node.shard.last
    )
    return f"{name}: layer {stuck_at} is held, but cannot be entered there yet: {'; '.join(holders[:4])}"


def _advice(missing: Sequence[LayerRange]) -> str:
    return f"start one, with 'meshnet node --layers {missing[0]}'"


def prior_tps(route: Route, model: ServedModel) -> float:
    """Of the route's slowest hop, as its node's own figures promise; every node must be live."""
    return min(_hop_tps(model.nodes[hop.node_id], hop.layers.layer_count) for hop in route.hops)


def _idle_tps(head: FleetNode) -> float:
    return head.registration.layer_tokens_per_s / head.shard.next_layer


def _hop_tps(node: FleetNode, layers_run: int) -> float:
    rate = node.registration.layer_tokens_per_s
    return rate / layers_run / (1 + node.queue_depth) * node.reputation


def _by_start_layer(nodes: Sequence[FleetNode]) -> dict[int, list[FleetNode]]:
    by_start: dict[int, list[FleetNode]] = {}
    for node in nodes:
        for layer in node.entry_layers:
            by_start.setdefault(layer, []).append(node)
    return by_start


def _greedy_rank(node: FleetNode) -> tuple[int, float, NodeId]:
    """Longest advance first, then the faster, then the id. At one start layer, equal ends mean equal layers to run."""
    return (-node.shard.last, -node.registration.layer_tokens_per_s, node.node_id)


def _best_steps(nodes: Sequence[FleetNode], layer_count: int) -> dict[int, _Step]:
    """Per start layer, from the last to the first, the best hop from which the end can be reached."""
    by_start = _by_start_layer(nodes)
    steps: dict[int, _Step] = {}
    for start_layer in sorted(by_start, reverse=True):
        completable = [
            node for node in by_start[start_layer] if node.shard.last + 1 == layer_count or node.shard.last + 1 in steps
        ]
        if completable:
            steps[start_layer] = _Step(min(completable, key=_greedy_rank), start_layer)
    return steps


def _reachable(steps: dict[int, _Step], starts: set[int]) -> tuple[_Step, ...]:
    """The steps that some head's route takes, last start layer first: each one's successor stands before it."""
    reached: dict[int, _Step] = {}
    for start_layer in starts:
        while start_layer in steps and start_layer not in reached:
            reached[start_layer] = steps[start_layer]
            start_layer = steps[start_layer].next_layer
    return tuple(reached[start] for start in sorted(reached, reverse=True))


def _missing_layers(shards: Sequence[LayerRange], layer_count: int) -> list[LayerRange]:
    missing: list[LayerRange] = []
    next_layer = 0
    for shard in sorted(shards):
        if shard.first > next_layer:
            missing.append(LayerRange(next_layer, shard.first - 1))
        next_layer = max(next_layer, shard.next_layer)
    if next_layer < layer_count:
        missing.append(LayerRange(next_layer, layer_count - 1))
    return missing


def _layers_text(missing: Sequence[LayerRange]) -> str:
    texts = [str(layers.first) if layers.layer_count == 1 else str(layers) for layers in missing]
    is_single = len(missing) == 1 and missing[0].layer_count == 1
    return f"layer {texts[0]} is" if is_single else f"layers {', '.join(texts)} are"


def _furthest_layer(nodes: Sequence[FleetNode]) -> int:
    """The highest layer a route can get to, where nobody lets it in."""
    by_start = _by_start_layer(nodes)
    reached = {0}
    frontier = [0]
    while frontier:
        start_layer = frontier.pop()
        for node in by_start.get(start_layer, []):
            if node.shard.next_layer not in reached:
                reached.add(node.shard.next_layer)
                frontier.append(node.shard.next_layer)
    return max(reached)
