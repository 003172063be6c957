"""Loops that the decoder sees turned, in one execute with rows that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.backends import ALSO_SIMULATED
from helpers.generations import CONDITIONS, FEATURES, expected_latents, make, run_all, run_ticks

from runtime.base.errors import EngineNotBuiltError, RequestError
from runtime.engines.engine import variant_name
from runtime.requests.request import Condition
from runtime.tick.clock import PhaseClock
from runtime.tick.denoise.runner import DenoiseRunner
from runtime.tick.denoise.slot_fields import CONTEXT_RING, RING
from runtime.tick.runner import TickContext

GUIDED = FEATURES["guided"]


@ALSO_SIMULATED
def test_rows_that_loop_and_rows_that_do_not_share_one_execute_and_keep_their_bits(loops: Loops) -> None:
    loop = loops()
    asked = [
        make("plain", **GUIDED),
        make("loop", loop_frames=25, **GUIDED),
        make("short", loop_frames=7, **GUIDED),
    ]
    together, records = run_ticks(loop, *asked)
    assert [record.executes for record in records] == [1] * 4
    for request in asked:
        np.testing.assert_array_equal(together.latents(request.id), run_all(loop, request).latents(request.id))


def test_a_loop_repeats_up_to_the_generations_length_whatever_its_noise_is(loops: Loops) -> None:
    found = run_all(loops(), make("a", loop_frames=25)).latents("a")
    np.testing.assert_array_equal(found[25:], found[:7])


def test_where_a_decoder_hears_no_edges_turning_changes_nothing(loops: Loops) -> None:
    """A loop of the whole window: the tiny decoder's mean over time is the same however it is turned."""
    loop = loops()
    one, other = make("a", loop_frames=32), make("a")
    np.testing.assert_allclose(run_all(loop, one).latents("a"), run_all(loop, other).latents("a"), atol=1e-5)


@ALSO_SIMULATED
@pytest.mark.parametrize("changes", [{}, {"solver": "ab2"}, {"loop_frames": None}])
def test_a_decoder_that_counts_frames_is_told_those_of_the_loop(loops: Loops, changes: dict[str, Any]) -> None:
    loop = loops(clock=True)
    request = make("a", **{"loop_frames": 25, **GUIDED, **changes})
    np.testing.assert_allclose(
        run_all(loop, request).latents("a"), expected_latents(loop, request), atol=1e-4, rtol=1e-4
    )


def test_rows_of_several_executes_are_turned_in_each(loops: Loops) -> None:
    """Without a condition mask, rows of unequal length have executes of their own."""
    loop = loops(mask=False, context=False)
    blend = (CONDITIONS[0], Condition(CONDITIONS[2].tokens, 0.5))
    request = make("a", loop_frames=25, conditions=blend, context=None)
    inbox, records = run_ticks(loop, request)
    assert [record.executes for record in records] == [2] * 4
    alone = [run_all(loop, make("a", loop_frames=25, conditions=(one,), context=None)).latents("a") for one in blend]
    assert not np.allclose(inbox.latents("a"), alone[0])
    np.testing.assert_array_equal(inbox.latents("a")[25:], inbox.latents("a")[:7])


def test_more_rows_than_there_were_are_turned_too(loops: Loops) -> None:
    loop = loops(depth=1)
    small, many = make("a", loop_frames=25), make("b", loop_frames=25, conditions=tuple(CONDITIONS))
    for request in (small, many, small):
        found = run_all(loop, request).latents(request.id)
        np.testing.assert_allclose(found, expected_latents(loop, request), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("frames", [0, 33])
def test_a_loop_is_at_most_as_long_as_its_generation(frames: int) -> None:
    with pytest.raises(RequestError, match="expected 1 to the generation's 32") as caught:
        make("a", loop_frames=frames)
    assert caught.value.field == "loop_frames"


@pytest.mark.parametrize("variant", [RING, CONTEXT_RING])
def test_engines_of_an_earlier_version_are_refused_before_anything_runs(loops: Loops, variant: frozenset[str]) -> None:
    loop = loops()
    rows = {name: engine for name, engine in loop.engines.rows.items() if name != variant}
    engines = replace(loop.engines, rows=rows)
    context = TickContext(loop.device, loop.device.stream(), engines, loop.bundle, loop.deployment)
    with pytest.raises(EngineNotBuiltError, match="built by an earlier version") as caught:
        DenoiseRunner(context, PhaseClock())
    assert f"rows.{variant_name(variant)}" in str(caught.value)
