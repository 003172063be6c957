"""Steps that are jumps of a decoder of mean velocities: against the oracle, and beside steps of velocity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.backends import ALSO_SIMULATED
from helpers.generations import CONDITIONS, FEATURES, GUIDED, C, Inbox, expected_latents, make, rand, run_all, run_ticks

from runtime.base.errors import RequestError
from runtime.requests.request import Condition, LatentMask, StepParameters
from runtime.tick.loop.tick_loop import TickLoop

JUMPS: dict[str, Any] = {"jumps": True, "more": ""}
# Jumps have no step before that they could extrapolate from.
NAMES = sorted(name for name in FEATURES if not name.startswith("ab2"))
# What only one kind of step does: a guidance that jumps have learnt, and ones that they have not.
BUILT_IN = {**GUIDED, "steps": 3}
VELOCITIES: dict[str, dict[str, Any]] = {
    "too much": {"parameters": StepParameters(guidance=5.0)},
    "curve": {"parameters": StepParameters(guidance=np.linspace(1, 3, 32))},
    "momentum": {"parameters": StepParameters(guidance=3.0, momentum=-0.5)},
    "rescale": {"parameters": StepParameters(guidance=3.0, rescale=0.5)},
    "mode": {"guidance_mode": "initialize"},
}


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


def rows_of_ticks(loop: TickLoop, *requests: Any) -> tuple[Inbox, list[int]]:
    """Everything that is told of requests, and the decoder's rows of each tick."""
    inbox, records = run_ticks(loop, *requests)
    return inbox, [record.rows for record in records]


@pytest.mark.parametrize("name", NAMES)
def test_every_feature_agrees_with_the_oracle(name: str, loops: Loops) -> None:
    loop = loops(**JUMPS)
    request = make(name, **{**FEATURES[name], "solver": "jump"})
    close(run_all(loop, request).latents(name), expected_latents(loop, request))


def test_guidance_is_built_into_the_only_row(loops: Loops) -> None:
    loop = loops(**JUMPS)
    jump = make("a", **BUILT_IN, solver="jump")
    inbox, rows = rows_of_ticks(loop, jump)
    assert rows == [1, 1, 1]
    plain = expected_latents(loop, make("a", steps=3, solver="jump"))
    assert np.abs(inbox.latents("a") - plain).max() > 0.01


def test_it_acts_in_its_interval_alone(loops: Loops) -> None:
    loop = loops(**JUMPS)
    inside = StepParameters(guidance=3.0, cfg_interval_start=0.3, cfg_interval_end=0.7)
    jump = make("a", **{**BUILT_IN, "steps": 6, "parameters": inside}, solver="jump")
    inbox, rows = rows_of_ticks(loop, jump)
    assert rows == [1] * 6
    close(inbox.latents("a"), expected_latents(loop, jump))


@pytest.mark.parametrize("name", VELOCITIES)
def test_what_is_not_built_in_takes_a_row_for_each_side(name: str, loops: Loops) -> None:
    loop = loops(**JUMPS)
    request = make("a", **{**BUILT_IN, **VELOCITIES[name]}, solver="jump")
    inbox, rows = rows_of_ticks(loop, request)
    assert rows[0] == 2
    close(inbox.latents("a"), expected_latents(loop, request))


@ALSO_SIMULATED
def test_jumps_and_velocities_share_their_executes(loops: Loops) -> None:
    """What one slot of a tick does changes nothing of the others'."""
    loop = loops(**JUMPS)
    asked = [
        make("jump", **BUILT_IN, solver="jump"),
        make("velocity", **BUILT_IN),
        make("masked", solver="jump", steps=5, mask=LatentMask(np.repeat([0.0, 1.0], 16), rand(32, C))),
        make(
            "blend",
            steps=2,
            solver="jump",
            conditions=(CONDITIONS[0], Condition(CONDITIONS[2].tokens, np.linspace(1, 0, 32))),
            parameters=StepParameters(guidance=2.0),
        ),
    ]
    together = run_all(loop, *asked)
    for request in asked:
        alone = run_all(loop, request).latents(request.id)
        np.testing.assert_allclose(together.latents(request.id), alone, atol=2e-6)


@ALSO_SIMULATED
def test_a_session_that_asks_for_more_than_a_jump_can_goes_on_with_velocities(loops: Loops) -> None:
    loop = loops(**JUMPS)
    inbox = Inbox()
    request = make("a", **{**GUIDED, "steps": 4}, solver="jump", session="s")
    loop.submit(request, inbox)
    first = loop.tick()
    loop.update("s", {"momentum": -0.5})
    rows = [0 if first is None else first.rows]
    while (record := loop.tick()) is not None:
        rows.append(record.rows)
    assert rows == [1, 2, 2, 2]
    then = StepParameters(guidance=3.0, momentum=-0.5)
    close(inbox.latents("a"), expected_latents(loop, request, dict.fromkeys((1, 2, 3), then)))


def test_a_decoder_without_jumps_refuses_them(loops: Loops) -> None:
    with pytest.raises(RequestError, match="no jumps") as caught:
        loops().submit(make("a", solver="jump"), Inbox())
    assert (caught.value.field, caught.value.fix) == ("solver", "ode or ab2")
