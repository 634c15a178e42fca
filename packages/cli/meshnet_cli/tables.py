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
CONFIG_WORDS = {
    "weight_alpha": "alpha {:g}",
    "stats_half_life_s": "half-life {:g} s",
    "min_sample_tokens": "at least {} tokens a sample",
}
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
            chain_text(arm["hops"]),
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
            instance(node["node_id"]),
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
    outcome = Text(" ").join(outcome_text(call).split("\n"))
    return Text("  ").join([Text(clock(call["at"]), style="dim"), outcome, route, Text(why), Text(speed)])


def outcome_text(call: Json) -> Text:
    """With the error's name, where there is one: OpenAI's, else the field at fault."""
    outcome = call["outcome"] or call["state"]
    text = Text(outcome.replace("_", " "), style=OUTCOME_STYLES.get(outcome, "yellow"))
    error = call.get("error")
    return text.append(f"\n{error['code'] or error['param'] or error['status']}", style="dim") if error else text


def route_text(call: Json) -> str:
    return chain_text(call["hops"])


def clock(unix_time: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_time))


def config_line(config: Json) -> str:
    """In the dashboard's words; a knob that is not known here under its own name."""
    return ", ".join(
        CONFIG_WORDS.get(name, f"{name.replace('_', ' ')} {{}}").format(value) for name, value in config.items()
    )


def pulse_line(overview: Json) -> str:
    """How much is going on, and who went lately."""
    running = overview["in_flight"]
    line = f"{running} call{'' if running == 1 else 's'} running, {overview['tokens_per_s']:.1f} tokens/s"
    gone = [f"{instance(node['node_id'])} {node['state']} {node['age_s']:.0f} s ago" for node in overview["departed"]]
    return "; gone lately: ".join([line, ", ".join(gone)] if gone else [line])


def verdict_line(model: Json) -> Text:
    """Whether a model is served, and if not, why."""
    return Text(f"{model['name']}: {model['verdict']}", style="green" if model["is_served"] else "red")


def instance(node_id: str) -> str:
    return node_id.split(".", 1)[0]


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


def chain_text(hops: Sequence[Json]) -> str:
    """One layer is all there is of a model behind another server."""
    if len(hops) == 1 and hops[0]["end_layer"] == 0:
        return f"{instance(hops[0]['node_id'])}[all]"
    return " -> ".join(hop_text(hop) for hop in hops)


def hop_text(hop: Json) -> str:
    """Instance and the layers really run, as in ``fast[0-16]``."""
    return f"{instance(hop['node_id'])}[{hop['start_layer']}-{hop['end_layer']}]"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
