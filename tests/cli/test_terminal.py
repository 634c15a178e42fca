"""Terminals show what strangers wrote as they wrote it, and outlive a tracker or a mesh that is away for a while."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

from rich.console import Console

from dashboard.stage import stage
from meshnet_cli.demo.processes import free_port
from meshnet_cli.tables import nodes_table, routes_table
from meshnet_tracker.testing import make_card, running_head, running_tracker

READ_TIMEOUT_S = 30.0
ODD_NAME = "org/[bold]model[/nonsense] [link=x]"


async def start(*arguments: str) -> Process:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PATH": ""}
    command = (sys.executable, "-m", "meshnet_cli", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment)


async def read_until(process: Process, words: str) -> str:
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(READ_TIMEOUT_S):
        while words not in text:
            piece = await process.stdout.read(4096)
            assert piece, text
            text += piece.decode()
    return text


def shown(table: object) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_names_with_markup_in_them_are_shown_as_they_are() -> None:
    node = {"node_id": "[/red].w.0-1", "shard": "0-1", "entry_layers": [0], "layer_tokens_per_s": 1.0, "slots": 1}
    node |= {"active_slots": 0, "queue_depth": 0, "state": "ready", "heartbeat_age_s": 0.1}
    node |= {"exactness": {"is_exact": True, "class_id": "[/b]"}}

    nodes = shown(nodes_table(ODD_NAME, [node]))
    routes = shown(routes_table({"model": ODD_NAME, "epoch": 1, "candidates": []}))

    assert ODD_NAME in nodes
    assert ODD_NAME in routes
    assert "[/red]" in nodes
    assert "yes [/b]" in nodes


async def test_a_watch_outlives_a_restart_of_the_tracker() -> None:
    port = free_port(0)
    async with running_tracker(port=port) as tracker:
        process = await start("status", "--watch", "--period", "0.2", "--tracker", tracker.url)
        await read_until(process, "knows no node")
    await read_until(process, "trying again")
    async with running_tracker(port=port) as tracker:
        tracker.register("back", "0-39")
        text = await read_until(process, "back")
    process.terminate()
    await process.wait()

    assert "Traceback" not in text


async def test_a_conversation_outlives_an_answer_that_could_not_be_given() -> None:
    async with stage() as scene, running_head() as head:
        process = await start("chat", "--model", "half", "--tracker", scene.tracker.url)
        assert process.stdin is not None
        process.stdin.write(b"is anybody there?\n")
        refused = await read_until(process, "ask again")
        scene.tracker.register("rest", "0-29", url=head.url, model=make_card(name="half", layer_count=30))
        process.stdin.write(b"and now?\n")
        answered = await read_until(process, "rest.")
        process.stdin.write_eof()
        async with asyncio.timeout(READ_TIMEOUT_S):
            code = await process.wait()

    assert "held by no ready node" in refused
    assert "ask again" not in answered
    assert code == 0
    assert [message["content"] for message in head.requests[0].messages] == ["and now?"]
