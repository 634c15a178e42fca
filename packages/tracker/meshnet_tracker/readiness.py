"""Which models can produce a token, as far as was seen, and when to go and see.

A route is ready if a token came over each of its nodes since that node joined, or last gave reason for doubt (a
fault, a broken link), and none of its links has failed lately. Who brought the token does not matter: a chat, or a
*live probe*, a chat of one token that the tracker sends itself. A model with a ready route is ready, and stays so
without traffic: there is no reason for doubt in silence, and nobody probes an idle mesh.

    ready ──a fault, the last ready node left──> in doubt ──probe or chat brings a token──> ready
                                                  │   ^
                                                  └───┘ probe failed: another one, later and later, ten in a row

Models in doubt are served all the same: to try is better than to refuse for ever. A route that a chat runs on is not
probed: the chat will tell, and some servers behind ``--upstream`` drop what they do when somebody else asks. Decides;
``live_probe.py`` acts.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshnet_protocol.ids import ModelKey
from meshnet_protocol.routes import Route
from meshnet_tracker.candidates import Candidate, find_chain
from meshnet_tracker.fleet import Fleet, FleetNode, ServedModel
from meshnet_tracker.link_faults import LinkFaults

PROBE_PERIOD_S_FIRST, PROBE_PERIOD_S_MAX = 1.0, 60.0
"""Between probes of one model; doubled with every one that fails."""
PROBES_IN_A_ROW_MAX = 10
"""Then the model is left alone until nodes come or go, or a chat brings a token."""


@dataclass(slots=True)
class _Doubt:
    """What became of the probes of a model that is not ready."""

    structure_version: int
    due_at: float = -math.inf
    failures: int = 0
    was_ready: bool = False
    """At the last look."""
    is_probing: bool = False


class Readiness:
    """Times are seconds of one monotonic clock, handed in."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        links: LinkFaults,
        candidates: Callable[[ServedModel], Iterable[Candidate]],
        is_busy: Callable[[Route], bool] = lambda _: False,
    ) -> None:
        self._fleet = fleet
        self._links = links
        self._candidates = candidates
        self._is_busy = is_busy
        self._doubts: dict[ModelKey, _Doubt] = {}

    def is_ready(self, model: ServedModel, now: float) -> bool:
        """Whether a chat may expect to be served."""

        def is_ready(route: Route) -> bool:
            nodes = self._nodes_of(route)
            return all(node.has_served for node in nodes) and not self._links.doubted(route, now)

        return self._find(model, is_ready) is not None

    def take_due_probes(self, now: float) -> list[Route]:
        """The routes to probe now, one of each model in doubt. ``note_probe`` must be told how each went."""
        known = {model.model_key: model for model in self._fleet.models() if model.nodes}
        for gone in self._doubts.keys() - known.keys():
            del self._doubts[gone]
        due = [self._take_due_probe(model, now) for model in known.values()]
        return [route for route in due if route is not None]

    def note_probe(self, model_key: ModelKey, *, is_well: bool, now: float) -> None:
        doubt = self._doubts.get(model_key)
        if doubt is None:
            return
        doubt.is_probing = False
        doubt.failures = 0 if is_well else doubt.failures + 1
        waits_s = PROBE_PERIOD_S_FIRST * 2.0 ** max(0, doubt.failures - 1)
        doubt.due_at = now + min(waits_s, PROBE_PERIOD_S_MAX)

    def _take_due_probe(self, model: ServedModel, now: float) -> Route | None:
        doubt = self._doubts.setdefault(model.model_key, _Doubt(model.structure_version))
        if doubt.structure_version != model.structure_version:
            # Somebody came or went. After failures that is no reason to hurry: a flapping node brings no storm.
            doubt.structure_version = model.structure_version
            doubt.due_at = min(doubt.due_at, now + (PROBE_PERIOD_S_FIRST if doubt.failures else 0.0))
            doubt.failures = min(doubt.failures, 1)
        if doubt.is_probing or now < doubt.due_at:
            return None
        if self.is_ready(model, now):
            doubt.was_ready, doubt.failures = True, 0
            return None
        # Looking costs something where there are thousands of nodes, so it is not done all the time.
        doubt.due_at = now + PROBE_PERIOD_S_FIRST
        if doubt.was_ready or doubt.failures >= PROBES_IN_A_ROW_MAX:
            # Who has just failed gets a moment to come back, or to be noticed.
            doubt.was_ready = False
            return None
        route = self._find(model, lambda route: self._is_sound(route, now)) or self._find(model, lambda _: True)
        if route is None or self._is_busy(route):
            return None
        doubt.is_probing = True
        return route

    def _find(self, model: ServedModel, wish: Callable[[Route], bool]) -> Route | None:
        """A route as wished, among those that chats may be sent over."""
        for candidate in self._candidates(model):
            if wish(candidate.route):
                return candidate.route
        nodes = [node for node in model.nodes.values() if not (node.is_draining or node.is_suspected)]
        return find_chain(model, nodes, lambda route: not wish(route))

    def _is_sound(self, route: Route, now: float) -> bool:
        has_failed = any(node.faults.is_cooling(now) for node in self._nodes_of(route))
        return not has_failed and not self._links.is_cooling(route, now)

    def _nodes_of(self, route: Route) -> list[FleetNode]:
        nodes = [self._fleet.node(node_id) for node_id in route.node_ids]
        return [node for node in nodes if node is not None]
