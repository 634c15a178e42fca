"""Who stood still wakes to find every deadline passed and blames nobody for its own sleep; and what others do meanwhile
where there is no other way: one chat finds out whether it works again, and the others follow."""

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import get_json

from .conftest import wait_until

TOKEN_TIMEOUT_S = 3.0
WORDS_BEFORE = 5
CHATS = 4
CHAT = {
    "messages": [{"role": "user", "content": "Count to a hundred."}],
    "max_tokens": 60,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("standstill"), free_port(0), "smollm2") as running:
        running.start_tracker(options=["--token-timeout", str(TOKEN_TIMEOUT_S), "--heartbeat-period", "3"])
        for name, layers in (("head", "0-16"), ("tail", "17-29")):
            running.start_node(name, layers, layer_delay_ms=0.3)
        for name, first in (("head", 0), ("tail", 17)):
            running.wait_node(name, entry_layers=[first])
        yield running


def pid_of(mesh: Mesh, name: str) -> int:
    return next(child.process.pid for child in mesh.children if child.name == name)


def stand_still(mesh: Mesh, name: str, seconds: float) -> None:
    os.kill(pid_of(mesh, name), signal.SIGSTOP)
    time.sleep(seconds)  # the very thing that is tested
    os.kill(pid_of(mesh, name), signal.SIGCONT)


def begin(mesh: Mesh, **fields: Any) -> http.client.HTTPConnection:
    """The request is sent, and nobody waits for its answer yet."""
    connection = http.client.HTTPConnection(urlsplit(mesh.url).netloc, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(CHAT | fields))
    return connection


def end(connection: http.client.HTTPConnection) -> int:
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def chat(mesh: Mesh, *, sleeper: str = "", seconds: float = 0.0) -> tuple[str, str]:
    """The request's id and its text; after some words ``sleeper`` stands still."""
    connection = begin(mesh)
    response = connection.getresponse()
    words: list[str] = []
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        words += [choice["delta"].get("content") or "" for choice in event["choices"]]
        if sleeper and len(words) == WORDS_BEFORE:
            stand_still(mesh, sleeper, seconds)
    connection.close()
    return str(response.headers["x-request-id"]), "".join(words)


def events(mesh: Mesh, kind: str) -> list[dict[str, Any]]:
    return [event for event in get_json(mesh.url, "/v1/events?after=0")["events"] if event["event"] == kind]


@pytest.mark.parametrize(
    ("sleeper", "seconds"),
    [
        # Longer than the tracker bears a head's silence.
        ("tracker", TOKEN_TIMEOUT_S + 1.0),
        # Longer than the head bears the tail's, and shorter than the tracker bears the head's.
        ("head", TOKEN_TIMEOUT_S * 0.75),
    ],
)
def test_who_stood_still_goes_on_with_its_chat_and_blames_nobody(mesh: Mesh, sleeper: str, seconds: float) -> None:
    _, undisturbed = chat(mesh)

    request_id, text = chat(mesh, sleeper=sleeper, seconds=seconds)

    assert text == undisturbed
    assert events(mesh, "route failed") == []
    (finished,) = [event for event in events(mesh, "chat finished") if event["request_id"] == request_id]
    assert (finished["outcome"], finished["attempts"]) == ("completed", 1)
    if sleeper == "tracker":
        assert not finished["is_sampled"], "how long it took says nothing about the route"
    assert all(node["state"] == "ready" for node in get_json(mesh.url, "/v1/nodes")["nodes"])


def test_one_chat_tries_the_frozen_node_and_the_others_follow_when_it_thaws(mesh: Mesh) -> None:
    short = {"stream": False, "max_tokens": 4}
    os.kill(pid_of(mesh, "head"), signal.SIGSTOP)
    try:
        assert end(begin(mesh, **short)) == 503
        before = len(events(mesh, "proxy route selected"))
        chats = [begin(mesh, **short) for _ in range(CHATS)]
        # What the tracker answers after it got all of them tells what it did with them.
        assert max(len(events(mesh, "proxy route selected")) for _ in range(5)) <= before + 1
    finally:
        os.kill(pid_of(mesh, "head"), signal.SIGCONT)
    assert [end(chat) for chat in chats] == [200] * CHATS
    wait_until(lambda: bool(get_json(mesh.url, "/health")["ready"]))
