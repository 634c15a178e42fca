"""The default policy: the bandit of ``routing_stats.choose_route``, word for word as it was decided.

Everything it knows is in ``RouteStatsStore``, which the router feeds; the life of a single request tells it
nothing more. So this file only fits ``choose_route`` to the policies' interface.
"""

import math
from collections.abc import Mapping, Sequence
from random import Random

from meshnet_protocol.ids import Signature
from meshnet_tracker.candidates import Candidate
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.route_policy import ArmOpinion, Completion, Failure, Flight, RouteRequest
from meshnet_tracker.routing_stats import (
    ArmStatus,
    ArmView,
    RouteChoice,
    RouteStatsStore,
    RoutingConfig,
    choose_route,
    expected_shares,
)

PROPORTIONAL = "proportional"
INTERVAL_SDS = 2.0


class ProportionalPolicy:
    """P(arm) proportional to tps ** alpha among proven arms; a share of requests scouts the others."""

    name = PROPORTIONAL
    learns_from_failures = False

    def __init__(self, *, stats: RouteStatsStore, config: RoutingConfig) -> None:
        self._stats = stats
        self._config = config

    def choose(self, request: RouteRequest, rng: Random, now: float) -> RouteChoice[Candidate] | None:
        return choose_route(request.candidates, self._stats, self._config, rng, now)

    def taken(self, flight: Flight) -> None:
        pass

    def completed(self, flight: Flight, completion: Completion, now: float) -> None:
        pass

    def failed(self, flight: Flight, failure: Failure, now: float) -> None:
        pass

    def released(self, flight: Flight, now: float) -> None:
        pass

    def prune(self, now: float) -> None:
        pass

    def explain(
        self, model: ServedModel, candidates: Sequence[Candidate], now: float
    ) -> Mapping[Signature, ArmOpinion]:
        shares = expected_shares(candidates, self._stats, self._config, now)
        views = {c.signature: self._stats.view(c.model_key, c.signature, now) for c in candidates}
        is_cold = not any(view.status is ArmStatus.PROVEN for view in views.values())
        return {
            signature: ArmOpinion(
                probability=shares[signature],
                reason=_reason(view, shares[signature], is_cold=is_cold),
                expected_tps=view.tps,
                interval_tps=_interval(view),
            )
            for signature, view in views.items()
        }


def _reason(view: ArmView, share: float, *, is_cold: bool) -> str:
    if is_cold:
        return "cold-start: best prior" if share else "cold-start: another prior is better"
    if view.status is ArmStatus.PROVEN:
        return "proven: share follows tokens/s"
    return f"{view.status.value}: next scout" if share else f"{view.status.value}: waits to be scouted"


def _interval(view: ArmView) -> tuple[float, float] | None:
    """Around the mean, from the spread of the arm's own samples; a single sample has none."""
    if view.tps is None or view.tps_deviation is None or view.mass <= 0:
        return None
    margin = INTERVAL_SDS * view.tps_deviation / math.sqrt(view.mass)
    if not math.isfinite(margin):
        return None
    return (max(0.0, view.tps - margin), view.tps + margin)
