"""How much of a model's traffic each arm really took: decayed counts of unpinned choices.

They stand beside the expected shares in the routing table, so that a person can see the policy at work.
"""

import math

from meshnet_protocol.ids import ModelKey, Signature
from meshnet_protocol.routes import Route
from meshnet_tracker.fleet import ServedModel

# Below this an arm's count says nothing any more, and its entry is dropped.
COUNT_MIN = 1e-3


class TrafficShares:
    """Per model and arm, choices counted with a weight that halves every ``half_life_s``."""

    def __init__(self, *, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._counts: dict[ModelKey, dict[Signature, tuple[float, float]]] = {}

    def count(self, model_key: ModelKey, signature: Signature, now: float) -> None:
        counts = self._counts.setdefault(model_key, {})
        counts[signature] = (self._at(counts.get(signature, (0.0, now)), now) + 1.0, now)

    def shares(self, model_key: ModelKey, now: float) -> dict[Signature, float]:
        """They sum to 1 over every arm chosen lately, whether or not it is still a candidate."""
        counts = {s: self._at(counted, now) for s, counted in self._counts.get(model_key, {}).items()}
        total = sum(counts.values())
        return {signature: count / total for signature, count in counts.items()} if total else {}

    def prune(self, now: float) -> None:
        for counts in self._counts.values():
            for signature in [s for s, counted in counts.items() if self._at(counted, now) < COUNT_MIN]:
                del counts[signature]

    def _at(self, counted: tuple[float, float], now: float) -> float:
        count, timestamp = counted
        return count * math.exp2(-max(0.0, now - timestamp) / self._half_life_s)


class RoutesBeyond:
    """Routes that a policy took though they are no candidates; the latest, so that the routing table can list them."""

    KEPT_MAX = 64
    """Per model."""

    def __init__(self) -> None:
        self._routes: dict[ModelKey, dict[Signature, Route]] = {}

    def note(self, route: Route) -> None:
        routes = self._routes.setdefault(route.model_key, {})
        routes.pop(route.signature, None)
        routes[route.signature] = route
        if len(routes) > self.KEPT_MAX:
            del routes[next(iter(routes))]

    def possible(self, model: ServedModel) -> list[Route]:
        """Those whose nodes are all still there."""
        routes = self._routes.get(model.model_key, {}).values()
        return [route for route in routes if all(node_id in model.nodes for node_id in route.node_ids)]
