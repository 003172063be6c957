"""Replaces the random weights of a bundle by ones that a seed gives again, so that they need not be carried."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from profiling.gpu_check.unpack import DEVIATION, REST, with_drawn, write_whole

# Smaller tensors are carried: tables and the like may be among them.
LEAST_ELEMENTS = 1 << 18
SAMPLE = 1 << 14
# Neighbours in a table depend on each other; among so many random numbers this is above ten standard deviations.
MOST_CORRELATION = 0.1


def draw_weights(bundle: Path) -> list[dict[str, Any]]:
    """Draw the weights of a bundle's graphs that lie in files beside them, in place, and keep the rest apart.

    Returns, by file: path relative to the bundle's parent, bytes, SHA-256, and [offset, elements, seed, scale] of what
    is drawn. It is kept in the bundle, and done once. Raises OSError.
    """
    done = bundle / "weights.json"
    if done.is_file():
        return list(json.loads(done.read_bytes()))
    found = [_draw_file(bundle, name, tensors) for name, tensors in sorted(_tensors(bundle).items())]
    write_whole(done, iter([json.dumps(found, indent=1).encode()]))
    return found


def _tensors(bundle: Path) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """File -> offset and shape of the large float32 tensors in it."""
    found: dict[str, set[tuple[int, tuple[int, ...]]]] = {}
    for path in sorted(bundle.glob("*.onnx")):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            about = {each.key: each.value for each in tensor.external_data}
            large = found.setdefault(about["location"], set())
            is_float = tensor.data_type == onnx.TensorProto.FLOAT
            if is_float and len(tensor.dims) > 1 and np.prod(tensor.dims) >= LEAST_ELEMENTS:
                large.add((int(about.get("offset", 0)), tuple(tensor.dims)))
    return {name: sorted(each) for name, each in found.items()}


def _draw_file(bundle: Path, name: str, tensors: list[tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
    path = bundle / name
    values = np.memmap(path, np.uint8, "r")
    drawn, stop = list[list[Any]](), 0
    for offset, shape in tensors:
        if offset < stop:  # the same numbers in another shape
            continue
        stop = offset + 4 * int(np.prod(shape))
        tensor = values[offset:stop].view("<f4").reshape(shape)
        if _is_random(tensor):
            seed = int.from_bytes(hashlib.sha256(f"{bundle.name}/{name} {offset}".encode()).digest()[:6], "big")
            drawn.append([offset, tensor.size, seed, float(np.float32(tensor.std(dtype=np.float64) / DEVIATION))])
    rest = path.with_name(name + REST)
    write_whole(rest, _without(values, drawn))
    about = {"path": f"{bundle.name}/{name}", "bytes": len(values), "drawn": drawn}
    del values
    return {**about, "sha256": write_whole(path, with_drawn(rest, about))}


def _is_random(tensor: NDArray[np.float32]) -> bool:
    """Whether neighbours on the first and the last axis of a part have nothing to do with each other."""
    part = tensor.reshape(-1)[:SAMPLE].astype(np.float64)
    rows = tensor.reshape(len(tensor), -1)[:, :1024][: SAMPLE // 8].astype(np.float64)
    pairs = [(part[:-1], part[1:])] + ([(rows[:-1].ravel(), rows[1:].ravel())] if len(rows) > 1 else [])
    return all(
        min(one.std(), two.std()) > 0 and abs(np.corrcoef(one, two)[0, 1]) < MOST_CORRELATION for one, two in pairs
    )


def _without(values: NDArray[np.uint8], drawn: list[list[Any]]) -> Iterator[bytes]:
    """What lies between the drawn tensors."""
    edges = [0, *(edge for offset, count, *_ in drawn for edge in (offset, offset + 4 * count)), len(values)]
    for begin, end in list(pairwise(edges))[::2]:
        yield values[begin:end].tobytes()
