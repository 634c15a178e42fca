"""Finished calls on disk, written in batches beside the chats and never by them.

``put_nowait`` only queues. If the disk cannot keep up, or fails, the oldest waiting calls are given up: the call
wall is for people, and no chat waits for it.
"""

import asyncio
from collections import deque

import msgspec
import structlog
from sqlalchemy import delete, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from meshnet_tracker.calls import CallRecord
from meshnet_tracker.store.schema import calls

CALLS_STORED_MAX = 20_000
CALLS_WAITING_MAX = 5_000
FLUSH_PERIOD_S = 1.0
FLUSHES_PER_PRUNE = 60

_log = structlog.get_logger("meshnet.tracker")


class CallStore:
    """Whoever makes it disposes of the engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._waiting: deque[CallRecord] = deque(maxlen=CALLS_WAITING_MAX)
        self._flushes = 0

    def put_nowait(self, call: CallRecord) -> None:
        self._waiting.append(call)

    async def latest(self, count: int) -> list[CallRecord]:
        """Oldest first."""
        query = select(calls.c.record).order_by(calls.c.at.desc(), calls.c.id).limit(count)
        async with self._engine.connect() as connection:
            records = (await connection.execute(query)).scalars().all()
        return [msgspec.json.decode(record) for record in reversed(records)]

    async def flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_PERIOD_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what waits; on an error of the database it is logged and dropped."""
        batch, self._waiting = list(self._waiting), deque(maxlen=CALLS_WAITING_MAX)
        if not batch:
            return
        rows = [{"id": call["id"], "at": call["at"], "record": msgspec.json.encode(call)} for call in batch]
        try:
            async with self._engine.begin() as connection:
                await connection.execute(insert(calls).on_conflict_do_nothing(), rows)
        except SQLAlchemyError as error:
            _log.warning("calls were not stored", count=len(batch), error=str(error))
            return
        self._flushes += 1
        if self._flushes % FLUSHES_PER_PRUNE == 1:
            await self._prune()

    async def _prune(self) -> None:
        """Keep the latest ``CALLS_STORED_MAX``."""
        oldest_kept = (
            select(calls.c.at).order_by(calls.c.at.desc()).offset(CALLS_STORED_MAX - 1).limit(1).scalar_subquery()
        )
        try:
            async with self._engine.begin() as connection:
                await connection.execute(delete(calls).where(calls.c.at < oldest_kept))
        except SQLAlchemyError as error:
            _log.warning("old calls were not removed", error=str(error))
