"""``meshnet status``: nodes, models and learned routes of a mesh, in a terminal."""

import json
import time
from collections.abc import Iterator
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from meshnet_cli.errors import CommandError
from meshnet_cli.tables import config_line, nodes_table, pulse_line, routes_table, verdict_line
from meshnet_cli.tracker_api import get_json


def status(
    tracker: Annotated[
        str, typer.Option(envvar="MESHNET_TRACKER", help="The tracker's base URL.")
    ] = "http://127.0.0.1:8090",
    watch: Annotated[bool, typer.Option(envvar="MESHNET_WATCH", help="Stay and refresh, until Ctrl-C.")] = False,
    period: Annotated[
        float, typer.Option(min=0.2, envvar="MESHNET_WATCH_PERIOD", help="Seconds between refreshes.")
    ] = 2.0,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="MESHNET_STATUS_JSON", help="Print what the tracker says, as JSON.")
    ] = False,
) -> None:
    """Show nodes, models and learned routes."""
    console = Console()
    if as_json:
        print(
            json.dumps({"nodes": get_json(tracker, "/v1/nodes")["nodes"], **get_json(tracker, "/v1/routing")}, indent=2)
        )
    elif not watch:
        console.print(overview(tracker))
    else:
        watch_overview(console, tracker, period)


def watch_overview(console: Console, tracker: str, period_s: float) -> None:
    """Without end. Drawn over on a terminal; one after the other where there is none."""
    pictures = overviews(tracker, period_s)
    first = next(pictures)
    if not console.is_terminal:
        for picture in chain([first], pictures):
            console.print(picture)
    with Live(first, console=console, auto_refresh=False, screen=False) as live:
        for picture in pictures:
            live.update(picture, refresh=True)


def overviews(tracker: str, period_s: float) -> Iterator[RenderableType]:
    """One each period. A tracker that goes away is said so and asked again; one that never answered is an error."""
    latest = overview(tracker)
    yield latest
    while True:
        time.sleep(period_s)
        try:
            latest = overview(tracker)
            yield latest
        except CommandError as error:
            yield Group(latest, Text(f"{error}; trying again", style="yellow"))


def overview(tracker: str) -> RenderableType:
    nodes = get_json(tracker, "/v1/nodes")["nodes"]
    routing = get_json(tracker, "/v1/routing")
    seen = get_json(tracker, "/v1/overview")
    if not nodes:
        start = f"meshnet node --model smollm2 --tracker {tracker}"
        hello = f"The tracker at {tracker} knows no node yet. Start one:\n  {start}"
        return Text("\n".join([hello, pulse_line(seen)] if seen["departed"] else [hello]))
    models = sorted({node["model"] for node in nodes})
    tables: list[RenderableType] = [*map(verdict_line, seen["models"]), Text(pulse_line(seen)), ""]
    for model in models:
        tables += [nodes_table(model, [node for node in nodes if node["model"] == model]), ""]
    for learnt in routing["models"]:
        if learnt["candidates"]:
            tables += [routes_table(learnt), ""]
    return Group(*tables, Text(config_line(routing["config"]), style="dim"))
