"""How long each node of a compiled graph takes, as the engines' own profilers say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """One node of a compiled graph: its operator, and its time in each of several executes, in milliseconds.

    `facts`: the library's own description of the node: a TensorRT layer's record of the engine inspector, or the
    arguments of ONNX Runtime's trace event.
    """

    name: str
    op_type: str
    runs_ms: tuple[float, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
