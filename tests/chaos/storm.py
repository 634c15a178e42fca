"""A mesh of real processes that is made to suffer: nodes are killed, frozen and brought back."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.errors import CommandError
from meshnet_cli.tracker_api import get_json

# Long enough for a machine on which others work too; what freezes is found out by its heartbeats.
TOKEN_TIMEOUT_S = 10.0
HEARTBEAT_PERIOD_S = 1.0
# Routes of three hops and of two; without any one node there is a way left.
SHARDS = {"first": "0-9", "middle": "10-19", "last": "20-29", "front": "0-19", "back": "20-29"}
ENTRY_LAYERS = {"first": [0], "middle": [10], "last": [20], "front": [0, 10], "back": [20]}
LOOK_PERIOD_S = 0.05


class Storm:
    """The mesh, by the names of its nodes."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._addresses: dict[str, str] = {}
        """Of processes that were killed: until the tracker has lost them, they look as if they were ready."""

    @property
    def url(self) -> str:
        return self.mesh.url

    def start(self, name: str) -> None:
        self.mesh.children[:] = [child for child in self.mesh.children if child.name != name]
        self.mesh.start_node(name, SHARDS[name], layer_delay_ms=0)

    def wait(self, name: str) -> None:
        wait_until(lambda: self.node(name).get("url") not in (None, self._addresses.get(name)))
        self.mesh.wait_node(name, entry_layers=ENTRY_LAYERS[name])
        # Who is killed all the time has to settle; it serves where nobody else does.
        wait_until(lambda: self.state(name) in ("ready", "settling"))

    def kill(self, name: str) -> None:
        self._addresses[name] = str(self.node(name)["url"])
        self._signal(name, signal.SIGKILL)

    def freeze(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def pid(self, name: str) -> int:
        return next(child.process.pid for child in self.mesh.children if child.name == name)

    def node(self, name: str) -> dict[str, Any]:
        """As the tracker shows it; empty if it does not know the node."""
        nodes = get_json(self.url, "/v1/nodes")["nodes"]
        return next((node for node in nodes if node["node_id"].startswith(f"{name}.")), {})

    def state(self, name: str) -> str | None:
        return self.node(name).get("state")

    def sessions(self) -> int:
        """Slots in use, of all nodes that answer."""
        count = 0
        for node in get_json(self.url, "/v1/nodes")["nodes"]:
            with urllib.request.urlopen(f"{node['url']}/health", timeout=5) as response:
                health = json.load(response)
                count += int(health["sessions"]) + int(health["waiting"])
        return count

    def in_flight(self) -> int:
        models = get_json(self.url, "/v1/routing")["models"]
        return sum(arm["in_flight"] for model in models for arm in model["candidates"])

    def events(self, kind: str, *, after: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = get_json(self.url, f"/v1/events?after={after}")
            if not page["events"]:
                return found
            found += [event for event in page["events"] if event["event"] == kind]
            after = page["next_after"]

    def hops_of(self, request_id: str) -> list[str]:
        """Names of the nodes that the chat was last sent to."""
        chosen = [e for e in self.events("proxy route selected") if e["request_id"] == request_id]
        return [hop["node_id"].split(".")[0] for hop in chosen[-1]["hops"]]

    def _signal(self, name: str, number: int) -> None:
        os.kill(self.pid(name), number)


@contextmanager
def storm(folder: Path, *, policy: str = "proportional") -> Iterator[Storm]:
    """A mesh of five nodes, ready. It is thawed before it is stopped."""
    with Mesh(folder, free_port(0), "smollm2") as mesh:
        options = ("--token-timeout", TOKEN_TIMEOUT_S, "--heartbeat-period", HEARTBEAT_PERIOD_S)
        mesh.start_tracker(options=[*map(str, options), "--route-policy", policy])
        running = Storm(mesh)
        for name in SHARDS:
            running.start(name)
        for name in SHARDS:
            running.wait(name)
        try:
            yield running
        finally:
            for name in SHARDS:
                running.thaw(name)


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Fails unless ``holds()`` becomes true in time; what does not answer counts as not yet."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except (CommandError, OSError):  # urllib's errors are OSErrors
            pass
        time.sleep(LOOK_PERIOD_S)
    pytest.fail(f"not within {timeout_s:g} s")
