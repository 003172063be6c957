"""Snapshots of generations in flight as safetensors bytes; resumed, they continue bit-identically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from runtime.config.bundle import Bundle
from runtime.errors import CheckpointError, RequestError
from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target

FORMAT = "tickrt-slot-1"
NESTED = {"mask": LatentMask, "target": Target, "parameters": StepParameters, "dcw": Dcw}
LISTS = ("conditions", "negatives")
META = "__meta__"


@dataclass(frozen=True, eq=False)
class SlotSnapshot:
    """A generation between two ticks: its request (with the step parameters in force), step, and state arrays `[T, C]`.

    `has_cached_negative`: the negative velocity of guidance mode "initialize" has been computed; `model` is the
    bundle's name.
    """

    request: GenerationRequest
    step: int
    has_cached_negative: bool
    arrays: Mapping[str, NDArray[np.float32]]
    model: str

    def check(self, bundle: Bundle) -> None:
        """Raises CheckpointError where the state belongs to another model or its arrays do not fit the request."""
        if self.model != bundle.name:
            raise CheckpointError(f"the checkpoint is of model {self.model!r}, this is {bundle.name!r}")
        shape = (self.request.frames, bundle.latents.channels)
        if "latents" not in self.arrays or any(array.shape != shape for array in self.arrays.values()):
            raise CheckpointError(f"the checkpoint's state arrays do not have the shape {shape}")
        if not 0 <= self.step < self.request.steps:
            raise CheckpointError(f"the checkpoint is at step {self.step} of {self.request.steps}")


def dumps(snapshot: SlotSnapshot) -> bytes:
    """A snapshot as safetensors bytes, with a checksum."""
    arrays: dict[str, NDArray[Any]] = {f"state/{name}": array for name, array in snapshot.arrays.items()}
    scalars = _flatten(snapshot.request, "request", arrays)
    head: dict[str, Any] = {
        "format": FORMAT,
        "model": snapshot.model,
        "step": snapshot.step,
        "has_cached_negative": snapshot.has_cached_negative,
        "request": scalars,
    }
    head["sha256"] = _digest(head, arrays)
    arrays[META] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    return bytes(save(arrays))


def loads(data: bytes) -> SlotSnapshot:
    """The inverse of dumps. Raises CheckpointError where the bytes are damaged or not a checkpoint."""
    try:
        arrays = load(data)
        head = json.loads(arrays.pop(META).tobytes())
        expected = head.pop("sha256")
    except (SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error
    if head.get("format") != FORMAT or _digest(head, arrays) != expected:
        raise CheckpointError("the checkpoint is damaged: its checksum does not match")
    try:
        request = _restore(GenerationRequest, head["request"], "request", arrays)
    except (RequestError, TypeError, KeyError) as error:
        raise CheckpointError(f"the checkpoint's request cannot be read: {error}") from error
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    return SlotSnapshot(request, head["step"], head["has_cached_negative"], state, head["model"])


def _flatten(instance: Any, path: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Scalars of a dataclass as plain JSON values; its arrays go into `arrays` under their path."""
    table: dict[str, Any] = {}
    for name in (field.name for field in fields(instance)):
        value = getattr(instance, name)
        where = f"{path}.{name}"
        if isinstance(value, np.ndarray):
            arrays[where] = value
        elif name in NESTED and value is not None:
            table[name] = _flatten(value, where, arrays)
        elif name in LISTS:
            table[name] = [_flatten(item, f"{where}.{index}", arrays) for index, item in enumerate(value)]
        elif value is not None:
            table[name] = value
    return table


def _restore(kind: Any, table: dict[str, Any], path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(kind)):
        where = f"{path}.{name}"
        if where in arrays:
            values[name] = arrays[where]
        elif name in LISTS and name in table:
            items = enumerate(table[name])
            values[name] = tuple(_restore(Condition, item, f"{where}.{index}", arrays) for index, item in items)
        elif name in NESTED and name in table:
            values[name] = _restore(NESTED[name], table[name], where, arrays)
        elif name in table:
            values[name] = table[name]
    return kind(**values)


def _digest(head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
