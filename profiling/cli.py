"""tickrt-profile: where one execute of an engine spends its time, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from profiling.layers import LayerTiming, Profile, make_feeds, profile_engine
from runtime.config import Deployment, load_deployment
from runtime.engine import open_engine
from runtime.errors import ConfigError, TickError
from runtime.here import open_device
from runtime.manifest import build_command
from runtime.spec import Bundle, load_bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def sizes_of(bundle: Bundle, rows: int, frames: int, tokens: int) -> dict[str, int]:
    """Sizes of the free dimensions that our graphs have."""
    hop = bundle.codec.hop_samples if bundle.codec else 1
    return {
        "rows": rows, "slots": rows, "batch": rows, "frames": frames, "tokens": tokens, "samples": frames * hop,
        "bands": -(-frames // 2), "positives": 1, "negatives": 1,
    }  # fmt: skip


def export(profile: Profile) -> list[dict[str, Any]]:
    """The layers with the field names of trtexec's --exportProfile."""
    layers = [
        {
            "name": layer.name,
            "timeMs": round(layer.total_ms, 6),
            "averageMs": round(layer.average_ms, 6),
            "medianMs": round(layer.median_ms, 6),
            "percentage": round(100 * layer.share, 4),
        }
        for layer in profile.layers
    ]
    return [{"count": profile.runs}, *layers]


def show(profile: Profile, top: int, console: Console) -> None:
    """The slowest layers, the kinds, and the sum beside the wall time."""
    slowest = sorted(profile.layers, key=lambda layer: -layer.total_ms)[:top]
    console.print(_layer_table(profile, slowest))
    kinds = Table("kind", "ms", "share")
    for kind, ms in profile.by_kind().items():
        kinds.add_row(kind, f"{ms:.3f}", f"{ms / profile.layer_sum_ms:.1%}")
    console.print(kinds)
    console.print(
        f"sum of {len(profile.layers)} layers {profile.layer_sum_ms:.3f} ms; "
        f"one execute without the profiler {profile.wall_ms:.3f} ms"
    )


def _layer_table(profile: Profile, layers: list[LayerTiming]) -> Table:
    table = Table(title=f"{profile.engine}: slowest of {len(profile.layers)} layers, {profile.runs} executes")
    for column in ("layer", "op", "kind"):
        table.add_column(column, overflow="fold")
    for column in ("average ms", "median ms", "share"):
        table.add_column(column, justify="right")
    for layer in layers:
        times = (f"{layer.average_ms:.3f}", f"{layer.median_ms:.3f}", f"{layer.share:.1%}")
        table.add_row(layer.name, layer.op_type, layer.kind, *times)
    return table


def run(deployment: Deployment, engine_name: str, rows: int, frames: int | None, tokens: int, runs: int) -> Profile:
    """Open one engine and profile it. Raises TickError."""
    bundle = load_bundle(deployment.bundle)
    fix = build_command(deployment.path, deployment.target)
    device = open_device(deployment.target)
    engine = open_engine(deployment.engine_folder(), engine_name, device, threads=deployment.runtime.threads, fix=fix)
    sizes = sizes_of(bundle, rows, frames or bundle.latents.canvas_frames, tokens)
    try:
        feeds = make_feeds(engine, sizes)
    except KeyError as missing:
        free = sorted({str(size) for info in engine.inputs.values() for size in info.shape if isinstance(size, str)})
        what = f"engine {engine_name!r} has the free dimensions {', '.join(free)}; no size for {missing}"
        raise ConfigError(what) from None
    profile = profile_engine(engine, feeds, runs)
    engine.close()
    return profile


@app.command()
def command(
    config: Annotated[Path, typer.Argument(help="Deployment file, such as configs/demo.toml.")],
    engine: Annotated[
        str, typer.Option(help="decoder, codec_decode, codec_encode, conditioner, step.VARIANT ...")
    ] = "decoder",
    rows: Annotated[int, typer.Option(min=1, help="Rows (for step engines: slots).")] = 1,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames. Default: the bundle's canvas.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Condition tokens.")] = 16,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Executes to measure.")] = 20,
    top: Annotated[int, typer.Option(min=1, help="Layers to show.")] = 15,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all layers, as trtexec's --exportProfile.")
    ] = None,
) -> None:
    """Profile one engine: time per layer and per kind of work, beside the time of an execute without the profiler."""
    try:
        profile = run(load_deployment(config), engine, rows, frames, tokens, runs)
    except TickError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    show(profile, top, Console())
    if json_path is not None:
        json_path.write_text(json.dumps(export(profile), indent=1), encoding="utf-8")


def main() -> None:
    """Entry point of tickrt-profile."""
    app(prog_name="tickrt-profile")


if __name__ == "__main__":
    main()
