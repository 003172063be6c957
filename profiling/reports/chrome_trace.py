"""A profile as a Chrome trace.

Durations of layers are measured, their start times are not: layers follow each other in execution order without gaps.
One row shows layers, one the blocks or modules that they belong to, one the executes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from profiling.layers.rollups import UNKNOWN_MODULE, WHOLE_MODEL, block_of, module_parts
from profiling.layers.timings import LayerTiming, Profile
from runtime.tick.loop.record import Event, slice_event, trace_document

BLOCK = "block"
LAYERS, BLOCKS, EXECUTES = 1, 2, 3
THREADS = {EXECUTES: "executes", BLOCKS: "blocks", LAYERS: "layers"}


def trace(profile: Profile) -> Event:
    """The trace as a JSON object."""
    events: list[Event] = []
    begin_ms = 0.0
    for run in range(profile.runs):
        length_ms = sum(layer.runs_ms[run] for layer in profile.layers)
        events.append(slice_event(f"execute {run}", EXECUTES, begin_ms, length_ms, {}, cat=BLOCK))
        events += _layers(profile, run, begin_ms)
        events += _blocks(profile, run, begin_ms)
        begin_ms += length_ms
    about = {"wall_p50_ms": profile.wall.p50_ms, "layer_sum_ms": profile.layer_sum_ms, "gap": profile.gap_name}
    return trace_document(f"tickrt-profile {profile.engine}", THREADS, events, about)


def _layers(profile: Profile, run: int, begin_ms: float) -> Iterator[Event]:
    for layer in profile.layers:
        length_ms = layer.runs_ms[run]
        facts: dict[str, Any] = {"kind": layer.kind, "op": layer.op_type, "module": layer.module}
        facts["contents"] = " ".join(layer.contents)
        if layer.work is not None:
            facts |= {"flops": layer.work.flops, "bytes": layer.work.bytes}
        yield slice_event(layer.name, LAYERS, begin_ms, length_ms, facts, cat=layer.kind)
        begin_ms += length_ms


def _blocks(profile: Profile, run: int, begin_ms: float) -> Iterator[Event]:
    for name, group in groupby(profile.layers, key=_block_name):
        length_ms = sum(layer.runs_ms[run] for layer in group)
        yield slice_event(name, BLOCKS, begin_ms, length_ms, {}, cat=BLOCK)
        begin_ms += length_ms


def _block_name(layer: LayerTiming) -> str:
    """The numbered block that a layer belongs to, or its module."""
    place = block_of(layer.module)
    if place is not None:
        return f"{place[0]}.{place[1]}"
    if layer.module is None:
        return UNKNOWN_MODULE
    return module_parts(layer.module)[-1] if layer.module else WHOLE_MODEL
