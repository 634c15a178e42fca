"""What terminals show: the tracker's own figures, within 80 columns."""

import asyncio
import sys
from typing import Any

import pytest

from dashboard.stage import Stage, play, stage


async def run(scene: Stage, *arguments: str, columns: int = 80) -> str:
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", "PATH": ""}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "meshnet_cli", *arguments, "--tracker", scene.tracker.url),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("status", ["fast", "ready", "slow[0-39]", "proven", "explore share 0.3"]),
        ("routes", ["slow[0-39]", "proven", "explore share 0.3", "no route holds all layers"]),
        ("calls", ["completed", "client error", "exploit", "pinned", "no route"]),
    ],
)
async def test_a_terminal_of_80_columns_shows_it_whole(command: str, words: list[str]) -> None:
    async with stage() as scene:
        await play(scene)
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
