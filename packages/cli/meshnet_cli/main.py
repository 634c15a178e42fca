"""The command's composition root: which commands there are, and how their mistakes are told."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from meshnet_cli.errors import CommandError
from meshnet_cli.lazy_commands import LazyCommands
from meshnet_node.errors import NodeError
from meshnet_tracker.errors import TrackerError

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130

app = typer.Typer(
    name="meshnet",
    cls=LazyCommands,
    help="Serve one LLM across the machines you already have.",
    no_args_is_help=True,
    # The boxed help of rich cuts long flags and variables short at 80 columns; the plain one wraps.
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"meshnet {version('meshnet-cli')}")
        raise typer.Exit


@app.callback()
def every_command(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Serve one LLM across the machines you already have."""


def main() -> None:
    """Run the command line; a mistake is told in one line on standard error."""
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # nothing was asked for: what could be is no error, and has lines of its own
            print(message, file=sys.stderr)
            sys.exit(USAGE_EXIT_CODE)
        fail(message, error.exit_code)
    except (CommandError, NodeError, TrackerError) as error:
        fail(str(error), USAGE_EXIT_CODE)
    except (Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED_EXIT_CODE)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int) -> None:
    print(f"meshnet: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
