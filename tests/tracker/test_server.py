"""The endpoints around the chat, the process around the server, and who may talk to which."""

import asyncio
import json
import signal
import socket
import sys
from typing import Any

import aiohttp
import msgspec
import pytest

from meshnet_protocol.messages import Exactness, Heartbeat, Leave
from meshnet_tracker.errors import SettingsError
from meshnet_tracker.events import EventLog
from meshnet_tracker.server import run_tracker
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.testing import NodeVoice, RunningTracker, make_card, make_registration, running_tracker


async def ask(
    tracker: RunningTracker, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, Any, Any]:
    """Status, decoded body and headers."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, f"{tracker.url}{path}", data=body, headers=sent) as response,
    ):
        text = await response.text()
        return response.status, json.loads(text) if text else None, response.headers


async def test_what_a_node_says_of_its_slots_and_its_exactness_is_shown() -> None:
    exactness = Exactness(is_exact=True, class_id="c1", description="a build")
    async with running_tracker() as tracker:
        owner = NodeVoice(tracker.url)
        plain = make_registration("node", "0-39", wallet=owner.wallet)
        node = msgspec.structs.replace(plain, exactness=exactness)
        await owner.say("register", node)
        beat = Heartbeat(
            node_id=node.node_id,
            incarnation=node.incarnation,
            queue_depth=3,
            active_slots=2,
            kv_tokens=70,
            kv_tokens_max=400,
            entry_layers=(0,),
        )
        _, before, _ = await ask(tracker, "/v1/nodes")
        await owner.say("heartbeat", beat)
        _, after, _ = await ask(tracker, "/v1/nodes")

    shown = after["nodes"][0]
    assert before["nodes"][0]["active_slots"] == 0
    assert (shown["queue_depth"], shown["active_slots"], shown["kv_tokens"], shown["kv_tokens_max"]) == (3, 2, 70, 400)
    assert shown["exactness"] == {"mode": "auto", "is_exact": True, "class_id": "c1", "description": "a build"}


@pytest.mark.parametrize("asked", ["", "?model=", "?model=tiny"])
async def test_the_routing_table_of_no_model_is_that_of_all(asked: str) -> None:
    async with running_tracker() as tracker:
        owner = NodeVoice(tracker.url)
        await owner.say("register", make_registration("node", "0-39", wallet=owner.wallet))
        status, table, _ = await ask(tracker, f"/v1/routing{asked}")

    assert status == 200
    assert len(table["models"]) == 1


async def test_a_node_registers_beats_and_leaves() -> None:
    async with running_tracker(heartbeat_period_s=5.0) as tracker:
        owner = NodeVoice(tracker.url)
        fast, slow = (make_registration(*node, wallet=owner.wallet) for node in (("fast", "0-21"), ("slow", "0-39")))
        assert await owner.say("register", fast) == (
            200,
            {"node_id": fast.node_id, "heartbeat_period_s": 5.0, "wanted_entry_layers": []},
        )
        _, reply = await owner.say("register", slow)
        assert reply["wanted_entry_layers"] == [22]
        beat = Heartbeat(node_id=slow.node_id, incarnation=slow.incarnation, queue_depth=2, entry_layers=(0, 22))
        status, reply = await owner.say("heartbeat", beat)
        assert (status, reply["is_known"], reply["wanted_entry_layers"]) == (200, True, [22])
        _, nodes, _ = await ask(tracker, "/v1/nodes")
        _, health, _ = await ask(tracker, "/health")
        leave = Leave(node_id=slow.node_id, incarnation=slow.incarnation)
        assert await owner.say("leave", leave) == (200, {})
        status, reply = await owner.say("heartbeat", beat)
        assert (status, reply["is_known"]) == (200, False)
        _, events, _ = await ask(tracker, "/v1/events")
        _, empty_health, _ = await ask(tracker, "/health")

    assert [(n["node_id"], n["state"], n["queue_depth"], n["entry_layers"]) for n in nodes["nodes"]] == [
        (fast.node_id, "ready", 0, [0]),
        (slow.node_id, "ready", 2, [0, 22]),
    ]
    assert health == {"status": "ok", "models": ["tiny"], "ready": True}
    assert empty_health == {"status": "ok", "models": ["tiny"], "ready": False}
    assert [(event["event"], event["epoch"]) for event in events["events"]] == [
        ("node joined", 1),
        ("node joined", 2),
        ("node recut", 2),
        ("node left", 3),
    ]


async def test_a_node_that_contradicts_is_told_so() -> None:
    async with running_tracker() as tracker:
        tracker.register("a", "0-39")
        owner = NodeVoice(tracker.url)
        other_card = make_registration("b", "0-9", model=make_card(layer_count=41), wallet=owner.wallet)
        conflict, conflict_answer = await owner.say("register", other_card)
        bad, bad_answer, _ = await ask(tracker, "/v1/nodes/register", method="POST", body=b'{"wallet": 1}')

    assert (conflict, conflict_answer["error"]["code"]) == (409, "registration_conflict")
    assert (bad, bad_answer["error"]["code"]) == (400, "registration_refused")
    assert "wallet" in bad_answer["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/tiny"])
async def test_monitors_may_ask_for_the_head_of_an_answer(path: str) -> None:
    async with running_tracker() as tracker, aiohttp.ClientSession() as http:
        owner = NodeVoice(tracker.url)
        await owner.say("register", make_registration("a", "0-39", wallet=owner.wallet))
        async with http.head(tracker.url + path) as answer:
            body = await answer.read()
        async with http.get(tracker.url + path) as got:
            whole = await got.read()
    assert (answer.status, got.status) == (200, 200)
    assert (body, answer.headers["content-length"]) == (b"", str(len(whole)))


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "unknown_url"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("GET", "/v1/nodes/register", 405, "method_not_allowed"),
        ("GET", "/v1/models/absent/model", 404, "model_not_found"),
        ("GET", "/v1/routing?model=absent", 404, "model_not_found"),
        ("GET", "/v1/events?after=x", 400, None),
        ("GET", "/v1/events?limit=0", 400, None),
    ],
)
async def test_every_error_has_openais_form_and_a_request_id(
    method: str, path: str, status: int, code: str | None
) -> None:
    async with running_tracker() as tracker:
        got, answer, headers = await ask(tracker, path, method=method)

    assert (got, answer["error"]["code"]) == (status, code)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req_")


async def test_models_are_listed_and_slashes_forgiven() -> None:
    async with running_tracker() as tracker:
        tracker.register("a", "0-39", model=make_card(name="org/tiny chat"))
        _, models, _ = await ask(tracker, "//v1/models/")
        status, model, _ = await ask(tracker, "/v1/models/org/tiny%20chat")

    assert [set(entry) for entry in models["data"]] == [{"id", "object", "created", "owned_by", "ready"}]
    assert (status, model) == (200, models["data"][0])


async def test_any_page_may_chat_but_only_the_trackers_own_may_touch_nodes() -> None:
    async with running_tracker() as tracker:
        page = "https://chat.example"
        preflight, _, headers = await ask(
            tracker, "/v1/chat/completions", method="OPTIONS", Origin=page, access_control_request_headers="x-a, b"
        )
        _, _, models_headers = await ask(tracker, "/v1/models", Origin=page)
        foreign, answer, node_headers = await ask(tracker, "/v1/nodes", Origin=page)
        own, _, _ = await ask(tracker, "/v1/nodes", Origin=tracker.url)
        broken = [(await ask(tracker, "/v1/nodes", Origin=no_url))[0] for no_url in ("http://[", "//[::", "null")]

    assert (preflight, headers["access-control-allow-headers"]) == (204, "x-a, b")
    assert headers["access-control-allow-origin"] == models_headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in headers
    assert (foreign, own) == (403, 200)
    assert broken == [403] * 3
    assert "access-control-allow-origin" not in node_headers
    assert "chat.example" in answer["error"]["message"]


def test_the_event_log_keeps_the_latest_and_never_repeats_an_id() -> None:
    log = EventLog(wall_clock=lambda: 1.5, count_max=3)
    for number in range(5):
        log.append("counted", number=number)

    assert [event["number"] for event in log.read(after=0)] == [2, 3, 4]
    assert [event["id"] for event in log.read(after=3)] == [4, 5]
    assert [event["id"] for event in log.read(after=2, limit=1)] == [3]
    assert log.read(after=5) == []
    assert len(log.read(after=99)) == 3, "a reader of a former process starts over"


def test_a_taken_port_is_one_line_of_text() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"cannot listen on 127.0.0.1 port {port} \(Address already in use\)"):
            run_tracker(TrackerSettings(port=port))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_tracker_that_is_asked_to_end_ends_well(number: signal.Signals) -> None:
    program = (
        "from meshnet_tracker.server import run_tracker\n"
        "from meshnet_tracker.settings import TrackerSettings\n"
        "run_tracker(TrackerSettings(port=0), on_listening=lambda url: print('at', url, flush=True))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(10), aiohttp.ClientSession() as http:
        line = b""
        while not line.startswith(b"at "):
            line = await process.stdout.readline()
        async with http.get(f"{line.split()[1].decode()}/health") as response:
            assert await response.json() == {"status": "ok", "models": [], "ready": False}
        process.send_signal(number)
        assert await process.wait() == 0
