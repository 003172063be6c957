"""tickrt-profile: where one execute of an engine spends its time, layer by layer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from profiling import diff_cli
from profiling.layers.ceilings import higher, measure_ceilings, parse_peaks
from profiling.layers.measure import measure, sizes_of
from profiling.layers.roofline import Ceilings
from profiling.layers.timings import Profile
from profiling.reports.chrome_trace import trace
from profiling.reports.html import page
from profiling.reports.tables import markdown, show
from profiling.reports.trtexec_json import layer_info, profile_records, write_json
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, Target, build_command, load_deployment
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.manifest import manifest_path, read_manifest
from runtime.errors import EngineNotBuiltError, TickError

DIFF = "diff"
SHORT_NAMES = {"step": "step.plain", "codec": "codec_decode"}
HALF_PRECISIONS = ("fp16", "bf16")
app = typer.Typer(
    add_completion=False, rich_markup_mode=None, epilog="tickrt-profile diff A.json B.json compares two profiles."
)


@app.command()
def command(
    config: Annotated[Path, typer.Argument(help="Deployment file, such as configs/demo.toml.")],
    target: Annotated[Target | None, typer.Option(help="Where it runs. Default: the deployment's own target.")] = None,
    engine: Annotated[
        str, typer.Option(help="decoder, step (step.VARIANT), codec (codec_decode, codec_encode), text_encoder.")
    ] = "decoder",
    rows: Annotated[int, typer.Option(min=1, help="Rows (for step engines: slots).")] = 1,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames. Default: the bundle's canvas.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Condition tokens.")] = 16,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Executes to measure.")] = 20,
    top: Annotated[int, typer.Option(min=1, help="Layers to show.")] = 15,
    depth: Annotated[int, typer.Option(min=1, help="Parts of a module's path to show.")] = 2,
    ceilings: Annotated[bool, typer.Option("--ceilings", help="Measure what the machine can do at most.")] = False,
    peaks: Annotated[str, typer.Option(metavar="GFLOPS,GBPS", help="The ceilings, given instead of measured.")] = "",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all layers, as trtexec's --exportProfile.")
    ] = None,
    info_path: Annotated[
        Path | None, typer.Option("--layer-info", help="Write what layers hold, as trtexec's --exportLayerInfo.")
    ] = None,
    markdown_path: Annotated[Path | None, typer.Option("--markdown", help="Write the tables as Markdown.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", help="Write one self-contained page.")] = None,
    trace_path: Annotated[Path | None, typer.Option("--trace", help="Write a Chrome trace, for Perfetto.")] = None,
) -> None:
    """Profile one engine: time per layer, by kind of work, by module and by block, beside the time of an execute
    without the profiler."""
    try:
        deployment = load_deployment(config)
        deployment = deployment.model_copy(update={"target": target or deployment.target})
        sizes = sizes_of(load_bundle(deployment.bundle), rows, frames or _canvas(deployment), tokens)
        profile = _profile(deployment, SHORT_NAMES.get(engine, engine), sizes, runs, peaks=peaks, ceilings=ceilings)
    except TickError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    show(profile, top, depth, Console())
    if json_path is not None:
        write_json(json_path, profile_records(profile))
    if info_path is not None:
        write_json(info_path, layer_info(profile))
    if markdown_path is not None:
        markdown_path.write_text(markdown(profile, top, depth), encoding="utf-8")
    if html_path is not None:
        html_path.write_text(page(profile, depth), encoding="utf-8")
    if trace_path is not None:
        write_json(trace_path, trace(profile))


def _canvas(deployment: Deployment) -> int:
    return load_bundle(deployment.bundle).latents.canvas_frames


def _profile(
    deployment: Deployment, engine: str, sizes: dict[str, int], runs: int, *, peaks: str, ceilings: bool
) -> Profile:
    device = open_device(deployment.target)
    try:
        before = _ceilings(deployment, engine, device, peaks, measured=ceilings)
        profile = measure(deployment, device, engine, sizes, runs)
        # What else runs on the machine lowers a ceiling, and seldom both times.
        after = _ceilings(deployment, engine, device, peaks, measured=ceilings)
        return replace(profile, ceilings=higher(before, after))
    finally:
        device.close()


def _ceilings(deployment: Deployment, engine: str, device: Device, peaks: str, *, measured: bool) -> Ceilings | None:
    if peaks:
        return parse_peaks(peaks)
    if not measured:
        return None
    half = _precision(deployment, engine).startswith(HALF_PRECISIONS)
    return measure_ceilings(deployment.target, device, half=half, threads=deployment.runtime.threads)


def _precision(deployment: Deployment, engine: str) -> str:
    """What the engine computes in. Raises EngineNotBuiltError."""
    path = manifest_path(deployment.engine_folder(), engine)
    fix = build_command(deployment.path, deployment.target)
    if not path.is_file():
        raise EngineNotBuiltError(f"engine {engine!r} is not built: no {path}", fix=fix)
    return str(read_manifest(path, fix=fix).build.get("precision", "fp32"))


def main() -> None:
    """Entry point of tickrt-profile; what is no command of its own is a deployment to be profiled."""
    if sys.argv[1:2] == [DIFF]:
        diff_cli.app(sys.argv[2:], prog_name=f"tickrt-profile {DIFF}")
    app(prog_name="tickrt-profile")


if __name__ == "__main__":
    main()
