"""The store as the composition root uses it: prepare it before the server runs, open it while it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshnet_tracker.store.call_store import CallStore
from meshnet_tracker.store.database import migrate, open_engine, parse_url


def prepare(database: str) -> None:
    """Raises SettingsError if the database cannot be used."""
    migrate(parse_url(database))


@asynccontextmanager
async def open_call_store(database: str) -> AsyncIterator[CallStore]:
    """Calls are written in the background while this is open; what still waits is written at the end."""
    engine = open_engine(parse_url(database))
    try:
        store = CallStore(engine)
        async with asyncio.TaskGroup() as tasks:
            flusher = tasks.create_task(store.flush_forever())
            yield store
            flusher.cancel()
        await store.flush()
    finally:
        await engine.dispose()
