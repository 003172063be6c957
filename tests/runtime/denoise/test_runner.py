"""Lanes stay open while somebody is in them, and only a few stay open empty."""

from __future__ import annotations

import pytest
from conftest import Loops

from runtime.denoise.bucket import Lane
from runtime.denoise.runner import MAX_IDLE_LANES, Lanes


def lanes_of(loops: Loops) -> Lanes:
    loop = loops()
    return Lanes(loop.device, loop.device.stream(), loop.engines, loop.bundle, loop.deployment)


def test_a_lane_is_opened_once(loops: Loops) -> None:
    lanes = lanes_of(loops)
    lane = lanes.open(16, live={16})
    assert isinstance(lane, Lane)
    before = lanes.allocations
    assert lanes.open(16, live={16}) is lane is lanes[16]
    assert lanes.allocations == before


def test_empty_lanes_make_room_and_live_ones_stay(loops: Loops) -> None:
    lanes = lanes_of(loops)
    lengths = [2 * index for index in range(1, MAX_IDLE_LANES + 3)]
    for frames in lengths:
        lanes.open(frames, live={2, frames})
    assert lanes[2].frames == 2
    with pytest.raises(KeyError):
        lanes[lengths[1]]
    assert lanes[lengths[-1]].frames == lengths[-1]


def test_what_is_read_out_belongs_to_the_receiver(loops: Loops) -> None:
    lanes = lanes_of(loops)
    state = lanes.open(16, live={16}).state
    current = state.double("latents").current
    assert current.host is not None
    current.host[1] = 3.0
    latents = lanes.read_out(16, seat=1)
    current.host[1] = 4.0
    assert (latents == 3.0).all()
