"""``meshnet model``: which models are here, fetching layers ahead of time, and what a cut would need."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn

from meshnet_cli.keys import one_key
from meshnet_cli.node_command import parse_layers
from meshnet_cli.paths import default_cache_dir, default_wallet
from meshnet_cli.tables import add_row, plain_table
from meshnet_cli.tls import context_of_environment
from meshnet_node.engine.api import EngineOptions, megabytes
from meshnet_node.model_catalog import KeptFile, default_cuts, delete, kept_files, needs_at, pull, unused_files
from meshnet_node.model_source import open_model
from meshnet_node.sources.progress import log_progress
from meshnet_node.sources.remote import ReportProgress
from meshnet_node.tracker_client import Membership
from meshnet_node.tracker_reads import TrackerReads
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.wallet import Wallet
from meshnet_protocol.layers import LayerRange

CACHE_DIR_DEFAULT = default_cache_dir()
DAY_S = 86400.0

model_app = typer.Typer(help="Look at models, and fetch layers of them ahead of time.", no_args_is_help=True)

Model = Annotated[
    str,
    typer.Argument(
        envvar="MESHNET_MODEL",
        help="A .gguf file, an http(s) URL, owner/repository:file.gguf of Hugging Face, mesh:NAME, or a model package: "
        "'smollm2', 'gemma3-270m'.",
    ),
]
CacheDir = Annotated[Path, typer.Option(envvar="MESHNET_CACHE_DIR", help="Where layers of models are kept.")]
Tracker = Annotated[str, typer.Option(envvar="MESHNET_TRACKER", help="Whom to ask for mesh: models.")]


def _reads(tracker: str, model: str) -> TrackerReads:
    """Asks as a node would, where the mesh is asked at all."""
    if not model.startswith("mesh:"):
        return TrackerReads(tracker)
    tls = context_of_environment()
    file = os.environ.get("MESHNET_JOIN_TOKEN_FILE")
    token = one_key(os.environ.get("MESHNET_JOIN_TOKEN"), Path(file) if file else None, flag="--join-token")
    membership = Membership(Wallet.load_or_create(default_wallet()), TrackerTrust(), token)
    return TrackerReads(tracker, membership, tls)


@model_app.command("list")
def list_models(
    paths: Annotated[
        bool, typer.Option("--paths", envvar="MESHNET_PATHS", help="Only say where each file is, one a line.")
    ] = False,
    cache_dir: CacheDir = CACHE_DIR_DEFAULT,
) -> None:
    """Show the models, and layers of models, that are on this machine."""
    files = kept_files(cache_dir)
    if not files:
        print("No model is here yet. Fetch one: meshnet model pull owner/repository:file.gguf --layers 0-15")
    elif paths:
        _print_paths(files)
    else:
        table = plain_table("models on this machine")
        table.add_column("model", overflow="fold")
        for column in ("layers", "kind", "size"):
            table.add_column(column, justify="left" if column == "kind" else "right", no_wrap=True)
        for file in files:
            add_row(table, file.name, file.layers, file.kind, megabytes(file.byte_count))
        Console().print(table)
        print(f"Layers and downloads are kept in {cache_dir}; --paths lists each file.")


def _print_paths(files: Iterable[KeptFile]) -> None:
    for file in files:
        print(f"{megabytes(file.byte_count):>10}  {file.path}")


@model_app.command("pull")
def pull_model(
    model: Model,
    layers: Annotated[
        LayerRange | None,
        typer.Option(
            envvar="MESHNET_LAYERS", parser=parse_layers, metavar="FIRST-LAST", help="Layers to fetch. Default: all."
        ),
    ] = None,
    cache_dir: CacheDir = CACHE_DIR_DEFAULT,
    tracker: Tracker = "http://127.0.0.1:8090",
) -> None:
    """Fetch layers of a model, so that a node starts at once later. Goes on where it was interrupted.

    Example: meshnet model pull someone/Some-Model-GGUF:some-model-q8_0.gguf --layers 0-15
    """
    try:
        with progress_on_terminal() as progress:
            opened = open_model(model, cache_dir=cache_dir, tracker=_reads(tracker, model), progress=progress)
            path = pull(opened, layers, cache_dir)
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on where this one was.", file=sys.stderr)
        raise
    print(path)


@model_app.command("prune")
def prune_models(
    days: Annotated[
        float, typer.Option(min=0, envvar="MESHNET_PRUNE_DAYS", help="Keep what a node loaded in so many days.")
    ] = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="MESHNET_DRY_RUN", help="Only say what would be deleted.")
    ] = False,
    cache_dir: CacheDir = CACHE_DIR_DEFAULT,
) -> None:
    """Delete layers that no node here has loaded for long.

    Downloads, too. Nodes make or fetch them again.
    """
    files = unused_files(cache_dir, since=time.time() - days * DAY_S)
    _print_paths(files)
    freed = sum(file.byte_count for file in files) if dry_run else delete(files)
    print(f"{megabytes(freed)} {'could be freed' if dry_run else 'freed'}")


@model_app.command("inspect")
def inspect_model(
    model: Model,
    cut: Annotated[
        list[int] | None,
        typer.Option(envvar="MESHNET_CUT", help="First layer of the second node; may be given several times."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, envvar="MESHNET_SLOTS", help="Chats at the same time.")] = 4,
    context_tokens: Annotated[
        int, typer.Option(min=64, envvar="MESHNET_CONTEXT_TOKENS", help="Longest chat, per slot.")
    ] = 4096,
    cache_dir: CacheDir = CACHE_DIR_DEFAULT,
    tracker: Tracker = "http://127.0.0.1:8090",
) -> None:
    """Show what a model is, and the memory that a cut would need.

    Fetches its header only.
    """
    opened = open_model(model, cache_dir=cache_dir, tracker=_reads(tracker, model), progress=log_progress)
    options = EngineOptions(cache_dir, slots=slots, context_tokens=context_tokens).fitted_to(opened)
    needs = needs_at(opened, cut or default_cuts(opened), options)
    print(
        f"{opened.name}: {opened.architecture}, {opened.layer_count} layers of {opened.hidden_size}, trained for "
        f"{opened.context_tokens} tokens, {megabytes(opened.path.stat().st_size)}"
    )
    table = plain_table(f"memory for {slots} slots of {options.context_tokens} tokens")
    for column in ("cut", "layers", "weights", "KV cache", "buffers", "in all"):
        table.add_column(column, justify="right")
    for need in needs:
        if need.problem:
            add_row(table, str(need.cut), need.problem)
        for layers, side in need.sides:
            figures = (side.weights, side.cache, side.buffers, side.total)
            add_row(table, str(need.cut), str(layers), *map(megabytes, figures))
    Console().print(table)


@contextmanager
def progress_on_terminal() -> Iterator[ReportProgress]:
    """A bar on a terminal, log lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield log_progress
        return
    with Progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=console) as bars:

        def bar(what: str) -> Callable[[int, int], None]:
            """Only when something is fetched, and with what was here before out of the speed."""
            task: TaskID | None = None

            def report(done: int, total: int) -> None:
                nonlocal task
                if task is None:
                    # A line of its own: beside a long name, 80 columns have no room for a bar.
                    bars.console.print(what, markup=False, highlight=False, soft_wrap=True)
                    task = bars.add_task(what, completed=done)
                bars.update(task, completed=done, total=total)

            return report

        yield bar
