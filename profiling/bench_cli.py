"""tickrt-bench: the cost of a tick over the bare engine, against its budgets, without each optimization, by depth; how
soon live sessions play what is asked of them; and all of these compared with an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
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
from profiling.bench.churn import churn_load, measure_churn, print_churn
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
from profiling.bench.planner import measure_first_audio, measure_planner, print_planner
from profiling.bench.result import print_result, shape_of
from profiling.bench.session import open_bench
from profiling.bench.skip import PROMPTS, measure_skips, print_skips
from profiling.bench.steady_stream import Site
from profiling.bench.workload import GUIDANCE, Workload
from profiling.bench_options import (
    LoadOptions,
    Result,
    ResultOptions,
    ScriptOptions,
    SizeOptions,
    Ticks,
    Torch,
    live_option,
    on_target,
    result_option,
    with_groups,
)
from profiling.output import check_plot
from runtime.base.errors import ConfigError
from runtime.commands.command_line import CommandLine, Config, DefaultCommandGroup, Version, need_packages
from runtime.commands.progress import waiting
from runtime.config.deployment import Deployment, Target, load_deployment

VARIED = ("variant", "guidance", "depth")


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
def skip(
    config: Config,
    output: ResultOptions,
    steps: Annotated[int, typer.Option(min=6, help="All steps of the model.")] = 50,
    plain: Annotated[int, typer.Option(min=5, help="As near as so many plain steps is near enough.")] = 30,
    prompt: Annotated[
        list[str] | None, typer.Option(help="What to try, once per prompt. Default: eight styles.")
    ] = None,
) -> None:
    """Find which of many steps can be left out: the fewest rows that are as near to all steps as --plain steps."""
    deployment = load_deployment(config)
    output.report(
        {"kind": "skip", "target": deployment.target, "steps": steps, "plain": plain},
        lambda: measure_skips(deployment, steps, plain, prompt or PROMPTS),
        print_skips,
    )


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
