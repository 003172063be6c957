"""What is measured on sample inputs: the error of an engine against its graph, and how many threads it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.logger import G_LOGGER

from engine_build.specs.engine_spec import EngineSpec, Port, Sizes, sizes_at
from runtime.base.errors import BuildError, EngineError
from runtime.devices.device import Device, HostDevice, Tensor
from runtime.engines.engine import Engine
from runtime.engines.loading import open_engine
from runtime.engines.manifest import THREAD_TIMES, THREADS, WINDOW_TIMES

SMALLEST_PEAK = 1e-6
FREE_LETTER = "P"
SEED = 20_251_120
# Copies of a token stay below, in a mask that counts.
MOST_COUNTED = 4
# The size of sample values whose products would be large.
SCALES = {"normal": 1.0, "tenth": 0.1, "small": 0.02}

Arrays = Mapping[str, NDArray[Any]]


ROUNDS, WARM_UP_RUNS = 7, 2
# More threads are worth it where they save so much of the time: they take cores from the codec and the server.
WORTH = 0.9
LONGEST_WINDOW_S = 0.1


def verify(spec: EngineSpec, graph_session: Any, engine_session: Any, tolerance: float) -> dict[str, float]:
    """Run graph and engine, both as ONNX Runtime sessions, and measure the difference.

    Returns max_abs; max_rel: an output's largest error over its largest value; rms_rel: the root mean square of its
    error over that of its values. Raises BuildError where max_rel is above `tolerance`, and where either gives a value
    that is not finite.
    """
    return _measure(spec, _outputs(graph_session, spec), _outputs(engine_session, spec), tolerance)


def verify_outputs(
    spec: EngineSpec, graph_session: Any, outputs: Iterable[Arrays], tolerance: float
) -> dict[str, float]:
    """As verify, for an engine that has already run: `outputs` at the first samples of the spec."""
    return _measure(spec, _outputs(graph_session, spec), outputs, tolerance)


def sample_inputs(spec: EngineSpec) -> Iterator[dict[str, NDArray[Any]]]:
    """Inputs for each of the spec's samples: the same ones every time."""
    return (inputs_at(spec.inputs, spec.samples, index) for index in range(len(spec.samples)))


def _outputs(session: Any, spec: EngineSpec) -> Iterator[Arrays]:
    kinds = {item.name: np.float16 for item in session.get_inputs() if item.type == "tensor(float16)"}
    for samples in sample_inputs(spec):
        arrays = {name: array.astype(kinds.get(name, array.dtype)) for name, array in samples.items()}
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL), OnnxrtRunner(session) as runner:
            found = runner.infer(arrays, check_inputs=False)
        yield found


def _measure(
    spec: EngineSpec, expected: Iterable[Arrays], found: Iterable[Arrays], tolerance: float
) -> dict[str, float]:
    error = {"max_abs": 0.0, "max_rel": 0.0, "rms_rel": 0.0}
    # The engine's outputs come first in zip: where there are fewer of them, the graph is not run for the others.
    for sizes, given, wanted in zip(spec.samples, found, expected, strict=False):
        for port in spec.outputs:
            where = _where(spec, port, sizes)
            _check_shape(where, port, wanted[port.name].shape, sizes)
            measured = _error(where, wanted[port.name], given[port.name])
            error = {name: max(error[name], value) for name, value in measured.items()}
    if error["max_rel"] > tolerance:
        raise BuildError(
            f"engine {spec.name!r} is off by {error['max_rel']:.2g} of its largest output, "
            f"expected at most {tolerance:.2g}",
            fix=f"tolerance = {2 * error['max_rel']:.1g} in [build] where that is near enough, as for a graph that "
            "computes in 16 bits itself; else a lower optimization or a higher precision there",
        )
    return error


def _check_shape(where: str, port: Port, shape: tuple[int, ...], sizes: Sizes) -> None:
    """The graph's output has the shape that bundle.toml implies; only the text encoder's token count is free."""
    expected = tuple(sizes[letter] for letter in port.letters)
    if any(a != b for a, b, letter in zip(expected, shape, port.letters, strict=True) if letter != FREE_LETTER):
        raise BuildError(
            f"{where}: the graph gives shape {list(shape)}, bundle.toml implies {list(expected)}",
            fix="correct hop_samples, channels or frame_multiple in bundle.toml",
        )


def _error(where: str, expected: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
    if expected.shape != found.shape:
        raise BuildError(f"{where}: the engine gives shape {found.shape}, the graph {expected.shape}")
    for name, values in (("graph", expected), ("engine", found)):
        if not np.isfinite(values).all():
            raise BuildError(f"{where}: the {name} gives values that are not finite", fix="check the weights")
    exact = expected.astype(np.float64)
    error = found.astype(np.float64) - exact
    largest, peak = (float(np.abs(values).max(initial=0.0)) for values in (error, exact))
    noise, size = (float(np.sqrt(np.square(values).sum())) for values in (error, exact))
    return {
        "max_abs": largest,
        "max_rel": largest / max(peak, SMALLEST_PEAK),
        "rms_rel": noise / max(size, SMALLEST_PEAK),
    }


def _where(spec: EngineSpec, port: Port, sizes: Sizes) -> str:
    shape = ", ".join(f"{letter}={sizes[letter]}" for letter in dict.fromkeys(_letters(spec.inputs)) if letter in sizes)
    return f"{spec.name}: {port.name} at {shape}"


def _letters(ports: Iterable[Port]) -> Iterator[str]:
    for port in ports:
        yield from (letter for letter in port.letters if letter.isalpha())


def inputs_at(inputs: Sequence[Port], samples: Sequence[Mapping[str, int]], index: int) -> dict[str, NDArray[Any]]:
    """The inputs for one of the samples (sizes of the shape letters)."""
    random = np.random.default_rng([SEED, index])
    return {port.name: _sample(port, samples[index], random) for port in inputs}


def _sample(port: Port, sizes: Mapping[str, int], random: np.random.Generator) -> NDArray[Any]:
    shape = [sizes[letter] for letter in port.letters]
    if port.values == "count":
        return random.integers(0, sizes[port.limit], shape, np.int64)
    if port.values in ("ramp", "size"):
        found = np.arange(shape[-1]) if port.values == "ramp" else np.asarray(sizes[port.limit])
        return np.broadcast_to(found, shape).astype(port.dtype)
    if port.values == "flag":
        return random.random(shape) < 0.5
    if port.values in ("keep", "copies"):
        kept = random.random(shape) < 0.7
        kept[..., 0] = True
        counts = random.integers(1, MOST_COUNTED, shape) if port.values == "copies" else 1
        return (kept * counts).astype(port.dtype)
    if port.values == "unit":
        return random.uniform(0.05, 1.0, shape).astype(port.dtype)
    return (random.standard_normal(shape) * SCALES[port.values]).astype(port.dtype)


class ThreadTime(NamedTuple):
    """Of one execute: how long it takes, and of how many cores together."""

    wall_s: float
    cpu_s: float


def choose_threads(counts: Sequence[int], time_execute: Callable[[int], ThreadTime]) -> dict[str, Any]:
    """Facts for the manifest: the number of threads, and what was measured of each of `counts`, in milliseconds.

    They take turns, so that what else the machine does meets all of them; the best round of each counts. Of two, the
    larger number is taken where it is faster by a tenth.
    """
    rounds = [{count: time_execute(count) for count in counts} for _ in range(ROUNDS)]
    best = {count: ThreadTime(*map(min, zip(*(each[count] for each in rounds), strict=True))) for count in counts}
    chosen, *more = sorted(counts)
    for count in more:
        if best[count].wall_s <= WORTH * best[chosen].wall_s:
            chosen = count
    measured = {str(count): [round(1e3 * seconds, 3) for seconds in best[count]] for count in sorted(counts)}
    return {THREADS: chosen, THREAD_TIMES: measured}


def thread_facts(folder: Path, spec: EngineSpec, counts: tuple[int, int]) -> dict[str, Any]:
    """What choose_threads says of a decoder in `folder`, at the usual sizes of its first shape range.

    counts: the numbers of physical and of virtual cores. {} of other engines, and where both are one. Raises
    EngineError.
    """
    device = HostDevice()
    if spec.kind != "decoder" or counts[0] == counts[1]:
        return {}
    sizes = sizes_at(spec, spec.ranges[0], 1)
    engines = {count: open_engine(folder, spec.name, device, threads=count, in_tick=True) for count in counts}
    try:
        tensors = tensors_at(spec, sizes, engines[counts[0]], device)
        executions = {count: engine.bind(tensors) for count, engine in engines.items()}

        def time_execute(count: int) -> ThreadTime:
            for _ in range(WARM_UP_RUNS):
                executions[count].launch(device.main)
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            executions[count].launch(device.main)
            return ThreadTime(time.perf_counter() - wall_s, time.process_time() - cpu_s)

        return choose_threads(counts, time_execute)
    finally:
        for engine in engines.values():
            engine.close()


def window_facts(folder: Path, spec: EngineSpec) -> dict[str, Any]:
    """What windows of a codec in `folder` take, in one thread, each twice as long as the one before: the best of some
    rounds, in milliseconds. None is longer than one that takes LONGEST_WINDOW_S. {} of other engines, and of one that
    fails at such a length: it is for the request of that length to fail.
    """
    if spec.kind != "codec_decode":
        return {}
    try:
        with closing(open_engine(folder, spec.name, HostDevice(), threads=1)) as engine:
            return {WINDOW_TIMES: _window_times_ms(engine, spec)}
    except EngineError:
        return {}


def _window_times_ms(engine: Engine, spec: EngineSpec) -> dict[str, float]:
    (shortest, _, longest), (samples, *_) = spec.ranges[0]["T"], spec.ranges[0]["W"]

    def time_execute(frames: int) -> float:
        sizes = {**sizes_at(spec, spec.ranges[0], 0), "T": frames, "W": frames * samples // shortest}
        inputs, begin_s = inputs_at(spec.inputs, [sizes], 0), time.perf_counter()
        engine.run(inputs)
        return time.perf_counter() - begin_s

    frames, times = shortest, dict[int, float]()
    while frames not in times and min(time_execute(frames) for _ in range(WARM_UP_RUNS)) < LONGEST_WINDOW_S:
        times[frames], frames = math.inf, min(2 * frames, longest)
    for _ in range(ROUNDS):
        times = {frames: min(seconds, time_execute(frames)) for frames, seconds in times.items()}
    return {str(frames): round(1e3 * seconds, 3) for frames, seconds in times.items()}


def tensors_at(spec: EngineSpec, sizes: Sizes, engine: Engine, device: Device) -> Mapping[str, Tensor]:
    """Its inputs, with the values that its error is measured with, and its outputs."""
    found: dict[str, Tensor] = {}
    for name, array in inputs_at(spec.inputs, [sizes], 0).items():
        found[name] = device.zeros(array.shape, engine.inputs[name].dtype)
        device.upload(found[name], array.astype(engine.inputs[name].dtype), device.main)
    for port in spec.outputs:
        shape = tuple(sizes[letter] for letter in port.letters)
        found[port.name] = device.zeros(shape, engine.outputs[port.name].dtype)
    return found
