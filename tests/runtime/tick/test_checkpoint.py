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
from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target
from runtime.tick.checkpoint import SlotSnapshot, dumps, dumps_sequence, loads, loads_sequence


def rand(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


FROZEN = SlotSnapshot(
    request=GenerationRequest(
        frames=8,
        conditions=(Condition(rand(3, 4), rand(8), 0.1, 0.9), Condition(rand(2, 4))),
        negatives=(Condition(rand(1, 4), 0.5),),
        steps=6,
        shift=3.0,
        denoise=0.7,
        seed=2**64 - 1,
        guidance_mode="initialize",
        solver="sde",
        context=rand(8, 4),
        source=rand(8, 2),
        initial_noise_curve=rand(8),
        mask=LatentMask(rand(8), rand(8, 2)),
        target=Target(rand(8, 2), rand(8), 0.3),
        parameters=StepParameters(guidance=rand(8), momentum=0.1, channel_gain=rand(8, 2), dcw=Dcw("low", rand(8))),
        session="s",
        client="c",
        id="name",
    ),
    step=3,
    has_cached_negative=True,
    arrays={"latents": rand(8, 2), "momentum_state": rand(8, 2)},
    model="tiny",
)
DATA = dumps(FROZEN)


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


def test_everything_comes_back_bit_for_bit() -> None:
    assert_same(loads(DATA), FROZEN)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, len(DATA) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused(position: int, flip: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= flip
    try:
        read = loads(bytes(damaged))
    except CheckpointError:
        return
    assert_same(read, FROZEN)


@pytest.mark.parametrize(
    "data", [b"", b"not a checkpoint", DATA[:-1], DATA[: len(DATA) // 2], DATA + b"x", b"\xff" * 64]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        loads(data)


def test_a_generation_without_a_condition_is_read_back() -> None:
    plain = GenerationRequest(frames=8, conditions=(Condition.none(),))
    snapshot = SlotSnapshot(plain, 0, False, {"latents": rand(8, 2)}, "tiny")
    assert loads(dumps(snapshot)).request.conditions[0].tokens.shape == (1, 0)


def test_a_sequence_comes_back_bit_for_bit_and_is_refused_by_another_model() -> None:
    caches = (((rand(2, 3, 4), rand(2, 3)), (rand(1, 2, 3), rand(4))), ((rand(3),), (rand(2),)))
    state = SequenceState(700, (1, 2, 3), (4, 5), 0.25, caches)
    data = dumps_sequence(state, "tiny")
    assert_same(loads_sequence(data, "tiny"), state)
    for other in (DATA, data[:-1]):
        with pytest.raises(CheckpointError):
            loads_sequence(other, "tiny")
    with pytest.raises(CheckpointError, match="another"):
        loads_sequence(data, "another")


def test_a_checkpoint_of_another_kind_names_both_formats() -> None:
    with pytest.raises(CheckpointError, match=r"has the format tickrt-slot-1, this version reads tickrt-sequence-2"):
        loads_sequence(DATA, "tiny")
