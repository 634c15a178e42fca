"""A real mesh on loopback: one tracker and node processes, the real model, one thread each."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.errors import CommandError

LOOK_PERIOD_S = 0.05


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """The mixed topology: fast holds 0-16, slow holds 0-29 and can be entered at 17."""
    with start_mesh(tmp_path_factory.mktemp("mesh")) as running:
        running.start_node("fast", "0-16", layer_delay_ms=0)
        running.start_node("slow", "0-29", layer_delay_ms=0.2)
        running.wait_node("fast", entry_layers=[0])
        running.wait_node("slow", entry_layers=[0, 17])
        yield running


@pytest.fixture
def bare_mesh(tmp_path: Path) -> Iterator[Mesh]:
    """A tracker alone, for tests that start and stop nodes themselves."""
    with start_mesh(tmp_path) as running:
        yield running


def start_mesh(folder: Path) -> Mesh:
    mesh = Mesh(folder, free_port(0), "smollm2")
    mesh.start_tracker()
    return mesh


def client_of(mesh: Mesh) -> openai.OpenAI:
    # Clients are not closed, so they must keep no connection: it would be reported where it happens to be collected.
    headers = {"connection": "close"}
    return openai.OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0, timeout=60, default_headers=headers)


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Fails unless ``holds()`` becomes true in time; an unreachable tracker counts as not yet."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except CommandError:
            pass
        time.sleep(LOOK_PERIOD_S)
    pytest.fail(f"not within {timeout_s:g} s")
