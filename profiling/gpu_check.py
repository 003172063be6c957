"""Everything that only a GPU can show, step after step, in one folder of results: `make gpu-check`.

A step is a command of its own with a log of its own; one that fails, or runs out of time, does not end the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profiling.output import write_json
from runtime.command_line import CommandLine
from runtime.errors import EngineError
from runtime.tables import print_table
from runtime.task_progress import waiting
from runtime.terminal import EXIT_OVER_LIMIT, Terminal

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = "acestep-v15-turbo"
LAYERS = 24
BUILD = "engine_build.cli"
BENCH = "profiling.bench_cli"
# Few variants of the step: what is measured here is the decoder. Detailed: profiles name single kernels.
OPTIONS = 'verbosity = "detailed"\nstep_variants = ["plain", "guidance", "dcw+guidance"]\n'
CHURN_LOADS = "0.3,0.6,0.9"

app = CommandLine()


@dataclass(frozen=True)
class CheckStep:
    """`python -m words`, in at most `limit_s`. `needs`: steps without which it is left out. `has_result`: it writes
    NAME.json."""

    name: str
    words: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()
    has_result: bool = False


@dataclass(frozen=True)
class CheckOutcome:
    """How a step ended: done, failed, "out of time" or "left out", with the last line of its log."""

    name: str
    status: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """One measured figure of a step, and its limit where it has one."""

    step: str
    what: str
    value: float
    limit: float | None = None
    is_kept: bool = True


def has_rtx_card() -> bool:
    """Whether this machine's GPU runs engines of tensorrt-rtx: from Ampere on, but for those of data centers."""
    from runtime.devices.cuda_calls import probe

    try:
        capability = float(probe().compute_capability)
    except EngineError:
        return False
    return 8.0 <= capability < 9.0 or capability >= 12.0


def check_steps(folder: Path, demo: Path, layers: int = LAYERS, *, is_rtx: bool = True) -> list[CheckStep]:
    """All steps, the cheapest and most telling first. is_rtx: also those that need an RTX card."""
    return [
        CheckStep("tests", ("pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(ROOT / "tests")), 300),
        CheckStep("demo-build", (BUILD, str(demo), "--target", "tensorrt"), 240),
        _bench("demo-bench", demo, folder, 120, "--budgets", "--repeats", "3"),
        CheckStep("rtx-build", (BUILD, str(demo), "--target", "tensorrt-rtx"), 240),
        *([_bench("rtx-bench", demo, folder, 240, "--repeats", "1", target="tensorrt-rtx")] if is_rtx else []),
        *_published_steps("two-layers", 2, folder, 300),
        _profile("two-layers", folder),
        *_published_steps("full", layers, folder, 600),
        _bench("full-bench", folder / "full.toml", folder, 120, "--budgets", "--repeats", "1"),
        _bench("full-churn", folder / "full.toml", folder, 240, "--churn", CHURN_LOADS, "--ticks", "400"),
        _bench("full-torch", folder / "full.toml", folder, 180, "--torch", "published", "--torch-layers", str(layers)),
    ]


def _published_steps(name: str, layers: int, folder: Path, build_s: float) -> Iterator[CheckStep]:
    """Random weights at the published sizes, for the published deployment."""
    sizes = ("--random", "--layers", str(layers), "--canvas-seconds", "240")
    where = ("--out", str(folder / name), "--deployment", str(folder / f"{name}.toml"))
    yield CheckStep(f"{name}-export", ("engine_build.export", "acestep", *sizes, *where), 300)
    build = (BUILD, str(folder / f"{name}.toml"), "--target", "tensorrt")
    yield CheckStep(f"{name}-build", build, build_s, (f"{name}-export",))


def _profile(name: str, folder: Path) -> CheckStep:
    files = ("--json", str(folder / f"{name}-profile.json"), "--html", str(folder / f"{name}-profile.html"))
    words = ("profiling.profile_cli", str(folder / f"{name}.toml"), "--rows", "8", "--frames", "1500", *files)
    return CheckStep(f"{name}-profile", words, 120, (f"{name}-build",))


def _bench(name: str, config: Path, folder: Path, limit_s: float, *options: str, target: str = "tensorrt") -> CheckStep:
    words = (BENCH, str(config), "--target", target, *options, "--json", str(folder / f"{name}.json"))
    return CheckStep(name, words, limit_s, (f"{name.rpartition('-')[0]}-build",), has_result=True)


def published_deployment(folder: Path, name: str) -> None:
    """The published deployment for the bundle `name` beside it."""
    text = (ROOT / "configs" / f"{PUBLISHED}.toml").read_text(encoding="utf-8")
    text = text.replace(f'bundle = "{PUBLISHED}"', f'bundle = "{name}"').replace("[build]\n", f"[build]\n{OPTIONS}")
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def run_steps(steps: Sequence[CheckStep], folder: Path, minutes: float) -> Iterator[CheckOutcome]:
    """Run the steps, until `minutes` are over. A step that needs one that is not done is left out."""
    end_s, undone = time.monotonic() + 60 * minutes, {step.name for step in steps}
    for step in steps:
        missing = [need for need in step.needs if need in undone]
        left_s = end_s - time.monotonic()
        if missing:
            outcome = CheckOutcome(step.name, "left out", 0.0, f"{missing[0]} is not done")
        elif left_s <= 0:
            outcome = CheckOutcome(step.name, "out of time", 0.0, f"{minutes:g} minutes were over before it began")
        else:
            with waiting(step.name):
                outcome = _run(step, folder, min(step.limit_s, left_s))
        if outcome.status == "done":
            undone.remove(step.name)
        yield outcome


def _run(step: CheckStep, folder: Path, limit_s: float) -> CheckOutcome:
    log, started = folder / f"{step.name}.log", time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *step.words], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = "failed" if process.wait(limit_s) else "done"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return CheckOutcome(step.name, status, round(time.monotonic() - started, 1), lines[-1] if lines else "")


def figures(step: CheckStep, result: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a result that have a budget, and how long competitors take."""
    for point in (result, *result.get("points", ())):
        where = ", ".join(str(point[name]) for name in ("load", "depth", "variant") if name in point)
        for name, limit in point.get("budget", {}).items():
            yield Figure(step.name, f"{where} {name}", point[name], limit, point[name] <= limit)
        for name, times in point.get("competitors", {}).items():
            yield Figure(step.name, f"{where} {name} over the tick", times["over_tick"])


@app.command()
def gpu_check(
    out: Annotated[Path, typer.Option(help="The folder of results.")] = Path("build/gpu-check"),
    minutes: Annotated[float, typer.Option(min=0.0, help="Steps end after this time.")] = 30.0,
    layers: Annotated[int, typer.Option(min=1, max=64, help="Layers of the large model.")] = LAYERS,
    demo: Annotated[Path, typer.Option(help="The deployment of the small model.")] = ROOT / "configs" / "demo.toml",
    only: Annotated[str, typer.Option(help="Names of steps, with commas between them. Default: all.")] = "",
) -> None:
    """Run on a GPU what only a GPU can show; print the figures against their budgets."""
    folder, console = out.resolve(), Terminal()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("two-layers", "full"):
        published_deployment(folder, name)
    wanted = set(only.split(",")) if only else set[str]()
    every = check_steps(folder, demo.resolve(), layers, is_rtx=has_rtx_card())
    steps = [step for step in every if not wanted or step.name in wanted]
    outcomes = []
    for outcome in run_steps(steps, folder, minutes):
        outcomes.append(outcome)
        console.print(f"{outcome.name}: {outcome.status}, {outcome.seconds:.0f} s", markup=False, highlight=False)
    done = {outcome.name for outcome in outcomes if outcome.status == "done"}
    found = [
        figure
        for step in steps
        if step.has_result and step.name in done
        for figure in figures(step, json.loads((folder / f"{step.name}.json").read_text(encoding="utf-8")))
    ]
    write_json(folder / "summary.json", {"steps": [asdict(o) for o in outcomes], "figures": [asdict(f) for f in found]})
    with (folder / "summary.txt").open("w", encoding="utf-8") as file:
        for each in (console, Terminal(file=file, width=160)):
            _print(each, outcomes, found)
    if len(done) < len(steps) or not all(figure.is_kept for figure in found):
        raise typer.Exit(EXIT_OVER_LIMIT)


def _print(console: Console, outcomes: Sequence[CheckOutcome], found: Sequence[Figure]) -> None:
    rows = [[outcome.name, outcome.status, f"{outcome.seconds:.0f}", outcome.note[:80]] for outcome in outcomes]
    print_table(console, "steps", ("step", "ended", "s", "last line"), rows, num_text=1)
    cells = [[figure.step, figure.what, f"{figure.value:.3f}", *_verdict(figure)] for figure in found]
    if cells:
        print_table(console, "figures", ("step", "figure", "value", "limit", ""), cells, num_text=2)


def _verdict(figure: Figure) -> tuple[str, str]:
    if figure.limit is None:
        return "", ""
    return f"{figure.limit:g}", "kept" if figure.is_kept else "missed"


def main() -> None:
    """Entry point of python -m profiling.gpu_check."""
    app(prog_name="python -m profiling.gpu_check")


if __name__ == "__main__":
    main()
