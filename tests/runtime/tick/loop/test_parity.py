"""The whole tick against vectors of an independent implementation (tests/data/tick_parity, or TICKRT_PARITY_DIR)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built, Loops
from helpers import parity
from helpers.backends import BACKENDS, CPU, REAL, Backend

from runtime.config.deployment import Deployment, RuntimeConfig

TOLERANCE = 2e-4
SCENARIOS, INPUTS, EXPECTED = parity.load()


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A deployment, and one of few step graphs, whose engines a simulated GPU and OpenVINO have sooner."""
    depth = max(scenario["depth"] for scenario in SCENARIOS.values())
    return {
        is_small: parity.write_deployment(tmp_path_factory.mktemp("reference"), depth=depth, **more)
        for is_small, more in ((False, {}), (True, {"step_variants": ("plain", "guidance", "dcw")}))
    }


@pytest.fixture
def reference(built: Built, paths: dict[bool, Path], backend: Backend) -> Deployment:
    return built(paths[backend.is_simulated or backend.target == "openvino"], backend=backend)


def assert_agrees(name: str, scenario: dict[str, Any], run: parity.Run) -> None:
    for tick, request_id in scenario["finishes"]:
        np.testing.assert_allclose(
            run.finals[request_id], EXPECTED[f"{name}/{request_id}/final"], atol=TOLERANCE, rtol=0
        )
        assert run.delivered[request_id] == run.started[request_id] + scenario["steps"] - 1
        assert run.delivered[request_id] <= tick - 1, "one tick earlier, more where that frees a slot for a waiting one"
        steps = EXPECTED.get(f"{name}/{request_id}/after_each_step")
        if steps is not None:
            np.testing.assert_allclose(np.stack(run.states[request_id]), steps, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_scenario_agrees(name: str, reference: Deployment, loops: Loops) -> None:
    run = parity.run_scenario(loops(reference), SCENARIOS[name], INPUTS)
    assert_agrees(name, SCENARIOS[name], run)


# On a simulated GPU, late or early, captured or not: the test above.
@pytest.mark.parametrize("backend", [CPU, *REAL], indirect=True, ids=str)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_scenario_agrees_when_rows_are_split_and_guidance_takes_two_passes(
    name: str, reference: Deployment, loops: Loops
) -> None:
    config = RuntimeConfig(depth=reference.runtime.depth, fused_guidance=False)
    narrow = reference.shapes[0].model_copy(
        update={"rows": reference.shapes[0].rows.model_copy(update={"max": 2, "opt": 2})}
    )
    split = reference.model_copy(update={"runtime": config, "shapes": (narrow,)})
    assert_agrees(name, SCENARIOS[name], parity.run_scenario(loops(split), SCENARIOS[name], INPUTS))


def test_an_unknown_key_is_refused(reference: Deployment, loops: Loops) -> None:
    scenario = dict(next(iter(SCENARIOS.values())), moonlight=True)
    with pytest.raises(KeyError, match="moonlight"):
        parity.run_scenario(loops(reference), scenario, INPUTS)
