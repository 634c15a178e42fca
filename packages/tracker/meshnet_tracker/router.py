"""One decision per request: which route, why, and the room reserved on it in the same call.

The router ties together what is possible (``candidates``), what is believed (``RouteStatsStore``) and
what is done (a ``RoutePolicy``). Every decision is released exactly once, whatever became of the request.

Where the policy has nothing to say, a *greedy fallback* still serves the request:

- every enumerated candidate has been tried and failed, but another chain holds all layers (the
  enumeration keeps one completion per head; its twin may be alive);
- only nodes that settle after too much coming and going complete a chain, or only nodes under suspicion: a broken
  connection is a hint, not a proof;
- the statistics fail: an error in learning must not cost a chat.

Before that come wishes, given up one after the other where no route meets them: for a chat that goes on elsewhere,
nodes whose bits are those its text was made of; and routes over nodes and links that have not failed lately. What
is never given up: over what is in doubt goes one request at a time (``trials.py``).
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from meshnet_protocol.ids import ModelKey, NodeId, Signature
from meshnet_protocol.messages import HopTiming, PlannedHop
from meshnet_protocol.routes import Route
from meshnet_tracker.candidates import (
    Candidate,
    CandidateCache,
    explain_no_route,
    find_chain,
    prior_tps,
)
from meshnet_tracker.errors import NoRouteError, RouteOnTrialError, UnknownModelError
from meshnet_tracker.fleet import Fleet, FleetNode, ServedModel
from meshnet_tracker.link_faults import LinkFaults
from meshnet_tracker.pinned_routes import pinned_route
from meshnet_tracker.policies.proportional import ProportionalPolicy
from meshnet_tracker.reservations import Reservations
from meshnet_tracker.route_policy import Completion, Failure, Flight, RoutePolicy, RouteRequest
from meshnet_tracker.routing_stats import (
    ArmOdds,
    DecisionMode,
    RouteChoice,
    RouteSample,
    RouteStatsStore,
    RoutingConfig,
    best_prior,
)
from meshnet_tracker.traffic import RoutesBeyond, TrafficShares
from meshnet_tracker.trials import Trials

POLICY_TRIES_MAX = 8
"""How often a policy is asked again because it took a route that is not as wished."""
ON_TRIAL = "Every route that is left has failed lately, and another request tries it now; ask again in a moment."
LISTED_BEYOND_MAX = 8
"""So many routes that are no candidates, and were taken all the same, stand in the routing table."""


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
    exact_class: str | None = None
    """The exactness class of all its nodes; None if they have none in common, or one of them is not exact."""

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
        policy: RoutePolicy | None = None,
        links: LinkFaults | None = None,
        trials: Trials | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.rng = rng
        self.config = config
        self.policy: RoutePolicy = policy or ProportionalPolicy(stats=stats, config=config)
        self._fleet = fleet
        self._links = links or LinkFaults()
        self._trials = trials or Trials()
        self._stats = stats
        self._enumerate_routes = enumerate_routes or CandidateCache().candidates
        self._aliases = aliases
        self._traffic = TrafficShares(half_life_s=config.stats_half_life_s)
        self._beyond = RoutesBeyond()
        self._reservations = Reservations()
        self._next_reservation = itertools.count(1)
        self._latest_now = 0.0

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

    def listed(self, model: ServedModel, now: float) -> tuple[Candidate, ...]:
        """The candidates, and behind them what a policy that knows more routes has mostly taken of those lately."""
        candidates, shares = self.candidates(model), self.actual_shares(model.model_key, now)
        known = {candidate.signature for candidate in candidates}
        beyond = [route for route in self._beyond.possible(model) if route.signature not in known]
        beyond.sort(key=lambda route: -shares.get(route.signature, 0.0))
        return (*candidates, *(Candidate(route, prior_tps(route, model)) for route in beyond[:LISTED_BEYOND_MAX]))

    def choose(
        self,
        model: ServedModel,
        *,
        now: float,
        pinned: Sequence[NodeId] | None = None,
        exclude: Collection[Signature] = (),
        prompt_tokens: int | None = None,
        exact_class: str | None = None,
        suspects_too: bool = True,
    ) -> RouteDecision:
        """A route for one request, reserved until ``release``. ``exclude`` are arms that just failed it.

        ``prompt_tokens`` is about how long its prompt is, if that is known; ``exact_class`` whose bits its text was
        made of so far. ``suspects_too``: over nodes under suspicion, if there is no other way.

        Raises NoRouteError, RouteOnTrialError; for a pinned route also InvalidRouteError or RouteUnavailableError.
        """
        if pinned is not None:
            route = pinned_route(self._fleet, model, pinned)
            if not self._trials.is_open(route, now):
                raise RouteOnTrialError(ON_TRIAL)
            return self._reserve(route, DecisionMode.PINNED, "pinned", now, prompt_tokens)
        request = RouteRequest(model, self.candidates(model), exclude, prompt_tokens)
        choice = self._choose_as_wished(request, exact_class, now) or self._fall_back(request, suspects_too, now)
        decision = self._reserve(choice.candidate.route, choice.mode, choice.reason, now, prompt_tokens, choice.odds)
        self._traffic.count(model.model_key, decision.signature, now)
        is_candidate = any(candidate is choice.candidate for candidate in request.candidates)
        if not is_candidate and choice.mode is not DecisionMode.GREEDY_FALLBACK:
            self._beyond.note(choice.candidate.route)
        return decision

    def reserve_for_probe(self, route: Route, now: float) -> RouteDecision:
        """Room for the tracker's own live probe, until ``release``; no choice, and no part of the traffic."""
        return self._reserve(route, DecisionMode.PINNED, "live probe", now, None)

    def release(self, decision: RouteDecision, now: float | None = None) -> None:
        """Give the room back. To do so twice is a bug of the caller. Without ``now``: at the last time heard of."""
        flight = self._reservations.give_back(decision.reservation)
        self._trials.end(decision.reservation)
        self.policy.released(flight, self._latest(now))

    def observe(
        self,
        decision: RouteDecision,
        *,
        completion_tokens: int,
        seconds: float,
        now: float,
        prompt_tokens: int = 0,
        ttft_s: float | None = None,
        timings: Sequence[HopTiming] = (),
    ) -> bool:
        """A request that ran on this route from start to end; whether the statistics took it as a sample.

        To be called before ``release``.
        """
        sample = RouteSample(decision.route.model_key, decision.signature, completion_tokens, seconds, decision.epoch)
        is_sample = self._stats.observe(sample, now)
        flight = self._reservations.flight(decision.reservation)
        if is_sample and flight is not None:
            completion = Completion(completion_tokens, seconds, prompt_tokens, ttft_s, timings)
            self.policy.completed(flight, completion, self._latest(now))
        return is_sample

    def note_failure(
        self, decision: RouteDecision, *, suspects: Sequence[NodeId], is_overload: bool = False, now: float
    ) -> None:
        """The attempt failed by the route's doing, and not the client's. To be called before ``release``."""
        flight = self._reservations.flight(decision.reservation)
        if flight is not None:
            self.policy.failed(flight, Failure(tuple(suspects), is_overload), self._latest(now))

    def prune(self, now: float) -> None:
        self._traffic.prune(now)
        self._stats.prune(now)
        self.policy.prune(now)

    def in_flight(self, signature: Signature) -> int:
        return self._reservations.on_arm(signature)

    @property
    def in_flight_total(self) -> int:
        return len(self._reservations)

    def actual_shares(self, model_key: ModelKey, now: float) -> dict[Signature, float]:
        return self._traffic.shares(model_key, now)

    def _latest(self, now: float | None) -> float:
        """Policies see a clock that never steps back and always is a number."""
        if now is not None and math.isfinite(now):
            self._latest_now = max(self._latest_now, now)
        return self._latest_now

    def _choose_as_wished(
        self, request: RouteRequest, exact_class: str | None, now: float
    ) -> RouteChoice[Candidate] | None:
        def is_open(route: Route) -> bool:
            return self._trials.is_open(route, now)

        def is_sound(route: Route) -> bool:
            return not self._has_failed_lately(route, now) and is_open(route)

        def is_alike(route: Route) -> bool:
            return self._exact_class_of(route) == exact_class and is_open(route)

        def is_both(route: Route) -> bool:
            return is_alike(route) and is_sound(route)

        wishes: list[Callable[[Route], bool]] = [is_both, is_alike] if exact_class else []
        for wish in (*wishes, is_sound, is_open):
            choice = self._choose_among(request, wish, now)
            if choice is not None:
                return choice
            route = find_chain(request.model, request.model.ready_nodes(), _refuse(request.exclude, wish))
            if route is not None:
                return RouteChoice(Candidate(route, 0.0), DecisionMode.GREEDY_FALLBACK, "passed-over chain")
        return None

    def _choose_among(
        self, request: RouteRequest, wish: Callable[[Route], bool], now: float
    ) -> RouteChoice[Candidate] | None:
        """What the policy takes among the routes that are as wished. It may know others than the candidates: those
        that are not as wished are excluded then, and it is asked again."""
        exclude = set(request.exclude)
        for _ in range(POLICY_TRIES_MAX):
            candidates = [c for c in request.candidates if c.signature not in exclude and wish(c.route)]
            choice = self._ask_policy(replace(request, candidates=candidates, exclude=exclude), now)
            if choice is None or wish(choice.candidate.route):
                return choice
            exclude.add(choice.candidate.signature)
        return None

    def _ask_policy(self, request: RouteRequest, now: float) -> RouteChoice[Candidate] | None:
        if not request.candidates:
            return None
        try:
            choice = self.policy.choose(request, self.rng, self._latest(now))
            return choice if choice is None or choice.odds else self._without_dice(choice, now)
        except Exception as error:  # Whatever is wrong with what was learnt, the chat can still be served.
            reason = f"statistics unavailable: {type(error).__name__}"
            return RouteChoice(best_prior(request.candidates), DecisionMode.GREEDY_FALLBACK, reason)

    def _without_dice(self, choice: RouteChoice[Candidate], now: float) -> RouteChoice[Candidate]:
        """The route that was taken had to be."""
        arm = choice.candidate
        return replace(
            choice, odds=(ArmOdds(arm.signature, 1.0, self._stats.view(arm.model_key, arm.signature, now).tps),)
        )

    def _has_failed_lately(self, route: Route, now: float) -> bool:
        """A policy that keeps a ledger of nodes' faults itself has priced them already: nobody pays twice."""
        if self._links.is_cooling(route, now):
            return True
        if self.policy.learns_from_failures:
            return False
        return any(self._live_node(node_id).faults.is_cooling(now) for node_id in route.node_ids)

    def _exact_class_of(self, route: Route) -> str | None:
        exactness = [self._live_node(node_id).registration.exactness for node_id in route.node_ids]
        classes = {one.class_id if one.is_exact else "" for one in exactness}
        return (classes.pop() or None) if len(classes) == 1 else None

    def _fall_back(self, request: RouteRequest, suspects_too: bool, now: float) -> RouteChoice[Candidate]:
        def is_open(route: Route) -> bool:
            return self._trials.is_open(route, now)

        model = request.model
        present = [node for node in model.nodes.values() if not node.is_draining]
        sound = [node for node in present if not node.is_suspected]
        last_resort = present if suspects_too else sound
        for nodes, reason in ((sound, "settling node"), (last_resort, "suspected node")):
            route = find_chain(model, nodes, _refuse(request.exclude, is_open))
            if route is not None:
                return RouteChoice(Candidate(route, 0.0), DecisionMode.GREEDY_FALLBACK, reason)
        if find_chain(model, last_resort, _refuse(request.exclude, lambda _: True)) is not None:
            raise RouteOnTrialError(ON_TRIAL)
        raise NoRouteError(explain_no_route(model))

    def _reserve(
        self,
        route: Route,
        mode: DecisionMode,
        reason: str,
        now: float,
        prompt_tokens: int | None,
        odds: tuple[ArmOdds, ...] = (),
    ) -> RouteDecision:
        nodes = [self._live_node(hop.node_id) for hop in route.hops]
        reservation = next(self._next_reservation)
        is_trial = self._trials.begin(reservation, route, now)
        decision = RouteDecision(
            reservation=reservation,
            mode=mode,
            reason=f"{reason}; a trial, for it failed lately" if is_trial else reason,
            route=route,
            planned_hops=tuple(
                PlannedHop(
                    node_id=hop.node_id,
                    url=node.registration.url,
                    start_layer=hop.start_layer,
                    end_layer=hop.end_layer,
                    wallet=node.registration.wallet,
                )
                for hop, node in zip(route.hops, nodes, strict=True)
            ),
            epoch=self._stats.epoch(route.model_key),
            odds=odds,
            exact_class=self._exact_class_of(route),
        )
        flight = Flight(
            reservation=decision.reservation,
            route=route,
            incarnations=tuple(node.registration.incarnation for node in nodes),
            taken_at=self._latest(now),
            is_scout=mode is DecisionMode.SCOUT,
            prompt_tokens=prompt_tokens,
        )
        self._reservations.take(flight)
        self.policy.taken(flight)
        return decision

    def _live_node(self, node_id: NodeId) -> FleetNode:
        node = self._fleet.node(node_id)
        assert node is not None, f"{node_id} is on a route and not in the fleet"
        return node


def _refuse(exclude: Collection[Signature], wish: Callable[[Route], bool]) -> Callable[[Route], bool]:
    return lambda route: route.signature in exclude or not wish(route)
