"""tickrt-bench: what a tick costs beside the bare engine, on the production tick path."""

from __future__ import annotations

import importlib.util
import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from profiling.stream import Result, Rivals, SteadyStream, Workload
from profiling.tick_statistics import Percentiles
from runtime.batch import TickRecord
from runtime.config import Deployment, load_deployment
from runtime.engine import EngineSet, open_engines
from runtime.errors import ConfigError, TickError
from runtime.here import machine, open_device
from runtime.spec import Bundle, load_bundle

# Tick over bare engine on a CPU, by the features in use; and on a GPU.
BUDGETS = {"plain": 1.04, "guidance": 1.08, "guidance+dcw": 1.12}
GPU_BUDGET = 1.02
EXIT_OVER_BUDGET = 1
EXIT_CONFIG = 2
EXIT_ENGINE = 3


def report(result: Result, bundle: Bundle, deployment: Deployment, engines: EngineSet) -> dict[str, Any]:
    """The result as one JSON object."""
    load, manifest = result.workload, engines.decoder.manifest
    budget = budget_of(deployment, load)
    return {
        "bundle": bundle.name,
        "target": deployment.target,
        "variant": load.variant,
        "depth": load.depth,
        "rows": result.records[-1].rows,
        "executes": result.records[-1].executes,
        "frames": load.frames,
        "steps": load.steps,
        "tokens": load.tokens,
        "ticks": len(result.records),
        "tick_ms": _rounded(asdict(Percentiles.of(result.ticks_ms))),
        "engine_ms": _rounded(asdict(Percentiles.of(result.engine_ms))),
        "decoder_in_tick_ms": _rounded(asdict(Percentiles.of([r.engine_ms for r in result.records]))),
        "overhead_ratio": round(result.overhead.median, 4),
        "overhead_quartiles": [round(result.overhead.low, 4), round(result.overhead.high, 4)],
        "overhead_inside_tick": round(result.overhead_inside, 4),
        "captured": result.records[-1].replayed > 0,
        "beside": {name: _rival(times, result) for name, times in result.beside_ms.items()},
        "is_noisy": result.overhead.is_noisy,
        "budget": budget,
        "within_budget": budget is None or result.overhead.median <= budget,
        "finished_per_s": round(result.finished_per_s, 3),
        "audio_s_per_s": round(result.finished_per_s * load.frames / bundle.latents.frame_rate_hz, 3),
        "allocations_per_tick": sum(result.allocations) / len(result.allocations),
        "shared_vs_alone": result.worst_difference,
        "phases_ms": _rounded(_phases(result.records)),
        "engine_sha256": manifest.engine_sha256,
        "versions": {name: metadata.version(name) for name in ("tickrt", "numpy")}
        | {"python": platform.python_version()}
        | manifest.tool_versions,
        "machine": machine(),
    }


def _rival(times_ms: list[float], result: Result) -> dict[str, float]:
    """Its time, and how much longer it takes than a tick, which does more than it: the median of paired ratios."""
    ratio = float(np.median(np.asarray(times_ms[1:]) / np.asarray(result.ticks_ms)))
    return _rounded({**asdict(Percentiles.of(times_ms)), "over_tick": ratio})


def budget_of(deployment: Deployment, load: Workload) -> float | None:
    """The most that tick over engine may be, None where nothing is promised."""
    return BUDGETS.get(load.variant) if deployment.target == "cpu" else GPU_BUDGET


def _phases(records: list[TickRecord]) -> dict[str, float]:
    return {name: float(np.median([r.phases_ms.get(name, 0.0) for r in records])) for name in records[-1].phases_ms}


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def print_card(console: Console, card: dict[str, Any], sites: list[tuple[int, int, tuple[str, ...]]]) -> None:
    """The result for people."""
    title = f"{card['bundle']} on {card['target']}: depth {card['depth']}, {card['variant']}"
    table = Table("what", "value", title=title, title_justify="left", show_header=False)
    tick, engine = card["tick_ms"], card["engine_ms"]
    low, high = card["overhead_quartiles"]
    table.add_row("shape", f"{card['rows']} rows x {card['frames']} frames, {card['steps']} steps")
    table.add_row("tick", f"p50 {tick['p50']:.2f} ms   p95 {tick['p95']:.2f}   p99 {tick['p99']:.2f}")
    decoder = card["decoder_in_tick_ms"]
    table.add_row("bare engine", f"p50 {engine['p50']:.2f} ms   (within the tick {decoder['p50']:.2f})")
    ratio, inside = card["overhead_ratio"], card["overhead_inside_tick"]
    table.add_row("tick / engine", f"{ratio:.3f}  (quartiles {low:.3f} to {high:.3f}; within the tick {inside:.3f})")
    table.add_row("budget", _verdict(card))
    for name, rival in card["beside"].items():
        table.add_row(name, f"p50 {rival['p50']:.2f} ms   ({rival['over_tick']:.2f} x the tick)")
    table.add_row("throughput", f"{card['finished_per_s']:.2f} generations/s, {card['audio_s_per_s']:.1f} s of audio/s")
    table.add_row("allocations", f"{card['allocations_per_tick']:g} per tick")
    table.add_row("shared vs alone", f"{card['shared_vs_alone']:.1e} largest difference")
    table.add_row("phases", "  ".join(f"{name} {value:.3f}" for name, value in card["phases_ms"].items()) + " ms")
    console.print(table)
    if card["is_noisy"]:
        console.print("The machine was busy: the quartiles lie far apart. Run it again on a quiet one.", style="yellow")
    for count, size_bytes, site in sites[:5]:
        console.print(f"allocated {count} times, {size_bytes} bytes in all:", *site, sep="\n  ", style="yellow")


def _verdict(card: dict[str, Any]) -> str:
    if card["budget"] is None:
        return "none for this variant"
    return f"{card['budget']:.2f}: " + ("[green]kept[/]" if card["within_budget"] else "[red]missed[/]")


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def bench(
    config: Annotated[Path, typer.Argument(help="The deployment file, such as configs/demo.toml.")],
    depth: Annotated[int, typer.Option(min=1, max=64, help="Generations in flight.")] = 8,
    guidance: Annotated[float, typer.Option(help="Guidance scale; 1 is off.")] = 1.0,
    dcw: Annotated[bool, typer.Option("--dcw", help="With the wavelet-domain correction.")] = False,
    frames: Annotated[int, typer.Option(min=0, help="Frames per generation; 0 is the bundle's canvas.")] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Steps per generation; 0 is the bundle's default.")] = 0,
    ticks: Annotated[int, typer.Option(min=1, help="Ticks to measure.")] = 64,
    torch: Annotated[
        str, typer.Option(help="A checkpoint in diffusers' layout, or \"published\": time PyTorch's decoder beside it.")
    ] = "",
    torch_layers: Annotated[int | None, typer.Option(min=1, help="With --torch published: layers, of 24.")] = None,
    two_pass: Annotated[bool, typer.Option("--two-pass", help="Guidance in a second execute, not fused.")] = False,
    fail_over_budget: Annotated[bool, typer.Option("--fail-over-budget", help="Exit 1 over budget.")] = False,
) -> None:
    """Measure ticks against the bare engine; the last line of output is one JSON object.

    Exit status: 0 done, 1 over budget where that was asked, 2 the configuration is wrong, 3 an engine is missing or
    fails, or a generation that shares its ticks has another result than alone.
    """
    console = Console()
    try:
        deployment = _two_pass(load_deployment(config)) if two_pass else load_deployment(config)
        with console.status("measuring"):
            load = workload_of(deployment, depth, frames, steps, guidance=guidance, dcw=dcw)
            beside = torch_beside(torch, torch_layers, load) if torch else None
            card, result = measure(deployment, load, ticks, beside)
    except TickError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_ENGINE) from None
    print_card(console, card, result.sites)
    print(json.dumps(card))
    if fail_over_budget and not card["within_budget"]:
        raise typer.Exit(EXIT_OVER_BUDGET)


def workload_of(deployment: Deployment, depth: int, frames: int, steps: int, *, guidance: float, dcw: bool) -> Workload:
    """What the slots do; frames and steps 0 are the bundle's own. Raises ConfigError."""
    bundle = load_bundle(deployment.bundle)
    frames, steps = frames or bundle.latents.canvas_frames, steps or bundle.sampler.steps
    load = Workload(depth, frames, steps, guidance=guidance, dcw=dcw)
    if deployment.range_for(1, load.frames, load.tokens) is None:
        raise ConfigError(f"{deployment.path} has no shape range for {load.frames} frames", fix="choose other --frames")
    return load


def torch_beside(source: str, layers: int | None, load: Workload) -> Callable[[int], Rivals]:
    """PyTorch's decoder of so many rows, eager and compiled. Raises ConfigError where there is no PyTorch."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "diffusers")):
        raise ConfigError("--torch needs PyTorch and diffusers", fix="pip install 'tickrt[export]'")
    from profiling.torch_decoder import TorchDecoder

    def rivals(rows: int) -> Rivals:
        sizes = {"rows": rows, "frames": load.frames, "tokens": load.tokens}
        modes = {"torch eager": False, "torch compiled": True}
        return {name: TorchDecoder(source, **sizes, layers=layers, compiled=mode) for name, mode in modes.items()}

    return rivals


def measure(
    deployment: Deployment, load: Workload, ticks: int, beside: Callable[[int], Rivals] | None = None
) -> tuple[dict[str, Any], Result]:
    """Open the engines and run the bench. Raises TickError."""
    bundle = load_bundle(deployment.bundle)
    device = open_device(deployment.target)
    engines = open_engines(deployment, device)
    stream = SteadyStream(bundle, deployment, engines, device, load)
    try:
        result = stream.run(ticks, 2 * load.steps, beside)
        return report(result, bundle, deployment, engines), result
    finally:
        stream.loop.close()
        device.close()


def _two_pass(deployment: Deployment) -> Deployment:
    runtime = deployment.runtime.model_copy(update={"fused_guidance": False})
    return deployment.model_copy(update={"runtime": runtime})


def main() -> None:
    """Entry point of tickrt-bench."""
    app(prog_name="tickrt-bench")


if __name__ == "__main__":
    main()
