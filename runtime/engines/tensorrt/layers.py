"""Layers of a plan: records of TensorRT's engine inspector, joined with the times of its profiler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.engines.node_times import NodeTimes

FOREIGN = "ForeignNode"
REFORMAT = "Reformat"
UNKNOWN = "unknown"
# (layer name, ms) in the order of one run.
LayerTimes = list[tuple[str, float]]


def layer_records(text: str) -> dict[str, dict[str, Any]]:
    """Layer name -> record in the inspector's JSON of TensorRT 10 or 11.

    Without detailed verbosity a record has only the name; a layer that contains a whole graph is called
    {ForeignNode[first...last]}.
    """
    layers = json.loads(text).get("Layers", [])
    named = [{"Name": layer} if isinstance(layer, str) else layer for layer in layers]
    return {layer["Name"]: layer for layer in named if "Name" in layer}


def layer_type(name: str, record: Mapping[str, Any]) -> str:
    """A layer's type; older releases have a more specific one as ParameterType."""
    return str(record.get("ParameterType") or record.get("LayerType") or _type_of_name(name))


def node_times(
    runs: Sequence[Sequence[tuple[str, float]]], records: Mapping[str, Mapping[str, Any]]
) -> tuple[NodeTimes, ...]:
    """Times per layer over all runs, in order of first appearance; repetitions of a layer in a run are added."""
    times: dict[str, list[float]] = {}
    for index, run in enumerate(runs):
        for name, ms in run:
            times.setdefault(name, [0.0] * len(runs))[index] += ms
    found = {name: records.get(name, {}) for name in times}
    return tuple(NodeTimes(name, layer_type(name, found[name]), tuple(ms), found[name]) for name, ms in times.items())


def _type_of_name(name: str) -> str:
    """A layer's type from its name; a reformat layer is named after the ForeignNode that it belongs to."""
    if name.startswith(f"{{{FOREIGN}"):
        return FOREIGN
    return REFORMAT if name.startswith("Reformatting CopyNode") else UNKNOWN
