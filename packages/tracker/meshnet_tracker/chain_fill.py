"""More candidates than one per head: the best chains that differ, so that every part of the mesh can get work.

The greedy enumeration gives each head one completion; of ten equal tails nine would idle. Here the rest of the
cap is filled: again and again the quickest chain, on the assumption that every candidate so far takes its share
of its nodes. A node that is already on many candidates looks slow, so the next chain goes round it, unless it is
so much faster that it does not have to.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from meshnet_protocol.ids import NodeId, Signature
from meshnet_protocol.routes import Route
from meshnet_tracker.candidates import CHAINS_TRIED_MAX, Candidate, CandidateCache, covering_chains, prior_tps
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.layer_graph import LayerGraph

TRIES_PER_CHAIN = 4
TPS_MIN = 1e-9


def different_chains(model: ServedModel, beside: Sequence[Route], count: int) -> list[Route]:
    """Up to ``count`` chains of ready nodes that are not in ``beside``, best and most different first."""
    graph = LayerGraph(model)
    uses: Counter[NodeId] = Counter(node_id for route in beside for node_id in route.node_ids)
    known: set[Signature] = {route.signature for route in beside}
    found: list[Route] = []

    def add(route: Route) -> None:
        if route.signature not in known and len(found) < count:
            known.add(route.signature)
            found.append(route)

    for _ in range(count * TRIES_PER_CHAIN):
        if len(found) == count:
            break
        layer_s = [(1 + uses[node.node_id]) / max(TPS_MIN, node.layer_tokens_per_s) for node in graph.nodes]
        _, chain = graph.quickest((layer_s, [0.0] * len(layer_s)))
        if not chain:
            break
        route = graph.route(chain)
        uses.update(route.node_ids)
        add(route)
    # A small mesh may have fewer such chains than there is room for: then simply all there are.
    ready = model.ready_nodes()
    chains = covering_chains(model_key=model.model_key, layer_count=model.card.layer_count, nodes=ready)
    for route in islice(chains, CHAINS_TRIED_MAX if len(found) < count else 0):
        add(route)
    return found


class FilledCandidates:
    """One candidate per head as ever, and the rest of the cap filled. Which chains: once per structure version."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._greedy = CandidateCache(limit=limit)
        self._filled: dict[str, tuple[int, list[Route]]] = {}
        self._ranked: dict[str, tuple[int, tuple[Candidate, ...]]] = {}

    def candidates(self, model: ServedModel) -> tuple[Candidate, ...]:
        """Best prior first, at most the limit; empty if no chain of ready nodes holds all layers."""
        ranked = self._ranked.get(model.model_key)
        if ranked is not None and ranked[0] == model.load_version:
            return ranked[1]
        greedy = self._greedy.candidates(model)
        filled = self._filled.get(model.model_key)
        if filled is None or filled[0] != model.structure_version:
            routes = [candidate.route for candidate in greedy]
            filled = (model.structure_version, different_chains(model, routes, self._limit - len(routes)))
            self._filled[model.model_key] = filled
        others = self._limit - len(greedy)
        known = {candidate.signature for candidate in greedy}
        more = [Candidate(r, prior_tps(r, model)) for r in filled[1] if r.signature not in known][:others]
        candidates = tuple(sorted([*greedy, *more], key=lambda c: (-c.prior_tps, c.signature)))
        self._ranked[model.model_key] = (model.load_version, candidates)
        return candidates
