"""tickrt-bench: the cost of a tick over the bare engine, against its budgets, without each optimization, by depth; how
soon live sessions play what is asked of them; and all of these compared with an earlier run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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
from profiling.bench.churn import churn_load, measure_churn, print_churn
from profiling.bench.compare_runs import check_comparable, print_changes, read_result
from profiling.bench.grids import (
    grid_workloads,
    measure_grid,
    parse_sweep,
    plot_sweep,
    print_grid,
    print_sweep,
    sweep_result,
)
from profiling.bench.live.result import plot_live, print_live
from profiling.bench.live.run import LiveLoad, measure_live, parse_sessions
from profiling.bench.live.script import Script
from profiling.bench.planner import measure_first_audio, measure_planner, print_planner
from profiling.bench.result import print_result, shape_of
from profiling.bench.session import open_bench
from profiling.bench.steady_stream import Site
from profiling.bench.workload import GUIDANCE, Workload, with_runtime, workload_of
from profiling.output import JSON_HELP, check_folders, check_plot, open_console, write_json
from runtime.base.errors import ConfigError
from runtime.commands.command_line import CommandLine, Config, DefaultCommandGroup, Version, need_packages
from runtime.commands.progress import waiting
from runtime.commands.terminal import EXIT_OVER_LIMIT
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.live.protocol.messages import Mode

# Options by sections of the help.
workload_option, live_option, result_option = (
    partial(typer.Option, rich_help_panel=title) for title in ("Workload", "Live sessions", "Result")
)
VARIED = ("variant", "guidance", "depth")
Result = dict[str, Any]
Ticks = Annotated[int, workload_option(min=1, help="Ticks to measure.")]
Torch = Annotated[
    str, typer.Option(help="A checkpoint in diffusers' layout, or \"published\": time PyTorch's decoder as well.")
]


class BenchCommands(DefaultCommandGroup):
    """The kinds of runs. They were options of one command before: an error names the command that has become of one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the group does. Raises ConfigError for an option that is a command."""
        for word in args:
            name = word.partition("=")[0].removeprefix("--")
            if word.startswith("--") and name in self.commands:
                raise ConfigError(f"--{name} is a command of tickrt-bench", fix=f"tickrt-bench {name} CONFIG ...")
        return super().parse_args(ctx, args)


app = CommandLine(cls=BenchCommands)


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """What a deployment is measured with: its target, and the size of generations."""

    target: Annotated[Target | None, typer.Option(help="Target. Default: the deployment's own.")] = None
    frames: Annotated[int, workload_option(min=0, help="Frames per generation; 0 is the bundle's canvas.")] = 0
    steps: Annotated[int, workload_option(min=0, help="Steps per generation; 0 is the bundle's default.")] = 0

    def opened(self, config: Path) -> Deployment:
        """The deployment. Raises ConfigError."""
        return on_target(config, self.target)


@dataclass(frozen=True, kw_only=True)
class LoadOptions(SizeOptions):
    """One workload."""

    depth: Annotated[int, workload_option(min=1, max=64, help="Generations in flight.")] = 8
    guidance: Annotated[
        float | None,
        workload_option(help="Guidance scale; 1 is off.  [default: 1, of ablations 3]", show_default=False),
    ] = None
    dcw: Annotated[bool, workload_option("--dcw", help="With the wavelet-domain correction.")] = False
    features: Annotated[
        str,
        workload_option(help="More features of the step: rcfg,mask,target,sde,ab2,ode_noise,blend,gain,guidance,dcw."),
    ] = ""
    sessions: Annotated[
        int, workload_option(min=0, max=64, help="Sessions; one of them changes a step parameter before every tick.")
    ] = 0
    two_pass: Annotated[bool, workload_option("--two-pass", help="Guidance in a second execute, not fused.")] = False

    def opened(self, config: Path) -> Deployment:
        """The deployment, with guidance fused or not. Raises ConfigError."""
        deployment = super().opened(config)
        return with_runtime(deployment, fused_guidance=False) if self.two_pass else deployment

    def load(self, deployment: Deployment, usual_guidance: float = 1.0, **sizes: int) -> Workload:
        """The workload, or the same with other depth, frames or steps. Raises ConfigError."""
        wanted = {"depth": self.depth, "frames": self.frames, "steps": self.steps, **sizes}
        return workload_of(
            deployment,
            **wanted,
            guidance=usual_guidance if self.guidance is None else self.guidance,
            dcw=self.dcw,
            features=[name.strip() for name in self.features.split(",") if name.strip()],
            sessions=self.sessions,
        )


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """What clients of live sessions do."""

    minutes: Annotated[float, live_option(min=0.01, help="How long controls are changed.")] = 1.0
    mode: Annotated[Mode, live_option(metavar="loop|extend", help="The mode of the sessions.")] = "loop"
    interval: Annotated[float, live_option(min=0.1, help="Seconds between two controls of a session, on average.")] = (
        2.0
    )

    @property
    def script(self) -> Script:
        """What each of them plays."""
        return Script(self.mode, self.interval, 60.0 * self.minutes)


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What becomes of a result."""

    compare: Annotated[Path | None, result_option(help="Show the changes since a run saved with --json.")] = None
    force: Annotated[bool, result_option("--force", help="Compare also with another machine, engine, shape.")] = False
    json_path: Annotated[Path | None, result_option("--json", help=JSON_HELP)] = None
    fail_over_budget: Annotated[
        bool,
        result_option(
            "--fail-over-budget", "--fail-over-goal", help="Exit 1 over budget, or where a live goal is missed."
        ),
    ] = False

    def report(
        self, known: Mapping[str, Any], measure: Callable[[], Result], show: Callable[[Console, Result], None]
    ) -> None:
        """Measure, print, compare and save. known: the result's properties that are known before.

        Raises ConfigError before anything is measured where its result cannot be compared or written, TickError.
        """
        console = open_console(self.json_path)
        check_folders(self.json_path)
        base = read_result(self.compare) if self.compare is not None else None
        if base is not None and not self.force:
            check_comparable(base, known)
        result = measure()
        if base is not None and not self.force:
            check_comparable(base, result)
        show(console, result)
        if base is not None:
            result["changes"] = print_changes(console, base, result)
        if self.json_path is not None:
            write_json(self.json_path, result)
        if self.fail_over_budget and is_over_budget(result):
            raise typer.Exit(EXIT_OVER_LIMIT)


def is_over_budget(result: Mapping[str, Any]) -> bool:
    """Whether a run, or a point of a grid or a sweep, is over its budget."""
    return not all(point.get("within_budget", True) for point in (result, *result.get("points", ())))


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an option for each field of those of its parameters that are dataclasses."""
    hints = {name: kind for name, kind in get_type_hints(command, include_extras=True).items() if name != "return"}
    defaults = {name: item.default for name, item in inspect.signature(command).parameters.items()}
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    for kind in groups.values():
        hints |= get_type_hints(kind, include_extras=True)
        defaults |= {each.name: each.default for each in fields(kind)}
    options = {name: kind for name, kind in hints.items() if name not in groups}

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    run.__annotations__ = options
    run.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in options.items()
    ])  # fmt: skip
    return run


@app.callback()
def tickrt_bench(version: Version = False) -> None:
    """Measure ticks: tickrt-bench CONFIG, which is short for tickrt-bench tick CONFIG; and live sessions."""


@app.command()
@with_groups
def tick(
    config: Config,
    options: LoadOptions,
    output: ResultOptions,
    ticks: Ticks = 64,
    torch: Torch = "",
    torch_layers: Annotated[int | None, typer.Option(min=1, help="With --torch published: layers, of 24.")] = None,
) -> None:
    """Measure ticks, in turn with the bare engine.

    Fails where a generation that shares its ticks has other latents than alone.
    """
    deployment = options.opened(config)
    load = options.load(deployment)
    sites: list[Site] = []

    def measure() -> Result:
        competitors_of = None
        if torch:
            peers = of_a_checkout("--torch", "profiling.bench.peers.run")
            competitors_of = peers.torch_competitors(torch, torch_layers, load)
        with open_bench(deployment, [load.weight]) as session:
            result, measured = session.measure(load, ticks, competitors_of)
        sites.extend(measured.sites)
        return result

    def show(console: Console, result: Result) -> None:
        print_result(console, result, sites)

    output.report(known("tick", deployment, load), measure, show)


@app.command()
@with_groups
def budgets(
    config: Config,
    options: SizeOptions,
    output: ResultOptions,
    ticks: Ticks = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; their medians count.")] = 5,
) -> None:
    """Measure every depth and feature set that has a budget."""
    deployment = options.opened(config)
    loads = grid_workloads(deployment, options.frames, options.steps)

    def measure() -> Result:
        with open_bench(deployment, [load.weight for load in loads] * repeats) as session:
            return measure_grid(session, loads, ticks, repeats)

    output.report(known("budgets", deployment, loads[0], VARIED), measure, print_grid)


@app.command()
@with_groups
def ablations(config: Config, options: LoadOptions, output: ResultOptions, ticks: Ticks = 64) -> None:
    """Time ticks with and without each optimization, in turn in one run."""
    deployment = options.opened(config)
    load = options.load(deployment, GUIDANCE)

    def measure() -> Result:
        with open_bench(deployment, [1.0] * (len(ABLATIONS) + 1)) as session:
            return ablations_result(measure_ablations(session, load, ticks), session, load)

    output.report(known("ablations", deployment, load), measure, print_ablations)


@app.command()
@with_groups
def adapters(
    config: Config,
    rank: Annotated[int, typer.Argument(min=1, help="The rank of each adapter.")],
    options: LoadOptions,
    output: ResultOptions,
    ticks: Ticks = 64,
) -> None:
    """Time ticks with none, one and two LoRA adapters, in turn with ticks of a deployment without adapters."""
    deployment = options.opened(config)
    load = options.load(deployment)

    def measure() -> Result:
        with open_bench(deployment, [1.0] * (MOST_ADAPTERS + 1)) as session:
            return measure_adapters(session, load, ticks, rank)

    output.report(known("adapters", deployment, load), measure, print_adapters)


@app.command()
@with_groups
def planner(config: Config, options: LoadOptions, output: ResultOptions, ticks: Ticks = 64) -> None:
    """Tokens per second of the bundle's planner, alone and beside the flow model; the first audio of songs."""
    deployment = options.opened(config)
    load = options.load(deployment)

    def measure() -> Result:
        with open_bench(deployment, [1.0]) as session, session.progress.task("the planner's sequences"):
            result = measure_planner(session, load, ticks)
        with waiting("the first audio of songs"):
            return {**result, "first_audio": measure_first_audio(deployment)}

    output.report(known("planner", deployment, load), measure, print_planner)


@app.command()
@with_groups
def peers(config: Config, options: SizeOptions, output: ResultOptions, ticks: Ticks = 64, torch: Torch = "") -> None:
    """Compare with OpenVINO and ONNX Runtime and, with --torch CHECKPOINT, with PyTorch and diffusers."""
    deployment, run = options.opened(config), of_a_checkout("tickrt-bench peers", "profiling.bench.peers.run")
    loads = run.peer_workloads(deployment, options.frames, options.steps)
    output.report(
        known("peers", deployment, loads[0], VARIED),
        lambda: run.measure_peers(deployment, loads, ticks, torch),
        run.print_peers,
    )


@app.command()
@with_groups
def sweep(
    config: Config,
    over: Annotated[str, typer.Argument(metavar="NAME=VALUES", help="depth=1,2,4,8; also frames=, steps=.")],
    options: LoadOptions,
    output: ResultOptions,
    ticks: Ticks = 64,
    plot: Annotated[Path | None, result_option(help="Draw it into this SVG file.")] = None,
) -> None:
    """One run for each value of a number."""
    check_plot(plot)
    deployment, wanted = options.opened(config), parse_sweep(over)
    loads = [options.load(deployment, **{wanted.name: value}) for value in wanted.values]

    def measure() -> Result:
        with open_bench(deployment, [load.weight for load in loads]) as session:
            return sweep_result(wanted, [session.measure(load, ticks)[0] for load in loads])

    def show(console: Console, result: Result) -> None:
        print_sweep(console, result)
        if plot is not None:
            plot_sweep(console, plot, result)

    output.report(known("sweep", deployment, loads[0], [wanted.name]), measure, show)


@app.command()
@with_groups
def churn(
    config: Config,
    options: LoadOptions,
    output: ResultOptions,
    loads: Annotated[str, typer.Argument(help="Shares of what all slots can do, one run each.")] = "0.3,0.6,0.9",
    ticks: Ticks = 1000,
) -> None:
    """Time ticks while generations of several lengths and prompts come and go at random."""
    deployment = options.opened(config)
    load = churn_load(deployment, loads, options.load(deployment), options.frames)

    def measure() -> Result:
        with open_bench(deployment, [1.0] * (len(load.loads) + 1)) as session:
            return measure_churn(session, load, ticks)

    output.report({"kind": "churn", "target": deployment.target, **load.shape()}, measure, print_churn)


@app.command()
@with_groups
def live(
    config: Config,
    options: ScriptOptions,
    output: ResultOptions,
    sessions: Annotated[str, typer.Argument(help="How many; 1,2,4,8: one run for each number.")] = "1",
    target: Annotated[Target | None, typer.Option(help="Target. Default: the deployment's own.")] = None,
    plan: Annotated[
        bool, live_option("--plan", help="With --mode extend: sessions without a plan and with one, in turn.")
    ] = False,
    admission: Annotated[
        bool, live_option("--admission", help="The server's own limits on sessions hold, and refusals are counted.")
    ] = False,
    background: Annotated[int, live_option(min=0, max=64, help="Clients that generate over HTTP all the time.")] = 0,
    plot: Annotated[Path | None, result_option(help="Several numbers: draw them into this SVG file.")] = None,
) -> None:
    """Live sessions that play over WebSockets, against a server process of their own."""
    load = LiveLoad(parse_sessions(sessions), options.script, plan, admission, background)
    check_plot(plot)
    if plot is not None and len(load.sessions) == 1:
        raise ConfigError("--plot needs several numbers of live sessions", fix="1,2,4 --plot live.svg")
    deployment = on_target(config, target)

    def show(console: Console, result: Result) -> None:
        print_live(console, result)
        if plot is not None:
            plot_live(console, plot, result)

    shape = {"kind": load.kind, "target": deployment.target, **load.shape()}
    output.report(shape, lambda: measure_live(deployment, load), show)


@app.command()
@with_groups
def cluster(
    config: Config,
    options: ScriptOptions,
    output: ResultOptions,
    sessions: Annotated[int, live_option(min=1, max=64, help="Live sessions.")] = 4,
) -> None:
    """Live sessions at two replicas behind HAProxy with Redis: transport, failover, capacity."""
    need_packages("redis", "psutil", extra="scale")
    run = of_a_checkout("tickrt-bench cluster", "profiling.bench.cluster.run")
    deployment = load_deployment(config)
    shape = {"target": deployment.target, **run.shape_of_cluster(options.script, sessions)}
    output.report(shape, lambda: run.measure_cluster(deployment, options.script, sessions), run.print_cluster)


def on_target(config: Path, target: Target | None) -> Deployment:
    """A deployment on another target. Raises ConfigError."""
    deployment = load_deployment(config)
    return deployment.model_copy(update={"target": target or deployment.target})


def known(kind: str, deployment: Deployment, load: Workload, varied: Sequence[str] = ()) -> Result:
    """Properties of a result that are known before anything is measured. varied: those that differ from run to run."""
    shape = {name: value for name, value in shape_of(load).items() if name not in varied}
    return {"kind": kind, "target": deployment.target, **shape}


def of_a_checkout(what: str, module: str) -> Any:
    """A module that is no part of the wheel. Raises ConfigError where it is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):
            raise
        what = f"{what} is measured from a checkout of the repository: it is no part of the installed package"
        raise ConfigError(what, fix="clone the repository, and there: pip install --editable '.[cpu]'") from None


def main() -> None:
    """Entry point of tickrt-bench."""
    app(prog_name="tickrt-bench")


if __name__ == "__main__":
    main()
