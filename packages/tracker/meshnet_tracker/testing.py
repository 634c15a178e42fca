"""Real stand-ins for tests of the tracker and of what talks to it: a head without a model, a tracker in-process.

``FakeHead`` is a real HTTP server that speaks a head's side of ``messages.py``. What it answers, how it
breaks and when it waits is set on it before or during a chat; nothing in it sleeps but a slow prompt.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, NoReturn

import aiohttp
import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_protocol.ids import Incarnation, ModelKey, NodeId, WalletId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import (
    ChatChunk,
    Choice,
    Delta,
    HeadReport,
    HeadRequest,
    HopTiming,
    LayerSpan,
    ModelCard,
    Registration,
    TrackerGreeting,
    Usage,
)
from meshnet_protocol.proofs import WALLET_HEADER, Proof, prove, public_key_text
from meshnet_tracker.fleet import NodeRegistered
from meshnet_tracker.http_server import listen, url_of
from meshnet_tracker.server import TrackerServer
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.sse import DONE, write_event

PROMPT_TOKENS = 5
TEN_PIECES = tuple(f"word{number} " for number in range(10))
NO_HEARTBEATS_NEEDED_S = 60.0
STEP_S = 0.1


def make_card(*, name: str = "tiny", layer_count: int = 40) -> ModelCard:
    return ModelCard(
        name=name,
        fingerprint="f00dfeedcafe",
        architecture="llama",
        layer_count=layer_count,
        hidden_size=64,
        context_tokens=512,
    )


def make_registration(
    instance: str,
    layers: str,
    *,
    model: ModelCard | None = None,
    url: str = "http://127.0.0.1:1",
    layer_tokens_per_s: float = 400.0,
    entry_layers: tuple[int, ...] = (),
    wallet: str = "wallet0000000000",
    incarnation: str = "",
) -> Registration:
    """``layers`` as in ``"0-21"``; the shard's first layer is always an entry layer."""
    shard = LayerRange.parse(layers)
    return Registration(
        wallet=WalletId(wallet),
        instance=instance,
        incarnation=Incarnation(incarnation or f"first run of {instance}"),
        shard=LayerSpan.of(shard),
        model=model or make_card(),
        url=url,
        layer_tokens_per_s=layer_tokens_per_s,
        entry_layers=tuple(sorted({shard.first, *entry_layers})),
        slots=4,
    )


@dataclass(slots=True)
class FakeHead:
    """Answers every chat with ``pieces``, one token each, unless told to fail; resumes what others have begun.

    It starts with ``noise`` chunks that say nothing, or ``prefill_steps`` that tell of its progress, 0.1 s each.
    ``refusal`` is a status and an error object instead of a 200. ``breaks_after`` cuts the connection
    after that many pieces (0: after the 200), ``breaks_at_the_end`` after the last word. ``ends_after`` ends the stream
    properly but too early; ``freezes_after`` says nothing more.
    While ``go`` is clear, a chat waits before each piece; while ``accepts`` is clear, before its 200.
    ``is_well`` is what it says to probes; ``forgets`` makes it begin at the beginning whatever it is told.
    """

    url: str = ""
    node_id: str = ""
    """Who it says it is when somebody looks."""
    pieces: tuple[str, ...] = TEN_PIECES
    thoughts: tuple[str, ...] = ()
    """Of a reasoning model, before its answer; tokens of their own."""
    finish_reason: str = "stop"
    refusal: tuple[int, dict[str, Any]] | None = None
    stream_error: dict[str, Any] | None = None
    breaks_after: int | None = None
    breaks_at_the_end: bool = False
    ends_after: int | None = None
    freezes_after: int | None = None
    noise: int = 0
    prefill_steps: int = 0
    is_well: bool = True
    forgets: bool = False
    has_template: bool = True
    """Without one, text completions are all that can be had."""
    probe_count: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    accepts: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[HeadRequest] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    was_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a chat was cancelled because the tracker closed its connection."""

    def __post_init__(self) -> None:
        self.go.set()
        self.accepts.set()

    async def answer_probe(self, _: web.Request) -> web.Response:
        self.probe_count += 1
        body = {"status": "ok", "node_id": self.node_id}
        return web.json_response(body, status=200 if self.is_well else 503)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(msgspec.json.decode(await request.read(), type=HeadRequest))
        self.was_asked.set()
        try:
            await self.accepts.wait()
            if self.refusal is not None:
                status, error = self.refusal
                return web.json_response({"error": error}, status=status)
            if self.requests[-1].messages and not self.has_template:
                return web.json_response({"error": {"message": "no template", "code": "chat_template"}}, status=400)
            return await self._stream(request)
        except (asyncio.CancelledError, ConnectionError):
            self.was_left.set()
            raise

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        resumed = 0 if self.forgets else self.requests[-1].resumed_tokens
        begun = HeadReport(prompt_tokens=PROMPT_TOKENS, resumed_tokens=resumed)
        await response.write(_event([Choice(index=0, delta=Delta(role="assistant", content=""))], meshnet=begun))
        await self._prefill(response)
        await self._think(response)
        limit = self.requests[-1].max_tokens
        pieces = self.pieces if limit is None else self.pieces[:limit]
        for index, piece in enumerate((*pieces, None)):
            if index < resumed:
                continue
            await self.go.wait()
            if index == self.breaks_after:
                _break(request)
            if index == self.ends_after:
                return response
            if index == self.freezes_after:
                await asyncio.Event().wait()
            if piece is not None:
                choice = Choice(index=0, delta=Delta(content=piece))
                await response.write(_event([choice], meshnet=HeadReport(token_ids=(index,))))
        if self.stream_error is not None:
            await response.write(write_event(msgspec.json.encode({"error": self.stream_error})))
        reason = self.finish_reason if len(pieces) == len(self.pieces) else "length"
        await response.write(_event([Choice(index=0, delta=Delta(), finish_reason=reason)], meshnet=self._report()))
        for answer in range(1, self.requests[-1].n):
            await self._answer_again(response, answer, pieces, reason)
        if self.breaks_at_the_end:
            _break(request)
        count = len(pieces) * self.requests[-1].n
        usage = Usage(prompt_tokens=PROMPT_TOKENS, completion_tokens=count, total_tokens=PROMPT_TOKENS + count)
        await response.write(_event([], usage=usage) + write_event(DONE))
        return response

    async def _think(self, response: web.StreamResponse) -> None:
        for thought in self.thoughts:
            choice = Choice(index=0, delta=Delta(reasoning_content=thought))
            await response.write(_event([choice], meshnet=HeadReport(token_ids=(0,))))

    async def _answer_again(
        self, response: web.StreamResponse, answer: int, pieces: tuple[str, ...], reason: str
    ) -> None:
        """One more of several answers, whole."""
        choice = Choice(index=answer, delta=Delta(content="".join(pieces)), finish_reason=reason)
        await response.write(_event([choice], meshnet=HeadReport(token_ids=tuple(range(len(pieces))))))

    async def _prefill(self, response: web.StreamResponse) -> None:
        for step in range(self.noise + self.prefill_steps):
            await asyncio.sleep(STEP_S)
            tokens = step + 1 if step >= self.noise else 0
            await response.write(_event([], meshnet=HeadReport(prefilled_tokens=tokens)))

    def _report(self) -> HeadReport:
        plan = self.requests[-1].meshnet
        assert plan is not None
        return HeadReport(
            timings=tuple(
                HopTiming(node_id=hop.node_id, steps=10, queue_s=0.05, compute_s=0.5, link_s=0.1) for hop in plan.hops
            )
        )


def _break(request: web.Request) -> NoReturn:
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError("as told")


def _event(choices: list[Choice], **fields: Any) -> bytes:
    chunk = ChatChunk(id="the head's own", created=1, model="the head's own", choices=choices, **fields)
    return write_event(msgspec.json.encode(chunk))


@asynccontextmanager
async def running_head(**fields: Any) -> AsyncIterator[FakeHead]:
    """A FakeHead on a free loopback port; ``fields`` are its own."""
    head = FakeHead(**fields)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", head.answer)
    app.router.add_get("/health", head.answer_probe)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        head.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield head
    finally:
        head.go.set()
        head.accepts.set()
        await runner.cleanup()


@dataclass(frozen=True, slots=True)
class RunningTracker:
    server: TrackerServer
    url: str

    def register(self, instance: str, layers: str, **fields: Any) -> NodeId:
        """A node joins; ``fields`` as ``make_registration`` takes them."""
        registration = make_registration(instance, layers, **fields)
        self.server.handle(NodeRegistered(registration))
        return registration.node_id

    @property
    def model_key(self) -> ModelKey:
        return make_card().model_key


@dataclass(slots=True)
class NodeVoice:
    """Says what a node says, signed by a wallet of its own, over real HTTP."""

    tracker_url: str
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    join_token: str = ""
    sequence: int = 0
    boot: str = ""

    @property
    def wallet(self) -> str:
        return public_key_text(self.key)

    async def say(self, verb: str, message: msgspec.Struct) -> tuple[int, Any]:
        """Greets first, and signs. Status and decoded answer."""
        await self.greet()
        body = msgspec.json.encode(message)
        return await self.send(verb, body, self.prove(f"/v1/nodes/{verb}", body))

    async def ask(self, path: str, *, signs: str | None = None) -> tuple[int, Any]:
        """Asks as a process that is about to be a node; ``signs`` another path than it asks for, if told to."""
        await self.greet()
        headers = self.prove(signs or path, b"").to_headers() | {WALLET_HEADER: self.wallet}
        async with aiohttp.ClientSession() as http, http.get(self.tracker_url + path, headers=headers) as response:
            return response.status, await response.json()

    async def greet(self) -> TrackerGreeting:
        async with aiohttp.ClientSession() as http, http.get(f"{self.tracker_url}/v1/nodes/greeting") as response:
            greeting = msgspec.json.decode(await response.read(), type=TrackerGreeting)
        self.boot = greeting.boot
        self.sequence = max(self.sequence + 1, int(greeting.time_s * 1e6))
        return greeting

    def prove(self, path: str, body: bytes) -> Proof:
        return prove(self.key, path=path, boot=self.boot, sequence=self.sequence, body=body, join_token=self.join_token)

    async def send(self, verb: str, body: bytes, proof: Proof | None) -> tuple[int, Any]:
        headers = proof.to_headers() if proof else {}
        url = f"{self.tracker_url}/v1/nodes/{verb}"
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as response:
            return response.status, await response.json()


@asynccontextmanager
async def running_tracker(*, route_rng: Random | None = None, **settings: Any) -> AsyncIterator[RunningTracker]:
    """A tracker on a free loopback port in this process. Nodes need no heartbeats unless the settings say so."""
    defaults = {
        "port": 0,
        "heartbeat_period_s": NO_HEARTBEATS_NEEDED_S,
        "checks_reachability": False,
        "probes_models": False,
    }
    made = TrackerServer(TrackerSettings(**{**defaults, **settings}), route_rng=route_rng)
    with listen(made.settings) as listener:
        http_server = made.http_server()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(http_server.serve(sockets=[listener]))
            try:
                yield RunningTracker(made, url_of(listener, "http" if made.settings.server_tls is None else "https"))
            finally:
                http_server.should_exit = True
