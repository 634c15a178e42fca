"""Cables are pulled: between two nodes that both reach the tracker, and between a node and everybody."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from meshnet_cli.demo.processes import Mesh, free_port

from .cables import BRIDGE_ADDRESS, Cables, NotPermittedError, cables
from .chats import Seen, ask
from .storm import HEARTBEAT_PERIOD_S, TOKEN_TIMEOUT_S, Storm, wait_until

pytestmark = pytest.mark.skipif("STORM_CHATS" not in os.environ, reason="make chaos pulls the cables")

SHARDS = {"first": "0-14", "last": "15-29", "twin": "15-29"}
WAY = "seeded with penalties"
WORDS_BEFORE = 6


class WiredMesh(Storm):
    """Three nodes on cables; ``first`` goes on to ``last`` or to ``twin``."""

    def __init__(self, mesh: Mesh, wires: Cables) -> None:
        super().__init__(mesh)
        self.wires = wires

    def start_inside(self, name: str, stack: ExitStack) -> None:
        address = self.wires.addresses[name]
        node = ["node", "--model", "smollm2", "--layers", SHARDS[name], "--instance", name, "--host", address]
        wallet = str(self.mesh.folder / "wallet.pem")
        command = [*self.wires.command_inside(name), sys.executable, "-m", "meshnet_cli", *node]
        command += ["--port", "8091", "--tracker", self.url, "--wallet", wallet]
        log = stack.enter_context((self.mesh.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WiredMesh]:
    with ExitStack() as stack:
        try:
            wires = stack.enter_context(cables(list(SHARDS)))
        except NotPermittedError as error:
            pytest.skip(str(error))
        mesh = stack.enter_context(Mesh(tmp_path_factory.mktemp("wired"), free_port(0), "smollm2"))
        mesh.url = mesh.url.replace("127.0.0.1", BRIDGE_ADDRESS)
        options = ["--host", BRIDGE_ADDRESS, "--open", "--token-timeout", str(TOKEN_TIMEOUT_S)]
        mesh.start_tracker(options=[*options, "--heartbeat-period", str(HEARTBEAT_PERIOD_S)])
        running = WiredMesh(mesh, wires)
        for name in SHARDS:
            running.start_inside(name, stack)
        wait_until(lambda: all(running.state(name) == "ready" for name in SHARDS))
        yield running


def ask_and_pull(wired: WiredMesh, pull: "Pull") -> Seen:
    words = 0

    def on_word() -> None:
        nonlocal words
        words += 1
        if words == WORDS_BEFORE:
            tail = wired.events("proxy route selected")[-1]["hops"][-1]["node_id"].split(".")[0]
            pull.strike(tail)

    return ask(wired.url, WAY, is_stream=True, on_word=on_word)


class Pull:
    """Remembers which cable was pulled."""

    def __init__(self, wired: WiredMesh, *, is_link_only: bool) -> None:
        self._wired = wired
        self._is_link_only = is_link_only
        self.tail = ""

    def strike(self, tail: str) -> None:
        self.tail = tail
        self._set(is_cut=True)

    def heal(self) -> None:
        self._set(is_cut=False)

    def _set(self, *, is_cut: bool) -> None:
        if self._is_link_only:
            self._wired.wires.cut_between(["first", self.tail], is_cut=is_cut)
        else:
            self._wired.wires.unplug(self.tail, is_out=is_cut)


def test_a_cut_between_two_nodes_is_the_links_fault_and_the_chat_goes_on(wired: WiredMesh) -> None:
    undisturbed = ask(wired.url, WAY, is_stream=True)
    pull = Pull(wired, is_link_only=True)
    seen = ask_and_pull(wired, pull)
    failures = [event for event in wired.events("route failed") if event["request_id"] == seen.request_id]
    try:
        assert seen.errors == []
        assert seen.words == undisturbed.words
        assert failures[0]["reporter"].startswith("first.")
        assert failures[0]["culprit"].startswith(f"{pull.tail}.")
        assert seen.pause_s_max < TOKEN_TIMEOUT_S, "found out before the tracker loses its patience"
        wait_until(lambda: wired.state(pull.tail) == "ready")
        again = ask(wired.url, WAY, is_stream=True)
        assert again.words == undisturbed.words
        assert wired.hops_of(again.request_id) != ["first", pull.tail]
    finally:
        pull.heal()
    wait_until(lambda: wired.sessions() == 0 == wired.in_flight())


def test_a_node_without_its_network_is_left_and_comes_back_by_itself(wired: WiredMesh) -> None:
    undisturbed = ask(wired.url, WAY, is_stream=True)
    pull = Pull(wired, is_link_only=False)
    try:
        seen = ask_and_pull(wired, pull)
    finally:
        pull.heal()

    assert seen.errors == []
    assert seen.words == undisturbed.words
    wait_until(lambda: wired.state(pull.tail) == "ready")
    wait_until(lambda: wired.sessions() == 0 == wired.in_flight())


def test_latency_between_nodes_changes_no_word(wired: WiredMesh) -> None:
    undisturbed = ask(wired.url, WAY, is_stream=True)
    if not all(wired.wires.delay(name, 15) for name in SHARDS):
        pytest.skip("this kernel has no netem")
    assert ask(wired.url, WAY, is_stream=True).words == undisturbed.words
