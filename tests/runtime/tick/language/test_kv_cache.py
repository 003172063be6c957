"""A row of the cache: bound in place, cleared, read and written without the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.config.planner import LanguageGraphSpec
from runtime.devices.device import HostDevice
from runtime.engines.manifest import TensorInfo
from runtime.tick.language.kv_cache import LEAST_SPAN, KvCache

NAMES = ("k0", "v0", "k1", "v1")
GRAPH = LanguageGraphSpec.model_validate(
    {
        "graph": "planner.onnx",
        "capacity": 96,
        "inputs": {"past": NAMES},
        "outputs": {"present": tuple(f"present_{name}" for name in NAMES)},
    }
)


@pytest.fixture
def cache() -> KvCache:
    inputs = {name: TensorInfo(name=name, dtype="float32", shape=("rows", 2, 96, 4)) for name in NAMES}
    device = HostDevice()
    engine: Any = SimpleNamespace(inputs=inputs)
    found = KvCache(device, device.main, engine, GRAPH, 3)
    for row in range(3):
        found.write(row, [np.full((2, 96, 4), 10 * row + layer, np.float32) for layer in range(4)])
    return found


def test_outputs_have_the_addresses_of_the_inputs(cache: KvCache) -> None:
    tensors = cache.tensors(1, 3, 64)
    for name in NAMES:
        past, present = tensors[name], tensors[f"present_{name}"]
        assert past.address == present.address
        assert past.shape == (2, 2, 96, 4)
    assert len({tensors[name].address for name in NAMES}) == 4
    assert tensors["slots"].host is not None
    assert tensors["slots"].host.tolist() == list(range(64))


def test_a_row_is_cleared_alone(cache: KvCache) -> None:
    cache.clear(1)
    assert [float(abs(array).max()) for array in cache.read(1)] == [0.0] * 4
    assert [float(array.min()) for array in cache.read(2)] == [20.0, 21.0, 22.0, 23.0]
    assert [float(array.max()) for array in cache.read(0)] == [0.0, 1.0, 2.0, 3.0]


def test_what_is_read_is_a_copy_that_fits_any_row(cache: KvCache) -> None:
    read = cache.read(2)
    cache.clear(2)
    cache.write(0, read)
    for array, expected in zip(cache.read(0), (20.0, 21.0, 22.0, 23.0), strict=True):
        assert (array == expected).all()


@pytest.mark.parametrize(("length", "span"), [(1, LEAST_SPAN), (64, 64), (65, 96), (96, 96), (5000, 96)])
def test_a_span_holds_the_longest_row_and_none_is_longer_than_the_cache(length: int, span: int, cache: KvCache) -> None:
    assert cache.span(length) == span


def test_few_spans_occur_and_none_is_much_too_long(cache: KvCache) -> None:
    cache.capacity = 4096
    spans = {length: cache.span(length) for length in range(1, 4097)}
    assert len(set(spans.values())) < 24
    assert all(
        length <= span <= max(1.25 * length, LEAST_SPAN * -(-length // LEAST_SPAN)) for length, span in spans.items()
    )
