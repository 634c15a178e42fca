"""The path every chat takes, from the client's request to the last byte of its answer. Read this first.

    parse ──> model ──> choose a route, which reserves it ──> post to the route's own head ──> relay
                              ^                                          │
                              └── it failed: another route, which is ────┘
                                  told what was drawn so far

What always holds, however a chat ends: its reservation is given back, the head's connection is released
(a client that leaves cancels it), there is exactly one outcome and one ``chat finished`` event, and at
most one sample: of the one attempt that ran from start to end. How often it may break is bounded (``tries.py``),
how long it may be silent (``attempt_watch.py``), and how long it may take in all.

``ChatProxy`` is a bare ASGI endpoint, because this is the hot path: the framework in front of the other
endpoints would cost more than all that happens here.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from random import Random

import aiohttp
import msgspec
import structlog

from meshnet_protocol.ids import FINGERPRINT_SHORT_CHARS, ModelKey, NodeId, SessionId, Signature
from meshnet_protocol.messages import ChoiceSoFar, HeadRequest, RoutePlan
from meshnet_protocol.patience import Patience
from meshnet_protocol.routes import Route
from meshnet_tracker.asgi import (
    COMPLETION_PATH,
    Headers,
    Receive,
    Scope,
    Send,
    bounded_send,
    client_key,
    wait_until_gone,
)
from meshnet_tracker.attempt_watch import AttemptWatch
from meshnet_tracker.body_reader import BodyReader
from meshnet_tracker.call_texts import CallTexts
from meshnet_tracker.chat import Chat, outcome_of
from meshnet_tracker.chat_reply import ChatReply, StreamedReply, WholeReply
from meshnet_tracker.errors import (
    AttemptFailedError,
    ClientGoneError,
    NodeLostError,
    NoRouteError,
    OverloadedError,
    RefusedByHeadError,
    RouteOnTrialError,
    ShuttingDownError,
    TrackerError,
)
from meshnet_tracker.events import EventLog
from meshnet_tracker.head_client import open_chat
from meshnet_tracker.openai_errors import public_part, to_http
from meshnet_tracker.openai_schema import Dialect, parse_request
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.reply_shape import ReplyIdentity, shape_of
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.tries import ATTEMPTS_MAX, Tries
from meshnet_tracker.turnstile import PATIENCE_S_MAX, Turnstile

CHATS_MAX = 4096
"""At a time, those that wait for room included."""
ROUTE_WAIT_S_MAX = 10.0
"""How long a chat that has begun waits for a route to come back, before it is given up."""
ROUTE_LOOK_PERIOD_S = 0.1
STOPPING = "The tracker is being stopped; ask again in a moment."
SAME_ROUTE_AFTER_S = 0.5
"""How long such a chat looks for another route, before the one that broke may be tried again."""

_log = structlog.get_logger("meshnet.tracker")


class ChatProxy:
    """Both endpoints that answer with the model's words.

    ``blame`` is told of every failed attempt: its route and its error; it says which nodes are to be suspected.
    ``served`` is told of the route with every token. ``add_ticket`` puts the tracker's signature to a plan.
    ``texts`` is told what is said, if anybody wants it kept.
    """

    def __init__(
        self,
        *,
        router: Router,
        events: EventLog,
        blame: Callable[[Route, AttemptFailedError], tuple[NodeId, ...]],
        served: Callable[[Route], None],
        add_ticket: Callable[[RoutePlan, HeadRequest], RoutePlan],
        seed_rng: Random,
        comment_period_s: float,
        token_timeout_s: float,
        chat_timeout_s: float,
        texts: CallTexts | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.session: aiohttp.ClientSession | None = None
        """Set while the server runs; whoever opened it closes it."""
        self._router = router
        self._events = events
        self._blame = blame
        self._served = served
        self._add_ticket = add_ticket
        self._seed_rng = seed_rng
        self._comment_period_s = comment_period_s
        self._token_timeout_s = token_timeout_s
        self._chat_timeout_s = chat_timeout_s
        self._texts = texts
        self._clock = clock
        self._wall_clock = wall_clock
        self._running: dict[int, tuple[RouteDecision, AttemptWatch]] = {}
        self._chats: dict[str, Chat] = {}
        self._bodies = BodyReader()
        self._turnstile = Turnstile()
        self._is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One chat, with its one outcome. Whatever the chat suffered is told to the client and not raised."""
        dialect = Dialect.COMPLETION if scope["path"] == COMPLETION_PATH else Dialect.CHAT
        chat = Chat(
            request_id=scope["state"]["request_id"],
            received_at=self._clock(),
            client=client_key(scope),
            dialect=dialect,
        )
        self._chats[chat.request_id] = chat
        try:
            await self._serve(chat, scope, receive, bounded_send(send))
        except* ClientGoneError:
            chat.outcome = chat.outcome or Outcome.CLIENT_GONE
        finally:
            del self._chats[chat.request_id]
            if chat.model is not None:
                self._turnstile.let_next_in(chat.model.model_key)
            self._events.append("chat finished", **chat.summary(self._clock()))

    async def relay_chat(self, chat: Chat, reply: ChatReply) -> None:
        """Run an understood chat on one route after another, until its answers are complete.

        Raises what the client must be told: RefusedByHeadError, NoRouteError, NodeLostError, ...
        """
        _, model, progress = chat.understood
        loop = asyncio.get_running_loop()
        ends_at, room_until = loop.time() + self._chat_timeout_s, loop.time() + PATIENCE_S_MAX
        if self._turnstile.has_queue(model.model_key):
            await self._turnstile.wait_turn(model.model_key, chat.client, until=room_until)
        drawn = 0
        while not progress.is_complete:
            try:
                await self._run_on_routes(chat, reply, ends_at)
            except OverloadedError:
                if chat.attempts >= ATTEMPTS_MAX:
                    raise
                if progress.drawn_tokens > drawn:
                    drawn, room_until = progress.drawn_tokens, loop.time() + PATIENCE_S_MAX
                await self._turnstile.wait_turn(model.model_key, chat.client, until=room_until, is_again=True)
        chat.outcome = Outcome.COMPLETED
        await reply.finish(chat.usage)

    async def _run_on_routes(self, chat: Chat, reply: ChatReply, ends_at: float) -> None:
        """On one route after another. Raises OverloadedError if all that were tried are full."""
        tries = Tries(chat)
        while not chat.understood[2].is_complete:
            decision = await self._wait_route(tries)
            try:
                await self._attempt(chat, reply, decision, ends_at)
            except AttemptFailedError as error:
                self._note_failure(chat, decision, error)
                tries.note(decision.signature, error)
                if tries.are_over:
                    raise tries.loss() from error
            finally:
                self._router.release(decision, self._clock())

    def running_tokens(self) -> int:
        """Tokens drawn so far by the chats that run now."""
        return sum(chat.usage.completion_tokens for chat in self._chats.values())

    def cut_off(self, node_id: NodeId) -> None:
        """The node is gone: end the attempts that wait for it, however silently it went."""
        why = AttemptFailedError(f"node {node_id} of the route is gone", culprit=node_id)
        for decision, watch in self._running.values():
            if node_id in decision.route.node_ids:
                watch.cut_off(why)

    def let_waiting_in(self, model_key: ModelKey) -> None:
        """There is a way again for the model's chats that wait for one."""
        self._turnstile.let_all_in(model_key)

    def cut_off_all(self) -> None:
        """The tracker is about to end: chats that are still running end with an error that says so."""
        self._is_ending = True
        for _, watch in self._running.values():
            watch.cut_off(ShuttingDownError(STOPPING))

    async def _serve(self, chat: Chat, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as tasks:
            companions: list[asyncio.Task[None]] = []
            reply: ChatReply | None = None
            try:
                if len(self._chats) > CHATS_MAX:
                    raise OverloadedError(f"The tracker serves {CHATS_MAX} chats already; ask again in a moment.")
                body = await self._bodies.read(scope, receive)
                companions.append(tasks.create_task(_raise_when_gone(receive)))
                reply = self._understand(chat, body, send)
                if isinstance(reply, StreamedReply):
                    companions.append(tasks.create_task(reply.keep_alive(self._comment_period_s)))
                await self.relay_chat(chat, reply)
            except ClientGoneError:
                raise
            except Exception as error:
                await self._tell(chat, error, reply or WholeReply(send, shape_of(chat.dialect), None))
            finally:
                for companion in companions:
                    companion.cancel()

    def _understand(self, chat: Chat, body: bytes, send: Send) -> ChatReply:
        """Parse the request and find its model. Raises ClientError."""
        call = parse_request(body, chat.dialect, seed_rng=self._seed_rng)
        chat.understand(call, self._router.resolve_model(call.model))
        if self._texts is not None:
            self._texts.begin(chat.request_id, call.head_request)
        card = chat.understood[1].card
        shape = shape_of(chat.dialect)
        identity = ReplyIdentity(
            id=f"{shape.id_prefix}{uuid.uuid4().hex}",
            created=int(self._wall_clock()),
            model=card.name,
            system_fingerprint=f"fp_{card.fingerprint[:FINGERPRINT_SHORT_CHARS]}",
        )
        if not call.is_stream:
            return WholeReply(send, shape, identity)
        return StreamedReply(send, shape, identity, includes_usage=call.includes_usage, clock=self._clock)

    async def _wait_route(self, tries: Tries) -> RouteDecision:
        """A reserved route. A chat that has begun waits a little for one to come back, be it the one that broke."""
        loop = asyncio.get_running_loop()
        is_patient = bool(tries.failed) and tries.chat.understood[2].has_begun
        patience = Patience(ROUTE_WAIT_S_MAX if is_patient else 0.0, loop.time())
        while not self._is_ending:
            exclude = () if is_patient and patience.passed_s >= SAME_ROUTE_AFTER_S else tries.failed
            try:
                return self._choose(tries.chat, exclude, suspects_too=patience.is_over)
            except RouteOnTrialError:
                if patience.is_over:
                    raise
            except NoRouteError as error:
                if patience.is_over:
                    raise (tries.loss() if tries.failure else error) from tries.failure
            await asyncio.sleep(ROUTE_LOOK_PERIOD_S)
            patience.look(loop.time())
        raise ShuttingDownError(STOPPING)

    def _choose(self, chat: Chat, exclude: Collection[Signature], *, suspects_too: bool) -> RouteDecision:
        call, model, _ = chat.understood
        return self._router.choose(
            model,
            pinned=call.pinned,
            exclude=exclude,
            prompt_tokens=call.prompt_tokens_about,
            exact_class=chat.exact_class,
            suspects_too=suspects_too,
            now=self._clock(),
        )

    async def _attempt(self, chat: Chat, reply: ChatReply, decision: RouteDecision, ends_at: float) -> None:
        """Raises AttemptFailedError if another route may still serve the chat."""
        so_far = chat.begin_attempt(decision, self._clock())
        head = decision.planned_hops[0].node_id
        watch = AttemptWatch(head, silence_s_max=self._token_timeout_s, ends_at=ends_at)
        request = self._plan(chat, decision, so_far)
        self._running[decision.reservation] = (decision, watch)
        failure: AttemptFailedError | None = None
        try:
            await self._relay_from_head(chat, reply, decision.route, watch, request)
        except AttemptFailedError as error:
            failure = error
            raise
        except RefusedByHeadError as error:
            if not so_far:
                raise
            # The request was good enough for others: this head merely cannot go on with it.
            failure = AttemptFailedError(f"head {head} cannot resume the chat: {error}", is_blameless=True)
            raise failure from error
        finally:
            del self._running[decision.reservation]
            chat.end_attempt(failure)
        if not watch.has_slept:
            self._learn(chat, decision)

    async def _relay_from_head(
        self, chat: Chat, reply: ChatReply, route: Route, watch: AttemptWatch, request: HeadRequest
    ) -> None:
        assert self.session is not None, "the proxy serves only while its session is open"
        assert request.meshnet is not None
        head = request.meshnet.hops[0]
        async with AsyncExitStack() as stack:
            events = await watch.wait(stack.enter_async_context(open_chat(self.session, head, request)))
            watch.note_life()
            await reply.accept(_route_header(chat))
            while (event := await watch.wait(anext(events, None))) is not None:
                arrived_at = self._clock()
                added, is_alive = chat.take(event, arrived_at)
                if is_alive:
                    watch.note_life()
                if event.brings_words:
                    self._served(route)
                if self._texts is not None:
                    self._texts.add(chat.request_id, added)
                for choice in added:
                    await reply.write(choice)
                chat.client_wait_s += self._clock() - arrived_at
        chat.understood[2].check_end()
        chat.complete(self._clock())

    def _plan(self, chat: Chat, decision: RouteDecision, so_far: tuple[ChoiceSoFar, ...]) -> HeadRequest:
        """The request as the head gets it. Announces the route: from here on it is what the chat runs on."""
        call, model, progress = chat.understood
        session_id = SessionId(uuid.uuid4().hex)
        self._events.append(
            "proxy route selected",
            request_id=chat.request_id,
            session=session_id,
            model=model.model_key,
            mode=decision.mode.value,
            reason=decision.reason,
            signature=decision.signature,
            resumed_tokens=progress.drawn_tokens,
            hops=[
                {"node_id": hop.node_id, "start_layer": hop.start_layer, "end_layer": hop.end_layer}
                for hop in decision.planned_hops
            ],
            details={"candidates": [{"signature": o.signature, "share": o.share, "tps": o.tps} for o in decision.odds]},
        )
        plan = RoutePlan(
            session_id=session_id,
            model_key=model.model_key,
            hops=decision.planned_hops,
            token_timeout_s=self._token_timeout_s,
        )
        request = msgspec.structs.replace(call.head_request, model=model.card.name, so_far=so_far)
        return msgspec.structs.replace(request, meshnet=self._add_ticket(plan, request))

    def _learn(self, chat: Chat, decision: RouteDecision) -> None:
        """At most one sample per chat: of the attempt that ran from start to end."""
        if chat.tells_of_its_route and chat.run_s is not None:
            chat.is_sampled = self._router.observe(
                decision,
                completion_tokens=chat.usage.completion_tokens,
                seconds=chat.run_s,
                now=self._clock(),
                prompt_tokens=chat.usage.prompt_tokens,
                ttft_s=chat.route_ttft_s,
                timings=chat.timings,
            )

    def _note_failure(self, chat: Chat, decision: RouteDecision, error: AttemptFailedError) -> None:
        suspects = self._blame(decision.route, error)
        self._events.append(
            "route failed",
            request_id=chat.request_id,
            signature=decision.signature,
            outcome=error.outcome.value,
            culprit=error.culprit,
            reporter=error.reporter,
            drawn_tokens=chat.runs[-1].completion_tokens,
            error=str(error),
            suspects=list(suspects),
        )
        self._router.note_failure(decision, suspects=suspects, is_overload=error.is_blameless, now=self._clock())

    async def _tell(self, chat: Chat, error: Exception, reply: ChatReply) -> None:
        chat.outcome = outcome_of(error)
        if isinstance(error, NodeLostError):
            chat.culprit = error.culprit
        if not isinstance(error, TrackerError):
            _log.error("chat failed by a bug of the tracker", request_id=chat.request_id, exc_info=error)
        told = to_http(error)
        chat.error = public_part(error, told)
        await reply.fail(told, _route_header(chat))


async def _raise_when_gone(receive: Receive) -> None:
    await wait_until_gone(receive)
    raise ClientGoneError("the client closed its connection")


def _route_header(chat: Chat) -> Headers:
    """Of the latest attempt; none if there was none."""
    return ((b"x-meshnet-route", chat.decision.signature.encode()),) if chat.decision else ()
