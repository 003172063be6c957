"""A refit is compared once with the plan's own outputs; a release that loses a part of them is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from helpers.adapters import random_factors, write_peft
from helpers.backends import FEW_VARIANTS
from helpers.building import build_engine
from helpers.factories import tiny_deployment
from simulator.fixture import simulated

from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.request import load_request
from runtime.base.errors import BuildError, EngineMismatchError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import merged_weights, open_engine

RELEASE = "11.3.0.99"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that is built with refit, and an adapter for it."""
    folder = tmp_path_factory.mktemp("refit")
    more = FEW_VARIANTS + "refit = true\n"
    path = tiny_deployment(folder, adapters=True, codec=False, text_encoder=False, more=more)
    head = 'target = "tensorrt"\nadapters = "adapters"\nmerged_adapters = { soft = 1.0 }'
    path.write_text(path.read_text().replace('target = "cpu"', head))
    spec = load_bundle(load_deployment(path).bundle).adapters
    assert spec is not None
    write_peft(folder / "adapters" / "soft", random_factors(spec, 4, 0, tuple(spec.matrices)[:1]))
    return path


def build(path: Path) -> None:
    request = load_request(path)
    environment, folder = build_environment("tensorrt", request.options), request.deployment.engine_folder()
    folder.mkdir(parents=True, exist_ok=True)
    build_engine(check_rebuilds(request, "tensorrt", environment=environment)[0], request, folder, environment)


@pytest.fixture
def deployment(path: Path) -> Deployment:
    with simulated():
        build(path)
    return load_deployment(path)


def refitted(deployment: Deployment) -> None:
    with closing(open_device("tensorrt")) as device:
        weights = merged_weights(deployment)
        open_engine(deployment.engine_folder(), "decoder", device, weights=weights).close()


def test_a_refit_that_loses_a_weight_is_refused(deployment: Deployment) -> None:
    with simulated():
        refitted(deployment)
    with simulated(faults={"lost_in_refit": ("w_out",)}), pytest.raises(EngineMismatchError) as caught:
        refitted(deployment)
    assert "when its own weights are set again" in caught.value.what
    assert "adapters per request" in caught.value.fix


def test_the_release_that_loses_biases_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_TENSORRT", RELEASE)
    with simulated():
        with pytest.raises(BuildError, match=rf"refit = true .* TensorRT {RELEASE} may lose the bias"):
            build(path)
        monkeypatch.setattr("runtime.engines.tensorrt.binding.REFIT_LOSES_BIAS", "none")
        build(path)
    with simulated(), pytest.raises(EngineMismatchError, match=f"cannot be refitted: TensorRT {RELEASE} may lose"):
        refitted(load_deployment(path))
