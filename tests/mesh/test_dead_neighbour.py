"""A neighbour that is gone costs the others nothing but the chats it was part of."""

import os
import signal
import time

import openai
import pytest

from meshnet_cli.demo.processes import Mesh
from meshnet_cli.tracker_api import get_json

from .conftest import client_of, wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """What a process has computed so far, in user and system mode."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def pid_of(mesh: Mesh, name: str) -> int:
    return next(child.process.pid for child in mesh.children if child.name == name)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the CPU time of others is read from /proc")
def test_who_waits_for_a_dead_neighbour_sleeps_and_recovers_by_itself(bare_mesh: Mesh) -> None:
    mesh = bare_mesh
    for name, layers in (("head", "0-16"), ("tail", "17-29")):
        mesh.start_node(name, layers, layer_delay_ms=0)
        mesh.wait_node(name, entry_layers=[int(layers.partition("-")[0])])

    def ask() -> str:
        with client_of(mesh) as client:
            answer = client.chat.completions.create(
                model="", messages=[{"role": "user", "content": "Hi"}], max_tokens=8
            )
        return answer.choices[0].message.content or ""

    os.kill(pid_of(mesh, "tail"), signal.SIGSTOP)  # a cut cable looks the same to its neighbours
    watched = [pid_of(mesh, "head"), pid_of(mesh, "tracker")]
    before, began = [cpu_s(pid) for pid in watched], time.monotonic()
    with pytest.raises(openai.APIStatusError):
        ask()
    os.kill(pid_of(mesh, "tail"), signal.SIGKILL)
    wait_until(lambda: len(get_json(mesh.url, "/v1/nodes")["nodes"]) == 1, timeout_s=20)
    elapsed_s = time.monotonic() - began
    shares = [(cpu_s(pid) - used_s) / elapsed_s for pid, used_s in zip(watched, before, strict=True)]

    assert elapsed_s > 2, "long enough to tell"
    assert all(share < 0.5 for share in shares), shares
    mesh.children[:] = [child for child in mesh.children if child.name != "tail"]
    mesh.start_node("tail", "17-29", layer_delay_ms=0)
    mesh.wait_node("tail", entry_layers=[17])
    assert ask()
