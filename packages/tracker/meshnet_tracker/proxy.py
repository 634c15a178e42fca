"""The path every chat takes, from the client's request to the last byte of its answer. Read this first.

    parse ──> model ──> choose a route, which reserves it ──> post to the route's own head ──> relay
                              ^                                          │
                              └── before the client saw any text: ───────┘
                                  another route, up to three in all

What always holds, however a chat ends: its reservation is given back, the head's connection is released
(a client that leaves cancels it), there is exactly one outcome and one ``chat finished`` event, and at
most one sample: of the one attempt that ran from start to end.

``ChatProxy`` is a bare ASGI endpoint, because this is the hot path: the framework in front of the other
endpoints would cost more than all that happens here.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from random import Random

import aiohttp
import msgspec
import structlog

from meshnet_protocol.ids import FINGERPRINT_SHORT_CHARS, NodeId, SessionId, Signature
from meshnet_protocol.messages import HeadRequest, RoutePlan
from meshnet_tracker.asgi import (
    COMPLETION_PATH,
    Headers,
    Receive,
    Scope,
    Send,
    bounded_send,
    read_body,
    wait_until_gone,
)
from meshnet_tracker.chat import Chat, Outcome, outcome_of
from meshnet_tracker.chat_reply import ChatReply, StreamedReply, WholeReply
from meshnet_tracker.errors import (
    AttemptFailedError,
    ClientGoneError,
    EmptyAnswerError,
    NodeLostError,
    NoRouteError,
    OverloadedError,
    TrackerError,
)
from meshnet_tracker.events import EventLog
from meshnet_tracker.head_client import open_chat
from meshnet_tracker.openai_errors import to_http
from meshnet_tracker.openai_schema import Dialect, parse_request
from meshnet_tracker.reply_shape import ReplyIdentity, shape_of
from meshnet_tracker.router import RouteDecision, Router
from meshnet_tracker.routing_stats import DecisionMode

BODY_BYTES_MAX = 32 * 1024 * 1024
ATTEMPTS_MAX = 3

_log = structlog.get_logger("meshnet.tracker")


class ChatProxy:
    """Both endpoints that answer with the model's words.

    ``suspect`` is told of nodes whose connection broke, ``fault`` of nodes that failed a chat; ``add_ticket`` puts the
    tracker's signature to a plan.
    """

    def __init__(
        self,
        *,
        router: Router,
        events: EventLog,
        suspect: Callable[[NodeId], None],
        fault: Callable[[NodeId], None],
        add_ticket: Callable[[RoutePlan, HeadRequest], RoutePlan],
        seed_rng: Random,
        comment_period_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.session: aiohttp.ClientSession | None = None
        """Set while the server runs; whoever opened it closes it."""
        self._router = router
        self._events = events
        self._suspect = suspect
        self._fault = fault
        self._add_ticket = add_ticket
        self._seed_rng = seed_rng
        self._comment_period_s = comment_period_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._running: dict[int, tuple[RouteDecision, asyncio.Timeout]] = {}
        self._chats: dict[str, Chat] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One chat, with its one outcome. Whatever the chat suffered is told to the client and not raised."""
        dialect = Dialect.COMPLETION if scope["path"] == COMPLETION_PATH else Dialect.CHAT
        chat = Chat(request_id=scope["state"]["request_id"], received_at=self._clock(), dialect=dialect)
        self._chats[chat.request_id] = chat
        try:
            await self._serve(chat, receive, bounded_send(send))
        except* ClientGoneError:
            chat.outcome = chat.outcome or Outcome.CLIENT_GONE
        finally:
            del self._chats[chat.request_id]
            self._events.append("chat finished", **chat.summary(self._clock()))

    async def relay_chat(self, chat: Chat, reply: ChatReply) -> None:
        """Run an understood chat on one route after another, until one answers it or the client has seen text.

        Raises what the client must be told: RefusedByHeadError, NoRouteError, NodeLostError, ...
        """
        failed: set[Signature] = set()
        failure: AttemptFailedError | None = None
        while len(failed) < ATTEMPTS_MAX and not reply.is_committed:
            decision = self._choose(chat, failed, failure)
            try:
                await self._attempt(chat, reply, decision)
                return
            except AttemptFailedError as error:
                failure = error
                failed.add(decision.signature)
                self._note_failure(chat, decision, error)
                if decision.mode is DecisionMode.PINNED:
                    break
            finally:
                self._router.release(decision, self._clock())
        assert failure is not None
        raise _lost(failure) from failure

    def running_tokens(self) -> int:
        """Tokens drawn so far by the chats that run now."""
        return sum(chat.drawn_tokens for chat in self._chats.values())

    def cut_off(self, node_id: NodeId) -> None:
        """The node is dead: end the attempts that wait for it, however silently it went."""
        for decision, deadline in self._running.values():
            if node_id in decision.route.node_ids and not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())

    async def _serve(self, chat: Chat, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as tasks:
            companions: list[asyncio.Task[None]] = []
            reply: ChatReply | None = None
            try:
                body = await read_body(receive, bytes_max=BODY_BYTES_MAX)
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
        chat.call = parse_request(body, chat.dialect, seed_rng=self._seed_rng)
        chat.model = self._router.resolve_model(chat.call.model)
        card = chat.model.card
        shape = shape_of(chat.dialect)
        identity = ReplyIdentity(
            id=f"{shape.id_prefix}{uuid.uuid4().hex}",
            created=int(self._wall_clock()),
            model=card.name,
            system_fingerprint=f"fp_{card.fingerprint[:FINGERPRINT_SHORT_CHARS]}",
        )
        if not chat.call.is_stream:
            return WholeReply(send, shape, identity)
        return StreamedReply(send, shape, identity, includes_usage=chat.call.includes_usage, clock=self._clock)

    def _choose(self, chat: Chat, failed: set[Signature], failure: AttemptFailedError | None) -> RouteDecision:
        """A reserved route. Where none is left, what broke the last one tells more than that."""
        call, model = chat.understood
        try:
            return self._router.choose(
                model, pinned=call.pinned, exclude=failed, prompt_tokens=call.prompt_tokens_about, now=self._clock()
            )
        except NoRouteError as error:
            raise (_lost(failure) if failure else error) from failure

    async def _attempt(self, chat: Chat, reply: ChatReply, decision: RouteDecision) -> None:
        """Raises AttemptFailedError if another route may still serve the chat."""
        chat.begin_attempt(decision, self._clock())
        reply.restart()
        request = self._plan(chat, decision)
        try:
            async with asyncio.timeout(None) as deadline:
                self._running[decision.reservation] = (decision, deadline)
                await self._relay_from_head(chat, reply, decision, request)
        except TimeoutError as error:
            raise AttemptFailedError("a node of the route has died") from error
        finally:
            del self._running[decision.reservation]
        self._learn(chat, decision)
        await reply.finish(chat.usage)

    async def _relay_from_head(
        self, chat: Chat, reply: ChatReply, decision: RouteDecision, request: HeadRequest
    ) -> None:
        assert self.session is not None, "the proxy serves only while its session is open"
        head = decision.planned_hops[0]
        async with open_chat(self.session, head, request) as events:
            await reply.accept(_route_header(decision))
            async for event in events:
                arrived_at = self._clock()
                for choice in chat.take(event, arrived_at):
                    await reply.write(choice)
                chat.client_wait_s += self._clock() - arrived_at
        if not chat.is_answered:
            raise AttemptFailedError(f"head {head.node_id} ended its stream without a finish reason")
        if chat.is_empty:
            raise AttemptFailedError(f"head {head.node_id} drew no token where some were due", is_empty=True)
        chat.complete(self._clock())

    def _plan(self, chat: Chat, decision: RouteDecision) -> HeadRequest:
        """The request as the head gets it. Announces the route: from here on it is what the chat runs on."""
        call, model = chat.understood
        session_id = SessionId(uuid.uuid4().hex)
        self._events.append(
            "proxy route selected",
            request_id=chat.request_id,
            session=session_id,
            model=model.model_key,
            mode=decision.mode.value,
            reason=decision.reason,
            signature=decision.signature,
            hops=[
                {"node_id": hop.node_id, "start_layer": hop.start_layer, "end_layer": hop.end_layer}
                for hop in decision.planned_hops
            ],
            details={"candidates": [{"signature": o.signature, "share": o.share, "tps": o.tps} for o in decision.odds]},
        )
        plan = RoutePlan(session_id=session_id, model_key=model.model_key, hops=decision.planned_hops)
        request = call.head_request
        return msgspec.structs.replace(request, model=model.card.name, meshnet=self._add_ticket(plan, request))

    def _learn(self, chat: Chat, decision: RouteDecision) -> None:
        """At most one sample per chat: of the attempt that ran from start to end, if it brought anything."""
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
        suspects = [node_id for node_id in error.suspects if node_id in decision.route.node_ids]
        self._events.append(
            "route failed",
            request_id=chat.request_id,
            signature=decision.signature,
            error=str(error),
            suspects=suspects,
        )
        self._router.note_failure(decision, suspects=suspects, is_overload=error.is_overload, now=self._clock())
        for node_id in suspects:
            self._suspect(node_id)
        if not error.is_overload:
            for node_id in suspects or [decision.route.head.node_id]:
                self._fault(node_id)

    async def _tell(self, chat: Chat, error: Exception, reply: ChatReply) -> None:
        chat.outcome = outcome_of(error)
        if not isinstance(error, TrackerError):
            _log.error("chat failed by a bug of the tracker", request_id=chat.request_id, exc_info=error)
        await reply.fail(to_http(error), _route_header(chat.decision) if chat.decision else ())


async def _raise_when_gone(receive: Receive) -> None:
    await wait_until_gone(receive)
    raise ClientGoneError("the client closed its connection")


def _lost(failure: AttemptFailedError) -> OverloadedError | NodeLostError:
    if failure.is_overload:
        return OverloadedError(f"Every route that was tried is full: {failure}.")
    if failure.is_empty:
        return EmptyAnswerError(f"The answer is empty on every route that was tried: {failure}.")
    return NodeLostError(f"The chat was lost with its node, and no other route is left: {failure}.")


def _route_header(decision: RouteDecision) -> Headers:
    return ((b"x-meshnet-route", decision.signature.encode()),)
