"""Ticks in turn with the same decoder in other software, and whole generations in turn with diffusers' pipeline.

Every peer has the same weights and inputs, and its result is compared with ours before it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from profiling.bench.baseline import decoder_inputs
from profiling.bench.result import BUSY, NOISY_SPREAD, rounded, shape_of
from profiling.bench.session import BenchSession, open_session
from profiling.bench.statistics import neighbour_ratio, percentiles, time_in_turn
from profiling.bench.steady_stream import Competitor, Competitors
from profiling.bench.workload import GUIDANCE, Workload, at_depth, workload_of
from profiling.provenance import provenance
from profiling.reports.text_table import print_table
from runtime.command_line import need_packages
from runtime.config.deployment import Deployment
from runtime.engines.engine import run_once
from runtime.errors import ConfigError, EngineError
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import GenerationOptions, parse_options
from runtime.task_progress import TaskProgress

if TYPE_CHECKING:
    from profiling.bench.peers.diffusers_pipeline import Output

REQUESTS = (1, 4, 8)
TOLERANCE = 1e-4
# Threads of a library that wait for more work take a core for milliseconds from what is timed next.
REST_S = 0.01
MODES = {"": False, " compiled": True}
TITLES = {
    "tick": "one step of all requests: a tick, the decoder alone elsewhere",
    "latents": "whole generations, text to latents",
    "audio": "whole generations, text to audio",
}
# The codec's share of the example: text to audio takes about six times as long as text to latents.
WEIGHTS = {"latents": 1.0, "audio": 6.0}
TORCH_PACKAGES = ("torch", "diffusers", "transformers")
Arrays = Sequence[NDArray[Any]]


class Decoder(Competitor, Protocol):
    """A decoder on fixed inputs."""

    def velocity(self) -> NDArray[np.float32]:
        """One pass: `[R, T, C]`."""


@dataclass(frozen=True)
class Rested:
    """A competitor that is timed after a pause, and followed by one."""

    competitor: Competitor

    def time_ms(self, times: int = 1) -> float:
        """As the competitor's."""
        time.sleep(REST_S)
        elapsed_ms = self.competitor.time_ms(times)
        time.sleep(REST_S)
        return elapsed_ms


def torch_competitors(source: str, layers: int | None, load: Workload) -> Callable[[int], Competitors]:
    """Rows of a tick -> PyTorch's decoder, eager and compiled. Raises BuildError where PyTorch is not installed."""
    need_packages(*TORCH_PACKAGES)
    from profiling.bench.peers.torch_decoder import TorchDecoder

    def competitors(rows: int) -> Competitors:
        modes = {"torch eager": False, "torch compiled": True}
        return {
            name: TorchDecoder(source, rows=rows, frames=load.frames, tokens=load.tokens, layers=layers, compiled=mode)
            for name, mode in modes.items()
        }

    return competitors


def peer_workloads(deployment: Deployment, frames: int, steps: int) -> list[Workload]:
    """REQUESTS without guidance and, where the model is meant to have it, with. Raises ConfigError."""
    is_guided = deployment.loaded_bundle.sampler.guidance != 1.0
    scales = (1.0, GUIDANCE) if is_guided else (1.0,)
    return [workload_of(deployment, depth, frames, steps, guidance=scale) for scale in scales for depth in REQUESTS]


def measure_peers(deployment: Deployment, loads: Sequence[Workload], ticks: int, checkpoint: str) -> dict[str, Any]:
    """All comparisons as one JSON object. checkpoint: what the bundle was exported from; "": OpenVINO only.

    Raises BuildError where a package is missing, ConfigError, EngineError where a peer's result is another one.
    """
    need_packages("openvino", extra="peers")
    if deployment.target != "cpu":
        raise ConfigError(f"--peers compares on the CPU, the target is {deployment.target}", fix="--target cpu")
    if checkpoint:
        need_packages(*TORCH_PACKAGES)
        if not Path(checkpoint).is_dir():
            raise ConfigError(f"{checkpoint} is no folder", fix="--torch the checkpoint that the bundle was made from")
    with open_session(deployment, [load.weight for load in loads]) as session:
        found = [_compare_ticks(session, load, ticks, checkpoint) for load in loads]
        properties = provenance(session.bundle, deployment, session.engines.decoder.manifest)
    if checkpoint:
        found += _compare_generations(deployment, loads, ticks, checkpoint)
    packages = ("openvino", *(TORCH_PACKAGES if checkpoint else ()))
    properties["versions"] |= {name: metadata.version(name) for name in packages}
    sizes = {name: value for name, value in shape_of(loads[0]).items() if name not in ("variant", "guidance", "depth")}
    return {"kind": "peers", **sizes, "ticks": ticks, "comparisons": found, **properties}


def _compare_ticks(session: BenchSession, load: Workload, ticks: int, checkpoint: str) -> dict[str, Any]:
    differences: dict[str, float] = {}

    def competitors(rows: int) -> Competitors:
        inputs = decoder_inputs(session.engines, session.bundle, load, rows)
        expected = run_once(session.engines.decoder, inputs)[session.bundle.decoder.outputs.velocity]
        found = dict(_decoders(session, load, inputs, checkpoint))
        for name, decoder in found.items():
            differences[name] = check_same(name, [decoder.velocity()], [expected])
        return {name: Rested(decoder) for name, decoder in found.items()}

    _, measured = session.measure(load, ticks, competitors)
    return comparison("tick", load, measured.ticks_ms, measured.competitors_ms, differences)


def _decoders(
    session: BenchSession, load: Workload, inputs: Mapping[str, NDArray[Any]], checkpoint: str
) -> Iterator[tuple[str, Decoder]]:
    from profiling.bench.peers.openvino_decoder import OpenVinoDecoder

    spec, threads = session.bundle.decoder, session.deployment.runtime.threads
    graph = session.bundle.folder / spec.graph
    yield "OpenVINO", OpenVinoDecoder(graph, inputs, spec.outputs.velocity, threads)
    if checkpoint:
        from profiling.bench.peers.torch_decoder import TorchDecoder

        roles = spec.inputs
        names = {"hidden_states": roles.latents, "timestep": roles.time, "timestep_r": roles.time}
        names |= {"encoder_hidden_states": roles.condition or "", "context_latents": roles.context or ""}
        given = {name: inputs[role] for name, role in names.items()}
        rows = len(given["timestep"])
        for suffix, compiled in MODES.items():
            yield (
                f"PyTorch{suffix}",
                TorchDecoder(
                    checkpoint,
                    rows=rows,
                    frames=load.frames,
                    tokens=load.tokens,
                    compiled=compiled,
                    inputs=given,
                    threads=threads,
                ),
            )


def _compare_generations(
    deployment: Deployment, loads: Sequence[Workload], ticks: int, checkpoint: str
) -> list[dict[str, Any]]:
    """A generation takes `steps` ticks: as many ticks are timed as before. Guidance changes nothing of the codec."""
    from profiling.bench.peers.diffusers_pipeline import DiffusersPipeline

    with ExitStack() as stack:
        pipeline = stack.enter_context(open_pipeline(at_depth(deployment, max(REQUESTS))))
        pool = stack.enter_context(ThreadPoolExecutor(max(REQUESTS)))
        works = [
            (work, load) for load in loads for work in ("latents", "audio") if work == "latents" or load.guidance == 1.0
        ]
        progress = stack.enter_context(TaskProgress([load.weight * WEIGHTS[work] for work, load in works]))
        peers = {
            f"AceStepPipeline{suffix}": DiffusersPipeline(checkpoint, compiled=mode) for suffix, mode in MODES.items()
        }
        return [
            _compare_generation(work, load, pipeline, pool, peers, -(-ticks // load.steps), progress)
            for work, load in works
        ]


def _compare_generation(
    work: str,
    load: Workload,
    pipeline: Pipeline,
    pool: ThreadPoolExecutor,
    peers: Mapping[str, Any],
    rounds: int,
    progress: TaskProgress,
) -> dict[str, Any]:
    rate_hz, shift = pipeline.bundle.latents.frame_rate_hz, pipeline.bundle.sampler.shift
    # Equally many tokens: diffusers' transformer does not mask the padding of a batch.
    prompts = [f"warm piano, take {index + 1}" for index in range(load.depth)]
    asked = {"seconds": load.frames / rate_hz, "steps": load.steps, "guidance": load.guidance, "shift": shift}
    options = [
        parse_options({"prompt": prompt, "seed": seed, "noise": "torch", "dcw": {"low": 0.0, "high": 0.0}, **asked})
        for seed, prompt in enumerate(prompts)
    ]
    output: Output = "latent" if work == "latents" else "np"
    own = partial(generate, pipeline, pool, options, work)
    others = {name: partial(peer.generate, prompts, output, **asked) for name, peer in peers.items()}
    with progress.task(f"{work} of {load.text}"):
        expected = own()
        results = {name: other() for name, other in others.items()}
        differences = {name: check_same(name, made, expected) for name, made in results.items() if work == "latents"}
        own_ms, others_ms = time_in_turn(
            partial(_timed_ms, own), [partial(_timed_ms, other) for other in others.values()], rounds, progress.update
        )
    return comparison(work, load, own_ms, dict(zip(others, others_ms, strict=True)), differences)


def generate(
    pipeline: Pipeline, pool: ThreadPoolExecutor, options: Sequence[GenerationOptions], work: str
) -> list[NDArray[np.float32]]:
    """Latents `[T, C]`, or audio `[n, channels]`, of generations that are in flight together."""
    produce = generate_latents if work == "latents" else generate_audio

    def one(each: GenerationOptions) -> NDArray[np.float32]:
        return np.concatenate(list(produce(pipeline, LongGeneration(pipeline, each), wait=True)))

    return list(pool.map(one, options))


def _timed_ms(work: Callable[[], object]) -> float:
    time.sleep(REST_S)
    begin_s = time.perf_counter()
    work()
    return (time.perf_counter() - begin_s) * 1e3


def check_same(name: str, found: Arrays, expected: Arrays) -> float:
    """The largest difference from ours. Raises EngineError above TOLERANCE of the largest value, or of 1."""
    if [array.shape for array in found] != [array.shape for array in expected]:
        raise EngineError(f"{name} gives {found[0].shape}, we {expected[0].shape}", fix="choose other --frames")
    worst = max(float(np.abs(one - two).max()) for one, two in zip(found, expected, strict=True))
    allowed = TOLERANCE * max(1.0, *(float(np.abs(array).max()) for array in expected))
    if not worst <= allowed:
        raise EngineError(
            f"{name} differs from us by {worst:.1e}, expected at most {allowed:.0e}",
            fix="--torch the checkpoint that the bundle was exported from; engines built in float32",
        )
    return worst


def comparison(
    work: str,
    load: Workload,
    own_ms: Sequence[float],
    peers_ms: Mapping[str, Sequence[float]],
    differences: Mapping[str, float],
) -> dict[str, Any]:
    """One line of the result. ratio: a peer's time over ours, between samples of one run."""
    return {
        "work": work,
        "requests": load.depth,
        "variant": load.variant,
        "tickrt_ms": rounded(percentiles(own_ms)),
        "peers": {
            name: _peer(own_ms, times_ms) | {"largest_difference": differences.get(name)}
            for name, times_ms in peers_ms.items()
        },
    }


def _peer(own_ms: Sequence[float], times_ms: Sequence[float]) -> dict[str, Any]:
    ratio = neighbour_ratio(own_ms, times_ms)
    figures = {"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}
    return {**rounded(percentiles(times_ms) | figures), "is_noisy": ratio.spread > NOISY_SPREAD * ratio.median}


def print_peers(console: Console, result: Mapping[str, Any]) -> None:
    """A table for each kind of work."""
    console.print(f"{result['bundle']}: {result['frames']} frames, {result['steps']} steps; ms (p50), and times ours")
    for work, title in TITLES.items():
        lines = [line for line in result["comparisons"] if line["work"] == work]
        if lines:
            columns = ("requests", "features", "TickRT", *lines[0]["peers"])
            print_table(console, title, columns, [_cells(line) for line in lines], 0)
    if any(peer["is_noisy"] for line in result["comparisons"] for peer in line["peers"].values()):
        console.print(BUSY, style="yellow")


def _cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    peers = (f"{peer['p50']:.1f}  {peer['ratio']:.2f} x" for peer in line["peers"].values())
    return str(line["requests"]), line["variant"], f"{line['tickrt_ms']['p50']:.1f}", *peers
