"""The Engine protocol: a compiled graph with named tensors, bound once and launched many times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import EngineMismatchError, EngineNotBuiltError, ShapeError
from runtime.config.decoder import DecoderInputs
from runtime.devices.device import Level, Stream, Tensor
from runtime.engines.adapters import NO_ADAPTERS, AdapterCatalog
from runtime.engines.manifest import Manifest, TensorInfo
from runtime.engines.node_times import NodeTimes

FEATURE_SEPARATOR = "+"
PLAIN = "plain"


class Execution(Protocol):
    """An engine with shapes and addresses bound, to be launched any number of times by one thread on one stream.

    Beside that, one other thread may capture it: launch and warm_up share nothing that either changes.
    """

    def prepare(self, stream: Stream) -> bool:
        """Whether warm_up, and behind it a capture of the stream, would run at full speed.

        Begins in the background what is missing. Raises EngineDeadError.
        """

    def launch(self, stream: Stream) -> None:
        """Put one execute on the stream, with resources that executions share. Raises EngineError."""

    def make(self) -> None:
        """Make what warm_up would have to make first, in any thread, while launches go on. Raises EngineError."""

    def warm_up(self, stream: Stream) -> None:
        """Put one execute on the stream with resources that this execution does not share with others.

        Once this has run, again into a capture of any stream: no other execute may use what a graph bakes in. Raises
        EngineError.
        """

    def release(self) -> None:
        """Return the resources that warm_up took, if any. Graphs that captured this execution must be closed."""


class RunnableGraph(Protocol):
    """One graph that runs on host arrays: what codec and text encoder need of an engine."""

    name: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute on host arrays, with new outputs: for work outside the tick.

        Calls of different levels do not wait for each other.
        """


class Engine(RunnableGraph, Protocol):
    """One graph, compiled for one target."""

    manifest: Manifest

    def bind(self, tensors: Mapping[str, Tensor]) -> Execution:
        """Bind every input and output. Raises ShapeError where a tensor does not fit the graph."""

    def profile(self, feeds: Mapping[str, NDArray[Any]], runs: int) -> tuple[NodeTimes, ...]:
        """Times of every node over `runs` executes after a warm-up, in execution order; profiling slows the execute."""

    def close(self) -> None:
        """Release the engine's memory."""


def run_once(
    graph: RunnableGraph, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK
) -> dict[str, NDArray[Any]]:
    """One blocking execute with checked inputs and new outputs. Raises ShapeError, EngineError."""
    check_tensors(graph.name, graph.inputs, feeds)
    return graph.run(feeds, level)


def condition_shape(decoder: RunnableGraph, roles: DecoderInputs) -> tuple[int | str, ...]:
    """The shape of the decoder's condition: `[R, L, D]`, or `[R, D]`; `[R, 0]` where it takes none."""
    rows = decoder.inputs[roles.latents].shape[0]
    return (rows, 0) if roles.condition is None else decoder.inputs[roles.condition].shape


def condition_width(decoder: RunnableGraph, roles: DecoderInputs) -> int:
    """D, the condition's width; 0 where the decoder takes none."""
    width = condition_shape(decoder, roles)[-1]
    assert isinstance(width, int)
    return width


def decoder_shapes(
    decoder: RunnableGraph, roles: DecoderInputs, *, rows: int, frames: int, tokens: int
) -> dict[str, tuple[int, ...]]:
    """Input name -> its shape at R rows, T frames and L tokens. The graph's own names of its axes do not count."""
    sizes = {"R": rows, "T": frames, "L": tokens}
    letters = roles.letters(len(condition_shape(decoder, roles)))
    return {name: sized(info.shape, letters[name], sizes) for name, info in decoder.inputs.items()}


def sized(shape: Sequence[int | str], letters: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape whose free dimensions have the sizes of their letters."""
    return tuple(size if isinstance(size, int) else sizes[letter] for size, letter in zip(shape, letters, strict=True))


def features_of(name: str) -> frozenset[str]:
    """The features in an engine's name: "step.dcw+guidance" -> {dcw, guidance}."""
    variant = name.partition(".")[2]
    return frozenset() if variant in ("", PLAIN) else frozenset(variant.split(FEATURE_SEPARATOR))


def variant_name(features: frozenset[str]) -> str:
    """The name of a set of features: {guidance, dcw} -> "dcw+guidance", none -> "plain"."""
    return FEATURE_SEPARATOR.join(sorted(features)) or PLAIN


def smallest_superset(variants: Mapping[frozenset[str], Engine], features: frozenset[str]) -> frozenset[str]:
    """The built variant with the fewest features that has all of these. Raises EngineNotBuiltError."""
    fitting = [variant for variant in variants if features <= variant]
    if not fitting:
        raise EngineNotBuiltError(
            f"no step engine has the features {variant_name(features)}; built: "
            + ", ".join(sorted(variant_name(variant) for variant in variants))
        )
    return min(fitting, key=lambda variant: (len(variant), sorted(variant)))


@dataclass(frozen=True)
class LanguageEngines:
    """The engines of an autoregressive model: its graph, the sampler, and a smaller graph for drafts."""

    planner: Engine
    sampler: Engine
    draft: Engine | None = None

    @property
    def all(self) -> tuple[Engine, ...]:
        """Every engine."""
        return (self.planner, self.sampler, *(() if self.draft is None else (self.draft,)))


@dataclass(frozen=True)
class EngineSet:
    """The engines of a tick: the decoder, and by features the graphs that run before it (rows) and after it (steps).

    adapted: the decoder for rows with `adapters`, where the deployment has it. merged: the adapters in the weights of
    both decoders, with their strengths. planner: where the bundle has one.
    """

    decoder: Engine
    rows: Mapping[frozenset[str], Engine]
    steps: Mapping[frozenset[str], Engine]
    adapted: Engine | None = None
    adapters: AdapterCatalog = NO_ADAPTERS
    merged: Mapping[str, float] = field(default_factory=dict)
    planner: LanguageEngines | None = None

    @property
    def all(self) -> tuple[Engine, ...]:
        """Every engine, the decoder first."""
        adapted = () if self.adapted is None else (self.adapted,)
        planner = () if self.planner is None else self.planner.all
        return (self.decoder, *adapted, *self.rows.values(), *self.steps.values(), *planner)

    def close(self) -> None:
        """Release all of them."""
        for engine in self.all:
            engine.close()


def check_tensors(engine: str, infos: Mapping[str, TensorInfo], tensors: Mapping[str, Any]) -> None:
    """Check that all tensors are there, with the right dtypes and shapes, and one size per dimension name.

    Raises ShapeError.
    """
    sizes: dict[str, int] = {}
    for name, info in infos.items():
        if name not in tensors:
            raise ShapeError(f"{engine}: no tensor given for {name!r}; it takes {', '.join(infos)}")
        _check_tensor(f"{engine}: {name}", info, tensors[name], sizes)


def _check_tensor(where: str, info: TensorInfo, tensor: Any, sizes: dict[str, int]) -> None:
    shape = tuple(tensor.shape)
    if np.dtype(tensor.dtype) != np.dtype(info.dtype):
        raise ShapeError(f"{where} has dtype {np.dtype(tensor.dtype)}, expected {info.dtype}")
    if len(shape) != len(info.shape):
        raise ShapeError(f"{where} has shape {shape}, expected {len(info.shape)} dimensions {tuple(info.shape)}")
    for found, expected in zip(shape, info.shape, strict=True):
        wanted = expected if isinstance(expected, int) else sizes.setdefault(expected, found)
        if found != wanted:
            raise ShapeError(f"{where} has shape {shape}, expected {tuple(info.shape)} with {expected} = {wanted}")


def check_replaceable(old: EngineSet, new: EngineSet) -> None:
    """Check that `new` has the tensors of `old` and all its variants. Raises EngineMismatchError."""
    _check_tensors(old.decoder, new.decoder)
    for kind, before, after in (("rows", old.rows, new.rows), ("step", old.steps, new.steps)):
        missing = [variant_name(features) for features in before if features not in after]
        if missing:
            raise EngineMismatchError(
                f"the new engines lack the {kind} variants {', '.join(sorted(missing))}",
                fix="build them with the same step_variants",
            )
        for features, engine in before.items():
            _check_tensors(engine, after[features])
    if old.adapted is not None and new.adapted is not None:
        _check_tensors(old.adapted, new.adapted)
    elif old.adapted is not None:
        raise EngineMismatchError("the new engines lack the decoder for adapters", fix="build it, with adapter_rank")
    if old.planner is not None:
        if new.planner is None or len(new.planner.all) != len(old.planner.all):
            raise EngineMismatchError("the new engines lack the planner or its draft", fix="build them")
        for mine, others in zip(old.planner.all, new.planner.all, strict=True):
            _check_tensors(mine, others)


def _check_tensors(old: Engine, new: Engine) -> None:
    for kind, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        if _described(before) != _described(after):
            raise EngineMismatchError(
                f"the new engine {new.name!r} has other {kind}s than the current one: "
                f"{_described(after)}, expected {_described(before)}",
                fix="start another server for another model",
            )


def _described(infos: Mapping[str, TensorInfo]) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Dtypes and shapes; what a graph calls its free dimensions does not count."""
    return {
        name: (info.dtype, tuple("free" if isinstance(size, str) else size for size in info.shape))
        for name, info in infos.items()
    }
