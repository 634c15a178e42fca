"""What terminals show: the tracker's own figures, within 80 columns."""

import asyncio
import sys
from typing import Any

import pytest

from dashboard.stage import Stage, play, stage
from meshnet_protocol.ids import Incarnation
from meshnet_protocol.messages import Leave
from meshnet_tracker.fleet import NodeLeft
from meshnet_tracker.testing import make_card, running_tracker


async def run(scene: Stage, *arguments: str) -> str:
    code, output, _ = await ask(scene.tracker.url, *arguments)
    assert code == 0
    return output


async def ask(url: str, *arguments: str, key: str = "") -> tuple[int | None, str, str]:
    """Exit code, output and complaints of a command on a terminal of 80 columns."""
    environment = {"COLUMNS": "80", "NO_COLOR": "1", "PATH": "", "MESHNET_API_KEY": key}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshnet_cli", *arguments, "--tracker", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    output, complaints = await process.communicate()
    return process.returncode, output.decode(), complaints.decode()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("status", ["fast", "ready", "slow[0-39]", "proven", "explore share 0.3", "alpha 1", "half-life 600 s"]),
        ("status", ["tiny: served by 2 routes", "half: layers 17-29 are held by no ready node", "0 calls running"]),
        ("status", ["gone lately: former left", "room[all]"]),
        ("routes", ["slow[0-39]", "proven", "explore share 0.3", "no route holds all layers", "room[all]"]),
        ("calls", ["completed", "client error", "model_not_found", "exploit", "pinned", "no route"]),
    ],
)
async def test_a_terminal_of_80_columns_shows_it_whole(command: str, words: list[str]) -> None:
    async with stage() as scene:
        await play(scene)
        scene.tracker.register("room", "0-0", model=make_card(name="cloud", layer_count=1))
        other = make_card(name="half", layer_count=30)
        former = scene.tracker.register("former", "0-10", model=other, incarnation="first")
        scene.tracker.server.handle(NodeLeft(Leave(node_id=former, incarnation=Incarnation("first"))))
        text = await run(scene, command)

    assert [word for word in words if word not in text] == []
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


async def test_following_the_calls_prints_each_once_as_it_ends() -> None:
    async with stage() as scene, asyncio.timeout(30):
        await scene.chat()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meshnet_cli", "calls", "--follow", "--tracker", scene.tracker.url),
            stdout=asyncio.subprocess.PIPE,
            env={"COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PATH": ""},
        )
        assert process.stdout is not None
        while not (await process.stdout.readline()).decode().count("completed"):
            pass
        await scene.chat(route=[scene.node_ids["slow"]])
        line: Any = (await process.stdout.readline()).decode()
        process.terminate()
        await process.wait()

    assert "completed  slow[0-39]  pinned (pinned)  10 tokens" in line


@pytest.mark.parametrize(
    ("command", "next_step"),
    [("status", "meshnet node --model"), ("routes", "meshnet node --model"), ("calls", "meshnet chat --tracker")],
)
async def test_an_empty_mesh_and_a_wrong_key_say_what_to_do_next(command: str, next_step: str) -> None:
    keys: dict[str, Any] = {"api_keys": ("sk-client-0123",), "admin_keys": ("sk-owner-0123",)}
    async with running_tracker(**keys) as tracker:
        code, empty, _ = await ask(f"{tracker.url}/v1", command, key="sk-owner-0123")
        refusals = [await ask(tracker.url, command, key=key) for key in ("", "sk-client-0123")]

    assert code == 0
    assert any(line.startswith(f"  {next_step}") for line in empty.splitlines()), "a line of its own, to be copied"
    for code, output, complaint in refusals:
        assert (code, output) == (2, "")
        assert "Set MESHNET_API_KEY to the admin key" in complaint
