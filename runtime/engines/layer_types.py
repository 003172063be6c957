"""Layers of a plan: what TensorRT's engine inspector says of them, joined with what its profiler measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runtime.nodes import NodeTimes

FOREIGN = "ForeignNode"
UNKNOWN = "unknown"


def layer_types(text: str) -> dict[str, str]:
    """Layer name -> type, from the inspector's JSON of TensorRT 10 or 11; without detailed verbosity layers have none.

    Such a layer is its name alone; one that holds a whole graph is called {ForeignNode[first...last]}.
    """
    layers = json.loads(text).get("Layers", [])
    return {
        _name(layer): layer.get("LayerType", UNKNOWN) if isinstance(layer, dict) else _type_of_name(layer)
        for layer in layers
        if isinstance(layer, str) or "Name" in layer
    }


def node_times(runs: Sequence[Sequence[tuple[str, float]]], types: Mapping[str, str]) -> tuple[NodeTimes, ...]:
    """Times per layer over all runs, in the order of the first appearance; a layer that repeats in a run is summed."""
    times: dict[str, list[float]] = {}
    for index, run in enumerate(runs):
        for name, ms in run:
            times.setdefault(name, [0.0] * len(runs))[index] += ms
    return tuple(NodeTimes(name, types.get(name) or _type_of_name(name), tuple(ms)) for name, ms in times.items())


def _name(layer: dict[str, str] | str) -> str:
    return layer if isinstance(layer, str) else layer["Name"]


def _type_of_name(name: str) -> str:
    return FOREIGN if FOREIGN in name else UNKNOWN
