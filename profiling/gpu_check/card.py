"""What a card is, what captured graphs give and cost, and how soon audio is decoded: as commands that write JSON."""

from __future__ import annotations

from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from profiling.bench.session import open_session
from profiling.bench.steady_stream import Latents
from profiling.bench.workload import with_runtime, workload_of
from profiling.gpu_check.beside import measure_decodes
from profiling.output import write_json
from runtime.commands.command_line import CommandLine, Config, Group
from runtime.config.deployment import Deployment, Target, load_deployment
from runtime.devices import cuda_calls
from runtime.pipeline.pipeline import open_pipeline

# Graphs are captured of what comes back.
DEPTH, TIMES = 4, 12
PACKAGES = ("tickrt", "numpy", "tensorrt-cu13", "tensorrt-rtx", "cuda-python", "onnxruntime")

app = CommandLine(add_completion=False, cls=Group)
Json = Annotated[Path, typer.Option("--json", help="Where the result is written.")]
Of = Annotated[Target, typer.Option(help="Target.")]


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
def captured(config: Config, json_path: Json, target: Of = "tensorrt") -> None:
    """Generations by plain launches and by captured graphs: the largest difference, which has to be 0; what a graph
    takes to make, and of the device's memory."""
    deployment = _deployment(config, target)
    load = workload_of(deployment, DEPTH)
    latents = list[list[Latents]]()
    with open_session(deployment) as session:
        for capture in (False, True):
            with session.stream(load, with_runtime(deployment, capture=capture)) as stream:
                for _ in range(TIMES):
                    last = stream.play()
                    if (counts := stream.loop.launch_counts).replayed:
                        break
                latents.append(last)
    found = {
        "difference": max(float(np.abs(one - two).max()) for one, two in zip(*latents, strict=True)),
        "replayed": counts.replayed,
        "captured": counts.captured,
        "graph_ms": 1e3 * counts.creation_s / max(counts.captured, 1),
        "graph_mib": counts.creation_bytes / max(counts.captured, 1) / (1 << 20),
    }
    write_json(json_path, found)


@app.command()
def decodes(
    config: Config,
    json_path: Json,
    target: Of = "tensorrt",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each of the two measurements.")] = 4.0,
) -> None:
    """How long audio takes to decode, by its urgency, alone and beside ticks; generations in these and alone."""
    with open_pipeline(_deployment(config, target)) as pipeline:
        write_json(json_path, measure_decodes(pipeline, seconds))


def _deployment(config: Path, target: Target) -> Deployment:
    return load_deployment(config).model_copy(update={"target": target})


def main() -> None:
    """Entry point of python -m profiling.gpu_check.card."""
    app(prog_name="python -m profiling.gpu_check.card")


if __name__ == "__main__":
    main()
