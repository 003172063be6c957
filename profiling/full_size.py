"""The published models at their full size, with random weights, on this machine: `make full-size`.

Every part is exported, built and used as a user does, each step a process of its own; times and peaks of memory are
printed, and written after every step. Engines of tensorrt-rtx are built by NVIDIA's builder, not executed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer

from profiling.http_bench import run_concurrently, span_s
from profiling.output import write_json
from profiling.server_process import server_process
from runtime.commands.command_line import CommandLine
from runtime.commands.terminal import EXIT_OVER_LIMIT, Terminal, print_line, print_table

PROMPT = "warm piano over soft drums"
SAMPLE_S = 0.1
EXPORT, BUILD, BUILD_RTX, GENERATE = "export", "build for cpu", "build for tensorrt-rtx", "generate"
SERVE = "two requests at once"
# Options of the exporter, by name of the bundle. Short canvases: frames cost time, and sizes do not depend on them.
MODELS = {
    "acestep": ("acestep", "--random", "--all-parts", "--canvas-seconds", "30"),
    "stable-audio-3-medium": ("stable_audio_3", "--random", "medium", "--all-parts", "--canvas-seconds", "30"),
}

app = CommandLine()


@dataclass(frozen=True)
class StepResult:
    """How a step went: "done", "failed" or why it was left out; its time and the peak memory of its processes."""

    model: str
    step: str
    status: str
    seconds: float = 0.0
    peak_gb: float = 0.0


class PeakMemory:
    """The largest sum of the resident memory of a process and its descendants, in bytes, while it is watched."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid, self._ended = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tickrt-peak", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, sum(_tree_bytes(self._pid)))


def _tree_bytes(pid: int) -> Iterator[int]:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return
    for each in family:
        try:
            yield each.memory_info().rss
        except psutil.Error:
            continue


def run_step(model: str, step: str, words: Sequence[str], log: Path) -> StepResult:
    """`python -m words`, with its output in a file."""
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, "-m", *words], stdout=file, stderr=subprocess.STDOUT)
        with PeakMemory(process.pid) as memory:
            status = "failed" if process.wait() else "done"
    return StepResult(model, step, status, round(time.monotonic() - started, 1), round(memory.peak_bytes / 1e9, 2))


def serve_two(model: str, config: Path, seconds_each: float) -> StepResult:
    """Two requests at once to a server of its own; the time is that of both, the peak is the server's."""
    bodies = [{"prompt": PROMPT, "seconds": seconds_each, "seed": seed} for seed in (1, 2)]
    status, seconds = "failed", 0.0
    with server_process(config) as server, PeakMemory(server.pid) as memory:
        try:
            timings = asyncio.run(run_concurrently(server.url, bodies))
            status, seconds = "done" if all(each.size_bytes for each in timings) else "failed", span_s(timings)
        except (SystemExit, OSError) as error:
            print_line(str(error))
    return StepResult(model, SERVE, status, round(seconds, 1), round(memory.peak_bytes / 1e9, 2))


def measure_model(model: str, folder: Path, export: Sequence[str], seconds: float) -> Iterator[StepResult]:
    """Export, build for both targets, generate, serve; what needs a step that is not done is left out."""
    config = folder / f"{model}.toml"
    place = ("--out", str(folder / model), "--deployment", str(config))
    asked = ("--prompt", PROMPT, "--seconds", f"{seconds:g}", "--out", str(config.with_suffix(".wav")))
    steps: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        (EXPORT, "", ("engine_build.export", *export, *place)),
        (BUILD, EXPORT, ("engine_build.cli", str(config), "--target", "cpu")),
        (BUILD_RTX, EXPORT, ("engine_build.cli", str(config), "--target", "tensorrt-rtx")),
        (GENERATE, BUILD, ("runtime.commands.generate", str(config), *asked)),
    )
    done = {""}
    for step, need, words in steps:
        if need not in done:
            yield StepResult(model, step, f"left out: {need} is not done")
        elif step == BUILD_RTX and importlib.util.find_spec("tensorrt_rtx") is None:
            yield StepResult(model, step, "left out: tensorrt-rtx is not installed")
        else:
            result = run_step(model, step, words, folder / f"{model}-{step.replace(' ', '-')}.log")
            done |= {step} if result.status == "done" else set()
            yield result
    if GENERATE in done:
        yield serve_two(model, config, seconds)
    else:
        yield StepResult(model, SERVE, f"left out: {GENERATE} is not done")


@app.command()
def full_size(
    out: Annotated[Path, typer.Option(help="The folder of bundles, engines and results.")] = Path("build/full-size"),
    seconds: Annotated[float, typer.Option(min=1.0, help="Of audio per request.")] = 10.0,
    most_gb: Annotated[float, typer.Option(min=0.1, help="Peak memory that no step may exceed.")] = 24.0,
    only: Annotated[str, typer.Option(help=f"A model: {', '.join(MODELS)}. Default: all.")] = "",
) -> None:
    """Export, build and serve the published models with random weights; print times and peaks of memory."""
    out.mkdir(parents=True, exist_ok=True)
    results: list[StepResult] = []
    console = Terminal()
    for model, export in MODELS.items():
        for result in measure_model(model, out.resolve(), export, seconds) if only in ("", model) else ():
            results.append(result)
            console.print(f"{result.model}, {result.step}: {result.status}", markup=False, highlight=False)
            write_json(out / "summary.json", [asdict(each) for each in results])
    rows = [[each.model, each.step, each.status, f"{each.seconds:.0f}", f"{each.peak_gb:.1f}"] for each in results]
    print_table(console, "full size", ("model", "step", "ended", "s", "peak GB"), rows, num_text=3)
    if any(each.status == "failed" or each.peak_gb > most_gb for each in results):
        raise typer.Exit(EXIT_OVER_LIMIT)


def main() -> None:
    """Entry point of python -m profiling.full_size."""
    app(prog_name="python -m profiling.full_size")


if __name__ == "__main__":
    main()
