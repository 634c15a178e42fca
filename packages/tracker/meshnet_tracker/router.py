"""One decision per request: which route, why, and the room reserved on it in the same call.

The router ties together what is possible (``candidates``), what is believed (``RouteStatsStore``) and
what is done (``choose_route``). Every decision is released exactly once, whatever became of the request.

Where the bandit has nothing to say, a *greedy fallback* still serves the request:

- every enumerated candidate has been tried and failed, but another chain holds all layers (the
  enumeration keeps one completion per head; its twin may be alive);
- only nodes under suspicion complete a chain: a broken connection is a hint, not a proof;
- the statistics fail: an error in learning must not cost a chat.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from meshnet_protocol.ids import ModelKey, NodeId, Signature
from meshnet_protocol.messages import PlannedHop
from meshnet_protocol.routes import Route, chain_hops
from meshnet_tracker.candidates import (
    Candidate,
    CandidateCache,
    explain_no_route,
    find_chain,
)
from meshnet_tracker.errors import InvalidRouteError, NoRouteError, RouteUnavailableError, UnknownModelError
from meshnet_tracker.fleet import Fleet, FleetNode, ServedModel
from meshnet_tracker.routing_stats import (
    DecisionMode,
    RouteChoice,
    RouteSample,
    RouteStatsStore,
    RoutingConfig,
    best_prior,
    choose_route,
    expected_shares,
)
from meshnet_tracker.traffic import TrafficShares


@dataclass(frozen=True, slots=True)
class ArmOdds:
    """A candidate's chance of taking the request, at the moment of the choice; ``tps`` as learnt by then."""

    signature: Signature
    share: float
    tps: float | None


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """A route with room reserved on it. ``planned_hops`` is what the nodes are told."""

    reservation: int
    mode: DecisionMode
    reason: str
    route: Route
    planned_hops: tuple[PlannedHop, ...]
    epoch: int
    odds: tuple[ArmOdds, ...] = ()
    """What it was chosen among; empty where the bandit had no say."""

    @property
    def signature(self) -> Signature:
        return self.route.signature


class Router:
    """Decides, reserves, and hands finished requests to the statistics."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        stats: RouteStatsStore,
        config: RoutingConfig,
        rng: Random,
        enumerate_routes: Callable[[ServedModel], tuple[Candidate, ...]] | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.rng = rng
        self.config = config
        self._fleet = fleet
        self._stats = stats
        self._enumerate_routes = enumerate_routes or CandidateCache().candidates
        self._aliases = aliases
        self._traffic = TrafficShares(half_life_s=config.stats_half_life_s)
        self._reservations: dict[int, Signature] = {}
        self._in_flight: Counter[Signature] = Counter()
        self._next_reservation = itertools.count(1)

    def resolve_model(self, name: str | None) -> ServedModel:
        """The model a request means, by public name, model key or alias; without a name, the only one there is.

        If files of different contents bear the name, the one that can be served, then the one with more nodes.
        Raises UnknownModelError, naming the models there are.
        """
        known = self._fleet.models()
        if not any(name in (model.card.name, model.model_key) for model in known):
            name = self._aliases.get(name or "", name)
        models = [model for model in known if name is not None or model.nodes] or known
        matching = [m for m in models if name is None or name in (m.card.name, m.model_key)]
        names = sorted({model.card.name for model in models if model.nodes})
        if name is None and len(names) > 1:
            raise UnknownModelError(f"The request names no model. Available: {', '.join(names)}.", param="model")
        if not matching:
            available = f"Available: {', '.join(names)}." if names else "No node serves a model yet."
            asked = "The request names no model" if name is None else f"The model {name!r} does not exist"
            raise UnknownModelError(f"{asked}. {available}", param="model")
        if len(matching) == 1:
            return matching[0]
        return max(matching, key=lambda m: (bool(self.candidates(m)), len(m.nodes), m.model_key))

    def candidates(self, model: ServedModel) -> tuple[Candidate, ...]:
        """What the bandit chooses among, best prior first; empty if it has nothing to say."""
        return self._enumerate_routes(model)

    def choose(
        self,
        model: ServedModel,
        *,
        now: float,
        pinned: Sequence[NodeId] | None = None,
        exclude: Collection[Signature] = (),
    ) -> RouteDecision:
        """A route for one request, reserved until ``release``. ``exclude`` are arms that just failed it.

        Raises NoRouteError; for a pinned route InvalidRouteError or RouteUnavailableError.
        """
        if pinned is not None:
            return self._reserve(self._pinned_route(model, pinned), DecisionMode.PINNED, "pinned")
        candidates = [c for c in self.candidates(model) if c.signature not in exclude]
        if candidates:
            odds = self._odds_of(candidates, now)
            choice = self._choose_among(candidates, now)
            decision = self._reserve(choice.candidate.route, choice.mode, choice.reason, odds)
        else:
            decision = self._fall_back(model, exclude)
        self._traffic.count(model.model_key, decision.signature, now)
        return decision

    def release(self, decision: RouteDecision) -> None:
        """Give the room back. To do so twice is a bug of the caller."""
        assert decision.reservation in self._reservations, f"reservation {decision.reservation} released twice"
        signature = self._reservations.pop(decision.reservation)
        self._in_flight[signature] -= 1
        if not self._in_flight[signature]:
            del self._in_flight[signature]

    def observe(self, decision: RouteDecision, *, completion_tokens: int, seconds: float, now: float) -> bool:
        """A request that ran on this route from start to end; whether the statistics took it as a sample."""
        sample = RouteSample(decision.route.model_key, decision.signature, completion_tokens, seconds, decision.epoch)
        return self._stats.observe(sample, now)

    def prune(self, now: float) -> None:
        self._traffic.prune(now)
        self._stats.prune(now)

    def in_flight(self, signature: Signature) -> int:
        return self._in_flight[signature]

    @property
    def in_flight_total(self) -> int:
        return len(self._reservations)

    def actual_shares(self, model_key: ModelKey, now: float) -> dict[Signature, float]:
        return self._traffic.shares(model_key, now)

    def _choose_among(self, candidates: Sequence[Candidate], now: float) -> RouteChoice[Candidate]:
        try:
            return choose_route(candidates, self._stats, self.config, self.rng, now)
        except Exception as error:  # Whatever is wrong with what was learnt, the chat can still be served.
            reason = f"statistics unavailable: {type(error).__name__}"
            return RouteChoice(best_prior(candidates), DecisionMode.GREEDY_FALLBACK, reason)

    def _odds_of(self, candidates: Sequence[Candidate], now: float) -> tuple[ArmOdds, ...]:
        """For people: each candidate's chance before the draw. Unknown if the statistics fail."""
        try:
            shares = expected_shares(candidates, self._stats, self.config, now)
            return tuple(
                ArmOdds(arm.signature, shares[arm.signature], self._stats.view(arm.model_key, arm.signature, now).tps)
                for arm in candidates
            )
        except Exception:  # Whatever is wrong with what was learnt, the chat can still be served.
            return ()

    def _fall_back(self, model: ServedModel, exclude: Collection[Signature]) -> RouteDecision:
        ready = model.ready_nodes()
        suspected_too = [node for node in model.nodes.values() if not node.is_draining]
        for nodes, reason in ((ready, "passed-over chain"), (suspected_too, "suspected node")):
            route = find_chain(model, nodes, lambda route: route.signature in exclude)
            if route is not None:
                return self._reserve(route, DecisionMode.GREEDY_FALLBACK, reason)
        raise NoRouteError(explain_no_route(model))

    def _reserve(self, route: Route, mode: DecisionMode, reason: str, odds: tuple[ArmOdds, ...] = ()) -> RouteDecision:
        reservation = next(self._next_reservation)
        decision = RouteDecision(
            reservation=reservation,
            mode=mode,
            reason=reason,
            route=route,
            planned_hops=tuple(
                PlannedHop(
                    node_id=hop.node_id,
                    url=self._live_node(hop.node_id).registration.url,
                    start_layer=hop.start_layer,
                    end_layer=hop.end_layer,
                )
                for hop in route.hops
            ),
            epoch=self._stats.epoch(route.model_key),
            odds=odds,
        )
        self._reservations[reservation] = route.signature
        self._in_flight[route.signature] += 1
        return decision

    def _live_node(self, node_id: NodeId) -> FleetNode:
        node = self._fleet.node(node_id)
        assert node is not None, f"{node_id} is on a route and not in the fleet"
        return node

    def _pinned_route(self, model: ServedModel, pinned: Sequence[NodeId]) -> Route:
        nodes = [self._pinned_node(model, node_id) for node_id in pinned]
        try:
            route = Route(model.model_key, chain_hops([(node.node_id, node.shard) for node in nodes]))
        except ValueError as error:
            raise InvalidRouteError(f"The route does not join up: {error}.", param="route") from error
        last_layer = model.card.layer_count - 1
        if route.hops[-1].end_layer != last_layer:
            raise InvalidRouteError(
                f"The route ends at layer {route.hops[-1].end_layer}, the model at {last_layer}.", param="route"
            )
        for hop, node in zip(route.hops, nodes, strict=True):
            if hop.start_layer not in node.entry_layers:
                raise RouteUnavailableError(f"Node {node.node_id} cannot be entered at layer {hop.start_layer} yet.")
        return route

    def _pinned_node(self, model: ServedModel, node_id: NodeId) -> FleetNode:
        node = self._fleet.node(node_id)
        if node is None and self._fleet.has_departed(node_id):
            raise RouteUnavailableError(f"Node {node_id} has left the mesh.")
        if node is None:
            raise InvalidRouteError(f"The route names a node that was never here: {node_id!r}.", param="route")
        if node.model_key != model.model_key:
            raise InvalidRouteError(f"Node {node_id} serves {node.model_key}, not {model.model_key}.", param="route")
        if not node.is_ready:
            raise RouteUnavailableError(f"Node {node_id} is {'draining' if node.is_draining else 'not answering'}.")
        return node
