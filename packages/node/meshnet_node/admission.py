"""Admission: a free slot at once, or a place in a short queue, or "try elsewhere".

    open ──slot free, nobody waits──> session
         ──queue has room──> wait ──a slot is given back──> session
                                  ──patience ends──> NoFreeSlotError (503, the tracker takes another route)
         ──queue full──> NoFreeSlotError

First come, first served: a slot that is given back goes to the one who has waited longest, in the same call.

A session waits at one hop while it holds slots at the hops before. Two routes that run through the same nodes
in different orders can so wait for each other. Waiting is therefore always short, and its length is drawn
within bounds for each session: they do not all give up in the same moment, and who is left gets the slots.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from random import Random

from meshnet_node.engine.api import Engine, EngineSession
from meshnet_node.errors import NodeError, NoFreeSlotError
from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Sampling

PATIENCE_SHARE_MIN = 0.5
"""The shortest patience, as a share of the queue's timeout."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a session needs of this node's engine."""

    session_id: SessionId
    layers: LayerRange
    sampling: Sampling | None
    prefix: tuple[bytes, ...] = ()
    hop_count: int = 1
    """Of the session's route."""


class Admission:
    """Every session of a node comes and goes through here. Belongs to one event loop."""

    def __init__(
        self, engine: Engine, *, queue_max: int = 8, queue_timeout_s: float = 2.0, rng: Random | None = None
    ) -> None:
        """``queue_max`` sessions may wait, each at most ``queue_timeout_s``; 0 of either: nobody waits."""
        self._engine = engine
        self._queue_max = queue_max
        self._queue_timeout_s = queue_timeout_s
        self._rng = rng or Random()
        self._waiting: OrderedDict[asyncio.Future[EngineSession], SessionRequest] = OrderedDict()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def queue_depth(self) -> int:
        """Sessions accepted and not finished: those that have a slot and those that wait for one."""
        return self._engine.queue_depth + len(self._waiting)

    async def wait_session(self, request: SessionRequest) -> EngineSession:
        """A session, now or soon; whoever gets it must give it to ``release``.

        Raises NoFreeSlotError, EntryLayerError, EngineClosedError.
        """
        if not self._waiting:
            try:
                return self._open(request)
            except NoFreeSlotError:
                if not self._queue_max or not self._queue_timeout_s:
                    raise
        if len(self._waiting) >= self._queue_max:
            raise NoFreeSlotError(self._engine.options.slots, waiting=len(self._waiting))
        return await self._wait_turn(request)

    def release(self, session: EngineSession, *, remember: tuple[bytes, ...] = ()) -> None:
        """Give the slot back, and at once to the one who has waited longest."""
        self._engine.close_session(session, remember=remember)
        self._serve_waiting()

    async def _wait_turn(self, request: SessionRequest) -> EngineSession:
        future: asyncio.Future[EngineSession] = asyncio.get_running_loop().create_future()
        self._waiting[future] = request
        patience_s = self._queue_timeout_s * self._rng.uniform(PATIENCE_SHARE_MIN, 1.0)
        try:
            async with AwakeTimeout(patience_s):
                return await future
        except BaseException as error:
            self._waiting.pop(future, None)
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())  # served in the same moment in which it gave up
            if isinstance(error, TimeoutError):
                raise NoFreeSlotError(self._engine.options.slots, waited_s=patience_s) from error
            raise

    def _serve_waiting(self) -> None:
        while self._waiting:
            future, request = next(iter(self._waiting.items()))
            if not future.done():
                try:
                    future.set_result(self._open(request))
                except NoFreeSlotError:
                    return
                except NodeError as error:  # a re-cut while it waited, or the engine was closed
                    future.set_exception(error)
            del self._waiting[future]

    def _open(self, request: SessionRequest) -> EngineSession:
        return self._engine.open_session(
            request.session_id,
            request.layers,
            request.sampling,
            prefix=request.prefix,
            hop_count=request.hop_count,
        )
