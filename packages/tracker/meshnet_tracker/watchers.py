"""Live readers of the call wall: server-sent events of what changed in the ``CallBook``.

A reader is woken, waits a moment for more, and gets every changed call once in its latest form. An event's id is
``<process>-<revision>``: a reader that comes back with it (``Last-Event-ID``) continues where it stopped, and after
a restart of the tracker, whose process number differs, starts with the latest calls.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from meshnet_tracker.calls import CallBook, CallRecord
from meshnet_tracker.errors import OverloadedError

WATCHERS_MAX = 64
COALESCE_S = 0.25
BEAT_PERIOD_S = 15.0
FIRST_CALLS_MAX = 200
RECONNECT_MS = 2000
BEAT = b": beat\n\n"


class Watchers:
    """``process`` tells this process's revisions from another's. ``notify`` after a change, ``close`` at the end."""

    def __init__(self, book: CallBook, *, process: int) -> None:
        self._book = book
        self._process = process
        self._changed = asyncio.Event()
        self._count = 0
        self._is_closed = False

    @property
    def count(self) -> int:
        return self._count

    def notify(self) -> None:
        if self._count:
            self._changed.set()
            self._changed = asyncio.Event()

    def close(self) -> None:
        """Ends all streams, so that a tracker which stops need not wait for pages that are open."""
        self._is_closed = True
        self.notify()

    def admit(self) -> None:
        """Raises OverloadedError if there are too many streams already."""
        if self._count >= WATCHERS_MAX:
            raise OverloadedError(f"{WATCHERS_MAX} pages watch the calls already; close one, or poll /v1/calls.")

    async def stream(self, last_event_id: str) -> AsyncIterator[bytes]:
        """Bytes of an event stream, until ``close``."""
        self._count += 1
        try:
            revision = self._revision_of(last_event_id)
            yield f"retry: {RECONNECT_MS}\n\n".encode()
            while not self._is_closed:
                changed = self._changed
                calls = self._book.changed_since(revision, FIRST_CALLS_MAX)
                revision = self._book.revision
                if calls:
                    yield b"".join(self._event(call) for call in calls)
                    await asyncio.sleep(COALESCE_S)
                    continue
                try:
                    async with asyncio.timeout(BEAT_PERIOD_S):
                        await changed.wait()
                except TimeoutError:
                    yield BEAT
        finally:
            self._count -= 1

    def _revision_of(self, last_event_id: str) -> int:
        process, _, revision = last_event_id.partition("-")
        if process != str(self._process) or not (revision.isascii() and revision.isdigit()):
            return 0
        return min(int(revision), self._book.revision)

    def _event(self, call: CallRecord) -> bytes:
        return b"id: %d-%d\ndata: %b\n\n" % (self._process, call["revision"], msgspec.json.encode(call))
