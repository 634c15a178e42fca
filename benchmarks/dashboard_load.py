"""What being watched costs the tracker: 200 nodes, 56 arms, 100 calls/s.

The tracker runs in this process with the events of made-up calls (choosing a route and running a chat are not the
dashboard's cost); a page, as another process, polls and holds the live stream as a browser does. Every figure is
this process's CPU time over wall time, less the same run with nobody listening. Target with a page open: below 5 % of
a core.

    uv run python benchmarks/dashboard_load.py [--seconds 8] [--calls-per-s 100]
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from random import Random
from typing import Any

import aiohttp
import structlog

from meshnet_protocol.messages import Choice, Delta, HeadReport, HopTiming
from meshnet_tracker.chat import Chat
from meshnet_tracker.fleet import ServedModel
from meshnet_tracker.head_events import HeadEvent
from meshnet_tracker.openai_schema import parse_chat
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.testing import RunningTracker, make_card, running_tracker

MODELS, HEADS, OTHERS = 7, 8, 21
TOKENS, CALL_S = 100, 2.0
POLLS = {"/v1/overview": 2.0, "/v1/routing": 4.0, "/v1/routing/history": 4.0, "/metrics": 15.0}
BURSTS_PER_S = 20
CALL = parse_chat(b'{"messages": [{"role": "user", "content": "hi"}]}', seed_rng=Random(1))
DRAWN = HeadEvent(choices=[Choice(index=0, delta=Delta())], meshnet=HeadReport(token_ids=tuple(range(TOKENS))))


def populate(tracker: RunningTracker) -> list[ServedModel]:
    """Per model: heads of half the layers, and tails that complete them."""
    for number in range(MODELS):
        card = make_card(name=f"model-{number}")
        for head in range(HEADS):
            tracker.register(f"h{head}-{number}", "0-19", model=card, layer_tokens_per_s=400.0 + head)
        for tail in range(OTHERS):
            tracker.register(f"t{tail}-{number}", "20-39", model=card)
    return tracker.server.fleet.models()


def make_call(tracker: RunningTracker, model: ServedModel, number: int) -> None:
    """The events of one call that ran for ``CALL_S``, and its sample."""
    server, now = tracker.server, time.monotonic()
    decision = server.router.choose(model, now=now)
    chat = Chat(request_id=f"req_{number:032x}", received_at=now - CALL_S)
    chat.understand(CALL, model)
    chat.begin_attempt(decision, now - CALL_S)
    hops = [
        {"node_id": h.node_id, "start_layer": h.start_layer, "end_layer": h.end_layer} for h in decision.planned_hops
    ]
    odds = [{"signature": o.signature, "share": o.share, "tps": o.tps} for o in decision.odds]
    chosen = {"mode": decision.mode.value, "reason": decision.reason, "signature": decision.signature, "hops": hops}
    server.events.append(
        "proxy route selected",
        request_id=chat.request_id,
        model=model.model_key,
        resumed_tokens=0,
        details={"candidates": odds},
        **chosen,
    )
    chat.take(DRAWN, now)
    chat.last_byte_at, chat.outcome = now, Outcome.COMPLETED
    chat.end_attempt()
    chat.timings = tuple(HopTiming(node_id=h.node_id, steps=TOKENS, compute_s=0.5) for h in decision.planned_hops)
    chat.is_sampled = server.router.observe(decision, completion_tokens=TOKENS, seconds=CALL_S, now=now)
    server.router.release(decision)
    server.events.append("chat finished", **chat.summary(now))


async def cpu_share(tracker: RunningTracker, models: list[ServedModel], *, seconds: float, calls_per_s: int) -> float:
    started, cpu_before, number = time.monotonic(), time.process_time(), 0
    while (elapsed_s := time.monotonic() - started) < seconds:
        while number < elapsed_s * calls_per_s:
            make_call(tracker, models[number % len(models)], number)
            number += 1
        await asyncio.sleep(1 / BURSTS_PER_S)
    return (time.process_time() - cpu_before) / (time.monotonic() - started)


async def measure(seconds: float, calls_per_s: int) -> dict[str, Any]:
    load: dict[str, Any] = {"seconds": seconds, "calls_per_s": calls_per_s}
    async with running_tracker() as tracker:
        models = populate(tracker)
        await cpu_share(tracker, models, seconds=2.0, calls_per_s=calls_per_s)
        arms = sum(len(tracker.server.router.candidates(model)) for model in models)
        listeners, tracker.server.events._listeners = tracker.server.events._listeners, []
        unwatched = await cpu_share(tracker, models, **load)
        tracker.server.events._listeners = listeners
        no_page = await cpu_share(tracker, models, **load)
        page = await asyncio.create_subprocess_exec(sys.executable, __file__, "--page", tracker.url)
        while not tracker.server.observers.watchers.count:  # noqa: ASYNC110 - another process comes
            await asyncio.sleep(0.1)
        one_page = await cpu_share(tracker, models, **load)
        assert tracker.server.observers.watchers.count == 1, "the page went away"
        page.terminate()
        await page.wait()
    return {
        "nodes": MODELS * (HEADS + OTHERS),
        "arms": arms,
        "calls_per_s": calls_per_s,
        "events_alone_percent": round(100 * unwatched, 2),
        "no_page_percent": round(100 * (no_page - unwatched), 2),
        "one_page_percent": round(100 * (one_page - unwatched), 2),
        "target_percent": 5.0,
    }


async def be_a_page(url: str) -> None:
    """What an open page asks: polls, and the live stream."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http, asyncio.TaskGroup() as tasks:
        for path, period_s in POLLS.items():
            tasks.create_task(_poll(http, url + path, period_s))
        async with http.get(f"{url}/v1/calls/stream") as stream:
            async for _ in stream.content.iter_any():
                pass


async def _poll(http: aiohttp.ClientSession, url: str, period_s: float) -> None:
    while True:
        async with http.get(url) as response:
            await response.read()
        await asyncio.sleep(period_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--calls-per-s", type=int, default=100)
    parser.add_argument("--page", metavar="URL", help="Be the page instead.")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.page:
        asyncio.run(be_a_page(options.page))
        return
    print(json.dumps({"benchmark": "dashboard_load"} | asyncio.run(measure(options.seconds, options.calls_per_s))))


if __name__ == "__main__":
    main()
