"""tickrt-bench: the cost of a tick over the bare engine, against its budgets, without each optimization, by depth; how
soon live sessions play what is asked of them; and all of these compared with an earlier run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from profiling.bench.churn.arrivals import churn_load
from profiling.bench.cluster_load import SESSIONS, ClusterLoad
from profiling.bench.compare_runs import check_comparable, print_changes, read_result
from profiling.bench.live.run import LiveLoad, parse_sessions
from profiling.bench.live.script import Script
from profiling.bench.workload import GUIDANCE, with_runtime, workload_of
from profiling.bench_runs import Bench
from profiling.output import JSON_HELP, check_folders, open_console, write_json
from runtime.base.errors import ConfigError
from runtime.commands.command_line import CommandLine, Config, Version
from runtime.commands.terminal import EXIT_OVER_LIMIT, exit_on_error
from runtime.config.deployment import Target, load_deployment
from runtime.live.protocol.messages import Mode

# Options by sections of the help.
workload_option, runs_option, live_option, result_option = (
    partial(typer.Option, rich_help_panel=title)
    for title in ("Workload", "What is measured", "Live sessions", "Result")
)
TICKS, CHURN_TICKS = 64, 1000

app = CommandLine()


@app.command()
def bench(
    config: Config,
    target: Annotated[Target | None, typer.Option(help="Target. Default: the deployment's own.")] = None,
    depth: Annotated[int, workload_option(min=1, max=64, help="Generations in flight.")] = 8,
    guidance: Annotated[
        float | None,
        workload_option(help="Guidance scale; 1 is off.  [default: 1, with --ablations 3]", show_default=False),
    ] = None,
    dcw: Annotated[bool, workload_option("--dcw", help="With the wavelet-domain correction.")] = False,
    features: Annotated[
        str,
        workload_option(help="More features of the step: rcfg,mask,target,sde,ab2,ode_noise,blend,gain,guidance,dcw."),
    ] = "",
    frames: Annotated[int, workload_option(min=0, help="Frames per generation; 0 is the bundle's canvas.")] = 0,
    steps: Annotated[int, workload_option(min=0, help="Steps per generation; 0 is the bundle's default.")] = 0,
    ticks: Annotated[
        int | None,
        workload_option(
            min=1, help=f"Ticks to measure.  [default: {TICKS}, with --churn {CHURN_TICKS}]", show_default=False
        ),
    ] = None,
    sessions: Annotated[
        int,
        workload_option(
            min=0,
            max=64,
            help=f"Sessions; one of them changes a step parameter before every tick. With --cluster: [{SESSIONS}]",
        ),
    ] = 0,
    budgets: Annotated[
        bool, runs_option("--budgets", help="Measure every depth and feature set that has a budget.")
    ] = False,
    repeats: Annotated[int, runs_option(min=1, help="With --budgets: runs of each; their medians count.")] = 5,
    ablations: Annotated[bool, runs_option("--ablations", help="Time ticks without each optimization.")] = False,
    adapters: Annotated[int, runs_option(min=0, help="Time ticks without and with LoRA adapters of this rank.")] = 0,
    planner: Annotated[
        bool,
        runs_option("--planner", help="Tokens per second of the bundle's planner, alone and beside the flow model."),
    ] = False,
    peers: Annotated[
        bool,
        runs_option(
            "--peers",
            help="Compare with OpenVINO and ONNX Runtime and, with --torch CHECKPOINT, with PyTorch and diffusers.",
        ),
    ] = False,
    sweep: Annotated[str, runs_option(help="One run for each value: depth=1,2,4,8; also frames=, steps=.")] = "",
    churn: Annotated[
        str, runs_option(help="Generations come and go at random, at these shares of all slots: 0.3,0.6,0.9.")
    ] = "",
    cluster: Annotated[
        bool,
        live_option(
            "--cluster", help="Live sessions at two replicas behind HAProxy with Redis: transport, failover, capacity."
        ),
    ] = False,
    live: Annotated[
        str, live_option(help="Live sessions that play over WebSockets; 1,2,4,8: one run for each number.")
    ] = "",
    minutes: Annotated[
        float, live_option(min=0.01, help="With --live, --cluster: how long controls are changed.")
    ] = 1.0,
    mode: Annotated[
        Mode, live_option(metavar="loop|extend", help="With --live, --cluster: the mode of the sessions.")
    ] = "loop",
    interval: Annotated[
        float,
        live_option(min=0.1, help="With --live, --cluster: seconds between two controls of a session, on average."),
    ] = 2.0,
    plan: Annotated[
        bool, live_option("--plan", help="With --live --mode extend: sessions without a plan and with one, in turn.")
    ] = False,
    admission: Annotated[
        bool,
        live_option(
            "--admission", help="With --live: the server's own limits on sessions hold, and refusals are counted."
        ),
    ] = False,
    background: Annotated[
        int, live_option(min=0, max=64, help="With --live: clients that generate over HTTP all the time.")
    ] = 0,
    plot: Annotated[
        Path | None, result_option(help="With --sweep, or several numbers of --live: draw it into this SVG file.")
    ] = None,
    compare: Annotated[Path | None, result_option(help="Show the changes since a run saved with --json.")] = None,
    force: Annotated[bool, result_option("--force", help="Compare also with another machine, engine, shape.")] = False,
    json_path: Annotated[Path | None, result_option("--json", help=JSON_HELP)] = None,
    torch: Annotated[
        str, runs_option(help="A checkpoint in diffusers' layout, or \"published\": time PyTorch's decoder as well.")
    ] = "",
    torch_layers: Annotated[int | None, runs_option(min=1, help="With --torch published: layers, of 24.")] = None,
    two_pass: Annotated[bool, workload_option("--two-pass", help="Guidance in a second execute, not fused.")] = False,
    fail_over_budget: Annotated[
        bool,
        result_option(
            "--fail-over-budget", "--fail-over-goal", help="Exit 1 over budget, or where a live goal is missed."
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
        script = Script(mode, interval, 60.0 * minutes)
        if plan and not live:
            raise ConfigError("--plan compares live sessions", fix="--live 1 --mode extend --plan")
        if admission and not live:
            raise ConfigError("--admission is for live sessions", fix="--live 48 --admission")
        if background and not live:
            raise ConfigError("--background is for live sessions", fix="--live 1 --background 8")
        played = LiveLoad(parse_sessions(live), script, plan, admission, background) if live else None
        clustered = ClusterLoad(sessions or SESSIONS, script) if cluster else None
        comes = churn_load(deployment, churn, load, frames) if churn else None
        runs = (budgets, repeats, ablations, adapters, planner, peers, sweep, comes, played, clustered)
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
            result["changes"] = print_changes(console, base, result)
        if json_path is not None:
            write_json(json_path, result)
        if fail_over_budget and is_over_budget(result):
            raise typer.Exit(EXIT_OVER_LIMIT)


def is_over_budget(result: dict[str, Any]) -> bool:
    """Whether a run, or a point of a grid or a sweep, is over its budget."""
    return not all(point.get("within_budget", True) for point in (result, *result.get("points", ())))


def main() -> None:
    """Entry point of tickrt-bench."""
    app(prog_name="tickrt-bench")


if __name__ == "__main__":
    main()
