"""Options of tickrt-bench's commands, in groups: a workload, live sessions, and what becomes of a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from profiling.bench.compare_runs import check_comparable, print_changes, read_result
from profiling.bench.live.script import Script
from profiling.bench.workload import Workload, with_runtime, workload_of
from profiling.output import JSON_HELP, check_folders, open_console, write_json
from runtime.commands.terminal import EXIT_OVER_LIMIT
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.live.protocol.messages import Mode

# Options by sections of the help.
workload_option, live_option, result_option = (
    partial(typer.Option, rich_help_panel=title) for title in ("Workload", "Live sessions", "Result")
)
Result = dict[str, Any]
Ticks = Annotated[int, workload_option(min=1, help="Ticks to measure.")]
Torch = Annotated[
    str, typer.Option(help="A checkpoint in diffusers' layout, or \"published\": time PyTorch's decoder as well.")
]


def on_target(config: Path, target: Target | None) -> Deployment:
    """A deployment on another target. Raises ConfigError."""
    deployment = load_deployment(config)
    return deployment.model_copy(update={"target": target or deployment.target})


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
