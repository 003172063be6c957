"""What an engine says of the time of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """One node of a compiled graph: its operator, and its time in each of several executes, in milliseconds.

    `facts` is what the library itself says of the node, in its own words: the engine inspector's record of a TensorRT
    layer, the arguments of ONNX Runtime's trace event.
    """

    name: str
    op_type: str
    runs_ms: tuple[float, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
