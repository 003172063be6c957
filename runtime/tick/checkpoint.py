"""Snapshots of generations in flight as safetensors bytes; resumed, they continue bit-identically."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from safetensors import SafetensorError
from safetensors.numpy import load, save

from runtime.config.bundle import Bundle
from runtime.errors import CheckpointError, RequestError
from runtime.language.sequence import SequenceState
from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target

FORMAT, SEQUENCE_FORMAT = "tickrt-slot-1", "tickrt-sequence-2"
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
    return _sealed(head, arrays)


def loads(data: bytes) -> SlotSnapshot:
    """The inverse of dumps. Raises CheckpointError where the bytes are damaged or not a checkpoint."""
    head, arrays = _opened(data, FORMAT)
    try:
        request = _restore(GenerationRequest, head["request"], "request", arrays)
    except (RequestError, TypeError, KeyError) as error:
        raise CheckpointError(f"the checkpoint's request cannot be read: {error}") from error
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    return SlotSnapshot(request, head["step"], head["has_cached_negative"], state, head["model"])


def dumps_sequence(state: SequenceState, model: str) -> bytes:
    """A sequence of a model's planner as safetensors bytes, with a checksum. Its request is kept by the caller."""
    arrays = {
        f"{graph}/{row}/{index}": array
        for graph, rows in enumerate(state.caches)
        for row, layers in enumerate(rows)
        for index, array in enumerate(layers)
    }
    arrays["tokens"] = np.array(state.tokens, np.int64)
    head = {
        "format": SEQUENCE_FORMAT,
        "model": model,
        "count": state.count,
        "constraint": list(state.constraint),
        "trust": state.trust,
        "shape": [[len(layers) for layers in rows] for rows in state.caches],
    }
    return _sealed(head, arrays)


def loads_sequence(data: bytes, model: str) -> SequenceState:
    """The inverse of dumps_sequence. Raises CheckpointError, also where the sequence is of another model."""
    head, arrays = _opened(data, SEQUENCE_FORMAT)
    if head["model"] != model:
        raise CheckpointError(f"the checkpoint is of model {head['model']!r}, this is {model!r}")
    caches = tuple(
        tuple(tuple(arrays[f"{graph}/{row}/{index}"] for index in range(count)) for row, count in enumerate(rows))
        for graph, rows in enumerate(head["shape"])
    )
    tokens = tuple(arrays["tokens"].tolist())
    return SequenceState(head["count"], tokens, tuple(head["constraint"]), head["trust"], caches)


def _sealed(head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    head["sha256"] = _digest(head, arrays)
    return bytes(save({**arrays, META: np.frombuffer(json.dumps(head).encode(), np.uint8)}))


def _opened(data: bytes, kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        arrays = load(data)
        head = from_json(arrays.pop(META).tobytes())
        expected = head.pop("sha256")
    except (SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error
    if _digest(head, arrays) != expected:
        raise CheckpointError("the checkpoint is damaged: its checksum does not match")
    if head.get("format") != kind:
        raise CheckpointError(f"the checkpoint has the format {head.get('format')}, this version reads {kind}")
    return head, arrays


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
