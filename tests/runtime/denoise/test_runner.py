"""DenoiseRunner stay open while somebody is in them, and only a few stay open empty."""

from __future__ import annotations

import pytest
from conftest import Loops

from runtime.denoise.bucket import LengthBucket
from runtime.denoise.runner import MAX_IDLE_LANES, DenoiseRunner


def lanes_of(loops: Loops) -> DenoiseRunner:
    loop = loops()
    return DenoiseRunner(loop.device, loop.device.stream(), loop.engines, loop.bundle, loop.deployment)


def test_a_bucket_is_opened_once(loops: Loops) -> None:
    buckets = lanes_of(loops)
    bucket = buckets.open(16, live={16})
    assert isinstance(bucket, LengthBucket)
    before = buckets.allocations
    assert buckets.open(16, live={16}) is bucket is buckets[16]
    assert buckets.allocations == before


def test_empty_lanes_make_room_and_live_ones_stay(loops: Loops) -> None:
    buckets = lanes_of(loops)
    lengths = [2 * index for index in range(1, MAX_IDLE_LANES + 3)]
    for frames in lengths:
        buckets.open(frames, live={2, frames})
    assert buckets[2].frames == 2
    with pytest.raises(KeyError):
        buckets[lengths[1]]
    assert buckets[lengths[-1]].frames == lengths[-1]


def test_what_is_read_out_belongs_to_the_receiver(loops: Loops) -> None:
    buckets = lanes_of(loops)
    state = buckets.open(16, live={16}).state
    current = state.double_buffer("latents").current
    assert current.host is not None
    current.host[1] = 3.0
    latents = buckets.read_out(16, slot_index=1)
    current.host[1] = 4.0
    assert (latents == 3.0).all()
