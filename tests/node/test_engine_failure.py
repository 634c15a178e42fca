"""A node that can never compute again does not stay in the mesh."""

import asyncio
from pathlib import Path

import pytest

from meshnet_node import server
from meshnet_node.engine.thread import Engine
from meshnet_node.errors import EngineClosedError, NodeError
from meshnet_node.settings import NodeSettings
from meshnet_protocol.layers import LayerRange
from meshnet_tracker.testing import RunningTracker, running_tracker
from node.engine_helpers import options

TIMEOUT_S = 10.0


async def wait_node_count(tracker: RunningTracker, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(list(tracker.server.fleet.nodes())) != count:  # noqa: ASYNC110 - a look at a count
            await asyncio.sleep(0.005)


async def test_a_node_that_cannot_load_its_layers_is_never_part_of_the_mesh(
    model_path: Path, cache_dir: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    with model_path.open("rb") as model:
        damaged.write_bytes(model.read(8 * 1024 * 1024))
    async with running_tracker() as tracker:
        settings = NodeSettings(
            model=str(damaged),
            layers=LayerRange(0, 29),
            tracker=tracker.url,
            wallet=tmp_path / "key",
            cache_dir=cache_dir,
            port=0,
        )
        with pytest.raises(NodeError):
            async with asyncio.timeout(TIMEOUT_S):
                await server.serve_node(settings, asyncio.Event())
        assert tracker.server.events.read(after=0) == [], "nobody has heard of it"


async def test_a_node_whose_engine_fails_leaves_and_says_why(
    model_path: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(model_path, LayerRange(28, 29), options(cache_dir))
    monkeypatch.setattr(server, "load_engine", lambda *_: engine)
    async with running_tracker() as tracker:
        settings = NodeSettings(
            model="", layers=None, tracker=tracker.url, wallet=tmp_path / "key", cache_dir=cache_dir, port=0
        )
        node = asyncio.create_task(server.serve_node(settings, asyncio.Event()))
        await wait_node_count(tracker, 1)
        # Stands for a bug outside of any batch.
        engine._loop.inbox.put("nonsense")  # type: ignore[arg-type]

        with pytest.raises(EngineClosedError, match="start the node again"):
            async with asyncio.timeout(TIMEOUT_S):
                await node
        await wait_node_count(tracker, 0)
