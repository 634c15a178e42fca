"""What being watched costs the tracker, and whether the page keeps up: 200 nodes, 56 arms, 100 calls/s.

The tracker runs in this process with the events of made-up calls (choosing a route and running a chat are not the
dashboard's cost); a page, as another process, polls and holds the live stream as a browser does. The tracker's figures
are this process's CPU time over wall time, less the same run with nobody listening. Target with a page open: below
5 % of a core.

Then the system's Chromium, if there is one, opens the overview and the call wall (drawn without a GPU), and tells how
busy its main thread was, its longest task (a click waits that long; below 200 ms a page feels prompt), and how long a
click on the page's button for colours really took until the next picture, in the median and at worst.

    uv run python benchmarks/dashboard_load.py [--seconds 8] [--calls-per-s 100]
"""

import argparse
import asyncio
import json
import logging
import shutil
import statistics
import sys
import time
from random import Random
from typing import Any

import aiohttp
import structlog
from playwright.async_api import CDPSession, Page, async_playwright

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
PAGES = ("overview", "calls")
WATCH_LONG_TASKS = """window.longTasks = []; new PerformanceObserver(
    list => list.getEntries().forEach(task => longTasks.push(task.duration))).observe({type: 'longtask'})"""
CLICK = """() => new Promise(done => { const began = performance.now(); document.querySelector('.quiet').click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))) })"""
CLICK_PERIOD_S = 0.5
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
        seen = await in_chromium(tracker, models, load) if shutil.which("chromium") else {}
    return {
        "nodes": MODELS * (HEADS + OTHERS),
        "arms": arms,
        "calls_per_s": calls_per_s,
        "events_alone_percent": round(100 * unwatched, 2),
        "no_page_percent": round(100 * (no_page - unwatched), 2),
        "one_page_percent": round(100 * (one_page - unwatched), 2),
        "target_percent": 5.0,
        **seen,
    }


async def in_chromium(tracker: RunningTracker, models: list[ServedModel], load: dict[str, Any]) -> dict[str, Any]:
    """The browser is another process's child, so that its costs are not the tracker's."""
    command = (sys.executable, __file__, "--browser", tracker.url, "--seconds", str(load["seconds"]))
    browser = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert browser.stdout is not None
    async with asyncio.TaskGroup() as tasks:
        calls = tasks.create_task(cpu_share(tracker, models, **(load | {"seconds": 3600.0})))
        seen: dict[str, Any] = json.loads(await browser.stdout.read())
        calls.cancel()
    await browser.wait()
    return seen


async def be_a_browser(url: str, seconds: float) -> dict[str, Any]:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.add_init_script(WATCH_LONG_TASKS)
        seen = {name: await watch(page, f"{url}/#{name}", seconds) for name in PAGES}
        await browser.close()
    return seen


async def watch(page: Page, address: str, seconds: float) -> dict[str, float]:
    await page.goto("about:blank")
    await page.goto(address)
    await page.locator("main table").first.wait_for()
    metrics = await page.context.new_cdp_session(page)
    await metrics.send("Performance.enable")
    # What loading the page took is not what keeping it up to date takes.
    await asyncio.sleep(2.0)
    await page.evaluate("longTasks.length = 0")
    busy_before, began, clicks = await _busy_s(metrics), time.monotonic(), list[float]()
    while time.monotonic() - began < seconds:
        clicks.append(await page.evaluate(CLICK))
        await asyncio.sleep(CLICK_PERIOD_S)
    tasks = await page.evaluate("longTasks")
    busy_s = await _busy_s(metrics) - busy_before
    return {
        "main_thread_busy_percent": round(100 * busy_s / (time.monotonic() - began), 1),
        "long_tasks_per_s": round(len(tasks) / (time.monotonic() - began), 2),
        "longest_task_ms": round(max(tasks, default=0.0), 1),
        "click_median_ms": round(statistics.median(clicks), 1),
        "click_worst_ms": round(max(clicks), 1),
    }


async def _busy_s(metrics: CDPSession) -> float:
    told = await metrics.send("Performance.getMetrics")
    return float(next(metric["value"] for metric in told["metrics"] if metric["name"] == "TaskDuration"))


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
    parser.add_argument("--browser", metavar="URL", help="Be the browser instead.")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.page:
        asyncio.run(be_a_page(options.page))
        return
    if options.browser:
        print(json.dumps(asyncio.run(be_a_browser(options.browser, options.seconds))))
        return
    print(json.dumps({"benchmark": "dashboard_load"} | asyncio.run(measure(options.seconds, options.calls_per_s))))


if __name__ == "__main__":
    main()
