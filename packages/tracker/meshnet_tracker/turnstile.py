"""Where chats wait for a moment while every route is full, or on trial after a failure, in fair turns.

Nobody waits for room unless the nodes themselves have said that they are full: only they know what they can take. From
then on newcomers queue up behind those who wait, and whenever a chat of the model ends, the next in turn tries again.
When a trial (``trials.py``) has brought a token, or a node has come, all of them do.

    all routes full ──> wait ──a chat ends, or a moment has passed──> try again
                         └──patience ends, or a greedier client's place is needed──> 503 or 429, with Retry-After
"""

import asyncio
from dataclasses import dataclass, field

from meshnet_protocol.ids import ModelKey
from meshnet_protocol.patience import Patience
from meshnet_tracker.errors import OverloadedError, RateLimitedError
from meshnet_tracker.fair_queue import FairQueue

WAITING_MAX = 256
"""Per model."""
PATIENCE_S_MAX = 5.0
LOOK_PERIOD_S = 0.5
"""Room may come about by other things than ends of our chats; the first in turn looks now and then."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    refused: asyncio.Event = field(default_factory=asyncio.Event)


class Turnstile:
    """One queue per model."""

    def __init__(self) -> None:
        self._queues: dict[ModelKey, FairQueue[_Place]] = {}

    def has_queue(self, model_key: ModelKey) -> bool:
        return bool(self._queues.get(model_key))

    async def wait_turn(self, model_key: ModelKey, client: str, *, until: float, is_again: bool = False) -> None:
        """Until it is this client's turn to try. ``until`` is a time of the event loop; ``is_again``: it has tried.

        Raises OverloadedError when the time is up, RateLimitedError if the client has too many requests waiting.
        """
        queue = self._queues.setdefault(model_key, FairQueue(count_max=WAITING_MAX))
        place = _Place()
        refused = queue.enter(client, place, is_again=is_again)
        if refused is place:
            raise RateLimitedError(f"{WAITING_MAX} requests wait already, and most of them are yours; slow down.")
        if refused is not None:
            refused.refused.set()
            refused.turn.set()
        try:
            await self._wait(queue, place, until)
        finally:
            queue.leave(client, place)
            if not queue:
                self._queues.pop(model_key, None)

    def let_next_in(self, model_key: ModelKey) -> None:
        """A chat of the model has ended: there may be room."""
        queue = self._queues.get(model_key)
        if queue and (place := queue.take()) is not None:
            place.turn.set()

    def let_all_in(self, model_key: ModelKey) -> None:
        """There is a way again for everybody."""
        while self.has_queue(model_key):
            self.let_next_in(model_key)

    async def _wait(self, queue: FairQueue[_Place], place: _Place, until: float) -> None:
        loop = asyncio.get_running_loop()
        patience = Patience(until - loop.time(), loop.time())
        while not place.turn.is_set():
            if patience.is_over:
                raise OverloadedError(
                    "No route took the request in time: each is full, or tried by others after it failed."
                )
            try:
                async with asyncio.timeout(min(patience.next_look_s, LOOK_PERIOD_S)):
                    await place.turn.wait()
            except TimeoutError:
                patience.look(loop.time())
                if queue.first() is place:
                    queue.take()
                    return
        if place.refused.is_set():
            raise RateLimitedError("Too many of your requests wait already; slow down.")
