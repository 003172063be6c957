"""tickrt: the installed commands tickrt-* as its subcommands. A subcommand's module is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from runtime.command_line import Command, CommandLine, Version
from runtime.startup import COMMANDS

SUBCOMMANDS = {
    "build": "Build a deployment's engines; list, inspect and remove built ones.",
    "serve": "Serve a deployment over HTTP, with a page to play it.",
    "generate": "Generate audio or latents from a text.",
    "bench": "Measure ticks, and live sessions.",
    "cluster": "Try several replicas on this machine: Ray Serve, HAProxy, Redis.",
    "mcp": "Let an assistant on this machine make and play music, over stdio.",
    "profile": "Measure the layers of an engine; compare two profiles.",
}


class InstalledCommand(Command):
    """The command tickrt-NAME. Its module has the Typer application `app`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the module's own command."""
        command = typer.main.get_command(import_module(COMMANDS[f"tickrt-{info_name}"]).app)
        return command.make_context(info_name, args, parent, **extra)


app = CommandLine()


@app.callback()
def tickrt(version: Version = False) -> None:
    """Flow-matching diffusion decoders as engines, served as a live stream. tickrt build is tickrt-build, and so on."""


for name, text in SUBCOMMANDS.items():
    app.command(name, cls=InstalledCommand, help=text, add_help_option=False)(lambda: None)


def main() -> None:
    """Entry point of tickrt."""
    app(prog_name="tickrt")
