"""tickrt-build: a deployment file in, engines and manifests out; what is built, and taking it away."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engine_build.build.builder import build
from engine_build.build.environment import place_of, place_or_why_not
from engine_build.build.rebuild_check import decide
from engine_build.config import BuildRequest, load_request, read_options
from engine_build.reports import dry_run as outline
from engine_build.reports import inventory
from engine_build.reports.console import ConsoleReport, print_decisions, size
from engine_build.reports.inventory_console import print_entries, print_inspection
from runtime.config.bundle import BUNDLE_FILE
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.errors import ConfigError
from runtime.terminal import EXIT_STATUS_HELP, DefaultCommandGroup, exit_on_error, print_line, shown_path

INTERRUPTED = "interrupted; finished engines are kept, the unfinished one is removed"


app = typer.Typer(
    cls=DefaultCommandGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


class TargetName(StrEnum):
    """The choices of --target."""

    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


Config = Annotated[Path, typer.Argument(help="The deployment file, such as configs/demo.toml.")]
OneTarget = Annotated[TargetName | None, typer.Option("--target", help="Engines of this target only; else of all.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


@app.callback(epilog=EXIT_STATUS_HELP)
def tickrt_build() -> None:
    """Build a deployment's engines: tickrt-build CONFIG. Also: list CONFIG, inspect ENGINE, clean CONFIG."""


@app.command("build")
def build_command(
    config: Config,
    target: Annotated[
        TargetName | None, typer.Option(help="Where the engines will run; else the file's own target.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build engines that are up to date too.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=0, max=256, help="CPU threads (0 = all cores); else the file's [build] threads.")
    ] = None,
) -> None:
    """Build what is missing or stale, each engine checked against its graph. The word `build` may be left out.

    A dry run needs no GPU, no TensorRT and no bundle.
    """
    with exit_on_error(INTERRUPTED):
        deployment = load_deployment(config)
        chosen: Target = target.value if target else deployment.target
        if dry_run:
            _dry_run(deployment, chosen, force, threads)
        else:
            _build(load_request(config, threads=threads), chosen, force)


@app.command("list")
def list_command(config: Config, target: OneTarget = None, as_json: AsJson = False) -> None:
    """What is built of a deployment: for what, how large, how exact, and whether it runs on this machine."""
    with exit_on_error(INTERRUPTED):
        deployment = load_deployment(config)
        options = read_options(deployment)
        found = [
            entry
            for name, folder in inventory.engine_folders(deployment, target.value if target else None)
            for entry in inventory.entries(folder, place_or_why_not(name, options))
        ]
        if as_json:
            print(json.dumps([entry.as_json() for entry in found], indent=1))
        else:
            print_entries(Console(), found, shown_path(deployment.engines))


@app.command("inspect")
def inspect_command(
    engine: Annotated[Path, typer.Argument(help="An engine file (.plan or .onnx) with its manifest beside it.")],
    as_json: AsJson = False,
) -> None:
    """What an engine file is: version, shape ranges, tensors, options, measured error. Needs no GPU; opens nothing."""
    with exit_on_error(INTERRUPTED):
        about = inventory.inspect(engine)
        if as_json:
            print(json.dumps(about, indent=1))
        else:
            print_inspection(Console(), about)


@app.command("clean")
def clean_command(
    config: Config,
    target: OneTarget = None,
    timing_cache: Annotated[
        bool, typer.Option("--timing-cache", help="TensorRT's measured times too: the next build takes longer.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take away a deployment's engines and what interrupted builds left. Other files stay."""
    with exit_on_error(INTERRUPTED):
        deployment = load_deployment(config)
        chosen: Target | None = target.value if target else None
        what = inventory.doomed(deployment, chosen, timing_cache=timing_cache)
        where = shown_path(deployment.engines)
        if not what.paths:
            print_line(f"nothing to remove in {where}")
            return
        if not yes:
            typer.confirm(f"remove {len(what.paths)} files, {size(what.size_bytes)}, from {where}?", abort=True)
        gone = inventory.clean(deployment, chosen, timing_cache=timing_cache)
        print_line(f"{len(gone.paths)} files removed, {size(gone.size_bytes)}, from {where}")


def main() -> None:
    """The command's entry."""
    app(prog_name="tickrt-build")


def _dry_run(deployment: Deployment, target: Target, force: bool, threads: int | None) -> None:
    """The table of decisions; for plans also their shape ranges and options, and what is missing here."""
    console = Console()
    is_cpu = target == "cpu"
    options = read_options(deployment, threads)
    place = place_of(target, options) if is_cpu else place_or_why_not(target, options)
    if not is_cpu and not (deployment.bundle / BUNDLE_FILE).is_file():
        _dry_run_without_bundle(console, deployment, target, threads)
        return
    decisions = decide(load_request(deployment.path, threads=threads), target, force=force, place=place)
    print_decisions(console, decisions, shown_path(deployment.engine_folder(target)))
    if not is_cpu:
        outline.print_outline(console, target, outline.outlines_of(decisions), options, place)


def _dry_run_without_bundle(console: Console, deployment: Deployment, target: Target, threads: int | None) -> None:
    options = read_options(deployment, threads)
    engines = outline.outlines_without_bundle(deployment, options)
    try:
        load_request(deployment.path)
    except ConfigError as error:
        outline.print_engines_unknown(console, engines, error)
    outline.print_outline(console, target, engines, options, place_or_why_not(target, options))


def _build(request: BuildRequest, target: Target, force: bool) -> None:
    started = time.monotonic()
    report = ConsoleReport(Console())
    build(request, target=target, force=force, report=report)
    report.summary(shown_path(request.deployment.engine_folder(target)), time.monotonic() - started)


if __name__ == "__main__":
    main()
