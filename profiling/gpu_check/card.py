"""What a card is, and whether a captured graph gives what plain launches give: as commands that write JSON."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from profiling.bench.session import open_session
from profiling.bench.steady_stream import Latents
from profiling.bench.workload import with_runtime, workload_of
from profiling.output import write_json
from runtime.command_line import CommandLine, Config, Group
from runtime.config.deployment import load_deployment
from runtime.config.targets import Target
from runtime.devices import cuda_calls
from runtime.errors import EngineError
from runtime.tick.record import TickRecord

# Graphs are captured of what comes back.
DEPTH, TIMES = 4, 12
PACKAGES = ("tickrt", "numpy", "tensorrt-cu13", "tensorrt-rtx", "cuda-python", "onnxruntime")

app = CommandLine(add_completion=False, cls=Group)
Json = Annotated[Path, typer.Option("--json", help="Where the result is written.")]


@app.command()
def facts(json_path: Json) -> None:
    """The first GPU, its driver, its free memory, the priorities of its streams, and installed packages."""
    gpu = cuda_calls.probe()
    cuda_calls.open_first()
    found = {
        **asdict(gpu),
        "free_bytes": cuda_calls.free_bytes(),
        "priorities": 1 + abs(int(np.subtract(*cuda_calls.stream_priorities()))),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }
    write_json(json_path, found)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@app.command()
def captured(config: Config, json_path: Json, target: Annotated[Target, typer.Option()] = "tensorrt") -> None:
    """Generations by plain launches and by captured graphs: the largest difference, which has to be 0."""
    deployment = load_deployment(config).model_copy(update={"target": target})
    load = workload_of(deployment, DEPTH)
    latents, replays = list[list[Latents]](), [0, 0]
    with open_session(deployment) as session:
        for capture in (False, True):
            with session.stream(load, with_runtime(deployment, capture=capture)) as stream:
                stream.loop.observers.append(partial(_count, replays, capture))
                for _ in range(TIMES):
                    last = stream.play()
                    if replays[capture]:
                        break
            latents.append(last)
    difference = max(float(np.abs(one - two).max()) for one, two in zip(*latents, strict=True))
    write_json(json_path, {"difference": difference, "replayed": replays[1]})
    if replays[0] or not replays[1]:
        raise EngineError(f"{replays[1]} ticks were replayed with captured graphs, {replays[0]} without them")
    if difference:
        raise EngineError(f"captured graphs give other latents than plain launches: off by {difference:.1e}")


def _count(replays: list[int], capture: bool, record: TickRecord) -> None:
    replays[capture] += record.replayed


def main() -> None:
    """Entry point of python -m profiling.gpu_check.card."""
    app(prog_name="python -m profiling.gpu_check.card")


if __name__ == "__main__":
    main()
