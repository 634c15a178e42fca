"""What a node must know before it joins: who is there with which model's file, and where it would help most.

The tracker's owner may ask too. On a tracker with keys, anybody else signs the question, as nodes sign all they say.
"""

import time
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import FastAPI, Query, Request, Response

from meshnet_protocol.ids import Incarnation, WalletId
from meshnet_protocol.messages import LayerSpan, LayersSuggestion
from meshnet_protocol.proofs import WALLET_HEADER
from meshnet_tracker.access import Role
from meshnet_tracker.fleet import Fleet, FleetNode
from meshnet_tracker.node_auth import NodeAuth, proof_of
from meshnet_tracker.overview import node_state
from meshnet_tracker.placement import HeldShard, suggest_layers
from meshnet_tracker.router import Router

LAYERS_MAX = 100_000
NO_INCARNATION = Incarnation("")
"""Of a process that is not a node yet."""


class ReadParts(Protocol):
    """What these endpoints need of the tracker."""

    fleet: Fleet
    router: Router
    node_auth: NodeAuth


def add_node_reads(app: FastAPI, parts: ReadParts) -> None:

    @app.get("/v1/nodes")
    async def nodes(request: Request) -> Response:
        _check_reader(parts, request)
        now = time.monotonic()
        return _json({"nodes": [_node_object(parts.fleet, node, now) for node in parts.fleet.nodes()]})

    @app.get("/v1/nodes/suggest")
    async def suggest(
        request: Request,
        model: str,
        layers: Annotated[int, Query(ge=1, le=LAYERS_MAX)],
        layer_tokens_per_s: Annotated[float | None, Query(gt=0, allow_inf_nan=False)] = None,
    ) -> Response:
        """Where a new node of at most so many layers would help the model most, and why."""
        _check_reader(parts, request)
        served = parts.router.resolve_model(model)
        held = [HeldShard(node.shard, node.layer_tokens_per_s) for node in served.ready_nodes()]
        suggestion = suggest_layers(
            held, layer_count=served.card.layer_count, layers_max=layers, layer_tokens_per_s=layer_tokens_per_s
        )
        span = LayerSpan.of(suggestion.layers)
        return _json(LayersSuggestion(model_key=served.model_key, layers=span, reason=suggestion.reason))


def _check_reader(parts: ReadParts, request: Request) -> None:
    """Raises NodeProofError if this is neither the tracker's owner nor a wallet that may join."""
    if request.state.role is not Role.SIGNER:
        return
    proof = proof_of(request.headers)
    wallet = WalletId(request.headers.get(WALLET_HEADER, ""))
    asked = _asked(request)
    parts.node_auth.check(proof, wallet=wallet, incarnation=NO_INCARNATION, path=asked, body=b"", now=time.time())
    parts.node_auth.check_may_join(proof, wallet=wallet, path=asked, body=b"")


def _asked(request: Request) -> str:
    """Path and query, as they were signed."""
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


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


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
