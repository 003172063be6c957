"""The oracle agrees with all vectors of an independent implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from helpers import oracle, parity
from numpy.typing import NDArray

from runtime.requests.request import Condition, GenerationRequest, StepParameters

TOLERANCE = 4e-5
SCENARIOS, INPUTS, EXPECTED = parity.load()


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(str(parity.folder() / "decoder.onnx"), providers=["CPUExecutionProvider"])


def requests(name: str) -> list[GenerationRequest]:
    return [parity.request_of(item, SCENARIOS[name], INPUTS) for item in SCENARIOS[name]["requests"]]


def run(
    session: ort.InferenceSession, request: GenerationRequest, overrides: dict[int, StepParameters]
) -> list[oracle.F64]:
    def decode(x: oracle.F64, t: float, tokens: NDArray[np.float32], context: NDArray[np.float32] | None) -> oracle.F64:
        feeds = {
            "hidden_states": x[None].astype(np.float32),
            "timestep": np.array([t], np.float32),
            "encoder_hidden_states": tokens[None],
            "context_latents": context[None],  # type: ignore[index]
        }
        return np.asarray(session.run(None, feeds)[0][0], np.float64)

    assert request.noise is not None
    return oracle.generate(request, decode, oracle.Noises(request.noise), overrides)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_oracle_agrees_with_the_vectors(session: ort.InferenceSession, name: str) -> None:
    scenario = SCENARIOS[name]
    for item, request in zip(scenario["requests"], requests(name), strict=True):
        ticks = range(item["submit_at_tick"], item["submit_at_tick"] + request.steps)
        overrides = {
            k: StepParameters(**parity.session_parameters(scenario, tick, INPUTS)) for k, tick in enumerate(ticks)
        }
        states = run(session, request, overrides)
        np.testing.assert_allclose(states[-1], EXPECTED[f"{name}/{request.id}/final"], atol=TOLERANCE, rtol=0)
        steps = EXPECTED.get(f"{name}/{request.id}/after_each_step")
        if steps is not None:
            np.testing.assert_allclose(states, steps, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("solver", "order"), [("ode", 1), ("ab2", 2)])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_the_error_falls_with_the_order_of_the_solver(solver: Any, order: int, shift: float) -> None:
    """dx/dt = x cos(3 t), of which the solution is known, in steps of unequal length."""
    start = np.linspace(-2, 2, 6, dtype=np.float32).reshape(3, 2)

    def decode(x: oracle.F64, t: float, tokens: object, context: object) -> oracle.F64:
        return np.asarray(x * np.cos(3 * t))

    def error(steps: int) -> float:
        condition = Condition(np.zeros((1, 1), np.float32))
        asked = GenerationRequest(frames=3, conditions=(condition,), steps=steps, shift=shift, solver=solver)
        found = oracle.generate(asked, decode, oracle.Noises(start))[-1]
        return float(np.abs(found - start * np.exp(-np.sin(3.0) / 3)).max())

    assert error(100) / error(200) == pytest.approx(2**order, rel=0.1)
    assert error(200) < {1: 0.03, 2: 1e-3}[order]
