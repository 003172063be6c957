"""What one call of tickrt-bench measures, and the function that prints it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

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
from profiling.bench.churn.arrivals import ChurnLoad
from profiling.bench.churn.result import print_churn
from profiling.bench.churn.run import measure_churn
from profiling.bench.cluster_load import ClusterLoad
from profiling.bench.live.card import plot_live, print_live
from profiling.bench.live.run import LiveLoad, measure_live
from profiling.bench.planner.first_audio import measure_first_audio
from profiling.bench.planner.measure import measure_planner, print_planner
from profiling.bench.result import print_result, shape_of
from profiling.bench.session import open_session
from profiling.bench.sweep import parse_sweep, plot_sweep, print_sweep, sweep_result
from profiling.bench.workload import Workload, workload_of
from runtime.base.errors import ConfigError
from runtime.commands.command_line import need_packages
from runtime.commands.task_progress import waiting
from runtime.config.deployment import Deployment

VARIED = ("variant", "guidance", "depth")
Measured = tuple[dict[str, Any], Callable[[Console], None]]


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
    cluster: ClusterLoad | None
    plot: Path | None
    torch: str
    torch_layers: int | None

    @property
    def _runs(self) -> dict[str, bool]:
        return {
            "budgets": self.budgets, "ablations": self.ablations, "adapters": self.adapters > 0,
            "planner": self.planner, "peers": self.peers, "sweep": bool(self.sweep), "churn": self.churn is not None,
            "live": self.live is not None, "cluster": self.cluster is not None,
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
        load = self.live or self.churn or self.cluster
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
        competitors_of = None
        if self.torch:
            peers = _of_a_checkout("--torch", "profiling.bench.peers.run")
            competitors_of = peers.torch_competitors(self.torch, self.torch_layers, self.load)
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
        with open_session(self.deployment, [1.0]) as session, session.progress.task("the planner's sequences"):
            result = measure_planner(session, self.load, self.ticks)
        with waiting("the first audio of songs"):
            result["first_audio"] = measure_first_audio(self.deployment)
        return result, lambda console: print_planner(console, result)

    def _peers(self) -> Measured:
        peers = _of_a_checkout("--peers", "profiling.bench.peers.run")
        loads = peers.peer_workloads(self.deployment, self.load.frames, self.load.steps)
        result = peers.measure_peers(self.deployment, loads, self.ticks, self.torch)
        return result, lambda console: peers.print_peers(console, result)

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

    def _cluster(self) -> Measured:
        assert self.cluster is not None
        need_packages("redis", "psutil", extra="scale")
        run = _of_a_checkout("--cluster", "profiling.bench.cluster.run")
        card = _of_a_checkout("--cluster", "profiling.bench.cluster.card")
        result = run.measure_cluster(self.deployment, self.cluster)
        return result, lambda console: card.print_cluster(console, result)

    def _with(self, name: str, value: int) -> Workload:
        """The workload with another depth, frames or steps. Raises ConfigError."""
        load = self.load
        sizes = {"depth": load.depth, "frames": load.frames, "steps": load.steps, name: value}
        return workload_of(
            self.deployment, sizes["depth"], sizes["frames"], sizes["steps"],
            guidance=load.guidance, features=load.features, sessions=load.sessions,
        )  # fmt: skip


def _of_a_checkout(option: str, module: str) -> Any:
    """A module that is no part of the wheel. Raises ConfigError where it is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(str(error.name)):
            raise
        what = f"{option} is measured from a checkout of the repository: it is no part of the installed package"
        raise ConfigError(what, fix="clone the repository, and there: pip install --editable '.[cpu]'") from None
