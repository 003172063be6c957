"""An engine against its ONNX graph, on the same seeded inputs, at several shapes of its range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.comparator import Comparator
from polygraphy.logger import G_LOGGER

from engine_build.jobs import Job, Sizes
from engine_build.roles import Port
from runtime.errors import BuildError

SEED = 20_251_120
SMALLEST_PEAK = 1e-6
FREE_LETTER = "P"

Arrays = Mapping[str, NDArray[Any]]


def verify(job: Job, graph_session: Any, engine_session: Any, tolerance: float) -> dict[str, float]:
    """Run graph and engine, both as ONNX Runtime sessions, and measure how far they are apart.

    Gives max_abs, and max_rel: an output's largest error over its largest value. Raises BuildError above `tolerance`
    (of max_rel), and where either gives a value that is not finite.
    """
    feeds = list(sample_feeds(job))
    return _measure(job, _outputs(graph_session, feeds), _outputs(engine_session, feeds), tolerance)


def verify_outputs(job: Job, graph_session: Any, outputs: Sequence[Arrays], tolerance: float) -> dict[str, float]:
    """As verify, for an engine that has already run: its outputs at the job's first samples, one or more of them."""
    feeds = list(sample_feeds(job))[: len(outputs)]
    return _measure(job, _outputs(graph_session, feeds), outputs, tolerance)


def check_finite(job: Job, outputs: Iterable[Arrays]) -> None:
    """Raises BuildError where an engine gives values that are not finite."""
    for sizes, arrays in zip(job.samples, outputs, strict=True):
        for port in job.outputs:
            _check_finite(_where(job, port, sizes), "engine", arrays[port.name])


def _outputs(session: Any, feeds: Iterable[Arrays]) -> Iterator[Arrays]:
    for arrays in feeds:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            results = Comparator.run([OnnxrtRunner(session, name="session")], data_loader=[arrays])
        yield results["session"][0]


def _measure(job: Job, expected: Iterable[Arrays], found: Iterable[Arrays], tolerance: float) -> dict[str, float]:
    error = {"max_abs": 0.0, "max_rel": 0.0}
    for sizes, wanted, given in zip(job.samples, expected, found, strict=False):
        for port in job.outputs:
            where = _where(job, port, sizes)
            _check_shape(where, port, wanted[port.name].shape, sizes)
            measured = _error(where, wanted[port.name], given[port.name])
            error = {name: max(error[name], value) for name, value in measured.items()}
    if error["max_rel"] > tolerance:
        raise BuildError(
            f"engine {job.name!r} is off by {error['max_rel']:.2g} of its largest output, "
            f"expected at most {tolerance:.2g}",
            fix="a lower optimization or a higher precision in [build], or a higher tolerance if that is what you want",
        )
    return error


def sample_feeds(job: Job, seed: int = SEED) -> Iterator[dict[str, NDArray[Any]]]:
    """Inputs for each of the job's samples: the same ones every time."""
    for index, sizes in enumerate(job.samples):
        random = np.random.default_rng([seed, index])
        yield {port.name: _sample(port, sizes, random) for port in job.inputs}


def _sample(port: Port, sizes: Sizes, random: np.random.Generator) -> NDArray[Any]:
    shape = [sizes[letter] for letter in port.letters]
    if port.values == "count":
        return random.integers(0, sizes[port.limit], shape, np.int64)
    if port.values == "flag":
        return random.random(shape) < 0.5
    if port.values == "keep":
        kept = random.random(shape) < 0.7
        kept[..., 0] = True
        return kept.astype(port.dtype)
    if port.values == "unit":
        return random.uniform(0.05, 1.0, shape).astype(port.dtype)
    return random.standard_normal(shape).astype(port.dtype)


def _check_shape(where: str, port: Port, shape: tuple[int, ...], sizes: Sizes) -> None:
    """The graph's output has the size that the bundle promises; how many tokens a conditioner makes is up to it."""
    promised = tuple(sizes[letter] for letter in port.letters)
    if any(a != b for a, b, letter in zip(promised, shape, port.letters, strict=True) if letter != FREE_LETTER):
        raise BuildError(
            f"{where}: the graph gives shape {list(shape)}, bundle.toml promises {list(promised)}",
            fix="correct hop_samples, channels or frame_multiple in bundle.toml",
        )


def _error(where: str, expected: NDArray[Any], found: NDArray[Any]) -> dict[str, float]:
    if expected.shape != found.shape:
        raise BuildError(f"{where}: the engine gives shape {found.shape}, the graph {expected.shape}")
    for name, values in (("graph", expected), ("engine", found)):
        _check_finite(where, name, values)
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    largest = float(difference.max(initial=0.0))
    peak = float(np.abs(expected.astype(np.float64)).max(initial=0.0))
    return {"max_abs": largest, "max_rel": largest / max(peak, SMALLEST_PEAK)}


def _check_finite(where: str, name: str, values: NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        raise BuildError(f"{where}: the {name} gives values that are not finite", fix="check the weights")


def _where(job: Job, port: Port, sizes: Sizes) -> str:
    shape = ", ".join(f"{letter}={sizes[letter]}" for letter in dict.fromkeys(_letters(job.inputs)) if letter in sizes)
    return f"{job.name}: {port.name} at {shape}"


def _letters(ports: Iterable[Port]) -> Iterator[str]:
    for port in ports:
        yield from (letter for letter in port.letters if letter.isalpha())
