"""Ready means that a token can be produced: seen by the tracker itself, on real nodes, without anybody chatting."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import get_json

from .conftest import client_of, wait_until


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with Mesh(tmp_path, free_port(0), "smollm2") as running:
        running.start_tracker(["--token-timeout", "1", "--heartbeat-period", "30"])
        yield running


def is_ready(mesh: Mesh) -> bool:
    try:
        with urllib.request.urlopen(f"{mesh.url}/health/ready") as response:
            return bool(json.load(response)["ready"])
    except urllib.error.HTTPError as error:
        error.close()
        return False


def test_a_frozen_tail_makes_the_mesh_unready_and_it_is_ready_again_without_a_chat(mesh: Mesh) -> None:
    mesh.start_node("head", "0-16", layer_delay_ms=0)
    mesh.wait_node("head", entry_layers=[0])
    assert not is_ready(mesh), "layers are missing"
    mesh.start_node("tail", "17-29", layer_delay_ms=0)
    wait_until(lambda: is_ready(mesh), timeout_s=60)
    assert get_json(mesh.url, "/v1/calls")["calls"] == []

    tail = next(child for child in mesh.children if child.name == "tail").process
    os.kill(tail.pid, signal.SIGSTOP)
    try:
        with client_of(mesh) as client, pytest.raises(openai.APIStatusError) as lost:
            client.chat.completions.create(model="", messages=[{"role": "user", "content": "Hi"}], max_tokens=8)
        assert lost.value.status_code == 503
        assert not is_ready(mesh)
    finally:
        os.kill(tail.pid, signal.SIGCONT)
    wait_until(lambda: is_ready(mesh), timeout_s=30)

    probes = [event for event in get_json(mesh.url, "/v1/events")["events"] if event["event"] == "model probed"]
    assert probes[0]["is_well"]
    assert probes[-1]["is_well"]
    (call,) = get_json(mesh.url, "/v1/calls")["calls"]
    assert call["outcome"] in ("timeout", "node_fault"), "the chat that was lost, and no probe among the calls"
