"""``meshnet calls``: the call wall in a terminal; with ``--follow``, live."""

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console

from meshnet_cli.tables import call_line, calls_table
from meshnet_cli.tracker_api import get_json, read_events

RECONNECT_S = 2.0


def calls(
    tracker: Annotated[
        str, typer.Option(envvar="MESHNET_TRACKER", help="The tracker's base URL.")
    ] = "http://127.0.0.1:8090",
    count: Annotated[int, typer.Option(min=1, max=500, envvar="MESHNET_CALLS_COUNT", help="How many to show.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", envvar="MESHNET_FOLLOW", help="Stay and print calls as they end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="MESHNET_STATUS_JSON", help="Print JSON, one call a line.")
    ] = False,
) -> None:
    """Show the latest calls: when, which route took each, why, and how it ended."""
    console = Console(highlight=False)
    latest = sorted(get_json(tracker, f"/v1/calls?limit={count}")["calls"], key=lambda call: float(call["at"]))
    if as_json:
        for call in latest:
            print(json.dumps(call), flush=True)
    elif latest:
        console.print(calls_table(latest))
    else:
        print(f"No call yet. Ask something:\n  meshnet chat --tracker {tracker}")
    if not follow:
        return
    known = {call["id"] for call in latest if call["state"] == "finished"}
    for call in _finished_calls(tracker):
        if call["id"] in known:
            continue
        if as_json:
            print(json.dumps(call), flush=True)
        else:
            console.print(call_line(call), soft_wrap=True)


def _finished_calls(tracker: str) -> Iterator[dict[str, Any]]:
    """Without end: comes back by itself when the tracker restarts, and resumes where it stopped."""
    last_id = ""
    while True:
        for event_id, data in read_events(tracker, "/v1/calls/stream", last_id):
            last_id = event_id
            call = json.loads(data)
            if call["state"] == "finished":
                yield call
        time.sleep(RECONNECT_S)
