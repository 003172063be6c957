"""tickrt-build: a deployment file in, engines and manifests out."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engine_build.builder import build
from engine_build.config import BuildRequest, load_request
from engine_build.decisions import decide
from engine_build.report import ConsoleReport, print_decisions
from runtime.config import Target
from runtime.errors import ConfigError, TickError

EXIT_CONFIG = 2
EXIT_BUILD = 3
EXIT_INTERRUPTED = 130

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class TargetName(StrEnum):
    """The choices of --target."""

    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


@app.command()
def tickrt_build(
    config: Annotated[Path, typer.Argument(help="The deployment file, such as configs/demo.toml.")],
    target: Annotated[
        TargetName | None, typer.Option(help="Where the engines will run; else the file's own target.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build engines that are up to date too.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=0, max=256, help="CPU threads (0 = all cores); else the file's [build] threads.")
    ] = None,
) -> None:
    """Build a deployment's engines: what is missing or stale, each checked against its graph.

    Exit status: 0 done, 2 the configuration or bundle is wrong, 3 an engine could not be built, 130 interrupted.
    """
    try:
        request = load_request(config, threads=threads)
        chosen: Target = target.value if target else request.deployment.target
        _dry_run(request, chosen, force) if dry_run else _build(request, chosen, force)
    except TickError as error:
        _complain(str(error))
        raise typer.Exit(EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_BUILD) from None
    except KeyboardInterrupt:
        _complain("interrupted; engines that are done stay, the one in work is gone")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def main() -> None:
    """The command's entry."""
    app(prog_name="tickrt-build")


def _dry_run(request: BuildRequest, target: Target, force: bool) -> None:
    where = _shown(request.deployment.engine_folder(target))
    print_decisions(Console(), decide(request, target, force=force), where)


def _build(request: BuildRequest, target: Target, force: bool) -> None:
    started = time.monotonic()
    report = ConsoleReport(Console())
    build(request, target=target, force=force, report=report)
    report.summary(_shown(request.deployment.engine_folder(target)), time.monotonic() - started)


def _complain(text: str) -> None:
    Console(stderr=True).print(f"error: {text}", markup=False, highlight=False, soft_wrap=True)


def _shown(path: Path) -> str:
    """A path as one would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


if __name__ == "__main__":
    main()
