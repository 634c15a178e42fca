"""Composition root of a node in front of another server: see ``upstream.py``."""

import asyncio
import socket
from collections.abc import Callable

import aiohttp
import msgspec
import structlog
from aiohttp import web

from meshnet_node.chat_writer import error_body
from meshnet_node.errors import NodeError, PlanError, RequestError
from meshnet_node.http_face import SSE_DONE, bind, error_response, serving, start_sse
from meshnet_node.http_guard import own_callers_only
from meshnet_node.http_limits import BODY_BYTES_MAX, BodyReader, write_in_time
from meshnet_node.member_life import NodeIdentity, client_session, live_until_stopped, run_process
from meshnet_node.own_plan import plan_alone
from meshnet_node.settings import NodeSettings
from meshnet_node.ticket_gate import TicketGate
from meshnet_node.tracker_client import Membership, TrackerClient
from meshnet_node.upstream import EVENT_BYTES_MAX, Upstream, find_card
from meshnet_node.wallet import Wallet
from meshnet_protocol.messages import HeadRequest, Registration, RoutePlan

log = structlog.get_logger()


class UpstreamApp:
    """The HTTP face of such a node."""

    def __init__(self, identity: NodeIdentity, upstream: Upstream, tickets: TicketGate) -> None:
        self._identity = identity
        self._upstream = upstream
        self._tickets = tickets
        self._bodies = BodyReader()

    def build(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[own_callers_only(self._identity.url)])
        app.router.add_post("/v1/chat/completions", self.serve_chat)
        app.router.add_get("/health", self.serve_health)
        return app

    async def serve_health(self, _request: web.Request) -> web.Response:
        """200 only if the server behind answers: without it this node serves nobody."""
        is_well = await self._upstream.is_well()
        return web.json_response(
            status=200 if is_well else 503,
            data={
                "status": "ok" if is_well else "the upstream does not answer",
                "node_id": self._identity.node_id,
                "model": self._upstream.card.model_key,
                "sessions": self._upstream.queue_depth,
            },
        )

    async def serve_chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = msgspec.json.decode(await self._bodies.read(request), type=HeadRequest)
        except NodeError as error:
            return error_response(error)
        except msgspec.MsgspecError as error:
            return error_response(RequestError(f"the request body is not a chat request: {error}"))
        if not body.stream:
            return error_response(
                RequestError("this node only streams; ask the tracker, which gives whole answers too")
            )
        response: web.StreamResponse | None = None
        try:
            with self._tickets.claim(self._plan_of(body)) as permit:
                permit.is_spent = True
                async with self._upstream.open_chat(body) as chunks:
                    response = await start_sse(request)
                    async for chunk in chunks:
                        await write_in_time(response, b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        except NodeError as error:
            if response is None:
                return error_response(error)
            await response.write(b"data: " + msgspec.json.encode({"error": error_body(error)}) + b"\n\n")
        await response.write(SSE_DONE)
        await response.write_eof()
        return response

    def _plan_of(self, request: HeadRequest) -> RoutePlan:
        """The request's plan, else one of this node alone. Raises PlanError."""
        me, model_key = self._identity.node_id, self._upstream.card.model_key
        if (plan := request.meshnet) is None:
            return plan_alone(me, model_key, self._upstream.shard)
        if plan.model_key != model_key or [hop.node_id for hop in plan.hops] != [me]:
            raise PlanError(f"the plan is for {plan.model_key} on other nodes than {me}")
        return plan


async def serve_upstream(
    settings: NodeSettings, stop: asyncio.Event, *, on_loaded: Callable[[], None] = lambda: None
) -> None:
    """Find the upstream's model, measure it, join the mesh, serve until ``stop``; then drain and leave."""
    assert settings.upstream is not None
    wallet = Wallet.load_or_create(settings.wallet)
    with bind(settings.host, settings.port) as listener:
        async with client_session(settings, read_bytes=EVENT_BYTES_MAX) as http:
            card = await find_card(http, settings.upstream, settings.model_name, key=settings.upstream_key)
            upstream = Upstream(http, settings.upstream, card, key=settings.upstream_key)
            tokens_per_s = await upstream.measure_tokens_per_s()
            log.info("measured", upstream=settings.upstream, model=card.name, tokens_per_s=round(tokens_per_s, 1))
            on_loaded()
            await _serve(settings, wallet, upstream, tokens_per_s, listener, http, stop)


async def _serve(
    settings: NodeSettings,
    wallet: Wallet,
    upstream: Upstream,
    tokens_per_s: float,
    listener: socket.socket,
    http: aiohttp.ClientSession,
    stop: asyncio.Event,
) -> None:
    identity = NodeIdentity.of(settings, wallet, upstream.shard, listener)

    def registration() -> Registration:
        return identity.registration(
            upstream.card,
            layer_tokens_per_s=tokens_per_s,
            entry_layers=upstream.entry_layers,
            slots=settings.slots,
        )

    membership = Membership.of(settings, wallet)
    client = TrackerClient(http, settings.tracker, upstream, upstream, registration, membership)
    tickets = TicketGate(membership.trust, allows_direct=settings.is_private)
    app = UpstreamApp(identity, upstream, tickets).build()
    async with serving(app, listener, settings.server_tls):
        log.info("serving", node_id=identity.node_id, url=identity.url)
        await live_until_stopped(client, upstream, stop, drain_timeout_s=settings.drain_timeout_s)


def run_upstream(settings: NodeSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises NodeError, fit to be shown to a person."""
    run_process(settings, serve_upstream)
