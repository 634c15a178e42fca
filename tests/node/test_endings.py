"""However a chat ends, every hop's slot is free afterwards and nothing is left behind."""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import aiohttp
import msgspec
import pytest
from aiohttp import web

from meshnet_node import link
from meshnet_node.engine.thread import Engine
from meshnet_node.http_face import bind, serving
from meshnet_node.link import LINK_PATH
from meshnet_node.relay import greeting_of
from meshnet_protocol.frames import encode_frame
from meshnet_protocol.ids import NodeId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import PlannedHop
from node.engine_helpers import options
from node.route_helpers import LocalRoute, local_route

SILENT = NodeId("silent")
ENDINGS = 1000
USERS = 5
CROWD = 8
WARM_UP_ENDINGS = 200
RSS_GROWTH_BYTES_MAX = 24 * 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@pytest.fixture(scope="module")
def engines(model_path: Path, cache_dir: Path) -> Iterator[list[Engine]]:
    """Two layers of the model at each end of it: what a hop does with a session, and little to compute."""
    settings = options(cache_dir, slots=4, context_tokens=128, chunk_tokens=64)
    built = [Engine.load(model_path, LayerRange(*shard), settings) for shard in ((0, 1), (28, 29))]
    yield built
    for engine in built:
        engine.close()


class Endings:
    """One way to end a chat per method; each returns what the client saw."""

    def __init__(self, route: LocalRoute, silent_hop: PlannedHop, rng: Random) -> None:
        self._route = route
        self._silent_hop = silent_hop
        self._rng = rng

    @property
    def ways(self) -> dict[Callable[[], Awaitable[str]], int]:
        """Each with how often it comes, to the others."""
        return {
            self.finish: 12,
            self.finish_streamed: 12,
            self.leave_while_streaming: 8,
            self.leave_early: 8,
            self.ask_too_much: 4,
            self.ask_the_wrong_tail: 4,
            self.ask_an_unreachable_tail: 4,
            self.ask_a_silent_tail: 2,
            self.lose_the_link: 3,
            self.crowd: 1,
        }

    async def finish(self) -> str:
        return self._outcome(await self._route.chat(self._prompt(), max_tokens=self._rng.randint(1, 2)))

    async def finish_streamed(self) -> str:
        body = self._route.body(self._prompt(), stream=True, max_tokens=2)
        async with self._route.http.post(self._route.chat_url, json=body) as response:
            return "200" if (await response.read()).endswith(b"data: [DONE]\n\n") else str(response.status)

    async def leave_while_streaming(self) -> str:
        body = self._route.body(self._prompt(), stream=True, max_tokens=100, ignore_eos=True)
        async with self._route.http.post(self._route.chat_url, json=body) as response:
            await response.content.readline()
            response.close()
        return "gone"

    async def leave_early(self) -> str:
        """Before, while or after a slot was found: wherever it happens to be."""
        patience = aiohttp.ClientTimeout(total=self._rng.uniform(0.001, 0.03))
        body = self._route.body(self._prompt(), max_tokens=100, ignore_eos=True)
        with suppress(TimeoutError):
            async with self._route.http.post(self._route.chat_url, json=body, timeout=patience) as response:
                await response.read()
        return "gone"

    async def ask_too_much(self) -> str:
        return self._outcome(await self._route.chat("word " * 200))

    async def ask_the_wrong_tail(self) -> str:
        short = msgspec.structs.replace(self._route.nodes[1].planned, end_layer=28)
        return self._outcome(await self._route.chat("Hi", plan=self._route.plan(last=short)))

    async def ask_an_unreachable_tail(self) -> str:
        nobody = PlannedHop(node_id=NodeId("nobody"), url="http://127.0.0.1:9", start_layer=28, end_layer=29)
        return self._outcome(await self._route.chat("Hi", plan=self._route.plan(last=nobody)))

    async def ask_a_silent_tail(self) -> str:
        return self._outcome(await self._route.chat("Hi", plan=self._route.plan(last=self._silent_hop)))

    async def lose_the_link(self) -> str:
        """A streaming chat, and all the others that are on the link just then."""
        body = self._route.body(self._prompt(), stream=True, max_tokens=100, ignore_eos=True)
        async with self._route.http.post(self._route.chat_url, json=body) as response:
            await response.content.readline()
            await self._route.nodes[0].links.close()
            await response.read()
        return "lost"

    async def crowd(self) -> str:
        """More at once than there are slots and places in the queue."""
        return ",".join(await asyncio.gather(*(self.finish() for _ in range(CROWD))))

    def _prompt(self) -> str:
        return "ship " * self._rng.randint(1, 12)

    def _outcome(self, answer: dict[str, object]) -> str:
        error = answer.get("error")
        return str(error["code"]) if isinstance(error, dict) else "200"


async def test_after_a_thousand_endings_every_slot_is_free_and_memory_is_flat(
    engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE_S_MAX", 0.25)
    rng = Random(5)
    seen: Counter[str] = Counter()
    async with (
        silent_node(engines[0]) as silent_hop,
        local_route(engines, tmp_path, queue_max=2, queue_timeout_s=0.3) as route,
    ):
        endings = Endings(route, silent_hop, rng)
        queue = rng.choices(list(endings.ways), list(endings.ways.values()), k=ENDINGS)
        await run_all(queue[:WARM_UP_ENDINGS], seen)
        warm_bytes = rss_bytes()
        await run_all(queue[WARM_UP_ENDINGS:], seen)

        await route.wait_idle()
        assert rss_bytes() - warm_bytes < RSS_GROWTH_BYTES_MAX
        assert (await route.chat("Hi", max_tokens=1))["usage"]["completion_tokens"] == 1
    assert seen["200"] > ENDINGS / 8, seen
    assert {"200", "gone", "lost", "context_length_exceeded", "plan", "link", "no_free_slot"} <= set(seen)


async def run_all(ways: list[Callable[[], Awaitable[str]]], seen: Counter[str]) -> None:
    """``USERS`` at a time: more than there are slots."""
    waiting = iter(ways)

    async def user() -> None:
        for way in waiting:
            try:
                seen.update((await way()).split(","))
            except aiohttp.ClientError:
                seen["connection lost"] += 1

    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        for _ in range(USERS):
            tasks.create_task(user())


@asynccontextmanager
async def silent_node(engine: Engine) -> AsyncIterator[PlannedHop]:
    """A node that greets, takes links and sessions, and never says another word."""
    greeting = encode_frame(greeting_of(SILENT, engine))

    async def listen(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(greeting)
        async for _ in socket:
            pass
        return socket

    app = web.Application()
    app.router.add_get(LINK_PATH, listen)
    with bind("127.0.0.1", 0) as listener:
        async with serving(app, listener):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield PlannedHop(node_id=SILENT, url=url, start_layer=28, end_layer=29)


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
