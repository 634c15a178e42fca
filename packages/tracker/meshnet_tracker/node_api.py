"""What nodes tell the tracker: greeting, registration, heartbeats, farewell.

A greeting is anybody's; everything after it is signed (``node_auth.py``). A registration changes nothing before the
wallet may join, the account can be true, and the tracker has reached the node at the address it gives.
"""

import time
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response

from meshnet_protocol.ids import Incarnation, WalletId
from meshnet_protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    Leave,
    Registration,
    RegistrationReply,
    TrackerGreeting,
)
from meshnet_protocol.proofs import Proof
from meshnet_tracker.asgi import client_address
from meshnet_tracker.errors import RegistrationRefusedError, StaleProofError
from meshnet_tracker.fleet import Fleet, FleetEvent, HeartbeatReceived, NodeLeft, NodeRegistered
from meshnet_tracker.guesses import Guesses
from meshnet_tracker.node_auth import NodeAuth, proof_of
from meshnet_tracker.node_probe import NodeProbe
from meshnet_tracker.registration import check_registration
from meshnet_tracker.replies import json_reply
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.ticket_office import TicketOffice

NODE_BODY_BYTES_MAX = 1024 * 1024


class NodeParts(Protocol):
    """What these endpoints need of the tracker."""

    settings: TrackerSettings
    fleet: Fleet
    node_auth: NodeAuth
    tickets: TicketOffice
    probe: NodeProbe
    guesses: Guesses

    def handle(self, event: FleetEvent) -> None: ...


M = TypeVar("M", bound=msgspec.Struct)


def add_node_endpoints(app: FastAPI, parts: NodeParts) -> None:
    _add_arrivals(app, parts)

    @app.post("/v1/nodes/heartbeat")
    async def heartbeat(request: Request) -> Response:
        beat, body = await _read(request, Heartbeat)
        if not parts.fleet.is_known(beat.node_id, beat.incarnation):
            return json_reply(HeartbeatReply(is_known=False))
        try:
            _check_owner(parts, request, beat, body)
        except StaleProofError:
            # The tracker was restarted, or a clock jumped: greeting and registering again mends both.
            return json_reply(HeartbeatReply(is_known=False))
        parts.handle(HeartbeatReceived(beat))
        wanted = parts.fleet.wanted_entry_layers(beat.node_id)
        return json_reply(HeartbeatReply(is_known=True, wanted_entry_layers=wanted, time_s=time.time()))

    @app.post("/v1/nodes/leave")
    async def leave(request: Request) -> Response:
        farewell, body = await _read(request, Leave)
        if parts.fleet.is_known(farewell.node_id, farewell.incarnation):
            _check_owner(parts, request, farewell, body)
            parts.handle(NodeLeft(farewell))
        return json_reply({})


def _add_arrivals(app: FastAPI, parts: NodeParts) -> None:
    @app.get("/v1/nodes/greeting")
    async def greeting() -> Response:
        return json_reply(
            TrackerGreeting(tracker_key=parts.tickets.public_key, boot=parts.node_auth.boot, time_s=time.time())
        )

    @app.post("/v1/nodes/register")
    async def register(request: Request) -> Response:
        registration, body = await _read(request, Registration)
        check_registration(registration)
        with _counting_guesses(parts, request):
            proof = _check(parts, request, registration.wallet, registration.incarnation, body)
            path = request.url.path
            parts.node_auth.check_may_join(proof, wallet=registration.wallet, path=path, body=body)
        if parts.settings.checks_reachability:
            await parts.probe.check_reachable(registration)
        parts.handle(NodeRegistered(registration))
        return json_reply(
            RegistrationReply(
                node_id=registration.node_id,
                heartbeat_period_s=parts.settings.heartbeat_period_s,
                wanted_entry_layers=parts.fleet.wanted_entry_layers(registration.node_id),
            )
        )


def _check_owner(parts: NodeParts, request: Request, said: Heartbeat | Leave, body: bytes) -> None:
    """Raises NodeProofError unless the wallet that registered the node has signed this."""
    node = parts.fleet.node(said.node_id)
    assert node is not None, "only what a known node is said to say is checked"
    with _counting_guesses(parts, request):
        _check(parts, request, node.registration.wallet, said.incarnation, body)


def _counting_guesses(parts: NodeParts, request: Request) -> AbstractContextManager[None]:
    return parts.guesses.counting(client_address(request.scope), time.monotonic())


def _check(parts: NodeParts, request: Request, wallet: WalletId, incarnation: Incarnation, body: bytes) -> Proof:
    proof = proof_of(request.headers)
    parts.node_auth.check(
        proof, wallet=wallet, incarnation=incarnation, path=request.url.path, body=body, now=time.time()
    )
    return proof


async def _read(request: Request, kind: type[M]) -> tuple[M, bytes]:
    """The message and the very bytes of it. Raises RegistrationRefusedError if the body is not a ``kind``."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > NODE_BODY_BYTES_MAX:
            raise RegistrationRefusedError(f"the body exceeds {NODE_BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=kind), body
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RegistrationRefusedError(f"not a {kind.__name__}: {error}") from error
