"""A mesh worth looking at, without a model: a real tracker, real heads over HTTP, one call of every kind."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from meshnet_protocol.ids import NodeId
from meshnet_tracker.testing import FakeHead, RunningTracker, make_card, running_head, running_tracker


@dataclass(frozen=True, slots=True)
class Stage:
    tracker: RunningTracker
    http: aiohttp.ClientSession
    heads: dict[str, FakeHead]
    node_ids: dict[str, NodeId]

    async def chat(self, **fields: Any) -> Mapping[str, str]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a secret question"}], **fields}
        async with self.http.post(f"{self.tracker.url}/v1/chat/completions", json=body) as response:
            await response.read()
            return response.headers

    async def get(self, path: str) -> Any:
        async with self.http.get(f"{self.tracker.url}{path}") as response:
            return await response.json()


@asynccontextmanager
async def stage(**settings: Any) -> AsyncIterator[Stage]:
    """Two heads, ``fast`` (layers 0-21) and ``slow`` (all 40), so two routes; and a model that lacks layers."""
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(running_tracker(route_rng=Random(7), **settings))
        heads = {name: await stack.enter_async_context(running_head()) for name in ("fast", "slow")}
        node_ids = {
            "fast": tracker.register("fast", "0-21", url=heads["fast"].url, layer_tokens_per_s=900.0),
            "slow": tracker.register("slow", "0-39", url=heads["slow"].url, entry_layers=(22,)),
            "lone": tracker.register("lone", "0-16", model=make_card(name="half", layer_count=30)),
        }
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stage(tracker, http, heads, node_ids)


async def play(scene: Stage, chats: int = 12) -> None:
    """Chats that prove both routes, one that is pinned, one that is refused."""
    await asyncio.gather(*(scene.chat() for _ in range(3)))
    for _ in range(chats):
        await scene.chat()
    await scene.chat(route=[scene.node_ids["slow"]])
    await scene.chat(model="nobody")
