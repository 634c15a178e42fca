"""What ``GET /v1/overview`` says: models with a plain verdict, nodes over the layer axis, the mesh's pulse."""

from typing import Any

from meshnet_tracker.candidates import explain_no_route
from meshnet_tracker.fleet import Fleet, FleetNode, ServedModel
from meshnet_tracker.pulse import Pulse
from meshnet_tracker.readiness import Readiness
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore


def overview(
    fleet: Fleet, router: Router, stats: RouteStatsStore, readiness: Readiness, pulse: Pulse, now: float
) -> dict[str, Any]:
    history = pulse.history(now)
    models = [model for model in fleet.models() if model.nodes]
    return {
        "models": [_model_entry(router, stats, model, is_ready=readiness.is_ready(model, now)) for model in models],
        "nodes": [node_entry(pulse, node, now) for node in fleet.nodes()],
        "departed": [{**gone, "shard": gone["node_id"].rpartition("@")[2]} for gone in pulse.departed(now)],
        "in_flight": router.in_flight_total,
        "tokens_per_s": history[-1][1] if history else 0.0,
        "history": history,
    }


def _model_entry(router: Router, stats: RouteStatsStore, model: ServedModel, *, is_ready: bool) -> dict[str, Any]:
    count = len(router.candidates(model))
    if count:
        verdict = f"served by {count} route{'s' if count > 1 else ''}"
        verdict += "" if is_ready else "; no token has come over any of them since it joined or failed"
    else:
        verdict = explain_no_route(model).partition(": ")[2]
    return {
        "model": model.model_key,
        "name": model.card.name,
        "architecture": model.card.architecture,
        "layer_count": model.card.layer_count,
        "context_tokens": model.card.context_tokens,
        "epoch": stats.epoch(model.model_key),
        "is_served": count > 0,
        "is_ready": is_ready,
        "verdict": verdict,
        "node_count": len(model.nodes),
    }


def node_entry(pulse: Pulse, node: FleetNode, now: float) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "model": node.model_key,
        "shard": str(node.shard),
        "first": node.shard.first,
        "last": node.shard.last,
        "state": node_state(node),
        "entry_layers": sorted(node.entry_layers),
        "queue_depth": node.queue_depth,
        "slots": node.registration.slots,
        "tokens_per_s": pulse.node_tokens_per_s(node.node_id, now),
        "layer_tokens_per_s": node.layer_tokens_per_s,
        "reputation": node.reputation,
        "heartbeat_age_s": max(0.0, now - node.heard_at),
    }


def node_state(node: FleetNode) -> str:
    if node.is_draining:
        return "draining"
    return "suspected" if node.is_suspected else "settling" if node.is_settling else "ready"
