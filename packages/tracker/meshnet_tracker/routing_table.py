"""The learned routes as ``GET /v1/routing`` shows them: beliefs, shares, load and reasons of every candidate.

Strict JSON: null wherever nothing is known, never NaN or infinity.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshnet_tracker.candidates import Candidate
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.route_policy import ArmOpinion
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import ArmStatus, ArmView, RouteStatsStore


def routing_table(router: Router, stats: RouteStatsStore, models: Sequence[ServedModel], now: float) -> dict[str, Any]:
    """``{"config": ..., "models": [{"model", "epoch", "candidates": [...]}]}``, best prior first.

    Behind the candidates stand the routes beside them that are used most, under a policy that knows more of them.
    """
    config = router.config
    return {
        "config": {
            "policy": router.policy.name,
            "explore_share": config.explore_share,
            "weight_alpha": config.weight_alpha,
            "stats_half_life_s": config.stats_half_life_s,
            "min_sample_tokens": config.min_sample_tokens,
        },
        "models": [_model_entry(router, stats, model, now) for model in models],
    }


def _model_entry(router: Router, stats: RouteStatsStore, model: ServedModel, now: float) -> dict[str, Any]:
    candidates = router.listed(model, now)
    opinions = router.policy.explain(model, candidates, now)
    views = {c.signature: _seen(stats.view(c.model_key, c.signature, now), opinions[c.signature]) for c in candidates}
    actual = router.actual_shares(model.model_key, now)
    best_tps = max((v.tps for v in views.values() if v.status is ArmStatus.PROVEN and v.tps), default=None)
    entries = [
        _candidate_entry(candidate, views[candidate.signature], best_tps)
        | {
            "expected_share": opinions[candidate.signature].probability,
            "actual_share": actual.get(candidate.signature, 0.0) if actual else None,
            "in_flight": router.in_flight(candidate.signature),
        }
        for candidate in candidates
    ]
    return {
        "model": model.model_key,
        "epoch": stats.epoch(model.model_key),
        "candidates": entries,
        "explanations": {entry["signature"]: _explanation(entry, opinions[entry["signature"]]) for entry in entries},
    }


def _explanation(entry: dict[str, Any], opinion: ArmOpinion) -> dict[str, Any]:
    """Why the policy in charge does with the arm what it does. The rows themselves are alike under every policy."""
    return {
        "probability": opinion.probability,
        "expected_tps": opinion.expected_tps,
        "interval_tps": opinion.interval_tps,
        "age_s": entry["last_sample_age_s"],
        "in_flight": entry["in_flight"],
        "reason": opinion.reason,
    }


def _seen(view: ArmView, opinion: ArmOpinion) -> ArmView:
    """The statistics' view, with the standing that the policy in charge gives the arm."""
    return view if opinion.status is None else replace(view, status=opinion.status)


def _candidate_entry(candidate: Candidate, view: ArmView, best_tps: float | None) -> dict[str, Any]:
    return {
        "signature": candidate.signature,
        "hops": [
            {
                "node_id": hop.node_id,
                "shard": str(hop.shard),
                "start_layer": hop.start_layer,
                "end_layer": hop.end_layer,
            }
            for hop in candidate.route.hops
        ],
        "status": view.status.value,
        "tps": view.tps,
        "coefficient": view.tps / best_tps if view.tps and best_tps else None,
        "samples": view.sample_count,
        "weight": view.mass,
        "prior_tps": candidate.prior_tps,
        "last_sample_age_s": view.last_sample_age_s,
    }
