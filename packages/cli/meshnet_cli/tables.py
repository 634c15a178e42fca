"""What the tracker knows, as tables for a terminal. Used by ``meshnet status`` and the demo alike.

Names come from strangers and may hold what rich would take for markup, so every cell and title is plain text.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Json = Mapping[str, Any]

ROUTE_COLUMN_CHARS_MIN = 14
STATE_STYLES = {"ready": "green", "draining": "yellow", "suspected": "yellow", "settling": "yellow"}
OUTCOME_STYLES = {"completed": "green", "running": "cyan", "node_fault": "red", "timeout": "red"}
STATUS_STYLES = {"proven": "green", "unsampled": "yellow", "stale": "yellow", "decayed": "dim"}


def routes_table(model: Json) -> Table:
    """The learned routes of one model, best first, as ``GET /v1/routing`` lists them."""
    table = plain_table(f"{model['model']}, epoch {model['epoch']}")
    table.add_column("route", overflow="fold", min_width=ROUTE_COLUMN_CHARS_MIN)
    for column in ("status", "tok/s", "coeff.", "expect", "actual", "samples", "weight", "load"):
        table.add_column(column, justify="right", no_wrap=True)
    for arm in model["candidates"]:
        style = STATUS_STYLES.get(arm["status"], "")
        add_row(
            table,
            " -> ".join(hop_text(hop) for hop in arm["hops"]),
            Text(arm["status"], style=style),
            number(arm["tps"], 1),
            number(arm["coefficient"], 2),
            percent(arm["expected_share"]),
            percent(arm["actual_share"]),
            str(arm["samples"]),
            number(arm["weight"], 2),
            str(arm["in_flight"]),
        )
    return table


def nodes_table(model_key: str, nodes: Sequence[Json]) -> Table:
    """Who holds which layers of one model, as ``GET /v1/nodes`` lists them."""
    table = plain_table(f"nodes of {model_key}")
    table.add_column("node", overflow="fold")
    for column in ("layers", "enter at", "layer-tok/s", "load", "exact", "state", "heard"):
        table.add_column(column, justify="right", no_wrap=True)
    for node in sorted(nodes, key=lambda node: str(node["node_id"])):
        style = STATE_STYLES.get(node["state"], "")
        add_row(
            table,
            node["node_id"].split(".", 1)[0],
            node["shard"],
            ", ".join(map(str, node["entry_layers"])),
            number(node["layer_tokens_per_s"], 0),
            f"{node['active_slots']}/{node['slots']}+{node['queue_depth'] - node['active_slots']}",
            exactness_text(node["exactness"]),
            Text(node["state"], style=style),
            f"{node['heartbeat_age_s']:.1f} s",
        )
    return table


def exactness_text(exactness: Json) -> str:
    """``yes 3f2a9c`` with the class, so that one sees which nodes share it; ``?`` where nothing was tested."""
    if exactness["is_exact"] is None:
        return "?"
    return f"yes {exactness['class_id'][:6]}" if exactness["is_exact"] else "no"


def calls_table(calls: Sequence[Json]) -> Table:
    """Calls in the order given, as ``GET /v1/calls`` has them."""
    table = plain_table("calls")
    table.add_column("time", no_wrap=True)
    table.add_column("route", overflow="fold", min_width=ROUTE_COLUMN_CHARS_MIN)
    table.add_column("mode", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for column in ("tokens", "tok/s", "first", "tries"):
        table.add_column(column, justify="right", no_wrap=True)
    for call in calls:
        add_row(
            table,
            clock(call["at"]),
            route_text(call) or Text("no route", style="dim"),
            call["mode"] or "-",
            outcome_text(call),
            number(call["completion_tokens"], 0),
            number(call["tps"], 1),
            "-" if call["ttft_s"] is None else f"{call['ttft_s']:.2f} s",
            str(len(call["attempts"])),
        )
    return table


def call_line(call: Json) -> Text:
    """One finished call on one line."""
    speed = f"{number(call['completion_tokens'], 0)} tokens, {number(call['tps'], 1)} tok/s"
    why = f"{call['mode']} ({call['reason']})" if call["mode"] else "refused"
    route = Text(route_text(call) or "no route")
    return Text("  ").join([Text(clock(call["at"]), style="dim"), outcome_text(call), route, Text(why), Text(speed)])


def outcome_text(call: Json) -> Text:
    outcome = call["outcome"] or call["state"]
    return Text(outcome.replace("_", " "), style=OUTCOME_STYLES.get(outcome, "yellow"))


def route_text(call: Json) -> str:
    return " -> ".join(hop_text(hop) for hop in call["hops"])


def clock(unix_time: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_time))


def config_line(config: Json) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in config.items())


def plain_table(title: str) -> Table:
    """Few lines and no waste of width: the routes must fit a terminal of 80 columns."""
    return Table(
        title=escape(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )


def add_row(table: Table, *cells: str | Text) -> None:
    """A row of plain text, whatever brackets are in it."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def hop_text(hop: Json) -> str:
    """Instance and the layers really run, as in ``fast[0-16]``."""
    instance = hop["node_id"].split(".", 1)[0]
    return f"{instance}[{hop['start_layer']}-{hop['end_layer']}]"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
