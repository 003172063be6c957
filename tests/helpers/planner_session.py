"""A planner's graph in ONNX Runtime, with caches that are updated in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from runtime.config.planner import NO_WINDOW


def open_session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """A session of one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def off(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference."""
    return float(np.abs(found - expected).max())


class PlannerSession:
    """A session and its caches `[R, H, M, J]`, whose outputs lie at the addresses of its inputs."""

    def __init__(self, model: onnx.ModelProto | Path, rows: int, window: int = 0) -> None:
        self.session, self.window = open_session(model), window or NO_WINDOW
        past = [item for item in self.session.get_inputs() if item.name.startswith("past_")]
        dtype = np.float16 if past[0].type == "tensor(float16)" else np.float32
        self.caches = {item.name: np.zeros((rows, *item.shape[1:]), dtype) for item in past}
        self.capacity = past[0].shape[2]
        self.vocabulary = next(item for item in self.session.get_outputs() if item.name == "logits").shape[-1]

    def run(
        self, tokens: NDArray[np.int64], position: Any, rows: slice = slice(None), pick: Any = None, slots: int = 0
    ) -> NDArray[np.float32]:
        """Logits `[R, G, V]` of tokens `[R, U]` from `position` `[R]` on; pick: default all of them."""
        count, length = tokens.shape
        chosen = np.arange(length)[None] if pick is None else np.asarray(pick)
        position = np.broadcast_to(np.asarray(position, np.int64), count)
        inputs = {
            "tokens": tokens,
            "position": position,
            "write": position % self.capacity,
            "window": np.full(count, self.window),
            "slots": np.arange(slots or self.capacity),
            "pick": np.broadcast_to(chosen, (count, chosen.shape[-1]))[..., None],
        }
        logits = np.empty((count, chosen.shape[-1], self.vocabulary), np.float32)
        binding = self.session.io_binding()
        kept = {name: np.ascontiguousarray(values, np.int64) for name, values in inputs.items()}
        for name, values in kept.items():
            binding.bind_input(name, "cpu", 0, values.dtype, values.shape, values.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        for past, cache in self.caches.items():
            part = cache[rows]
            binding.bind_input(past, "cpu", 0, part.dtype, part.shape, part.ctypes.data)
            present = past.replace("past_", "present_")
            binding.bind_output(present, "cpu", 0, part.dtype, part.shape, part.ctypes.data)
        self.session.run_with_iobinding(binding)
        return logits
