"""A profile as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.

Durations of layers are measured, their start times are not: layers follow each other in execution order without gaps.
One row shows layers, one the blocks or modules that they belong to, one the executes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from profiling.layers.rollups import UNKNOWN_MODULE, WHOLE_MODEL, block_of, module_parts
from profiling.layers.timings import LayerTiming, Profile

PROCESS = 1
LAYERS, BLOCKS, EXECUTES = 1, 2, 3
THREADS = {EXECUTES: "executes", BLOCKS: "blocks", LAYERS: "layers"}


def trace(profile: Profile) -> dict[str, Any]:
    """The trace as a JSON object; its times are microseconds."""
    events = [_name("process_name", 0, f"tickrt-profile {profile.engine}")]
    events += [_name("thread_name", thread, name) for thread, name in THREADS.items()]
    begin_us = 0.0
    for run in range(profile.runs):
        length_us = sum(layer.runs_ms[run] for layer in profile.layers) * 1e3
        events.append(_slice(f"execute {run}", EXECUTES, begin_us, length_us, {}))
        events += _layers(profile, run, begin_us)
        events += _blocks(profile, run, begin_us)
        begin_us += length_us
    about = {"wall_p50_ms": profile.wall.p50_ms, "layer_sum_ms": profile.layer_sum_ms, "gap": profile.gap_name}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _layers(profile: Profile, run: int, begin_us: float) -> Iterator[dict[str, Any]]:
    for layer in profile.layers:
        length_us = layer.runs_ms[run] * 1e3
        facts: dict[str, Any] = {"kind": layer.kind, "op": layer.op_type, "module": layer.module}
        facts["contents"] = " ".join(layer.contents)
        if layer.work is not None:
            facts |= {"flops": layer.work.flops, "bytes": layer.work.bytes}
        yield _slice(layer.name, LAYERS, begin_us, length_us, facts, layer.kind)
        begin_us += length_us


def _blocks(profile: Profile, run: int, begin_us: float) -> Iterator[dict[str, Any]]:
    for name, group in groupby(profile.layers, key=_block_name):
        length_us = sum(layer.runs_ms[run] for layer in group) * 1e3
        yield _slice(name, BLOCKS, begin_us, length_us, {})
        begin_us += length_us


def _block_name(layer: LayerTiming) -> str:
    """The numbered block that a layer belongs to, or its module."""
    place = block_of(layer.module)
    if place is not None:
        return f"{place[0]}.{place[1]}"
    if layer.module is None:
        return UNKNOWN_MODULE
    return module_parts(layer.module)[-1] if layer.module else WHOLE_MODEL


def _slice(
    name: str, thread: int, begin_us: float, length_us: float, facts: dict[str, Any], kind: str = "block"
) -> dict[str, Any]:
    span = {"pid": PROCESS, "tid": thread, "ts": round(begin_us, 3), "dur": round(length_us, 3)}
    return {"name": name, "cat": kind, "ph": "X", **span, "args": facts}


def _name(event: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": event, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}
