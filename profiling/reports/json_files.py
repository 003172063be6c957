"""Profiles as JSON with trtexec's field names (--exportProfile, --exportLayerInfo), and read back.

Rows have trtexec's five fields and no more: tools that read its files recognize rows by their number of fields. All
other properties are in the first record, which has the number of executes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from profiling.comparison import thinned
from profiling.layers.rollups import UNKNOWN_MODULE, WHOLE_MODEL, block_of, module_parts
from profiling.layers.timings import LayerTiming, Profile
from runtime.base.errors import ConfigError, FileError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8
from runtime.tick.loop.record import Event, slice_event, trace_document

SCHEMA = 1
EXTRA_KEY = "tickrt"
ROUND_SAMPLES = 8
BLOCK = "block"
LAYERS, BLOCKS, EXECUTES = 1, 2, 3
THREADS = {EXECUTES: "executes", BLOCKS: "blocks", LAYERS: "layers"}


def profile_records(profile: Profile) -> list[dict[str, Any]]:
    """The records of trtexec's --exportProfile."""
    total_ms = sum(layer.total_ms for layer in profile.layers) or 1.0
    layers = [
        {
            "name": layer.name,
            "timeMs": round(layer.total_ms, 6),
            "averageMs": round(layer.average_ms, 6),
            "medianMs": round(layer.median_ms, 6),
            "percentage": round(100 * layer.total_ms / total_ms, 6),
        }
        for layer in profile.layers
    ]
    return [{"count": profile.runs, EXTRA_KEY: extra(profile)}, *layers]


def extra(profile: Profile) -> dict[str, Any]:
    """Properties that trtexec's file does not have; `layers` in the order of the rows."""
    ceilings = profile.ceilings
    return {
        "schema": SCHEMA,
        **profile.about,
        "layer_sum_ms": profile.layer_sum_ms,
        "layer_sum_p50_ms": profile.layer_sum_p50_ms,
        "wall_p50_ms": profile.wall.p50_ms,
        "wall_p95_ms": profile.wall.p95_ms,
        "wall_rounds_ms": stored_rounds(profile.wall.times_ms, profile.rounds),
        "gap_ms": profile.gap_ms,
        "gap": profile.gap_name,
        "notes": list(profile.notes),
        "ceilings": None if ceilings is None else [ceilings.flops_per_s, ceilings.bytes_per_s, ceilings.source],
        "layers": [layer_details(layer, profile) for layer in profile.layers],
    }


def layer_details(layer: LayerTiming, profile: Profile) -> dict[str, Any]:
    """Properties of one layer, and its times in each round, of which ROUND_SAMPLES are stored."""
    roof = layer.roof(profile.ceilings)
    return {
        "op": layer.op_type,
        "kind": layer.kind,
        "module": layer.module,
        "wide": layer.is_wide,
        "contents": list(layer.contents),
        "flops": layer.work.flops if layer.work else None,
        "bytes": layer.work.bytes if layer.work else None,
        "bound": roof.bound if roof else None,
        "roof": round(roof.reached, 6) if roof and roof.reached is not None else None,
        "rounds_ms": stored_rounds(layer.runs_ms, profile.rounds),
    }


def stored_rounds(times_ms: Sequence[float], sizes: Sequence[int]) -> list[list[float]]:
    """Times cut into rounds of these sizes; of each round at most ROUND_SAMPLES, evenly spaced."""
    ends = list(accumulate(sizes))
    return [thinned(times_ms[end - size : end], ROUND_SAMPLES) for size, end in zip(sizes, ends, strict=True)]


def layer_info(profile: Profile) -> dict[str, Any]:
    """The records of trtexec's --exportLayerInfo: TensorRT's own, or for ONNX Runtime the fields of TensorRT 10.

    Of the engine's tensors it has the inputs, under the name that the inspector of the same version gives them.
    """
    shapes: Mapping[str, Any] = profile.about.get("shapes", {})
    layers = [_layer_record(layer) for layer in profile.layers]
    if any(
        "Datatype" in tensor for layer in layers for tensor in (*layer.get("Inputs", ()), *layer.get("Outputs", ()))
    ):
        tensors = [{"Name": name, "IOMode": "Input", "Dimensions": list(shape)} for name, shape in shapes.items()]
        return {"Layers": layers, "I/O Tensors": tensors}
    return {"Layers": layers, "Bindings": list(shapes)}


def _layer_record(layer: LayerTiming) -> dict[str, Any]:
    if "provider" not in layer.facts:
        return {"Name": layer.name, "LayerType": layer.op_type, **layer.facts}
    return {
        "Name": layer.name,
        "LayerType": layer.op_type,
        "Inputs": _tensors(f"{layer.name}:in", layer.facts.get("input_type_shape", ())),
        "Outputs": _tensors(f"{layer.name}:out", layer.facts.get("output_type_shape", ())),
        "TacticName": layer.facts["provider"],
        "StreamId": 0,
        "Metadata": "\x1e".join(f"[ONNX Layer: {name}]" for name in layer.nodes),
    }


def _tensors(name: str, shapes: Any) -> list[dict[str, Any]]:
    """A trace event's [{"float": [2, 16]}] as the inspector's tensors."""
    return [
        {"Name": f"{name}{index}", "Dimensions": sizes, "Format/Datatype": kind}
        for index, shape in enumerate(shapes)
        for kind, sizes in shape.items()
    ]


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its times as floats; releases before 8.5 have no median."""
    average_ms = float(row["averageMs"])
    return {**row, "averageMs": average_ms, "medianMs": float(row.get("medianMs", average_ms))}


def read_records(path: Path) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Number of executes, extra properties (empty in trtexec's own files), and the rows. Raises ConfigError."""
    with not_a_profile(path):
        head, *rows = from_json(plain_utf8(read_file(path, MAX_JSON_BYTES)))
        extras = head.get(EXTRA_KEY, {})
        # Some releases of trtexec end the file with a row for the sum.
        rows = [_checked(row) for row in rows if "averageMs" in row]
        if extras and (extras["schema"], len(extras["layers"])) != (SCHEMA, len(rows)):
            raise ValueError(f"schema {extras['schema']} of {len(extras['layers'])} layers, {len(rows)} rows")
        return int(head["count"]), extras, rows


@contextmanager
def not_a_profile(path: Path) -> Iterator[None]:
    """Where a file has something else than a profile has, that is a ConfigError."""
    try:
        yield
    except (FileError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
        what = f"{path} is not a profile of tickrt-profile --json or trtexec --exportProfile: {error}"
        raise ConfigError(what, fix="tickrt-profile CONFIG --json FILE writes one") from error


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
