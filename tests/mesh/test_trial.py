"""The only node there is has failed: one chat finds out whether it works again, and the others follow."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import get_json

from .conftest import wait_until

CHATS = 5
CHAT = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True})


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with Mesh(tmp_path, free_port(0), "smollm2") as running:
        # The node is given up by its silence long before it would be lost by its missing heartbeats.
        running.start_tracker(options=["--token-timeout", "2", "--heartbeat-period", "4"])
        running.start_node("whole", "0-29", layer_delay_ms=0)
        running.wait_node("whole", entry_layers=[0])
        yield running


def begin_chat(mesh: Mesh) -> http.client.HTTPConnection:
    """The request is sent, and nobody waits for its answer yet."""
    connection = http.client.HTTPConnection(urlsplit(mesh.url).netloc, timeout=60)
    connection.request("POST", "/v1/chat/completions", CHAT)
    return connection


def end_chat(connection: http.client.HTTPConnection) -> int:
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def selections(mesh: Mesh) -> int:
    return sum(event["event"] == "proxy route selected" for event in get_json(mesh.url, "/v1/events")["events"])


def test_one_chat_tries_the_frozen_node_and_the_others_follow_when_it_thaws(mesh: Mesh) -> None:
    pid = next(child.process.pid for child in mesh.children if child.name == "whole")
    assert end_chat(begin_chat(mesh)) == 200
    os.kill(pid, signal.SIGSTOP)
    try:
        assert end_chat(begin_chat(mesh)) == 503
        before = selections(mesh)
        chats = [begin_chat(mesh) for _ in range(CHATS)]
        # What the tracker answers after it got all of them tells what it did with them.
        assert max(selections(mesh) for _ in range(5)) <= before + 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [end_chat(chat) for chat in chats] == [200] * CHATS
    wait_until(lambda: bool(get_json(mesh.url, "/health")["ready"]))
