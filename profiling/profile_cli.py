"""tickrt-profile: layer times of one engine, and the differences between two saved profiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from profiling.layers.ceilings import best_of, busy_text, measure_ceilings, parse_peaks
from profiling.layers.measure import measure_profile, sizes_of, usual_frames
from profiling.layers.timings import Profile
from profiling.layers.work import Ceilings
from profiling.output import check_folders, open_console, write_json
from profiling.reports.diff import print_diff, read_saved
from profiling.reports.html import page
from profiling.reports.json_files import layer_info, profile_records, trace
from profiling.reports.tables import profile_markdown, show
from runtime.base.errors import EngineNotBuiltError
from runtime.commands.command_line import CommandLine, Config, DefaultCommandGroup, Version
from runtime.commands.progress import TaskProgress
from runtime.commands.terminal import EXIT_OVER_LIMIT, Terminal, exit_on_error
from runtime.config.deployment import Deployment, Target, build_command, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.manifest import manifest_path, read_manifest

SHORT_NAMES = {"step": "step.plain", "codec": "codec_decode"}
TOKENS = 16
HALF_PRECISIONS = ("fp16", "bf16")

app = CommandLine(cls=DefaultCommandGroup)


@app.callback()
def tickrt_profile(version: Version = False) -> None:
    """Layer times of engines: tickrt-profile CONFIG, which is short for tickrt-profile run CONFIG. Also: diff."""


@app.command("run")
def profile_engine_of(
    config: Config,
    target: Annotated[Target | None, typer.Option(help="Target. Default: the deployment's own.")] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="decoder, step (step.VARIANT), codec (codec_decode, codec_encode), text_encoder, lyric_encoder, "
            "timbre_encoder, structure_encode, structure_decode."
        ),
    ] = "decoder",
    rows: Annotated[int, typer.Option(min=1, help="Rows (for step engines: slots).")] = 1,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames. Default: the canvas, or a window.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Condition tokens. Default: 16, or the nearest that the shapes hold.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Executes to measure.")] = 20,
    top: Annotated[int, typer.Option(min=1, help="Layers to show.")] = 15,
    depth: Annotated[int, typer.Option(min=1, help="Parts of a module's path to show.")] = 2,
    ceilings: Annotated[
        bool,
        typer.Option(
            "--ceilings",
            help="Measure the machine's peak arithmetic rate and memory bandwidth, between the rounds of executes.",
        ),
    ] = False,
    peaks: Annotated[str, typer.Option(metavar="GFLOPS,GBPS", help="Both peaks, given instead of measured.")] = "",
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="Write all layers, as trtexec's --exportProfile; - is standard output."),
    ] = None,
    info_path: Annotated[
        Path | None, typer.Option("--layer-info", help="Write the layers' contents, as trtexec's --exportLayerInfo.")
    ] = None,
    markdown_path: Annotated[Path | None, typer.Option("--markdown", help="Write the tables as Markdown.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")] = None,
    trace_path: Annotated[Path | None, typer.Option("--trace", help="Write a Chrome trace, for Perfetto.")] = None,
) -> None:
    """Profile one engine: time per layer, by kind of work, by module and by block; and the time of an execute without
    the profiler."""
    with exit_on_error():
        check_folders(json_path, info_path, markdown_path, html_path, trace_path)
        deployment = load_deployment(config)
        deployment = deployment.model_copy(update={"target": target or deployment.target})
        bundle = deployment.loaded_bundle
        name = SHORT_NAMES.get(engine, engine)
        frames = frames or usual_frames(bundle, name)
        sizes = sizes_of(bundle, rows, frames, tokens or deployment.shapes[0].tokens.nearest(TOKENS))
        profile = profile_with_ceilings(deployment, name, sizes, runs, peaks=peaks, ceilings=ceilings)
        show(profile, top, depth, open_console(json_path))
        if json_path is not None:
            write_json(json_path, profile_records(profile))
        if info_path is not None:
            write_json(info_path, layer_info(profile))
        if markdown_path is not None:
            markdown_path.write_text(profile_markdown(profile, top, depth), encoding="utf-8")
        if html_path is not None:
            html_path.write_text(page(profile, depth), encoding="utf-8")
        if trace_path is not None:
            write_json(trace_path, trace(profile))


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A profile: tickrt-profile --json, or trtexec --exportProfile.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    top: Annotated[int, typer.Option(min=1, help="Modules and layers to show, largest changes first.")] = 15,
    fail_over: Annotated[
        float | None, typer.Option(min=0, metavar="PCT", help="Exit 1 where something is slower by more percent.")
    ] = None,
) -> None:
    """Compare the medians of two profiles: the sum, by kind, by module, by layer.

    A change is called one where it stands out of the spread of the executes: where the interval of the ratio of medians
    leaves out 1, and it is 1 % or more of the sum. --fail-over counts such changes only.
    """
    with exit_on_error():
        first, second = (read_saved(path) for path in (before, after))
    if print_diff(first, second, top, fail_over, Terminal()):
        raise typer.Exit(EXIT_OVER_LIMIT)


def profile_with_ceilings(
    deployment: Deployment,
    engine: str,
    sizes: dict[str, int],
    runs: int,
    *,
    peaks: str,
    ceilings: bool,
    measure_profile: Callable[..., Profile] = measure_profile,
    measure_ceilings: Callable[..., Ceilings] = measure_ceilings,
) -> Profile:
    """A profile with given or measured ceilings; without, and with a note, where the machine was busy.

    Raises ConfigError, TickError.
    """
    given = parse_peaks(peaks) if peaks else None
    measured: list[Ceilings] = []
    with TaskProgress([1.0]) as progress, closing(open_device(deployment.target)) as device:

        def between_rounds(share: float) -> None:
            """Other load on the machine lowers a measured ceiling, rarely every time."""
            progress.update(share)
            if ceilings and given is None:
                half, threads = is_half(deployment, engine), deployment.runtime.threads
                measured.append(measure_ceilings(deployment.target, device, half=half, threads=threads))

        with progress.task(f"{runs} executes of {engine}"):
            profile = measure_profile(deployment, device, engine, sizes, runs, between_rounds)
            between_rounds(1.0)
    if not measured:
        return replace(profile, ceilings=given)
    if busy := busy_text(profile, measured):
        return replace(profile, notes=(*profile.notes, busy))
    return replace(profile, ceilings=best_of(measured))


def is_half(deployment: Deployment, engine: str) -> bool:
    """Whether an engine was built with 16 bits. Raises EngineNotBuiltError."""
    path = manifest_path(deployment.engine_folder(), engine)
    fix = build_command(deployment.path, deployment.target)
    if not path.is_file():
        raise EngineNotBuiltError(f"engine {engine!r} is not built: no {path}", fix=fix)
    return str(read_manifest(path, fix=fix).build.get("precision", "fp32")).startswith(HALF_PRECISIONS)


def main() -> None:
    """Entry point of tickrt-profile."""
    app(prog_name="tickrt-profile")


if __name__ == "__main__":
    main()
