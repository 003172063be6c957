"""tickrt-bench: the cost of a tick over the bare engine, against its budgets, without each optimization, by depth; how
soon live sessions play what is asked of them; and all of these compared with an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profiling.bench.ablations import (
    ABLATIONS,
    MOST_ADAPTERS,
    ablations_result,
    measure_ablations,
    measure_adapters,
    print_ablations,
    print_adapters,
)
from profiling.bench.budget_grid import grid_workloads, measure_grid, print_grid
from profiling.bench.churn.arrivals import ChurnLoad, churn_load
from profiling.bench.churn.result import print_churn
from profiling.bench.churn.run import measure_churn
from profiling.bench.compare_runs import check_comparable, print_changes, read_result
from profiling.bench.live.card import plot_live, print_live
from profiling.bench.live.run import LiveLoad, measure_live, parse_sessions
from profiling.bench.live.script import Script
from profiling.bench.peers.run import measure_peers, peer_workloads, print_peers, torch_competitors
from profiling.bench.planner.measure import measure_planner, print_planner
from profiling.bench.result import print_result, shape_of
from profiling.bench.session import open_session
from profiling.bench.sweep import parse_sweep, plot_sweep, print_sweep, sweep_result
from profiling.bench.workload import GUIDANCE, Workload, with_runtime, workload_of
from profiling.output import JSON_HELP, check_folders, open_console, write_json
from runtime.command_line import CommandLine, Config, Version
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.errors import ConfigError
from runtime.sessions.messages import Mode
from runtime.terminal import EXIT_OVER_LIMIT, exit_on_error

# Sections of the help.
WORKLOAD, RUNS, LIVE, RESULT = "Workload", "What is measured", "Live sessions", "Result"
TICKS, CHURN_TICKS = 64, 1000
VARIED = ("variant", "guidance", "depth")

app = CommandLine()
Measured = tuple[dict[str, Any], Callable[[Console], None]]


@app.command()
def bench(
    config: Config,
    target: Annotated[Target | None, typer.Option(help="Target. Default: the deployment's own.")] = None,
    depth: Annotated[int, typer.Option(min=1, max=64, help="Generations in flight.", rich_help_panel=WORKLOAD)] = 8,
    guidance: Annotated[
        float | None,
        typer.Option(
            help="Guidance scale; 1 is off.  [default: 1, with --ablations 3]",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    dcw: Annotated[
        bool, typer.Option("--dcw", help="With the wavelet-domain correction.", rich_help_panel=WORKLOAD)
    ] = False,
    features: Annotated[
        str,
        typer.Option(
            help="More features of the step: rcfg,mask,target,sde,ode_noise,blend,gain,guidance,dcw.",
            rich_help_panel=WORKLOAD,
        ),
    ] = "",
    frames: Annotated[
        int, typer.Option(min=0, help="Frames per generation; 0 is the bundle's canvas.", rich_help_panel=WORKLOAD)
    ] = 0,
    steps: Annotated[
        int, typer.Option(min=0, help="Steps per generation; 0 is the bundle's default.", rich_help_panel=WORKLOAD)
    ] = 0,
    ticks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Ticks to measure.  [default: {TICKS}, with --churn {CHURN_TICKS}]",
            show_default=False,
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    sessions: Annotated[
        int,
        typer.Option(
            min=0,
            max=64,
            help="Sessions; one of them changes a step parameter before every tick.",
            rich_help_panel=WORKLOAD,
        ),
    ] = 0,
    budgets: Annotated[
        bool,
        typer.Option("--budgets", help="Measure every depth and feature set that has a budget.", rich_help_panel=RUNS),
    ] = False,
    repeats: Annotated[
        int, typer.Option(min=1, help="With --budgets: runs of each; their medians count.", rich_help_panel=RUNS)
    ] = 5,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Time ticks without each optimization.", rich_help_panel=RUNS)
    ] = False,
    adapters: Annotated[
        int, typer.Option(min=0, help="Time ticks without and with LoRA adapters of this rank.", rich_help_panel=RUNS)
    ] = 0,
    planner: Annotated[
        bool,
        typer.Option(
            "--planner",
            help="Tokens per second of the bundle's planner, alone and beside the flow model.",
            rich_help_panel=RUNS,
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Compare with OpenVINO and, with --torch CHECKPOINT, with PyTorch and diffusers' pipeline.",
            rich_help_panel=RUNS,
        ),
    ] = False,
    sweep: Annotated[
        str, typer.Option(help="One run for each value: depth=1,2,4,8; also frames=, steps=.", rich_help_panel=RUNS)
    ] = "",
    churn: Annotated[
        str,
        typer.Option(
            help="Generations come and go at random, at these shares of all slots: 0.3,0.6,0.9.", rich_help_panel=RUNS
        ),
    ] = "",
    live: Annotated[
        str,
        typer.Option(
            help="Live sessions that play over WebSockets; 1,2,4,8: one run for each number.", rich_help_panel=LIVE
        ),
    ] = "",
    minutes: Annotated[
        float, typer.Option(min=0.01, help="With --live: how long controls are changed.", rich_help_panel=LIVE)
    ] = 1.0,
    mode: Annotated[
        Mode, typer.Option(metavar="loop|extend", help="With --live: the mode of the sessions.", rich_help_panel=LIVE)
    ] = "loop",
    interval: Annotated[
        float,
        typer.Option(
            min=0.1, help="With --live: seconds between two controls of a session, on average.", rich_help_panel=LIVE
        ),
    ] = 2.0,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="With --live --mode extend: sessions without a plan and with one, in turn.",
            rich_help_panel=LIVE,
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="With --sweep, or several numbers of --live: draw it into this SVG file.", rich_help_panel=RESULT
        ),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Show the changes since a run saved with --json.", rich_help_panel=RESULT)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare also with another machine, engine, shape.", rich_help_panel=RESULT)
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help=JSON_HELP, rich_help_panel=RESULT)] = None,
    torch: Annotated[
        str,
        typer.Option(
            help="A checkpoint in diffusers' layout, or \"published\": time PyTorch's decoder as well.",
            rich_help_panel=RUNS,
        ),
    ] = "",
    torch_layers: Annotated[
        int | None, typer.Option(min=1, help="With --torch published: layers, of 24.", rich_help_panel=RUNS)
    ] = None,
    two_pass: Annotated[
        bool, typer.Option("--two-pass", help="Guidance in a second execute, not fused.", rich_help_panel=WORKLOAD)
    ] = False,
    fail_over_budget: Annotated[
        bool,
        typer.Option(
            "--fail-over-budget",
            "--fail-over-goal",
            help="Exit 1 over budget, or where a live goal is missed.",
            rich_help_panel=RESULT,
        ),
    ] = False,
    version: Version = False,
) -> None:
    """Measure ticks.

    Fails where a generation that shares its ticks has other latents than alone.
    """
    console = open_console(json_path)
    names = tuple(name.strip() for name in features.split(",") if name.strip())
    scale = guidance if guidance is not None else GUIDANCE if ablations else 1.0
    with exit_on_error():
        loaded = load_deployment(config)
        loaded = loaded.model_copy(update={"target": target or loaded.target})
        deployment = with_runtime(loaded, fused_guidance=False) if two_pass else loaded
        load = workload_of(deployment, depth, frames, steps, guidance=scale, dcw=dcw, features=names, sessions=sessions)
        played = LiveLoad(parse_sessions(live), Script(mode, interval, 60.0 * minutes), plan) if live else None
        comes = churn_load(deployment, churn, load, frames) if churn else None
        runs = (budgets, repeats, ablations, adapters, planner, peers, sweep, comes, played)
        wanted = Bench(deployment, load, ticks or (CHURN_TICKS if churn else TICKS), *runs, plot, torch, torch_layers)
        wanted.check()
        check_folders(json_path, plot)
        base = read_result(compare) if compare is not None else None
        if base is not None and not force:
            check_comparable(base, wanted.known())
        result, show = wanted.measure()
        if base is not None and not force:
            check_comparable(base, result)
        show(console)
        if base is not None:
            result["changes"] = {change.name: change.as_json() for change in print_changes(console, base, result)}
        if json_path is not None:
            write_json(json_path, result)
        if fail_over_budget and is_over_budget(result):
            raise typer.Exit(EXIT_OVER_LIMIT)


@dataclass(frozen=True)
class Bench:
    """The options of one call: what to measure."""

    deployment: Deployment
    load: Workload
    ticks: int
    budgets: bool
    repeats: int
    ablations: bool
    adapters: int
    planner: bool
    peers: bool
    sweep: str
    churn: ChurnLoad | None
    live: LiveLoad | None
    plot: Path | None
    torch: str
    torch_layers: int | None

    @property
    def _runs(self) -> dict[str, bool]:
        return {
            "budgets": self.budgets, "ablations": self.ablations, "adapters": self.adapters > 0,
            "planner": self.planner, "peers": self.peers, "sweep": bool(self.sweep), "churn": self.churn is not None,
            "live": self.live is not None,
        }  # fmt: skip

    @property
    def kind(self) -> str:
        """The result's kind."""
        return next((kind for kind, is_chosen in self._runs.items() if is_chosen), "tick")

    def check(self) -> None:
        """Raises ConfigError for options that exclude each other."""
        chosen = [f"--{kind}" for kind, is_chosen in self._runs.items() if is_chosen]
        if len(chosen) > 1:
            what = f"{' and '.join(chosen)} are different runs"
            raise ConfigError(what, fix="give one of them")
        if self.torch and self.kind not in ("tick", "peers"):
            raise ConfigError(f"--torch does not go with --{self.kind}", fix="give one of them")
        if self.plot is not None and not self.sweep and (self.live is None or len(self.live.sessions) == 1):
            what = "--plot needs --sweep or several numbers of live sessions"
            raise ConfigError(what, fix="--sweep depth=1,2,4 --plot sweep.svg, or --live 1,2,4 --plot live.svg")
        if self.plot is not None and self.plot.suffix != ".svg":
            raise ConfigError(f"{self.plot} is not the name of an SVG file", fix="--plot sweep.svg")

    def known(self) -> dict[str, Any]:
        """The result's properties that are known before anything is measured."""
        load = self.live or self.churn
        if load is not None:
            return {"kind": load.kind, "target": self.deployment.target, **load.shape()}
        varied = VARIED if self.budgets or self.peers else (parse_sweep(self.sweep).name,) if self.sweep else ()
        shape = {name: value for name, value in shape_of(self.load).items() if name not in varied}
        return {"kind": self.kind, "target": self.deployment.target, **shape}

    def measure(self) -> Measured:
        """The result, and the function that prints it. Raises TickError."""
        measure: Callable[[], Measured] = getattr(self, f"_{self.kind}")
        return measure()

    def _tick(self) -> Measured:
        competitors_of = torch_competitors(self.torch, self.torch_layers, self.load) if self.torch else None
        with open_session(self.deployment, [self.load.weight]) as session:
            result, measured = session.measure(self.load, self.ticks, competitors_of)
        return result, lambda console: print_result(console, result, measured.sites)

    def _budgets(self) -> Measured:
        loads = grid_workloads(self.deployment, self.load.frames, self.load.steps)
        weights = [load.weight for load in loads] * self.repeats
        with open_session(self.deployment, weights) as session:
            result = measure_grid(session, loads, self.ticks, self.repeats)
        return result, lambda console: print_grid(console, result)

    def _ablations(self) -> Measured:
        with open_session(self.deployment, [1.0] * (len(ABLATIONS) + 1)) as session:
            found = measure_ablations(session, self.load, self.ticks)
            result = ablations_result(found, session, self.load)
        return result, lambda console: print_ablations(console, result)

    def _adapters(self) -> Measured:
        with open_session(self.deployment, [1.0] * (MOST_ADAPTERS + 1)) as session:
            result = measure_adapters(session, self.load, self.ticks, self.adapters)
        return result, lambda console: print_adapters(console, result)

    def _planner(self) -> Measured:
        with open_session(self.deployment) as session:
            result = measure_planner(session, self.load, self.ticks)
        return result, lambda console: print_planner(console, result)

    def _peers(self) -> Measured:
        loads = peer_workloads(self.deployment, self.load.frames, self.load.steps)
        result = measure_peers(self.deployment, loads, self.ticks, self.torch)
        return result, lambda console: print_peers(console, result)

    def _sweep(self) -> Measured:
        sweep = parse_sweep(self.sweep)
        loads = [self._with(sweep.name, value) for value in sweep.values]
        with open_session(self.deployment, [load.weight for load in loads]) as session:
            result = sweep_result(sweep, [session.measure(load, self.ticks)[0] for load in loads])
        if self.plot is not None:
            self.plot.write_text(plot_sweep(result), encoding="utf-8")
        return result, lambda console: print_sweep(console, result)

    def _churn(self) -> Measured:
        assert self.churn is not None
        with open_session(self.deployment, [1.0] * (len(self.churn.loads) + 1)) as session:
            result = measure_churn(session, self.churn, self.ticks)
        return result, lambda console: print_churn(console, result)

    def _live(self) -> Measured:
        assert self.live is not None
        result = measure_live(self.deployment, self.live)
        if self.plot is not None:
            self.plot.write_text(plot_live(result), encoding="utf-8")
        return result, lambda console: print_live(console, result)

    def _with(self, name: str, value: int) -> Workload:
        """The workload with another depth, frames or steps. Raises ConfigError."""
        load = self.load
        sizes = {"depth": load.depth, "frames": load.frames, "steps": load.steps, name: value}
        return workload_of(
            self.deployment, sizes["depth"], sizes["frames"], sizes["steps"],
            guidance=load.guidance, features=load.features, sessions=load.sessions,
        )  # fmt: skip


def is_over_budget(result: dict[str, Any]) -> bool:
    """Whether a run, or a point of a grid or a sweep, is over its budget."""
    return not all(point.get("within_budget", True) for point in (result, *result.get("points", ())))


def main() -> None:
    """Entry point of tickrt-bench."""
    app(prog_name="tickrt-bench")


if __name__ == "__main__":
    main()
