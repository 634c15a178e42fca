"""``meshnet routes``: what routing has learnt, in a terminal."""

import json
from typing import Annotated

import typer
from rich.console import Console

from meshnet_cli.tables import config_line, routes_table
from meshnet_cli.tracker_api import get_json


def routes(
    tracker: Annotated[
        str, typer.Option(envvar="MESHNET_TRACKER", help="The tracker's base URL.")
    ] = "http://127.0.0.1:8090",
    as_json: Annotated[
        bool, typer.Option("--json", envvar="MESHNET_STATUS_JSON", help="Print what the tracker says, as JSON.")
    ] = False,
) -> None:
    """Show every route, how fast it was measured, and its share of the traffic."""
    routing = get_json(tracker, "/v1/routing")
    if as_json:
        print(json.dumps(routing, indent=2))
        return
    console = Console()
    if not routing["models"]:
        print(f"No model yet. Start a node:\n  meshnet node --model smollm2 --tracker {tracker}")
    for model in routing["models"]:
        console.print(routes_table(model))
        if not model["candidates"]:
            console.print("  no route holds all layers: meshnet status shows who holds which")
    console.print(config_line(routing["config"]), style="dim")
