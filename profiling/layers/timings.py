"""Layer timings of one engine: one record per layer, the same for every library, and their sums."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.layers.kinds import layer_kind
from profiling.layers.origins import GraphNode, Origins, common_module
from profiling.layers.work import Ceilings, LayerWork, Roof, measured_roof
from runtime.config.deployment import Target
from runtime.devices.device import Stream
from runtime.engines.engine import Engine, Execution
from runtime.engines.loading import settle_kernels
from runtime.engines.node_times import NodeTimes

WARM_UP_RUNS = 3


@dataclass(frozen=True)
class LayerTiming:
    """One layer over several executes; `share` is of the sum of all layers, by their medians, 0..1.

    module: the innermost module of the model that holds all of the layer; None where it is not known. is_wide: the
    layer holds work of several parts of that module, and none of the module's own. name: within a body, behind those of
    the nodes that it is in. nodes, contents: names and operators
    of the model's nodes in it. work: None where the shapes are not known. facts: the library's record of the layer.
    """

    name: str
    op_type: str
    kind: str
    runs_ms: tuple[float, ...]
    share: float
    module: str | None = None
    is_wide: bool = False
    nodes: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    work: LayerWork | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def total_ms(self) -> float:
        """Milliseconds over all executes."""
        return sum(self.runs_ms)

    @property
    def average_ms(self) -> float:
        """Mean milliseconds per execute."""
        return sum(self.runs_ms) / len(self.runs_ms)

    @property
    def median_ms(self) -> float:
        """Median milliseconds per execute."""
        return median(self.runs_ms)

    def roof(self, ceilings: Ceilings | None) -> Roof | None:
        """Its speed in the fastest execute, and its ceiling; None where its work is not known.

        Ceilings are those of the fastest executes, too: other load lengthens a median, and rarely a minimum.
        """
        return measured_roof(self.work, min(self.runs_ms), ceilings) if self.work is not None else None


@dataclass(frozen=True)
class Wall:
    """Wall time of executes without a profiler, in milliseconds."""

    times_ms: tuple[float, ...]

    @property
    def p50_ms(self) -> float:
        """The median."""
        return float(np.percentile(self.times_ms, 50))

    @property
    def p95_ms(self) -> float:
        """The 95th percentile."""
        return float(np.percentile(self.times_ms, 95))


@dataclass(frozen=True)
class Profile:
    """An engine's layers at one shape, and its wall time without the profiler, which itself costs time.

    about: engine hash, versions, machine, shapes. notes: texts on how to read the times. rounds: how many executes were
    measured without a pause, in sum `runs`; empty where that is not known.
    """

    engine: str
    runs: int
    layers: tuple[LayerTiming, ...]
    wall: Wall
    about: Mapping[str, Any] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    notes: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()

    @property
    def layer_sum_ms(self) -> float:
        """Mean over executes of the sum of all layers."""
        return sum(layer.average_ms for layer in self.layers)

    @property
    def layer_medians_ms(self) -> float:
        """Sum of the layers' medians; every rollup adds up to it."""
        return sum(layer.median_ms for layer in self.layers)

    @property
    def layer_sum_p50_ms(self) -> float:
        """Median over executes of the sum of all layers."""
        sums = [sum(times) for times in zip(*(layer.runs_ms for layer in self.layers), strict=True)]
        return median(sums) if sums else 0.0

    @property
    def gap_ms(self) -> float:
        """Median wall time less median layer sum; below 0 where the profiler's own cost is larger."""
        return self.wall.p50_ms - self.layer_sum_p50_ms

    @property
    def gap_name(self) -> str:
        """Text: the cause of the difference between wall time and layer sum."""
        if self.gap_ms >= 0:
            return "outside of layers: dispatch, gaps between layers"
        return "cost of profiling: each layer is timed on its own"


def layer_timings(
    nodes: Sequence[NodeTimes], origins: Origins | None = None, works: Sequence[LayerWork | None] = ()
) -> tuple[LayerTiming, ...]:
    """One record per node, in execution order. `works`: one per node, or empty."""
    whole = sum(median(node.runs_ms) for node in nodes) or 1.0
    held = [origins.of(node) if origins else () for node in nodes]
    given = works or [None] * len(nodes)
    return tuple(_layer(node, parts, whole, work) for node, parts, work in zip(nodes, held, given, strict=True))


def _layer(node: NodeTimes, parts: Sequence[GraphNode], whole_ms: float, work: LayerWork | None) -> LayerTiming:
    module = common_module(part.module for part in parts)
    return LayerTiming(
        name="/".join((*node.path, node.name)),
        op_type=node.op_type,
        kind=layer_kind(node.op_type, [(part.op_type, part.origin) for part in parts], node.name),
        runs_ms=node.runs_ms,
        share=median(node.runs_ms) / whole_ms,
        module=module,
        is_wide=module is not None and all(part.module != module for part in parts),
        nodes=tuple(part.name for part in parts),
        contents=tuple(part.op_type for part in parts),
        work=work,
        facts=node.facts,
    )


def make_feeds(
    engine: Engine, shapes: Mapping[str, tuple[int, ...]], masks: Collection[str] = (), seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Random inputs: normal noise for floats, zeros for integers (valid as index), ones for those in `masks`."""
    random = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for name, info in engine.inputs.items():
        shape, dtype = shapes[name], np.dtype(info.dtype)
        if name in masks:
            feeds[name] = np.ones(shape, dtype)
        elif dtype.kind not in "iub":
            feeds[name] = random.standard_normal(shape).astype(dtype)
        else:
            feeds[name] = np.zeros(shape, dtype)
    return feeds


def timed_executes(
    execution: Execution, stream: Stream, runs: int, target: Target, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[float, float]]:
    """Wall time, and CPU time of the process, of executes that are waited for one by one, in seconds, once warm."""
    for index in range(WARM_UP_RUNS + runs):
        stream.record().wait()
        if index == WARM_UP_RUNS - 1:
            settle_kernels(target)
        cpu_started_s, started_s = time.process_time(), clock()
        execution.launch(stream)
        stream.record().wait()
        times_s = clock() - started_s, time.process_time() - cpu_started_s
        if index >= WARM_UP_RUNS:
            yield times_s
