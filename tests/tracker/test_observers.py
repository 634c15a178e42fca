"""What people see of the tracker: calls put together from events, the pulse, arm history, live stream, metrics."""

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from meshnet_protocol.ids import NodeId
from meshnet_tracker import watchers
from meshnet_tracker.calls import CallBook
from meshnet_tracker.dashboard.pages import STATIC
from meshnet_tracker.errors import OverloadedError
from meshnet_tracker.pulse import Pulse
from meshnet_tracker.testing import running_head, running_tracker
from meshnet_tracker.watchers import Watchers

ROOT = Path(__file__).parent.parent.parent


def selected(call_id: str, **fields: Any) -> dict[str, Any]:
    chosen = {"model": "m", "mode": "scout", "reason": "stale", "signature": "m | a[0-1]", "hops": [{"node_id": "a"}]}
    return {"event": "proxy route selected", "at": 10.0, "request_id": call_id, "resumed_tokens": 0, **chosen, **fields}


def finished(call_id: str, **fields: Any) -> dict[str, Any]:
    numbers = {"prompt_tokens": 3, "completion_tokens": 20, "tps": 10.0, "seconds": 2.0, "ttft_s": 0.1}
    ending = {
        "outcome": "completed",
        "culprit": None,
        "error": None,
        "choice_count": 1,
        "seed": 7,
        "runs": [{"outcome": "completed", "completion_tokens": 18}],
        "finish_reason": "stop",
        "is_sampled": False,
        "model": "m",
        "hops": [{"node_id": "a", "timing": None}],
        "mode": "scout",
        "signature": "m | a[0-1]",
    }
    return {"event": "chat finished", "at": 12.5, "request_id": call_id, **numbers, **ending, **fields}


def failed(call_id: str) -> dict[str, Any]:
    fields = {"error": "broke", "outcome": "node_fault", "culprit": "a", "reporter": None, "drawn_tokens": 2}
    return {"event": "route failed", "at": 11.0, "request_id": call_id, "suspects": ["a"], **fields}


def test_a_call_is_put_together_from_its_events_with_every_attempt() -> None:
    ended: list[dict[str, Any]] = []
    book = CallBook(on_finished=ended.append)
    odds = [{"signature": "m | a[0-1]", "share": 1.0, "tps": None}]
    book.take(selected("r1", candidates=odds))
    running = book.call("r1")
    book.take(failed("r1"))
    book.take(selected("r1", signature="m | b[0-1]", mode="greedy-fallback"))
    book.take(finished("r1"))
    call = book.call("r1")

    assert running is not None
    assert (running["state"], running["candidates"], running["outcome"]) == ("running", odds, None)
    assert call is not None
    assert (call["state"], call["outcome"], call["at"], call["mode"]) == (
        "finished",
        "completed",
        10.5,
        "greedy-fallback",
    )
    assert [(a["signature"], a["error"], a["drawn_tokens"], a["seconds"]) for a in call["attempts"]] == [
        ("m | a[0-1]", "broke", 2, 1.0),
        ("m | b[0-1]", None, 18, 2.5),
    ]
    assert ended == [call]


def test_a_refused_call_is_on_the_wall_without_a_route() -> None:
    book = CallBook()
    error = {"status": 400, "code": None, "param": "temperature", "message": None}
    book.take(finished("r1", model=None, hops=[], runs=[], outcome="client_error", error=error))

    call = book.call("r1")
    assert call is not None
    assert call["error"] == error
    assert (call["mode"], call["attempts"], call["outcome"]) == (None, [], "client_error")


def test_a_call_that_an_older_tracker_wrote_down_has_all_fields() -> None:
    book = CallBook()
    book.restore([{"id": "r1", "at": 1.0, "state": "finished", "outcome": "completed"}])
    book.take(finished("r2"))

    old, new = book.latest()[::-1]
    assert (old["outcome"], old["error"], old["hops"]) == ("completed", None, [])
    assert old.keys() == new.keys()


def test_a_reader_gets_each_changed_call_once_in_its_latest_form() -> None:
    book = CallBook(count_max=3)
    for number in range(4):
        book.take(selected(f"r{number}"))
    seen = book.revision
    book.take(finished("r1"))
    book.take(finished("r3"))

    assert [call["id"] for call in book.latest()] == ["r3", "r1", "r2"]
    assert [(call["id"], call["state"]) for call in book.changed_since(seen)] == [
        ("r1", "finished"),
        ("r3", "finished"),
    ]
    assert book.changed_since(book.revision) == []
    assert book.call("r0") is None, "only the latest are kept"


def test_the_pulse_counts_tokens_of_running_chats_and_never_backwards() -> None:
    pulse = Pulse()
    for now, tokens in ((0.0, 0), (2.0, 30), (4.0, 20), (6.0, 40)):
        pulse.sample(tokens_total=tokens, in_flight=2, now=now)

    assert pulse.history(7.0) == [(5.0, 15.0, 2), (3.0, 0.0, 2), (1.0, 10.0, 2)]


def test_a_nodes_rate_follows_a_steady_load_and_fades() -> None:
    pulse = Pulse()
    for second in range(300):
        pulse.take(finished("r"), now=float(second))

    assert pulse.node_tokens_per_s(NodeId("a"), 299.5) == pytest.approx(20.0, rel=0.03)
    assert pulse.node_tokens_per_s(NodeId("a"), 900.0) < 0.01


def test_the_departed_are_shown_until_they_return_or_are_old() -> None:
    pulse = Pulse()
    for name in ("a", "b", "c"):
        pulse.take({"event": "node lost", "node_id": name, "model": "m"}, now=1.0)
    pulse.take({"event": "node joined", "node_id": "b", "model": "m"}, now=2.0)

    assert [(gone["node_id"], gone["state"]) for gone in pulse.departed(2.0)] == [("c", "lost"), ("a", "lost")]
    assert pulse.departed(1000.0) == []


async def read_events(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Ids and calls of the next ``count`` events."""
    events: list[tuple[str, dict[str, Any]]] = []
    event_id = ""
    while len(events) < count:
        line = (await response.content.readline()).decode()
        assert line, "the stream ended"
        if line.startswith("id: "):
            event_id = line[4:].strip()
        elif line.startswith("data: "):
            events.append((event_id, json.loads(line[6:])))
    return events


async def test_the_live_stream_resumes_where_a_reader_stopped() -> None:
    async with running_tracker() as tracker, aiohttp.ClientSession() as http, asyncio.timeout(10):
        book, url = tracker.server.observers, f"{tracker.url}/v1/calls/stream"
        tracker.server.events.append(
            "proxy route selected", **{k: v for k, v in selected("r1").items() if k not in ("event", "at")}
        )
        async with http.get(url) as response:
            ((first_id, first),) = await read_events(response, 1)
            tracker.server.events.append(
                "chat finished", **{k: v for k, v in finished("r1").items() if k not in ("event", "at")}
            )
            ((_, second),) = await read_events(response, 1)
        async with http.get(url, headers={"last-event-id": first_id}) as response:
            resumed = await read_events(response, 1)
        async with http.get(url, headers={"last-event-id": "1-999"}) as response:
            restarted = await read_events(response, 1)

    assert (first["state"], second["state"]) == ("running", "finished")
    assert [call["state"] for _, call in resumed] == [call["state"] for _, call in restarted] == ["finished"]
    assert book.watchers.count == 0


async def test_streams_are_limited_and_beat_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "WATCHERS_MAX", 1)
    monkeypatch.setattr(watchers, "BEAT_PERIOD_S", 0.01)
    watching = Watchers(CallBook(), process=7)
    stream = watching.stream("")

    assert await anext(stream) == b"retry: 2000\n\n"
    assert await anext(stream) == watchers.BEAT
    with pytest.raises(OverloadedError, match="poll /v1/calls"):
        watching.admit()
    watching.close()
    assert [part async for part in stream] == []
    watching.admit()


async def test_the_choice_leaves_its_odds_and_metrics_count_it() -> None:
    async with running_tracker() as tracker, running_head() as head, aiohttp.ClientSession() as http:
        node_id = tracker.register("a", "0-39", url=head.url)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}]}
        for sent in (body, body, body | {"model": "absent"}):
            async with http.post(f"{tracker.url}/v1/chat/completions", json=sent) as response:
                await response.read()
        async with http.get(f"{tracker.url}/v1/calls?limit=2") as response:
            calls = (await response.json())["calls"]
        async with http.get(f"{tracker.url}/v1/calls/absent") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "call_not_found")
        async with http.get(f"{tracker.url}/metrics") as response:
            assert response.headers["content-type"].startswith("text/plain")
            page = await response.text()
        async with http.get(f"{tracker.url}/v1/routing/history") as response:
            ((signature, arm),) = (await response.json())["arms"].items()

    (odds,) = calls[1]["candidates"]
    assert (odds["signature"], odds["share"]) == (signature, 1.0)
    assert odds["tps"] > 0
    assert len(arm["samples"]) == 2
    assert arm["hops"] == [{"node_id": node_id, "queue_ms": 5.0, "compute_ms": 50.0, "link_ms": 10.0}]
    key = tracker.model_key
    assert f'meshnet_calls_total{{mode="exploit",model="{key}",outcome="completed"}} 1.0' in page
    assert 'meshnet_calls_total{mode="none",model="none",outcome="client_error"} 1.0' in page
    assert f'meshnet_tokens_total{{kind="completion",model="{key}"}} 20.0' in page
    assert f'meshnet_nodes{{model="{key}",state="ready"}} 1.0' in page
    assert "req_" not in page
    assert node_id not in page


async def test_grafana_asks_only_for_metrics_there_are() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana" / "meshnet.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for t in panel["targets"]
        for name in re.findall(r"meshnet_\w+", t["expr"])
    }
    async with running_tracker() as tracker, running_head() as head, aiohttp.ClientSession() as http:
        tracker.register("a", "0-39", url=head.url)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
        async with http.post(f"{tracker.url}/v1/chat/completions", json=body) as response:
            await response.read()
        async with http.get(f"{tracker.url}/metrics") as response:
            page = await response.text()

    known = set(re.findall(r"^(meshnet_\w+)", page, re.MULTILINE))
    assert len(asked) > 8
    # A counter with labels shows itself only when something was counted; its help line is always there.
    assert asked - known - {f"{name}_total" for name in re.findall(r"# HELP (meshnet_\w+?)(?:_total)? ", page)} == set()


@pytest.mark.parametrize("folder", [STATIC / "vendor", ROOT / "tests" / "dashboard" / "vendor"])
def test_vendored_files_are_what_their_readme_says(folder: Path) -> None:
    listed = dict(
        re.findall(r"^\| `([\w.-]+)` .* `([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.MULTILINE)
    )

    actual = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.suffix in (".js", ".css")
    }
    assert listed == actual
