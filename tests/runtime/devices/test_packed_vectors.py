"""Vectors lie apart at aligned addresses and are uploaded as one piece, only when one has changed."""

from __future__ import annotations

import numpy as np

from runtime.devices.device import ALIGNMENT_BYTES, HostDevice
from runtime.devices.memory import PackedVectors, host_view


def test_vectors_of_several_dtypes_do_not_overlap() -> None:
    vectors = PackedVectors(HostDevice(), 3 * ALIGNMENT_BYTES)
    taken = [vectors.take(5, dtype) for dtype in (np.float32, np.int64, np.bool_)]
    for number, (_, host) in enumerate(taken):
        host[...] = number % 2
    for number, (tensor, _) in enumerate(taken):
        assert tensor.address % ALIGNMENT_BYTES == 0
        assert tensor.host is not None
        assert (tensor.host == number % 2).all()
    assert vectors.used_bytes == vectors.limit_bytes == 3 * ALIGNMENT_BYTES


def test_a_view_writes_the_array() -> None:
    array = np.zeros(3, np.int64)
    host_view(array)[1] = 7
    assert array.tolist() == [0, 7, 0]
