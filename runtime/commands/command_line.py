"""What all command lines share: sections of options, suggestions, completion, --version, the deployment argument."""

from __future__ import annotations

import glob
import importlib.util
import logging
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from runtime.base.errors import BuildError, did_you_mean
from runtime.base.files import expanded, own_entries
from runtime.commands.terminal import (
    EXIT_INTERRUPTED,
    EXIT_STATUS_HELP,
    OneLineFormatter,
    exit_on_error,
    flush_output,
    print_line,
    sigterm_as_interrupt,
)

Function = TypeVar("Function", bound=Callable[..., Any])
HELP_SETTINGS = {"context_settings": {"max_content_width": 100}, "epilog": EXIT_STATUS_HELP}


class _Program:
    """Ends the process with the exit statuses of runtime.commands.terminal, and shows options in sections."""

    def main(self, *arguments: Any, **settings: Any) -> NoReturn:
        """Run the command. Raises SystemExit."""
        if logging.lastResort is not None:  # where a command sets up no logging
            logging.lastResort.setFormatter(OneLineFormatter())
        with exit_on_error(), sigterm_as_interrupt():
            status = super().main(*arguments, **settings | {"standalone_mode": False})  # type: ignore[misc]
            if status == EXIT_INTERRUPTED:
                raise KeyboardInterrupt  # Typer turns one outside of the command's own function into a status
            flush_output()
            raise SystemExit(status or 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does; a shell expands ~ only where a word begins with it, which --out=~/x does not."""
        rest = list(super().parse_args(ctx, args))  # type: ignore[misc]
        ctx.params = {name: expanded(each) if isinstance(each, Path) else each for name, each in ctx.params.items()}
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each `rich_help_panel`; Arguments and Options are what has none."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = parameter.rich_help_panel or f"{parameter.param_type_name}s".capitalize()
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Command(_Program, TyperCommand):
    """One command."""


class Group(_Program, TyperGroup):
    """Commands by name. Without arguments it prints its help to standard error, with status 2."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The options' sections, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return list(super().parse_args(ctx, args))


class DefaultCommandGroup(Group):
    """Commands of which the first one runs where the arguments begin with no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before arguments without one."""
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if args and args[0] not in self.commands and args[0].partition("=")[0] not in own:
            similar = did_you_mean(args[0], self.commands)
            if similar and not Path(args[0]).exists():
                ctx.fail(f"No such command or file: {args[0]}; {similar}")
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Commands, and what the first command takes."""
        first = next(iter(self.commands.values()))
        arguments = [item for item in first.params if item.param_type_name == "argument"]
        sources: list[Any] = [super(), first, *arguments]
        return [completion for source in sources for completion in source.shell_complete(ctx, incomplete)]


class CommandLine(typer.Typer):
    """A Typer application with this module's commands. `settings`: those of typer.Typer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**HELP_SETTINGS, "cls": Group, "rich_markup_mode": None, **settings})
        self.pretty_exceptions_enable = False

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Register a command, as typer.Typer.command() does."""
        return super().command(name, **{**HELP_SETTINGS, "cls": Command, **settings})


def complete_deployment(incomplete: str) -> list[str]:
    """Completions of a deployment: names of shipped ones, and TOML files in this folder or one below."""
    from runtime.config.deployment import SHIPPED

    names = [path.stem for path in own_entries(SHIPPED, ".toml")]
    start = glob.escape(incomplete)
    files = sorted(glob.glob(f"{start}*.toml") + glob.glob(f"{start}*/*.toml"))
    return [name for name in names if name.startswith(incomplete)] + [name for name in files if name.isprintable()]


def need_packages(*names: str, extra: str = "export") -> None:
    """Raises BuildError where packages of an extra, which the runtime does without, are not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        fix = f"pip install 'tickrt[{extra}]'"
        raise BuildError(f"this command needs {', '.join(missing)}, not installed here", fix=fix)


def print_version(is_asked: bool) -> None:
    """Print the versions of TickRT, Python and the installed engine libraries; the callback of --version."""
    if not is_asked:
        return
    from runtime.engines.loading import tool_versions

    tools = tool_versions("openvino") | tool_versions("tensorrt") | tool_versions("tensorrt-rtx")
    with suppress(metadata.PackageNotFoundError):
        print_line(f"tickrt {metadata.version('tickrt')}")
    for name, version in {"Python": platform.python_version(), **tools}.items():
        print_line(f"{name} {version}")
    raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=print_version, is_eager=True, help="Print versions and exit."),
]
Config = Annotated[
    Path,
    typer.Argument(
        help="The deployment file, such as configs/demo.toml, or the name of a shipped one: demo.",
        autocompletion=complete_deployment,
    ),
]
