"""Nodes come and go, and so does the tracker; nobody has to lend a hand."""

import os
import signal
from typing import Any

import openai
import pytest

from meshnet_cli.demo.processes import Mesh
from meshnet_cli.tracker_api import get_json

from .conftest import client_of, wait_until

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France? Answer in one sentence."


def arms(mesh: Mesh) -> list[str]:
    models = get_json(mesh.url, "/v1/routing")["models"]
    return [arm["signature"] for model in models for arm in model["candidates"]]


def epoch(mesh: Mesh) -> int:
    return int(get_json(mesh.url, "/v1/routing")["models"][0]["epoch"])


def chat(mesh: Mesh, **options: Any) -> str | None:
    answer = client_of(mesh).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        **options,
    )
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    return answer.choices[0].message.content


def child_pid(mesh: Mesh, name: str) -> int:
    return next(child.process.pid for child in mesh.children if child.name == name)


def test_a_mesh_without_nodes_says_so_and_names_what_is_missing(bare_mesh: Mesh) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(bare_mesh)

    bare_mesh.start_node("head", "0-16", layer_delay_ms=0)
    bare_mesh.wait_node("head", entry_layers=[0])

    with pytest.raises(openai.InternalServerError, match="17-29") as refused:
        chat(bare_mesh)
    assert refused.value.status_code == 503
    assert refused.value.code == "no_route"


def test_a_killed_node_leaves_the_candidates_within_seconds_and_a_tracker_restart_heals(bare_mesh: Mesh) -> None:
    mesh = bare_mesh
    mesh.start_node("one", "0-29", layer_delay_ms=0)
    mesh.start_node("two", "0-29", layer_delay_ms=0)
    mesh.wait_node("one", entry_layers=[0])
    mesh.wait_node("two", entry_layers=[0])
    before = epoch(mesh)

    os.kill(child_pid(mesh, "two"), signal.SIGKILL)

    # Whoever is calling the node just then makes it a suspect at once; the epoch moves when its silence is long enough.
    wait_until(lambda: len(arms(mesh)) == 1 and epoch(mesh) > before, timeout_s=6)
    assert "Paris" in (chat(mesh) or "")

    tracker = next(child for child in mesh.children if child.name == "tracker")
    tracker.stop()
    mesh.start_tracker()

    wait_until(lambda: len(arms(mesh)) == 1, timeout_s=10)
    assert "Paris" in (chat(mesh) or "")


def test_a_node_told_to_stop_ends_its_running_chat_first(bare_mesh: Mesh) -> None:
    mesh = bare_mesh
    mesh.start_node("only", "0-29", layer_delay_ms=0)
    mesh.wait_node("only", entry_layers=[0])
    chunks = client_of(mesh).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a long story."}],
        max_tokens=60,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
        stream_options={"include_usage": True},
    )
    next(iter(chunks))

    os.kill(child_pid(mesh, "only"), signal.SIGTERM)

    *_, last = chunks
    assert last.usage is not None
    assert last.usage.completion_tokens == 60
    wait_until(lambda: arms(mesh) == [], timeout_s=5)


def test_a_tracker_told_to_stop_lets_a_running_chat_end(bare_mesh: Mesh) -> None:
    """The chat outlasts three heartbeats, which the tracker no longer hears."""
    mesh = bare_mesh
    mesh.start_node("only", "0-29", layer_delay_ms=3)
    mesh.wait_node("only", entry_layers=[0])
    chunks = client_of(mesh).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a long story."}],
        max_tokens=50,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
        stream_options={"include_usage": True},
    )
    next(iter(chunks))

    os.kill(child_pid(mesh, "tracker"), signal.SIGTERM)

    *_, last = chunks
    assert last.usage is not None
    assert last.usage.completion_tokens == 50
