"""Commands that are imported when they are asked for: ``meshnet status`` needs no engine, and no web framework."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "tracker": "meshnet_cli.tracker_command:tracker",
    "node": "meshnet_cli.node_command:node",
    "status": "meshnet_cli.status_command:status",
    "routes": "meshnet_cli.routes_command:routes",
    "calls": "meshnet_cli.calls_command:calls",
    "chat": "meshnet_cli.chat_command:chat",
    "demo": "meshnet_cli.demo.command:demo",
    "bench": "meshnet_cli.bench_command:bench",
    "model": "meshnet_cli.model_command:model_app",
}
"""Where each is: a function, or a ``Typer`` of functions. Help lists them in this order."""


class LazyCommands(TyperGroup):
    """Knows its commands by name. Help imports them all, for what each says of itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Any = dict.fromkeys(COMMANDS)  # names alone: what a misspelt one may have meant

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(module), name)
        holder = typer.Typer(rich_markup_mode=None)
        holder.callback()(lambda: None)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=cmd_name)
        else:
            holder.command(cmd_name)(found)
        return typer.main.get_group(holder).get_command(ctx, cmd_name)
