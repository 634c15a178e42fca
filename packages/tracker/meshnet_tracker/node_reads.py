"""What a node must know before it joins: who is there with which model's file, and where it would help most; and
the pass that opens those files.

The tracker's owner may ask too. On a tracker with keys, anybody else signs the question, as nodes sign all they say;
that is checked before anything gets here (``app.py``).
"""

import time
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import FastAPI, Query, Response

from meshnet_protocol.messages import LayerSpan, LayersSuggestion
from meshnet_protocol.tickets import PassReply
from meshnet_tracker.fleet import Fleet, FleetNode
from meshnet_tracker.overview import node_state
from meshnet_tracker.placement import HeldShard, suggest_layers
from meshnet_tracker.replies import json_reply
from meshnet_tracker.router import Router
from meshnet_tracker.ticket_office import TicketOffice

LAYERS_MAX = 100_000


class ReadParts(Protocol):
    """What these endpoints need of the tracker."""

    fleet: Fleet
    router: Router
    tickets: TicketOffice


def add_node_reads(app: FastAPI, parts: ReadParts) -> None:

    @app.get("/v1/nodes")
    async def nodes() -> Response:
        now = time.monotonic()
        return json_reply({"nodes": [_node_object(parts.fleet, node, now) for node in parts.fleet.nodes()]})

    @app.get("/v1/nodes/pass")
    async def reading_pass() -> Response:
        """Opens the model files of the mesh's nodes to whoever shows it, for a few minutes."""
        return json_reply(PassReply(text=parts.tickets.issue_pass(now=time.time())))

    @app.get("/v1/nodes/suggest")
    async def suggest(
        model: str,
        layers: Annotated[int, Query(ge=1, le=LAYERS_MAX)],
        layer_tokens_per_s: Annotated[float | None, Query(gt=0, allow_inf_nan=False)] = None,
    ) -> Response:
        """Where a new node of at most so many layers would help the model most, and why."""
        served = parts.router.resolve_model(model)
        held = [HeldShard(node.shard, node.layer_tokens_per_s) for node in served.ready_nodes()]
        suggestion = suggest_layers(
            held, layer_count=served.card.layer_count, layers_max=layers, layer_tokens_per_s=layer_tokens_per_s
        )
        span = LayerSpan.of(suggestion.layers)
        return json_reply(LayersSuggestion(model_key=served.model_key, layers=span, reason=suggestion.reason))


def _node_object(fleet: Fleet, node: FleetNode, now: float) -> dict[str, Any]:
    beat = node.heartbeat
    return {
        "node_id": node.node_id,
        "model": node.model_key,
        "shard": str(node.shard),
        "state": node_state(node),
        "url": node.registration.url,
        "entry_layers": sorted(node.entry_layers),
        "wanted_entry_layers": fleet.wanted_entry_layers(node.node_id),
        "queue_depth": node.queue_depth,
        "slots": node.registration.slots,
        "active_slots": beat.active_slots if beat else 0,
        "kv_tokens": beat.kv_tokens if beat else 0,
        "kv_tokens_max": beat.kv_tokens_max if beat else 0,
        "exactness": msgspec.to_builtins(node.registration.exactness),
        "layer_tokens_per_s": node.layer_tokens_per_s,
        "heartbeat_age_s": max(0.0, now - node.heard_at),
    }
