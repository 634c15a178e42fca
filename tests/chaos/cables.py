"""Cables that can be pulled: every node in a network namespace of its own, all plugged into one bridge.

A port that is *isolated* reaches the bridge's own address, where the tracker listens, and no other isolated port: so
the link between two nodes is cut while both go on talking to the tracker. A port that is *down* is a node's whole
network.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

BRIDGE_ADDRESS = "10.213.7.1"


class NotPermittedError(Exception):
    """This machine lets us make no network namespaces; the text says why."""


class Cables:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._bridge = f"{prefix}b"
        self._stack = ExitStack()
        self.addresses: dict[str, str] = {}

    def lay(self, names: list[str]) -> None:
        """Raises NotPermittedError."""
        try:
            self._ip("link", "add", self._bridge, "type", "bridge")
            self._stack.callback(self._ip, "link", "del", self._bridge)
            self._ip("addr", "add", f"{BRIDGE_ADDRESS}/24", "dev", self._bridge)
            self._ip("link", "set", self._bridge, "up")
            for number, name in enumerate(names):
                self._plug_in(name, f"10.213.7.{number + 11}")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise NotPermittedError(f"no network namespaces here: {said.strip()}") from error

    def command_inside(self, name: str) -> list[str]:
        """What to put before a command to run it in the namespace."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def cut_between(self, names: list[str], *, is_cut: bool) -> None:
        """No two of these reach each other."""
        for name in names:
            state = "on" if is_cut else "off"
            self._run("bridge", "link", "set", "dev", self._port(name), "isolated", state)

    def unplug(self, name: str, *, is_out: bool) -> None:
        self._ip("link", "set", self._port(name), "down" if is_out else "up")

    def delay(self, name: str, milliseconds: int) -> bool:
        """Latency on the way to a node; False if this kernel has none to offer."""
        try:
            self._run("tc", "qdisc", "add", "dev", self._port(name), "root", "netem", "delay", f"{milliseconds}ms")
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def close(self) -> None:
        self._stack.close()

    def _plug_in(self, name: str, address: str) -> None:
        namespace, port = self._namespace(name), self._port(name)
        self._ip("netns", "add", namespace)
        self._stack.callback(self._ip, "netns", "del", namespace)
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._ip("link", "set", port, "master", self._bridge, "up")
        inside = ["ip", "-n", namespace]
        self._run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._run(*inside, "link", "set", device, "up")
        self.addresses[name] = address

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _port(self, name: str) -> str:
        return f"{self._prefix}{name}"[:15]

    def _ip(self, *arguments: str) -> None:
        self._run("ip", *arguments)

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def cables(names: list[str]) -> Iterator[Cables]:
    """Raises NotPermittedError."""
    laid = Cables(f"mn{os.getpid() % 10000}")
    try:
        laid.lay(names)
        yield laid
    finally:
        laid.close()
