"""Snapshots of sequences in flight as safetensors bytes; resumed, they continue bit-identically."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from safetensors import SafetensorError
from safetensors.numpy import load, save

from runtime.errors import CheckpointError
from runtime.language.sequence import SequenceState

FORMAT = "tickrt-sequence-2"
META = "__meta__"


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
        "format": FORMAT,
        "model": model,
        "count": state.count,
        "constraint": list(state.constraint),
        "trust": state.trust,
        "shape": [[len(layers) for layers in rows] for rows in state.caches],
    }
    return _sealed(head, arrays)


def loads_sequence(data: bytes, model: str) -> SequenceState:
    """The inverse of dumps_sequence. Raises CheckpointError, also where the sequence is of another model."""
    head, arrays = _opened(data)
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


def _opened(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        arrays = load(data)
        head = from_json(arrays.pop(META).tobytes())
        expected = head.pop("sha256")
    except (SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error
    if _digest(head, arrays) != expected:
        raise CheckpointError("the checkpoint is damaged: its checksum does not match")
    if head.get("format") != FORMAT:
        raise CheckpointError(f"the checkpoint has the format {head.get('format')}, this version reads {FORMAT}")
    return head, arrays


def _digest(head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
