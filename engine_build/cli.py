"""tickrt-build: build a deployment's engines; list, inspect and remove built ones."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from engine_build.compile.builder import build
from engine_build.compile.environment import build_environment, probe_environment
from engine_build.compile.rebuild_check import card_of, check_graphs, check_rebuilds
from engine_build.config import BuildConfig, choose_precision, for_target
from engine_build.new_bundle.init import InitOptions, init, parse_roles
from engine_build.new_bundle.roles import NAMES
from engine_build.reports import dry_run, inventory
from engine_build.reports.console import ConsoleReport, print_decisions, print_entries, print_inspection, size
from engine_build.reports.device_memory import expected_memory
from engine_build.request import BuildRequest, read_options, request_of
from engine_build.shipping import check_shippable, ship
from runtime.base.errors import ConfigError
from runtime.commands.command_line import CommandLine, Config, DefaultCommandGroup, Version
from runtime.commands.progress import waiting
from runtime.commands.terminal import Terminal, exit_on_error, print_line, shown_path
from runtime.config.bundle import BUNDLE_FILE
from runtime.config.deployment import HOST_TARGETS, Deployment, Target, load_deployment

THREADS_HELP = BuildConfig.model_fields["threads"].description
INTERRUPTED = "interrupted; finished engines are kept, the unfinished one is removed"

app = CommandLine(cls=DefaultCommandGroup)


OneTarget = Annotated[Target | None, typer.Option("--target", help="Engines of this target only; else of all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def tickrt_build(version: Version = False) -> None:
    """Build a deployment's engines: tickrt-build CONFIG. Also: init MODEL.onnx, list CONFIG, inspect ENGINE, clean
    CONFIG."""


@app.command("build")
def build_engines_command(
    config: Config,
    target: Annotated[
        Target | None, typer.Option(help="Where the engines will run; else the file's own target.")
    ] = None,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be built; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also rebuild engines that are up to date.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=0, max=256, help=f"{THREADS_HELP} Default: the file's [build] threads.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write a folder for the machine with the card. Only for --target tensorrt-rtx."),
    ] = None,
) -> None:
    """Build missing and stale engines, each compared with its graph. The word `build` may be left out.

    A dry run needs no GPU, no TensorRT and no bundle.
    """
    with exit_on_error(INTERRUPTED):
        deployment = load_deployment(config)
        chosen = target or deployment.target
        if out is not None:
            check_shippable(deployment, out, chosen)
        if is_dry_run:
            _dry_run(deployment, chosen, force, threads)
            return
        build_with_progress(request_of(deployment, threads=threads), chosen, force=force)
        if out is not None:
            with waiting(f"writing {shown_path(out)}"):
                ship(deployment, out)
            print_line(f"written to {shown_path(out)}: copy it to the machine with the card, its README.md goes on")


@app.command("init")
def init_command(
    model: Annotated[Path, typer.Argument(help="The decoder's ONNX graph.")],
    codec: Annotated[Path | None, typer.Option(help="The ONNX graph that turns latents into audio.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write to. Default: the decoder's folder.")] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help=f"A decoder's tensor. Roles: {', '.join(NAMES)}. Repeatable."),
    ] = None,
    frame_rate: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="HZ", help="Latent frames per second. Default: 25, or the codec's."),
    ] = None,
    sample_rate: Annotated[
        int | None, typer.Option(min=1, metavar="HZ", help="The codec's samples per second. Default: 48000.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace bundle.toml and deployment.toml.")] = False,
) -> None:
    """Write bundle.toml and deployment.toml for a model of your own; guesses, or asks, what each tensor is."""
    folder, roles = out or model.parent, parse_roles(role or [])
    init(InitOptions(model, codec, folder, roles, frame_rate, sample_rate, force))


@app.command("list")
def list_command(config: Config, target: OneTarget = None, as_json: AsJson = False) -> None:
    """List a deployment's built engines: target, size, error, and whether they run on this machine."""
    deployment = load_deployment(config)
    options, folders = read_options(deployment), inventory.engine_folders(deployment, target)
    found = list[inventory.InventoryEntry]()
    cards = dict[Target, Mapping[str, str] | None]()
    for name, folder in folders:
        environment = probe_environment(name, for_target(options, deployment, name))
        found += (own := list(inventory.entries(folder, environment)))
        built = [card for entry in own if entry.manifest is not None and (card := card_of(entry.manifest))]
        cards[name] = built[0] if built and environment.missing is not None else None
    if as_json:
        Terminal().out(json.dumps([entry.as_json() for entry in found], indent=1), highlight=False)
    else:
        terminal = Terminal()
        print_entries(terminal, found, shown_path(deployment.engines))
        for name, _ in folders if options.of("decoder").precision == "auto" else ():
            chosen = choose_precision(deployment, name, card=cards[name])
            print_line(f'precision = "auto" on the target {name}: {chosen.precision}, {chosen.reason}', terminal)


@app.command("inspect")
def inspect_command(
    engine: Annotated[Path, typer.Argument(help="An engine file (.plan or .onnx) with its manifest beside it.")],
    as_json: AsJson = False,
) -> None:
    """Show an engine's version, shape ranges, tensors, options and measured error. Needs no GPU; opens no engine."""
    with waiting(f"reading {shown_path(engine)}"):
        about = inventory.inspect(engine)
    if as_json:
        Terminal().out(json.dumps(about, indent=1), highlight=False)
    else:
        print_inspection(Terminal(), about)


@app.command("clean")
def clean_command(
    config: Config,
    target: OneTarget = None,
    timing_cache: Annotated[
        bool, typer.Option("--timing-cache", help="Also remove TensorRT's timing cache: the next build takes longer.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a deployment's engines and leftovers of interrupted builds. Other files stay."""
    deployment = load_deployment(config)
    found = inventory.removal(deployment, target, timing_cache=timing_cache)
    where = shown_path(deployment.engines)
    if not found.paths:
        print_line(f"nothing to remove in {where}")
        return
    if not yes:
        typer.confirm(f"remove {len(found.paths)} files, {size(found.size_bytes)}, from {where}?", abort=True)
    removed = inventory.clean(deployment, target, timing_cache=timing_cache)
    print_line(f"{len(removed.paths)} files removed, {size(removed.size_bytes)}, from {where}")


def main() -> None:
    """The console script tickrt-build."""
    app(prog_name="tickrt-build")


def _dry_run(deployment: Deployment, target: Target, force: bool, threads: int | None) -> None:
    """The table of decisions; for GPU targets also shape ranges, options, and what is missing here."""
    console = Terminal()
    is_on_host = target in HOST_TARGETS
    options = for_target(read_options(deployment, threads), deployment, target)
    environment = build_environment(target, options) if is_on_host else probe_environment(target, options)
    if not is_on_host and not (deployment.bundle / BUNDLE_FILE).is_file():
        engines = dry_run.ranges_without_bundle(deployment, options)
        try:
            request_of(deployment)
        except ConfigError as error:
            dry_run.print_engines_unknown(console, engines, error)
        dry_run.print_details(console, target, engines, options, environment)
        return
    decisions = check_rebuilds(request_of(deployment, threads=threads), target, force=force, environment=environment)
    print_decisions(console, decisions, shown_path(deployment.engine_folder(target)))
    for doubt in check_graphs(decisions):
        print_line(doubt, console)
    dry_run.print_memory(console, target, expected_memory(decisions, target, options, deployment.runtime))
    if not is_on_host:
        dry_run.print_details(console, target, dry_run.engine_ranges(decisions), options, environment)


def build_with_progress(request: BuildRequest, target: Target, *, force: bool = False) -> None:
    """Build what is missing and stale, with progress on standard output. Raises as `build`."""
    started = time.monotonic()
    report = ConsoleReport(Terminal())
    with report.telling():
        build(request, target=target, force=force, report=report)
    report.summary(shown_path(request.deployment.engine_folder(target)), time.monotonic() - started)


if __name__ == "__main__":
    main()
