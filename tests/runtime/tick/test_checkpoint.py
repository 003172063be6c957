"""Snapshots as bytes: every value is read back, damaged bytes are refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import CheckpointError
from runtime.language.sequence import SequenceState
from runtime.tick import checkpoint
from runtime.tick.checkpoint import dumps_sequence, loads_sequence


def rand(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


CACHES = (((rand(2, 3, 4), rand(2, 3)), (rand(1, 2, 3), rand(4))), ((rand(3),), (rand(2),)))
STATE = SequenceState(700, (1, 2, 3), (4, 5), 0.25, CACHES)
DATA = dumps_sequence(STATE, "tiny")


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif hasattr(one, "__dataclass_fields__"):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    else:
        assert one == other


def test_a_sequence_comes_back_bit_for_bit_and_is_refused_by_another_model() -> None:
    assert_same(loads_sequence(DATA, "tiny"), STATE)
    with pytest.raises(CheckpointError, match="another"):
        loads_sequence(DATA, "another")


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, len(DATA) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused(position: int, flip: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= flip
    try:
        read = loads_sequence(bytes(damaged), "tiny")
    except CheckpointError:
        return
    assert_same(read, STATE)


@pytest.mark.parametrize(
    "data", [b"", b"not a checkpoint", DATA[:-1], DATA[: len(DATA) // 2], DATA + b"x", b"\xff" * 64]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        loads_sequence(data, "tiny")


def test_a_checkpoint_of_another_format_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", "tickrt-sequence-3")
    with pytest.raises(
        CheckpointError, match=r"has the format tickrt-sequence-2, this version reads tickrt-sequence-3"
    ):
        loads_sequence(DATA, "tiny")
