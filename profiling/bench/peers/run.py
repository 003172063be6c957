"""Ticks in turn with the same decoder in other software, whole generations in turn with diffusers' pipeline, and one
request over HTTP in turn with a plain loop over the same graphs.

Every peer has the same weights and inputs, and its result is compared with ours before it is timed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from profiling.bench.peers.plain_generation import OnnxRuntimeGraph, PlainGeneration, can_run_plainly
from profiling.bench.result import BUSY, NOISY_SPREAD, rounded, shape_of
from profiling.bench.session import BenchSession, open_bench
from profiling.bench.statistics import mean_ms, neighbour_ratio, percentiles, time_in_turn
from profiling.bench.steady_stream import Competitor, Competitors, decoder_inputs
from profiling.bench.workload import GUIDANCE, Workload, at_depth, workload_of
from profiling.http_bench import GENERATIONS
from profiling.provenance import provenance
from profiling.server_process import server_process
from runtime.audio.formats import read_latents
from runtime.base.errors import ConfigError, EngineError
from runtime.commands.command_line import need_packages
from runtime.commands.progress import TaskProgress
from runtime.commands.terminal import print_table
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.engines.engine import run_once
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import GenerationOptions, parse_options

if TYPE_CHECKING:
    from profiling.bench.peers.torch_peers import Output

REQUESTS = (1, 4, 8)
TOLERANCE = 1e-4
# Of our engines in 8 bits; peers run in float32.
EIGHT_BITS_TOLERANCE = 0.5
# Threads of a library that wait for more work take a core for milliseconds from what is timed next.
REST_S = 0.01
MODES = {"": False, " compiled": True}
TITLES = {
    "tick": "one step of all requests: a tick, the decoder alone elsewhere",
    "latents": "whole generations, text to latents",
    "audio": "whole generations, text to audio",
    "request": "one request, text to audio: over HTTP, elsewhere a loop over the same graphs",
}
# The codec's share of the example: text to audio takes about six times as long as text to latents.
WEIGHTS = {"latents": 1.0, "audio": 6.0}
# The prompts of one request have equally many tokens and are all different: no text is encoded before.
WORDS = ("slow", "warm", "soft", "calm", "deep")
REQUEST_TIMEOUT_S = 600.0
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
    from profiling.bench.peers.torch_peers import TorchDecoder

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
    """All comparisons as one JSON object. checkpoint: what the bundle was exported from; "": neither PyTorch
    nor diffusers. One request over HTTP is compared where the bundle has texts and a codec.

    Raises BuildError where a package is missing, ConfigError, EngineError where a peer's result is another one.
    """
    if deployment.target != "cpu":
        raise ConfigError(f"peers are compared on the CPU, the target is {deployment.target}", fix="--target cpu")
    if checkpoint and not Path(checkpoint).is_dir():
        raise ConfigError(f"{checkpoint} is no folder", fix="--torch the checkpoint that the bundle was made from")
    need_packages("openvino", extra="peers")
    if checkpoint:
        need_packages(*TORCH_PACKAGES)
    with open_bench(deployment, [load.weight for load in loads]) as session:
        found = [_compare_ticks(session, load, ticks, checkpoint) for load in loads]
        manifest = session.engines.decoder.manifest
        properties = {
            "precision": manifest.build.get("precision", "fp32"),
            **provenance(session.bundle, deployment, manifest),
        }
    if checkpoint:
        found += _compare_generations(deployment, loads, ticks, checkpoint)
    alone = [load for load in loads if load.depth == 1]
    if alone and can_run_plainly(deployment.loaded_bundle):
        found += _compare_requests(deployment, alone, ticks, peers_tolerance(manifest.build))
    packages = ("openvino", *(TORCH_PACKAGES if checkpoint else ()))
    properties["versions"] |= {name: metadata.version(name) for name in packages}
    sizes = {name: value for name, value in shape_of(loads[0]).items() if name not in ("variant", "guidance", "depth")}
    return {"kind": "peers", **sizes, "ticks": ticks, "comparisons": found, **properties}


def _compare_ticks(session: BenchSession, load: Workload, ticks: int, checkpoint: str) -> dict[str, Any]:
    differences: dict[str, float] = {}
    tolerance = peers_tolerance(session.engines.decoder.manifest.build)

    def competitors(rows: int) -> Competitors:
        inputs = decoder_inputs(session.engines, session.bundle, load, rows)
        expected = run_once(session.engines.decoder, inputs)[session.bundle.decoder.outputs.velocity]
        found = {}
        for name, decoder in _decoders(session, load, inputs, checkpoint):
            differences[name] = check_same(name, [decoder.velocity()], [expected], tolerance)
            found[name] = Rested(decoder)
        return found

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
        from profiling.bench.peers.torch_peers import TorchDecoder

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
    from profiling.bench.peers.torch_peers import DiffusersPipeline

    with ExitStack() as stack:
        most = max(load.depth for load in loads)
        pipeline = stack.enter_context(open_pipeline(at_depth(deployment, most)))
        pool = stack.enter_context(ThreadPoolExecutor(most))
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
    own = partial(generate_all, pipeline, pool, options, work)
    others = {name: partial(peer.generate, prompts, output, **asked) for name, peer in peers.items()}
    with progress.task(f"{work} of {load.text}"):
        expected = own()
        results = {name: other() for name, other in others.items()}
        differences = {name: check_same(name, made, expected) for name, made in results.items() if work == "latents"}
        own_ms, others_ms = time_in_turn(
            partial(_timed_ms, own), [partial(_timed_ms, other) for other in others.values()], rounds, progress.update
        )
    return comparison(work, load, own_ms, dict(zip(others, others_ms, strict=True)), differences)


def _compare_requests(
    deployment: Deployment, loads: Sequence[Workload], rounds: int, tolerance: float
) -> list[dict[str, Any]]:
    """One request at a time, `rounds` times: ours from a server process of its own to the last byte."""
    from profiling.bench.peers.openvino_decoder import OpenVinoGraph

    bundle, threads = deployment.loaded_bundle, deployment.runtime.threads
    peers = {
        "ONNX Runtime": PlainGeneration(bundle, partial(OnnxRuntimeGraph, threads=threads)),
        "OpenVINO": PlainGeneration(bundle, partial(OpenVinoGraph, threads=threads)),
    }
    with (
        TaskProgress([load.weight for load in loads]) as progress,
        server_process(deployment.path, options=("--target", deployment.target)) as server,
    ):
        return [_compare_request(load, server.url, bundle, peers, rounds, tolerance, progress) for load in loads]


def _compare_request(
    load: Workload,
    url: str,
    bundle: Bundle,
    peers: Mapping[str, PlainGeneration],
    rounds: int,
    tolerance: float,
    progress: TaskProgress,
) -> dict[str, Any]:
    sizes = {"seconds": load.frames / bundle.latents.frame_rate_hz, "steps": load.steps, "guidance": load.guidance}
    # What the loop has: Euler's steps alone, guided from the first to the last.
    asked: dict[str, Any] = {**sizes, "seed": 1, "plan": False, "solver": "ode", "dcw": {"low": 0.0, "high": 0.0}}
    asked |= {} if load.guidance == 1.0 else {"cfg_interval_start": 0.0, "cfg_interval_end": 1.0}

    def own(texts: Iterator[str]) -> object:
        return fetch(url, {**asked, "prompt": next(texts)})

    def other(peer: PlainGeneration, texts: Iterator[str]) -> object:
        return peer.audio(parse_options({**asked, "prompt": next(texts)}), load.frames)

    with progress.task(f"a request of {load.text}"):
        first = {**asked, "prompt": next(prompts())}
        latents = read_latents(
            fetch(url, {**first, "response_format": "latents"}), bundle.latents.channels, load.frames
        )
        pcm = np.frombuffer(fetch(url, {**first, "response_format": "pcm", "finish": False}), "<i2")
        audio = pcm.reshape(-1, bundle.codec.channels if bundle.codec else 1) / np.float32(32768)
        differences = {}
        for name, peer in peers.items():
            options = parse_options(first)
            made, heard = peer.latents(options, load.frames), peer.audio(options, load.frames)
            differences[name] = check_same(name, [made], [latents], tolerance)
            # Beside 16 bits, which cut off what is above full scale.
            check_same(name, [np.clip(heard, -1.0, 1.0)], [audio], tolerance)
        # From the second prompt on: the first one has been encoded.
        timers = [partial(_timed_ms, partial(other, peer, islice(prompts(), 1, None))) for peer in peers.values()]
        own_timer = partial(_timed_ms, partial(own, islice(prompts(), 1, None)))
        own_ms, others_ms = time_in_turn(own_timer, timers, rounds, progress.update)
    return comparison("request", load, own_ms, dict(zip(peers, others_ms, strict=True)), differences)


def prompts() -> Iterator[str]:
    """Prompts of the same words in another order each, again after 120."""
    return (f"a {' '.join(words)}" for words in cycle(permutations(WORDS)))


def fetch(url: str, body: Mapping[str, Any]) -> bytes:
    """The whole answer of a server to one generation. Raises EngineError with what it said where it refuses."""
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}{GENERATIONS}", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            found: bytes = answer.read()
    except HTTPError as error:
        what = error.read().decode(errors="replace")
        raise EngineError(f"the server answers {error.code}: {what:.500}", fix="see its message") from error
    except OSError as error:
        raise EngineError(f"the server at {url} does not answer: {error}", fix="see what it printed") from error
    return found


def generate_all(
    pipeline: Pipeline, pool: ThreadPoolExecutor, options: Sequence[GenerationOptions], work: str
) -> list[NDArray[np.float32]]:
    """Latents `[T, C]`, or audio `[n, channels]`, of generations that are in flight together."""
    produce = generate_latents if work == "latents" else generate_audio

    def one(each: GenerationOptions) -> NDArray[np.float32]:
        return np.concatenate(list(produce(pipeline, LongGeneration(pipeline, each), wait=True)))

    return list(pool.map(one, options))


def _timed_ms(work: Callable[[], object]) -> float:
    time.sleep(REST_S)
    return mean_ms(work)


def peers_tolerance(build: Mapping[str, Any]) -> float:
    """What peers may differ from an engine of this build by, relative to the largest value."""
    return EIGHT_BITS_TOLERANCE if build.get("precision") in ("int8", "fp8") else TOLERANCE


def check_same(name: str, found: Arrays, expected: Arrays, tolerance: float = TOLERANCE) -> float:
    """The largest difference from ours. Raises EngineError above `tolerance` of the largest value, or of 1."""
    if [array.shape for array in found] != [array.shape for array in expected]:
        raise EngineError(f"{name} gives {found[0].shape}, we {expected[0].shape}", fix="choose other --frames")
    worst = max(float(np.abs(one - two).max()) for one, two in zip(found, expected, strict=True))
    allowed = tolerance * max(1.0, *(float(np.abs(array).max()) for array in expected))
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
    sizes = f"{result['frames']} frames, {result['steps']} steps"
    console.print(f"{result['bundle']} in {result['precision']}: {sizes}; ms (p50), and times ours")
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
