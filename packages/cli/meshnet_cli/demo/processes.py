"""Tracker and nodes as child processes, with their logs in files and their ends at the demo's end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from meshnet_cli.errors import CommandError
from meshnet_cli.tracker_api import get_json

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
LOOK_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raises CommandError with the end of the log if the process is no longer there."""
        if (code := self.process.poll()) is not None:
            lines = self.log.read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
            raise CommandError(f"the {self.name} ended with code {code}: {last} (log: {self.log})")

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Mesh:
    """A mesh on this machine. Leaving the context stops every process, the newest first."""

    def __init__(self, folder: Path, port: int, model: str) -> None:
        self.folder = folder
        self._model = model
        self._stack = ExitStack()
        self.children: list[Child] = []
        self.url = f"http://127.0.0.1:{port}"
        self._port = port

    def __enter__(self) -> "Mesh":
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_tracker(self, options: Sequence[str] = ()) -> None:
        """Start the tracker and wait until it answers. ``options``: more of ``meshnet tracker``'s."""
        files = ["--database", f"sqlite:///{self.folder}/tracker.db", "--key-file", f"{self.folder}/tracker.pem"]
        child = self.spawn("tracker", ["tracker", "--port", str(self._port), *files, *options])
        self._wait(child, lambda: get_json(self.url, "/health") is not None)

    def start_node(self, name: str, layers: str, *, layer_delay_ms: float, options: Sequence[str] = ()) -> None:
        """Start a node; ``wait_node`` waits until it is part of the mesh. ``options``: more of ``meshnet node``'s."""
        arguments = ["node", "--model", self._model, "--layers", layers, "--instance", name, "--port", "0"]
        arguments += ["--tracker", self.url, "--threads", "1", "--wallet", str(self.folder / "wallet.pem")]
        self.spawn(name, [*arguments, "--layer-delay-ms", str(layer_delay_ms), *options])

    def wait_node(self, name: str, *, entry_layers: Sequence[int]) -> None:
        """Until the node is known to the tracker and may be entered at all these layers."""
        child = next(child for child in self.children if child.name == name)
        self._wait(child, lambda: self._is_enterable(name, entry_layers))

    def _is_enterable(self, name: str, entry_layers: Sequence[int]) -> bool:
        nodes = get_json(self.url, "/v1/nodes")["nodes"]
        found = [node for node in nodes if node["node_id"].startswith(f"{name}.")]
        return bool(found) and set(entry_layers) <= set(found[0]["entry_layers"])

    def spawn(self, name: str, arguments: Sequence[str], *, program: Sequence[str] = ("-m", "meshnet_cli")) -> Child:
        """``program``: what Python runs in place of the ``meshnet`` command."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            # A session of its own, so that Ctrl-C reaches the demo first and it stops its children in order.
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, *program, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"NO_COLOR": "1"},
            )
        child = Child(name, process, log)
        self._stack.callback(child.stop)
        self.children.append(child)
        return child

    def _wait(self, child: Child, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            child.check()
            try:
                if is_ready():
                    return
            except CommandError:
                pass  # not listening yet
            time.sleep(LOOK_PERIOD_S)
        raise CommandError(f"the {child.name} was not ready within {START_TIMEOUT_S:g} s (log: {child.log})")


def free_port(wanted: int) -> int:
    """``wanted`` if nobody listens there, else any free port of this machine."""
    for port in (wanted, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as probe:
                return int(probe.getsockname()[1])
        except OSError:
            continue
    raise CommandError("no free port on 127.0.0.1")
