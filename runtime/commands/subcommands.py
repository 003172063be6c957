"""tickrt: the installed commands tickrt-* as its subcommands, demo and pull. A module is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer

from runtime.commands.command_line import Command, CommandLine, Group, Version
from runtime.commands.startup import COMMANDS

SUBCOMMANDS = {
    "demo": "Play the demo in the browser.",
    "pull": "Download a published model, export it, and build it for this machine.",
    "build": "Build a deployment's engines; list, inspect and remove built ones.",
    "serve": "Serve a deployment over HTTP, with a page to play it.",
    "generate": "Generate audio or latents from a text.",
    "bench": "Measure ticks, and live sessions.",
    "cluster": "Try several replicas on this machine: Ray Serve, HAProxy, Redis.",
    "mcp": "Let an assistant on this machine make and play music, over stdio.",
    "profile": "Measure the layers of an engine; compare two profiles.",
}
MODULES = {name.removeprefix("tickrt-"): module for name, module in COMMANDS.items()} | {
    "demo": "server.demo",
    "pull": "engine_build.pull",
}
FIRST_STEPS = """Play the demo in the browser:

  tickrt demo

Make a file with it, or serve it to other programs:

  tickrt generate demo --prompt "calm piano in D minor" --out calm.wav
  tickrt serve demo

tickrt --help lists all commands."""
INSTALL = """To run a model, TickRT needs ONNX Runtime, which is not installed here:

  pip install 'tickrt[cpu]'      (for an NVIDIA GPU: tickrt[tensorrt-rtx], tickrt[tensorrt] or tickrt[cuda])
"""


class InstalledCommand(Command):
    """A subcommand. Its module has the Typer application `app`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the module's own command."""
        command = typer.main.get_command(import_module(MODULES[str(info_name)]).app)
        return command.make_context(info_name, args, parent, **extra)


class Subcommands(Group):
    """The subcommands. Without arguments it says what to do next, with status 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # Every extra that runs models brings it.
            typer.echo(FIRST_STEPS if find_spec("onnxruntime") else f"{INSTALL}\n{FIRST_STEPS}", err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)


app = CommandLine(cls=Subcommands)


@app.callback()
def tickrt(version: Version = False) -> None:
    """Flow-matching diffusion decoders as engines, served as a live stream. tickrt build is tickrt-build, and so on."""


for name, text in SUBCOMMANDS.items():
    app.command(name, cls=InstalledCommand, help=text, add_help_option=False)(lambda: None)


def main() -> None:
    """Entry point of tickrt."""
    app(prog_name="tickrt")
