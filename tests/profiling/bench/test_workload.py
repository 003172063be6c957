"""Workloads: features of generations, and options that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Built

from profiling.bench.workload import FEATURES, Workload, at_depth, make_request, with_runtime, workload_of
from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engines
from runtime.requests.request import NEUTRAL
from runtime.tick.denoise.prepared import row_features, step_features


@pytest.mark.parametrize("feature", FEATURES)
def test_the_tick_uses_the_named_feature(feature: str, built: Built) -> None:
    deployment = built()
    engines = open_engines(deployment, HostDevice())
    load = workload_of(deployment, 2, features=[feature])
    request = make_request(load, load_bundle(deployment.bundle), engines, 0)
    engines.close()
    parameters = request.parameters.over(NEUTRAL)
    used = step_features(request, parameters) | row_features(request, parameters)
    blends = len(request.conditions) > 1
    ramp = np.linspace(0.0, 1.0, load.frames, dtype=np.float32)
    if blends:
        np.testing.assert_array_equal([part.weight for part in request.conditions], [ramp[::-1], ramp])
    if request.mask is not None:
        np.testing.assert_array_equal(request.mask.mask, ramp)
    guided = {"guidance"} if feature == "rcfg" else set()
    assert used | ({"blend"} if blends else set()) == {feature} | guided
    assert set(load.features) == {feature} | guided
    assert load.variant.split("+") == sorted(load.features, key=("guidance", "dcw", feature).index)


def test_the_bundle_has_the_defaults(built: Built) -> None:
    assert workload_of(built(), 3) == Workload(3, 32, 4)
    assert workload_of(built(), 3, 16, 2, guidance=2.0, sessions=2) == Workload(3, 16, 2, guidance=2.0, sessions=2)


def test_unknown_features_and_lengths_are_refused(built: Built) -> None:
    with pytest.raises(ConfigError, match="unknown feature: loudness"):
        workload_of(built(), 1, features=["loudness", "dcw"])
    assert workload_of(built(), 1, features=["rcfg"], guidance=5.0).guidance == 5.0
    assert [workload_of(built(), 1, dcw=dcw).dcw for dcw in (False, True)] == [False, True]
    with pytest.raises(ConfigError, match="no shape range for 100000 frames"):
        workload_of(built(), 1, 100000)


def test_sessions_share_the_generations_evenly() -> None:
    assert [Workload(4, 32, 4, sessions=2).session_of(index) for index in range(3)] == [
        "session-0",
        "session-1",
        "session-0",
    ]
    assert Workload(4, 32, 4).session_of(3) == ""


def test_deployments_with_other_runtime_values(built: Built) -> None:
    deep = at_depth(built(), 40)
    assert (deep.runtime.depth, deep.runtime.queue) == (40, 40)
    assert not with_runtime(built(), capture=False).runtime.capture
    assert at_depth(with_runtime(built(), queue=50), 40).runtime.queue == 50


def test_a_length_has_whole_patches(built: Built) -> None:
    with pytest.raises(ConfigError, match="31 frames are not a multiple of 2"):
        workload_of(built(), 1, 31)


def test_the_weight_is_what_a_run_of_all_rows_takes() -> None:
    assert Workload(3, 32, 4).weight == 3 * 32 * 4
    assert Workload(3, 32, 4, guidance=2.0).weight == 2 * 3 * 32 * 4
