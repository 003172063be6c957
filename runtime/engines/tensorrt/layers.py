"""Layers of a plan: what TensorRT's engine inspector says of them, joined with what its profiler measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.engines.engine import NodeTimes

FOREIGN = "ForeignNode"
REFORMAT = "Reformat"
UNKNOWN = "unknown"


def layer_records(text: str) -> dict[str, dict[str, Any]]:
    """Layer name -> its record in the inspector's JSON of TensorRT 10 or 11; without detailed verbosity it is empty.

    Such a layer is its name alone; one that holds a whole graph is called {ForeignNode[first...last]}.
    """
    layers = json.loads(text).get("Layers", [])
    named = [{"Name": layer} if isinstance(layer, str) else layer for layer in layers]
    return {layer["Name"]: layer for layer in named if "Name" in layer}


def layer_type(name: str, record: Mapping[str, Any]) -> str:
    """A layer's type; older releases put the one that says more under another name."""
    return str(record.get("ParameterType") or record.get("LayerType") or _type_of_name(name))


def node_times(
    runs: Sequence[Sequence[tuple[str, float]]], records: Mapping[str, Mapping[str, Any]]
) -> tuple[NodeTimes, ...]:
    """Times per layer over all runs, in the order of the first appearance; a layer that repeats in a run is summed."""
    times: dict[str, list[float]] = {}
    for index, run in enumerate(runs):
        for name, ms in run:
            times.setdefault(name, [0.0] * len(runs))[index] += ms
    about = {name: records.get(name, {}) for name in times}
    return tuple(NodeTimes(name, layer_type(name, about[name]), tuple(ms), about[name]) for name, ms in times.items())


def _type_of_name(name: str) -> str:
    """A reformat before or behind a blob is named after it."""
    if name.startswith(f"{{{FOREIGN}"):
        return FOREIGN
    return REFORMAT if name.startswith("Reformatting CopyNode") else UNKNOWN
