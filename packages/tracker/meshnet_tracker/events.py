"""What happened, for whoever asks: the last few thousand events, each with a rising id.

Readers poll ``after`` the last id they saw. The same events go to the console. Never the text of a
prompt or an answer: events say what ran where, how fast, and how it ended.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import structlog

EVENTS_KEPT_MAX = 4096
EVENTS_PER_READ_MAX = 1000

_NO_DETAILS: Mapping[str, Any] = {}

_log = structlog.get_logger("meshnet.tracker")


class EventLog:
    """A bounded log. ``wall_clock`` stamps events for people; nothing is ever decided by it."""

    def __init__(self, *, wall_clock: Callable[[], float], count_max: int = EVENTS_KEPT_MAX) -> None:
        self._wall_clock = wall_clock
        self._events: deque[dict[str, Any]] = deque(maxlen=count_max)
        self._last_id = 0
        self._listeners: list[Callable[[dict[str, Any]], None]] = []

    def listen(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """``listener`` is called with every event as it is appended; it must be quick and must not fail."""
        self._listeners.append(listener)

    @property
    def last_id(self) -> int:
        return self._last_id

    def append(self, event: str, *, details: Mapping[str, Any] = _NO_DETAILS, **fields: Any) -> int:
        """Keep the event, show it on the console, and give back its id. Fields must be JSON values.

        ``details`` are fields too long for the console.
        """
        self._last_id += 1
        kept = {"id": self._last_id, "event": event, "at": self._wall_clock(), **fields, **details}
        self._events.append(kept)
        _log.info(event, **fields)
        for listener in self._listeners:
            listener(kept)
        return self._last_id

    def read(self, *, after: int, limit: int = EVENTS_PER_READ_MAX) -> list[dict[str, Any]]:
        """Events with an id above ``after``, oldest first, at most ``limit``.

        A reader whose ``after`` lies in the future read another process's log, and starts over with this one.
        """
        if after > self._last_id:
            after = 0
        oldest_id = self._last_id - len(self._events) + 1
        start = max(0, after + 1 - oldest_id)
        return list(islice(self._events, start, start + limit))
