"""``meshnet bench routing``: which policy routes best, on worlds made to be hard, in simulated time."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from meshnet_cli.errors import CommandError
from meshnet_tracker.bench.contenders import CONTENDERS
from meshnet_tracker.bench.pictures import can_plot, plot
from meshnet_tracker.bench.report import COLUMNS, Cell, as_json, cells_of_row, gather
from meshnet_tracker.bench.runs import make_jobs, run_jobs
from meshnet_tracker.bench.worlds import SCENARIOS, TOPOLOGIES

SHORT_TOPOLOGIES = ("A", "B", "E", "F")
SHORT_SCENARIOS = ("stationary", "slow-down", "join", "flap", "fail-fast", "truncate", "load-0.6")
SHORT_POLICIES = ("clairvoyant", "adaptive", "proportional")
ALL = "all"

bench = typer.Typer(help="Measure parts of the mesh.", no_args_is_help=True)


@bench.callback()
def _commands() -> None:
    """Measure parts of the mesh."""


@bench.command()
def routing(
    topology: Annotated[
        list[str] | None, typer.Option(help=f"Which nodes: {', '.join(TOPOLOGIES)}, or all. May be repeated.")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option(help=f"What befalls them: {', '.join(SCENARIOS)}, or all. May be repeated.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"Who chooses: {', '.join(CONTENDERS)}, or all. May be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many worlds of each kind, 0 to this.")] = 2,
    minutes: Annotated[float, typer.Option(min=1, max=600, help="Simulated minutes of each run.")] = 20.0,
    processes: Annotated[int, typer.Option(min=0, max=256, help="Processes at once; 0 for one per core.")] = 0,
    plot_folder: Annotated[
        Path | None, typer.Option("--plot", help="Folder for pictures; needs matplotlib (uv sync --group plots).")
    ] = None,
) -> None:
    """Compare routing policies in simulated time.

    All run through the same simulated hours; without options, a short set of them.
    The last line of the output is one JSON object with every figure.

    Example: meshnet bench routing --topology B --scenario slow-down --policy all --seeds 20 --minutes 60
    """
    topologies = _chosen("--topology", topology, list(TOPOLOGIES), SHORT_TOPOLOGIES)
    scenarios = _chosen("--scenario", scenario, list(SCENARIOS), SHORT_SCENARIOS)
    policies = _chosen("--policy", policy, list(CONTENDERS), SHORT_POLICIES)
    if plot_folder is not None and not can_plot():
        raise CommandError("--plot needs matplotlib, which is not installed: uv sync --group plots")
    jobs = make_jobs(topologies, scenarios, policies, seeds=seeds, duration_s=60 * minutes)
    console = Console(stderr=True)
    cells = gather(
        track(
            run_jobs(jobs, processes=processes or os.cpu_count()),
            total=len(jobs),
            description="worlds",
            console=console,
            transient=True,
        )
    )
    for cell in cells:
        Console(width=max(200, console.width)).print(_table(cell))
        if plot_folder is not None:
            print(plot(cell, plot_folder))
    print(json.dumps(as_json(cells, seeds=seeds, minutes=minutes), allow_nan=False))


def _chosen(flag: str, given: list[str] | None, known: list[str], short: tuple[str, ...]) -> list[str]:
    if given is None:
        return list(short)
    if given == [ALL]:
        return known
    unknown = [name for name in given if name not in known]
    if unknown:
        raise CommandError(f"{flag} {', '.join(unknown)}: choose among {', '.join(known)}, or {ALL}")
    return list(dict.fromkeys(given))


def _table(cell: Cell) -> Table:
    table = Table(title=f"{cell.topology} {cell.scenario}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("policy", "cap") else "right", no_wrap=True)
    for policy in cell.by_policy:
        table.add_row(*cells_of_row(cell.row(policy)))
    return table
