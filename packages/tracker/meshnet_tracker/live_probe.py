"""Sends live probes: chats of one token, to see whether a model in doubt can produce one (``readiness.py``).

A probe travels as chats do, with a ticket, over a reserved route, under the same limits of silence, and what it finds
out about nodes and links is booked in the same way. It is no chat all the same: no sample, no call on the wall, no
share of the traffic; one ``model probed`` event tells how it went.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from random import Random

import aiohttp
import msgspec
import structlog

from meshnet_protocol.ids import SessionId
from meshnet_protocol.messages import HeadRequest, RoutePlan
from meshnet_protocol.routes import Route
from meshnet_tracker.answer_progress import AnswerProgress
from meshnet_tracker.attempt_watch import AttemptWatch
from meshnet_tracker.errors import AttemptFailedError, RefusedByHeadError, TrackerError
from meshnet_tracker.events import EventLog
from meshnet_tracker.head_client import open_chat
from meshnet_tracker.openai_schema import ChatCall, Dialect, parse_request
from meshnet_tracker.readiness import Readiness
from meshnet_tracker.router import RouteDecision, Router

_log = structlog.get_logger("meshnet.tracker")

LOOK_PERIOD_S = 1.0
"""Doubts also come by time alone: a link that has cooled down, a probe that is due again."""
PROBE_S_MAX = 300.0
"""In all; an upstream may have to load its model first."""
_GREEDY = b'"max_tokens": 1, "temperature": 0, "seed": 0}'
_QUESTION = parse_request(
    b'{"messages": [{"role": "user", "content": "Hi"}], ' + _GREEDY, Dialect.CHAT, seed_rng=Random(0)
)
_BEGINNING = parse_request(b'{"prompt": "Hi", ' + _GREEDY, Dialect.COMPLETION, seed_rng=Random(0))
"""For a model that no chat can be had with: one without a chat template serves text completions all the same."""


class LiveProbes:
    """``served`` hears of routes that brought a token, ``blame`` of those that did not; ``add_ticket`` signs plans."""

    def __init__(
        self,
        *,
        readiness: Readiness,
        router: Router,
        events: EventLog,
        served: Callable[[Route], None],
        blame: Callable[[Route, AttemptFailedError], object],
        add_ticket: Callable[[RoutePlan, HeadRequest], RoutePlan],
        token_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readiness = readiness
        self._router = router
        self._events = events
        self._served = served
        self._blame = blame
        self._add_ticket = add_ticket
        self._token_timeout_s = token_timeout_s
        self._clock = clock
        self._wanted = asyncio.Event()

    def look(self) -> None:
        """Somebody has come or gone, or something has failed."""
        self._wanted.set()

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wanted.clear()
                for route in self._readiness.take_due_probes(self._clock()):
                    # Reserved before anybody else runs: the route's nodes are still there.
                    decision = self._router.reserve_for_probe(route, self._clock())
                    tasks.create_task(self._probe(session, decision), name=f"live probe {route.signature}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_PERIOD_S):
                        await self._wanted.wait()

    async def _probe(self, session: aiohttp.ClientSession, decision: RouteDecision) -> None:
        route, began = decision.route, self._clock()
        problem = ""
        try:
            try:
                await self._ask(session, decision, _QUESTION)
            except RefusedByHeadError:
                await self._ask(session, decision, _BEGINNING)
            self._served(route)
        except Exception as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, AttemptFailedError):
                if self._router.in_flight(route.signature) == 1:  # with a chat beside it, the chat tells
                    self._blame(route, error)
            elif not isinstance(error, TrackerError):
                _log.error("a live probe failed by a bug of the tracker", exc_info=error)
        finally:
            now = self._clock()
            self._router.release(decision, now)
            self._readiness.note_probe(route.model_key, is_well=not problem, now=now)
        self._events.append(
            "model probed",
            model=route.model_key,
            signature=route.signature,
            is_well=not problem,
            seconds=now - began,
            error=problem or None,
        )

    async def _ask(self, session: aiohttp.ClientSession, decision: RouteDecision, question: ChatCall) -> None:
        """Returns when the route has brought its token. Raises AttemptFailedError or another TrackerError."""
        loop = asyncio.get_running_loop()
        head = decision.planned_hops[0]
        watch = AttemptWatch(head.node_id, silence_s_max=self._token_timeout_s, ends_at=loop.time() + PROBE_S_MAX)
        progress = AnswerProgress(question)
        async with AsyncExitStack() as stack:
            opening = stack.enter_async_context(open_chat(session, head, self._request(decision, question)))
            events = await watch.wait(opening)
            watch.note_life()
            while (event := await watch.wait(anext(events, None))) is not None:
                if progress.take(event)[1]:
                    watch.note_life()
        progress.check_end()

    def _request(self, decision: RouteDecision, question: ChatCall) -> HeadRequest:
        plan = RoutePlan(
            session_id=SessionId(uuid.uuid4().hex),
            model_key=decision.route.model_key,
            hops=decision.planned_hops,
            token_timeout_s=self._token_timeout_s,
        )
        request = msgspec.structs.replace(question.head_request, model=decision.route.model_key.rpartition("@")[0])
        return msgspec.structs.replace(request, meshnet=self._add_ticket(plan, request))
