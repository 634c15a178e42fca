"""The call wall survives its tracker, within limits, and no chat waits for a disk."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import create_engine, inspect

from meshnet_tracker.errors import SettingsError
from meshnet_tracker.server import TrackerServer
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store import call_store
from meshnet_tracker.store.call_store import CallStore
from meshnet_tracker.store.database import migrate, open_engine, parse_url
from meshnet_tracker.store.schema import metadata
from meshnet_tracker.testing import running_head, running_tracker


async def test_calls_survive_a_restart_and_hold_no_word_of_the_prompt(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/some/folder/tracker.db"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a secret question"}]}
    async with running_head() as head, aiohttp.ClientSession() as http:
        async with running_tracker(database=database) as tracker:
            tracker.register("a", "0-39", url=head.url)
            for _ in range(2):
                async with http.post(f"{tracker.url}/v1/chat/completions", json=body) as response:
                    assert response.status == 200
            async with http.get(f"{tracker.url}/v1/calls") as response:
                before = (await response.json())["calls"]
        async with running_tracker(database=database) as again, http.get(f"{again.url}/v1/calls") as response:
            after = (await response.json())["calls"]

    assert [call["id"] for call in after] == [call["id"] for call in before]
    assert [call["hops"] for call in after] == [call["hops"] for call in before]
    files = b"".join(path.read_bytes() for path in (tmp_path / "some" / "folder").iterdir())
    assert after[0]["id"].encode() in files
    assert b"secret" not in files


def make_call(number: int) -> dict[str, Any]:
    return {"id": f"r{number}", "at": float(number), "state": "finished"}


async def test_only_the_latest_calls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_store, "CALLS_STORED_MAX", 3)
    url = parse_url(f"sqlite:///{tmp_path}/t.db")
    migrate(url)
    migrate(url)
    engine = open_engine(url)
    try:
        store = CallStore(engine)
        for number in range(5):
            store.put_nowait(make_call(number))
        await store.flush()
        kept = [call["id"] for call in await store.latest(10)]
    finally:
        await engine.dispose()

    assert kept == ["r2", "r3", "r4"]


async def test_a_failing_disk_costs_calls_and_nothing_else(tmp_path: Path) -> None:
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}/never-migrated.db"))
    try:
        store = CallStore(engine)
        store.put_nowait(make_call(1))
        await store.flush()
        await store.flush()
    finally:
        await engine.dispose()


def test_the_migrations_make_the_tables_of_the_schema(tmp_path: Path) -> None:
    url = parse_url(f"sqlite:///{tmp_path}/t.db")
    migrate(url)
    engine = create_engine(url)
    found = {table: {c["name"] for c in inspect(engine).get_columns(table)} for table in metadata.tables}
    engine.dispose()

    assert found == {name: {column.name for column in table.columns} for name, table in metadata.tables.items()}


@pytest.mark.parametrize(
    "database", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://a/b", "sqlite:////dev/null/x.db"]
)
def test_a_database_that_cannot_be_used_is_refused_with_a_word_on_what_can(database: str) -> None:
    with pytest.raises(SettingsError, match=r"--database.*'none'"):
        TrackerServer(TrackerSettings(database=database))
