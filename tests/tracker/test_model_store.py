"""The tracker hands out model files in ranges, a bounded number at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from meshnet_protocol.ids import ModelKey
from meshnet_protocol.messages import SharedFile
from meshnet_tracker.model_store import READERS_MAX
from meshnet_tracker.settings import StoredModel
from meshnet_tracker.testing import running_tracker

KEY = "tiny@0123"
DATA = bytes(range(256)) * 4096 * 16


@pytest.fixture
def stored(tmp_path: Path) -> StoredModel:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(DATA)
    shared = SharedFile(file_name="tiny.gguf", byte_count=len(DATA), fingerprint="0123" * 16, has_manifest=True)
    return StoredModel("tiny", ModelKey(KEY), path, shared, b'{"metadata": {}, "tensors": {}}')


@asynccontextmanager
async def store_of(*models: StoredModel) -> AsyncIterator[aiohttp.ClientSession]:
    async with running_tracker(store=models) as tracker, aiohttp.ClientSession(tracker.url) as http:
        yield http


async def test_a_stored_model_is_listed_described_and_given_in_ranges(stored: StoredModel) -> None:
    async with store_of(stored) as http:
        listed = await (await http.get("/v1/store")).json()
        card = await (await http.get(f"/v1/store/{KEY}")).json()
        manifest = await (await http.get(f"/v1/store/{KEY}/manifest")).read()
        part = await http.get(f"/v1/store/{KEY}/file", headers={"Range": "bytes=1000-1999"})
        data = await part.read()

    assert listed == {"models": [{"name": "tiny", "model_key": KEY}]}
    assert (card["byte_count"], card["has_manifest"]) == (len(DATA), True)
    assert manifest == stored.manifest
    assert (part.status, part.headers["Content-Range"]) == (206, f"bytes 1000-1999/{len(DATA)}")
    assert data == DATA[1000:2000]


async def test_a_model_that_is_not_there_is_a_404_that_says_what_is(stored: StoredModel) -> None:
    async with store_of(stored) as http:
        response = await http.get("/v1/store/other/file")
        error = (await response.json())["error"]

    assert response.status == 404
    assert KEY in error["message"]


async def test_readers_too_many_are_told_to_come_again_and_those_that_leave_make_room(stored: StoredModel) -> None:
    async with store_of(stored) as http:
        address = f"/v1/store/{KEY}/file"
        slow = [await http.get(address) for _ in range(READERS_MAX)]  # nobody reads these answers
        refused = await http.get(address)
        for response in slow:
            response.close()
        async with asyncio.timeout(10):
            while (again := await http.get(address, headers={"Range": "bytes=0-0"})).status != 206:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        first_byte = await again.read()

    assert refused.status == 503
    assert refused.headers["retry-after"]
    assert first_byte == DATA[:1]
