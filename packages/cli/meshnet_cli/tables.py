"""What the tracker knows, as tables for a terminal. Used by ``meshnet status`` and the demo alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

Json = Mapping[str, Any]

ROUTE_COLUMN_CHARS_MIN = 14
STATUS_STYLES = {"proven": "green", "unsampled": "yellow", "stale": "yellow", "decayed": "dim"}


def routes_table(model: Json) -> Table:
    """The learned routes of one model, best first, as ``GET /v1/routing`` lists them."""
    table = plain_table(f"{model['model']}, epoch {model['epoch']}")
    table.add_column("route", overflow="fold", min_width=ROUTE_COLUMN_CHARS_MIN)
    for column in ("status", "tok/s", "coeff.", "expect", "actual", "samples", "weight", "load"):
        table.add_column(column, justify="right", no_wrap=True)
    for arm in model["candidates"]:
        style = STATUS_STYLES.get(arm["status"], "")
        table.add_row(
            " -> ".join(hop_text(hop) for hop in arm["hops"]),
            f"[{style}]{arm['status']}[/{style}]" if style else arm["status"],
            number(arm["tps"], 1),
            number(arm["coefficient"], 2),
            percent(arm["expected_share"]),
            percent(arm["actual_share"]),
            str(arm["samples"]),
            number(arm["weight"], 2),
            str(arm["in_flight"]),
        )
    return table


def nodes_table(nodes: Sequence[Json]) -> Table:
    """Who holds which layers, as ``GET /v1/nodes`` lists them."""
    table = plain_table("nodes")
    for column in ("node", "model", "layers", "enter at", "layer-tok/s", "queue", "state", "heard"):
        table.add_column(column, justify="left" if column in ("node", "model") else "right", overflow="fold")
    for node in nodes:
        table.add_row(
            node["node_id"],
            node["model"],
            node["shard"],
            ", ".join(map(str, node["entry_layers"])),
            number(node["layer_tokens_per_s"], 0),
            str(node["queue_depth"]),
            node["state"],
            f"{node['heartbeat_age_s']:.1f} s ago",
        )
    return table


def plain_table(title: str) -> Table:
    """Few lines and no waste of width: the routes must fit a terminal of 80 columns."""
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False
    )


def hop_text(hop: Json) -> str:
    """Instance and the layers really run, as in ``fast[0-16]``."""
    instance = hop["node_id"].split(".", 1)[0]
    return f"{instance}[{hop['start_layer']}-{hop['end_layer']}]".replace("[", r"\[")


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
