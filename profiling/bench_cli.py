"""tickrt-bench: what a tick costs, on the production tick path: beside the bare engine, without each technique, by
depth, and beside an earlier run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profiling.bench.ablations import measure_worth, print_worth, report_worth
from profiling.bench.compare_runs import changes, check_comparable, print_changes, read_card
from profiling.bench.result import print_card, shape_of
from profiling.bench.session import opened
from profiling.bench.steady_stream import Rivals
from profiling.bench.svg_plot import svg
from profiling.bench.sweep import Sweep, parse_sweep, print_sweep, report_sweep
from profiling.bench.workload import GUIDANCE, Workload, with_runtime, workload_of
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.errors import ConfigError
from runtime.terminal import EXIT_OVER_LIMIT, EXIT_STATUS_HELP, exit_on_error

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Show = Callable[[Console], None]
Measured = tuple[dict[str, Any], Show]


@app.command(epilog=EXIT_STATUS_HELP)
def bench(
    config: Annotated[Path, typer.Argument(help="The deployment file, such as configs/demo.toml.")],
    target: Annotated[Target | None, typer.Option(help="Where it runs. Default: the deployment's own target.")] = None,
    depth: Annotated[int, typer.Option(min=1, max=64, help="Generations in flight.")] = 8,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance scale; 1 is off.  [default: 1, with --matrix 3]", show_default=False)
    ] = None,
    dcw: Annotated[bool, typer.Option("--dcw", help="With the wavelet-domain correction.")] = False,
    features: Annotated[
        str, typer.Option(help="More of the step: rcfg,mask,target,sde,ode_noise,blend,gain,guidance,dcw.")
    ] = "",
    frames: Annotated[int, typer.Option(min=0, help="Frames per generation; 0 is the bundle's canvas.")] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Steps per generation; 0 is the bundle's default.")] = 0,
    ticks: Annotated[int, typer.Option(min=1, help="Ticks to measure.")] = 64,
    sessions: Annotated[
        int, typer.Option(min=0, max=64, help="Sessions; one of them changes a step parameter before every tick.")
    ] = 0,
    matrix: Annotated[bool, typer.Option("--matrix", help="Ticks with and without each technique.")] = False,
    sweep: Annotated[str, typer.Option(help="depth=1,2,4,8: a run for each; also frames=, steps=.")] = "",
    plot: Annotated[Path | None, typer.Option(help="With --sweep: draw it into this SVG file.")] = None,
    compare: Annotated[Path | None, typer.Option(help="A run saved with --json: show what changed.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare whatever machine, engine and shape.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Save the result as JSON.")] = None,
    torch: Annotated[
        str, typer.Option(help="A checkpoint in diffusers' layout, or \"published\": time PyTorch's decoder beside it.")
    ] = "",
    torch_layers: Annotated[int | None, typer.Option(min=1, help="With --torch published: layers, of 24.")] = None,
    two_pass: Annotated[bool, typer.Option("--two-pass", help="Guidance in a second execute, not fused.")] = False,
    fail_over_budget: Annotated[bool, typer.Option("--fail-over-budget", help="Exit 1 over budget.")] = False,
) -> None:
    """Measure ticks; the last line of output is one JSON object.

    Fails where a generation that shares its ticks has another result than alone.
    """
    console = Console()
    named = tuple(name.strip() for name in features.split(",") if name.strip())
    scale = guidance if guidance is not None else GUIDANCE if matrix else 1.0
    with exit_on_error():
        found = load_deployment(config)
        found = found.model_copy(update={"target": target or found.target})
        deployment = with_runtime(found, fused_guidance=False) if two_pass else found
        load = workload_of(deployment, depth, frames, steps, guidance=scale, dcw=dcw, features=named, sessions=sessions)
        asked = Asked(deployment, load, ticks, matrix, sweep, plot, torch, torch_layers)
        asked.check()
        base = read_card(compare) if compare is not None else None
        if base is not None and not force:
            check_comparable(base, asked.known())
        with console.status("measuring"):
            card, show = asked.measure()
        if base is not None and not force:
            check_comparable(base, card)
    show(console)
    if base is not None:
        print_changes(console, base, card)
        card["changes"] = changes(base, card)
    if json_path is not None:
        json_path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(card))
    if fail_over_budget and is_over_budget(card):
        raise typer.Exit(EXIT_OVER_LIMIT)


@dataclass(frozen=True)
class Asked:
    """What is to be measured."""

    deployment: Deployment
    load: Workload
    ticks: int
    matrix: bool
    sweep: str
    plot: Path | None
    torch: str
    torch_layers: int | None

    def check(self) -> None:
        """Raises ConfigError for what does not go together."""
        if self.matrix and self.sweep:
            raise ConfigError("--matrix and --sweep are two runs", fix="give one of them")
        if self.torch and (self.matrix or self.sweep):
            raise ConfigError("--torch goes with a single run only")
        if self.plot is not None and not self.sweep:
            raise ConfigError("--plot draws a --sweep")
        if self.plot is not None and self.plot.suffix != ".svg":
            raise ConfigError(f"{self.plot} is no name of an SVG file", fix="--plot sweep.svg")

    def known(self) -> dict[str, Any]:
        """What the result will say of itself, as far as that is known before it is measured."""
        swept = parse_sweep(self.sweep) if self.sweep else None
        kind = "matrix" if self.matrix else "tick" if swept is None else "sweep"
        shape = {name: value for name, value in shape_of(self.load).items() if swept is None or name != swept.name}
        return {"kind": kind, "target": self.deployment.target, **shape}

    def measure(self) -> Measured:
        """The result, and what shows it. Raises TickError."""
        if self.matrix:
            return self._matrix()
        return self._sweep(parse_sweep(self.sweep)) if self.sweep else self._single()

    def _single(self) -> Measured:
        beside = torch_beside(self.torch, self.torch_layers, self.load) if self.torch else None
        with opened(self.deployment) as rig:
            card, result = rig.measure(self.load, self.ticks, beside)
        return card, lambda console: print_card(console, card, result.sites)

    def _matrix(self) -> Measured:
        with opened(self.deployment) as rig:
            card = report_worth(measure_worth(rig, self.load, self.ticks), rig, self.load)
        return card, lambda console: print_worth(console, card)

    def _sweep(self, sweep: Sweep) -> Measured:
        loads = [self._swept(sweep.name, value) for value in sweep.values]
        with opened(self.deployment) as rig:
            cards = [rig.measure(load, self.ticks)[0] for load in loads]
        card = report_sweep(sweep, cards)
        if self.plot is not None:
            self.plot.write_text(draw(card, cards), encoding="utf-8")
        return card, lambda console: print_sweep(console, card, cards)

    def _swept(self, name: str, value: int) -> Workload:
        """The workload with another number in it. Raises ConfigError."""
        load = self.load
        numbers = {"depth": load.depth, "frames": load.frames, "steps": load.steps} | {name: value}
        return workload_of(
            self.deployment, numbers["depth"], numbers["frames"], numbers["steps"],
            guidance=load.guidance, features=load.features, sessions=load.sessions,
        )  # fmt: skip


def draw(card: dict[str, Any], cards: list[dict[str, Any]]) -> str:
    """A sweep as SVG: over the rows where these grow, else over what was swept."""
    by_rows = card["over"] == "depth"
    places = [float(point["rows"] if by_rows else point[card["over"]]) for point in cards]
    lines = {
        name: [(place, float(point[key]["p50"])) for place, point in zip(places, cards, strict=True)]
        for name, key in (("tick", "tick_ms"), ("bare engine", "engine_ms"))
    }
    title = f"{card['bundle']} on {card['target']}, {card['variant']}"
    return svg(title, "rows" if by_rows else card["over"], "ms (p50)", lines)


def is_over_budget(card: dict[str, Any]) -> bool:
    """Whether a run, or a point of a sweep, missed its budget."""
    return not all(point.get("within_budget", True) for point in (card, *card.get("points", ())))


def torch_beside(source: str, layers: int | None, load: Workload) -> Callable[[int], Rivals]:
    """PyTorch's decoder of so many rows, eager and compiled. Raises ConfigError where there is no PyTorch."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "diffusers")):
        raise ConfigError("--torch needs PyTorch and diffusers", fix="pip install 'tickrt[export]'")
    from profiling.bench.torch_baseline import TorchDecoder

    def rivals(rows: int) -> Rivals:
        sizes = {"rows": rows, "frames": load.frames, "tokens": load.tokens}
        modes = {"torch eager": False, "torch compiled": True}
        return {name: TorchDecoder(source, **sizes, layers=layers, compiled=mode) for name, mode in modes.items()}

    return rivals


def main() -> None:
    """Entry point of tickrt-bench."""
    app(prog_name="tickrt-bench")


if __name__ == "__main__":
    main()
