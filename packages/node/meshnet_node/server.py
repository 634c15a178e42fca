"""The node's composition root: engine, links, chats and membership behind one HTTP port.

POST /v1/chat/completions   head duties: a chat whose route starts here
POST /v1/completions        the same for a text completion: a request with ``prompts``, answered in the same words
GET  /v1/link               WebSocket: another hop's sessions
GET  /v1/models/{key}/file  the model's file, for nodes that join
GET  /health                is the shard loaded, what does it hold
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing, suppress

import msgspec
import structlog
from aiohttp import web

from meshnet_node.admission import Admission
from meshnet_node.chat_writer import ChatWriter
from meshnet_node.engine.api import Engine, EngineOptions, available_memory, check_memory
from meshnet_node.errors import EngineClosedError, NodeError, RequestError
from meshnet_node.head import ChatService
from meshnet_node.http_face import SSE_DONE, bind, error_response, serving, start_sse
from meshnet_node.http_guard import own_callers_only
from meshnet_node.http_limits import BODY_BYTES_MAX, BodyReader, write_in_time
from meshnet_node.link import LINK_PATH
from meshnet_node.link_identity import LinkIdentity
from meshnet_node.link_pool import LinkPool
from meshnet_node.link_server import LinkServer
from meshnet_node.member_life import NodeIdentity, client_session, live_until_stopped, run_process
from meshnet_node.model_server import ModelServer
from meshnet_node.model_source import open_model
from meshnet_node.placement import layers_that_help
from meshnet_node.reader_gate import ReaderGate
from meshnet_node.relay import HopService, greeting_of
from meshnet_node.settings import NodeSettings
from meshnet_node.ticket_gate import TicketGate
from meshnet_node.tracker_client import Membership, TrackerClient
from meshnet_node.tracker_reads import TrackerReads
from meshnet_node.wallet import Wallet
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import HeadRequest, Registration

ENGINE_ANSWER_S_MAX = 1.5
"""For the engine's thread to say that it is there. It answers between two decodes."""

log = structlog.get_logger()


class NodeApp:
    """The HTTP face of a node."""

    def __init__(
        self,
        identity: NodeIdentity,
        engine: Engine,
        links: LinkPool,
        admission: Admission,
        tickets: TicketGate | None = None,
        readers: ReaderGate | None = None,
    ) -> None:
        self._identity = identity
        self._engine = engine
        self._readers = readers
        self._admission = admission
        self._bodies = BodyReader()
        hops = HopService(identity.node_id, engine, links, admission, tickets, identity.wallet)
        self._chats = ChatService(hops)
        self._links = LinkServer(hops)

    def build(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[own_callers_only(self._identity.url)])
        app.router.add_post("/v1/chat/completions", self.serve_chat)
        app.router.add_post("/v1/completions", self.serve_chat)
        app.router.add_get(LINK_PATH, self._links.serve)
        app.router.add_get("/health", self.serve_health)
        ModelServer(self._engine, self._engine.options.cache_dir, self._readers).add_to(app)
        return app

    async def serve_health(self, _request: web.Request) -> web.Response:
        """200 only if the engine's thread answers: a node whose engine hangs still takes connections."""
        engine = self._engine
        is_well = await self._is_engine_well()
        return web.json_response(
            status=200 if is_well else 503,
            data={
                "status": "ok" if is_well else str(engine.failure or "the engine does not answer"),
                "node_id": self._identity.node_id,
                "model": engine.card.model_key,
                "layers": str(engine.shard),
                "entry_layers": list(engine.entry_layers),
                "sessions": engine.queue_depth,
                "waiting": self._admission.waiting_count,
                "kv_tokens": engine.kv_tokens,
                "slots": engine.options.slots,
            },
        )

    async def _is_engine_well(self) -> bool:
        try:
            async with AwakeTimeout(ENGINE_ANSWER_S_MAX):
                await self._engine.wait_answer()
        except (TimeoutError, EngineClosedError):
            return False
        return True

    async def serve_chat(self, request: web.Request) -> web.StreamResponse:
        """An OpenAI chat stream. What can be refused is refused before the 200, as an OpenAI error object."""
        try:
            body = msgspec.json.decode(await self._bodies.read(request), type=HeadRequest)
        except NodeError as error:
            return error_response(error)
        except msgspec.MsgspecError as error:
            return error_response(RequestError(f"the request body is not a chat request: {error}"))
        if bool(body.messages) == bool(body.prompts):
            return error_response(RequestError("a request has either messages or prompts"))
        writer = ChatWriter(model=self._engine.card.name, for_tracker=body.meshnet is not None)
        response: web.StreamResponse | None = None
        try:
            async with self._chats.open_chat(body) as chat:
                if not body.stream:
                    return web.json_response(body=await writer.collect(chat))
                response = await start_sse(request)
                async with aclosing(writer.write(chat)) as events:
                    async for event in events:
                        await write_in_time(response, event)
        except NodeError as error:
            if response is None:
                return error_response(error)
            log.warning("chat ended in an error", code=error.code, error=str(error))
            await response.write(writer.error(error))
        await response.write(SSE_DONE)
        await response.write_eof()
        return response


def load_engine(settings: NodeSettings, tracker: TrackerReads) -> Engine:
    """Blocking. Raises NodeError, fit to be shown to a person."""
    model = open_model(settings.model, cache_dir=settings.cache_dir, tracker=tracker)
    options = EngineOptions(
        threads=settings.threads,
        slots=settings.slots,
        context_tokens=settings.context_tokens,
        chunk_tokens=settings.chunk_tokens,
        exact=settings.exact,
        gpu_layers=settings.gpu_layers,
        layer_delay_s=settings.layer_delay_ms / 1000,
        cache_dir=settings.cache_dir,
    )
    shard = settings.layers or LayerRange(0, model.layer_count - 1)
    if settings.asks_for_layers:
        shard = layers_that_help(model, tracker, options)
    check_memory(model, shard, options, available=available_memory())
    log.info("loading", model=model.name, layers=str(shard))
    return Engine.load(model, shard, options)


async def serve_node(
    settings: NodeSettings, stop: asyncio.Event, *, on_loaded: Callable[[], None] = lambda: None
) -> None:
    """Load the shard, measure it, join the mesh, serve until ``stop``; then drain and leave."""
    membership = Membership.of(settings, Wallet.load_or_create(settings.wallet))
    with bind(settings.host, settings.port) as listener:
        reads = TrackerReads(settings.tracker, membership, settings.client_tls)
        engine = await asyncio.to_thread(load_engine, settings, reads)
        try:
            layer_tokens_per_s = await asyncio.to_thread(engine.measure_layer_tokens_per_s)
            log.info("tested", exact=engine.exactness.is_exact, exactness_class=engine.exactness.class_id)
            log.info("measured", layer_tokens_per_s=round(layer_tokens_per_s))
            identity = NodeIdentity.of(settings, membership.wallet, engine.shard, listener)
            on_loaded()
            await _serve_shard(settings, identity, membership, engine, layer_tokens_per_s, listener, stop)
        finally:
            await asyncio.to_thread(engine.close)


async def _serve_shard(
    settings: NodeSettings,
    identity: NodeIdentity,
    membership: Membership,
    engine: Engine,
    layer_tokens_per_s: float,
    listener: socket.socket,
    stop: asyncio.Event,
) -> None:
    def registration() -> Registration:
        return identity.registration(
            engine.card,
            layer_tokens_per_s=layer_tokens_per_s,
            entry_layers=engine.entry_layers,
            slots=engine.options.slots,
            exactness=engine.exactness,
        )

    async with client_session(settings) as http, asyncio.TaskGroup() as tasks:
        links = LinkPool(http, tasks, LinkIdentity(greeting_of(identity.node_id, engine), identity.wallet))
        admission = Admission(engine, queue_max=settings.queue, queue_timeout_s=settings.queue_timeout_s)
        client = TrackerClient(http, settings.tracker, engine, admission, registration, membership)
        tickets = TicketGate(membership.trust, allows_direct=settings.is_private)
        readers = ReaderGate(membership.trust, is_open=settings.is_private and not settings.join_token)
        app = NodeApp(identity, engine, links, admission, tickets, readers)
        async with serving(app.build(), listener, settings.server_tls):
            log.info("serving", node_id=identity.node_id, wallet=identity.wallet.wallet_id, url=identity.url)
            loop = asyncio.get_running_loop()
            engine.watch_failure(lambda: _stop_from_elsewhere(loop, stop))
            await live_until_stopped(
                client,
                admission,
                stop,
                drain_timeout_s=settings.drain_timeout_s,
                can_drain=lambda: engine.failure is None,
            )
        await links.close()
    if engine.failure is not None:
        # A node that cannot compute must not stay; whoever supervises the process may start it anew.
        raise engine.failure


def _stop_from_elsewhere(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop was closed: it has stopped already
        loop.call_soon_threadsafe(stop.set)


def run_node(settings: NodeSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises NodeError, fit to be shown to a person."""
    run_process(settings, serve_node)
