"""Steps that are left out: against the solver that takes them all, with velocities on a line through the two before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers import oracle
from helpers.backends import ALSO_SIMULATED, CPU, Backend
from helpers.generations import CONDITIONS, CONTEXT, GUIDED, C, Inbox, make, run_all

from runtime.base.errors import RequestError
from runtime.engines.engine import run_once
from runtime.requests.timesteps import leave_out, noise, schedule
from runtime.tick.loop.tick_loop import TickLoop

FRAMES, STEPS, SHIFT = 32, 10, 2.0
EVERY: dict[str, Any] = {"more": ""}
KEPT = ((0, 1, 2, 5, 9), (0, 2, 4, 6, 8), (0, 3, 4, 5), (0, 9), (0,))


def velocity(loop: TickLoop, x: Any, t: float) -> Any:
    roles, tokens = loop.bundle.decoder, CONDITIONS[0].tokens
    feeds = {
        roles.inputs.latents: x[None].astype(np.float32),
        roles.inputs.time: np.array([t], np.float32),
        roles.inputs.condition: tokens[None],
        roles.inputs.condition_mask: np.ones((1, len(tokens)), np.float32),
        roles.inputs.context: CONTEXT[FRAMES][None],
    }
    return np.float64(run_once(loop.engines.decoder, feeds)[roles.outputs.velocity][0])


def solved(loop: TickLoop, seed: int, kept: Sequence[int], *, is_multistep: bool) -> Any:
    """All steps of the solver in float64; those that are not kept have no velocity of their own."""
    times = oracle.schedule(STEPS, SHIFT, 1.0)
    x, known = np.float64(noise(FRAMES, C, seed)), list[tuple[float, Any]]()

    def at(t: float) -> Any:
        (t1, v1), (t0, v0) = known[-1], known[-2] if len(known) > 1 else (2.0, known[-1][1])
        return v1 + (t - t1) / (t1 - t0) * (v1 - v0)

    for k in range(STEPS):
        t, later = times[k], times[k + 1]
        if k in kept:
            known.append((t, velocity(loop, x, t)))
        x = x + (later - t) * at((t + later) / 2 if is_multistep and later > 0 else t)
    return x


@pytest.mark.parametrize("kept", KEPT, ids=str)
@pytest.mark.parametrize("solver", ["ode", "ab2"])
def test_it_is_the_solver_that_takes_all_steps(solver: Any, kept: tuple[int, ...], loops: Loops) -> None:
    loop, is_multistep = loops(**EVERY), solver == "ab2"
    times, factors = leave_out(schedule(STEPS, shift=SHIFT), kept, is_multistep=is_multistep)
    request = make("a", FRAMES, solver=solver, timesteps=times, extrapolation=factors)
    found = run_all(loop, request).latents("a")
    np.testing.assert_allclose(found, solved(loop, request.seed, kept, is_multistep=is_multistep), atol=1e-4)


@pytest.mark.parametrize("solver", ["ode", "ab2"])
def test_where_all_are_kept_it_is_the_solver_itself(solver: Any, loops: Loops) -> None:
    loop, times = loops(**EVERY), schedule(STEPS, shift=SHIFT)
    given, factors = leave_out(times, range(STEPS), is_multistep=solver == "ab2")
    plain = make("a", FRAMES, solver=solver, timesteps=given)
    every = make("a", FRAMES, solver=solver, timesteps=given, extrapolation=factors)
    np.testing.assert_allclose(run_all(loop, every).latents("a"), run_all(loop, plain).latents("a"), atol=1e-6)


@ALSO_SIMULATED
def test_fitted_steps_end_elsewhere_than_the_next_begins(backend: Backend, loops: Loops) -> None:
    loop = loops(**EVERY if backend == CPU else {})
    times, ends, factors = (1.0, 0.8, 0.5, 0.2), (0.75, 0.55, 0.25, 0.0), (0.0, 0.7, -0.3, 1.2)
    fitted = {"solver": "ab2", "timesteps": times, "ends": ends, "extrapolation": factors}
    inbox = run_all(loop, make("a", FRAMES, **fitted), make("b", FRAMES, seed=9), make("c", FRAMES, seed=9, **fitted))
    for name, seed in (("a", make("a", FRAMES).seed), ("c", 9)):
        x, before = np.float64(noise(FRAMES, C, seed)), 0.0
        for t, end, factor in zip(times, ends, factors, strict=True):
            v = velocity(loop, x, t)
            x = x + (end - t) * (v + factor * (v - before))
            before = v
        np.testing.assert_allclose(inbox.latents(name), x, atol=1e-4)


@pytest.mark.parametrize("name", ["ends", "extrapolation"])
def test_numbers_of_other_steps_are_refused_before_a_tick_sees_them(name: str) -> None:
    with pytest.raises(RequestError, match="expected 2 numbers, one for each step, got 1") as caught:
        make("a", FRAMES, timesteps=(1.0, 0.5), **{name: (0.0,)})
    assert caught.value.field == name


@ALSO_SIMULATED
def test_every_second_guided_step_takes_a_row_less(backend: Backend, loops: Loops) -> None:
    loop, inbox, rows = loops(**EVERY if backend == CPU else {}), Inbox(), []
    loop.submit(make("a", **{**GUIDED, "guidance_mode": "alternate", "steps": 5}), inbox)
    while (record := loop.tick()) is not None:
        rows.append(record.rows)
    assert rows == [2, 1, 2, 1, 2]
