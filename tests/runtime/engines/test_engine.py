"""Opening engines: what is checked before a file is loaded, and what a tensor that does not fit is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built

from runtime.config.deployment import Deployment
from runtime.devices.device import HostDevice
from runtime.engines.engine import features_of, run_once, smallest_superset, variant_name
from runtime.engines.loading import open_engine, open_engines
from runtime.engines.manifest import manifest_path, read_manifest, write_manifest
from runtime.errors import EngineMismatchError, EngineNotBuiltError, ShapeError

DEVICE = HostDevice()


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Deployment:
    """A deployment whose engines may be spoiled."""
    original = built()
    shutil.copytree(original.engines, tmp_path / "engines")
    return original.model_copy(update={"engines": tmp_path / "engines"})


def test_names_and_features_are_inverse() -> None:
    for features in (set(), {"dcw"}, {"guidance", "blend"}):
        assert features_of(f"step.{variant_name(frozenset(features))}") == features


def test_the_smallest_variant_with_all_features_is_taken() -> None:
    engines: Any = {frozenset(names): None for names in ((), ("a",), ("a", "b"), ("a", "b", "c"))}
    assert smallest_superset(engines, frozenset("b")) == {"a", "b"}
    assert smallest_superset(engines, frozenset()) == frozenset()
    with pytest.raises(EngineNotBuiltError, match=r"features z; built: a, a\+b"):
        smallest_superset(engines, frozenset("z"))


def test_nothing_built_names_the_command(copy: Deployment) -> None:
    shutil.rmtree(copy.engines)
    with pytest.raises(EngineNotBuiltError, match=r"tickrt-build .*tiny\.toml --target cpu"):
        open_engines(copy, DEVICE)


@pytest.mark.parametrize("at", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_engine_is_refused_before_it_is_loaded(at: float, copy: Deployment) -> None:
    path = copy.engine_folder() / "decoder.onnx"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * at)])
    with pytest.raises(EngineMismatchError, match=r"SHA-256[\s\S]*--force"):
        open_engines(copy, DEVICE)


def test_random_bit_flips_are_refused(copy: Deployment) -> None:
    path, random = copy.engine_folder() / "decoder.onnx", np.random.default_rng(0)
    original = path.read_bytes()
    for position in random.integers(0, len(original), 50):
        damaged = bytearray(original)
        damaged[position] ^= 1 << random.integers(8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(EngineMismatchError, match="SHA-256"):
            open_engine(copy.engine_folder(), "decoder", DEVICE)


def test_swapped_engines_are_refused(copy: Deployment) -> None:
    folder = copy.engine_folder()
    shutil.copy(folder / "step.plain.onnx", folder / "decoder.onnx")
    with pytest.raises(EngineMismatchError, match="SHA-256"):
        open_engine(folder, "decoder", DEVICE)


@pytest.mark.parametrize("change", [{"tool_versions": {"onnxruntime": "0.1"}}, {"device": {"arch": "z80"}}])
def test_an_engine_of_another_machine_or_version_is_refused(change: dict[str, Any], copy: Deployment) -> None:
    path = manifest_path(copy.engine_folder(), "decoder")
    write_manifest(path, read_manifest(path).model_copy(update=change))
    with pytest.raises(EngineMismatchError, match=r"was built for .*this machine has"):
        open_engines(copy, DEVICE)


def test_a_damaged_manifest_is_refused(copy: Deployment) -> None:
    manifest_path(copy.engine_folder(), "decoder").write_text("{}")
    with pytest.raises(EngineMismatchError, match="manifest"):
        open_engines(copy, DEVICE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timestep": None}, r"no tensor given for 'timestep'"),
        ({"timestep": np.zeros(2, np.float64)}, r"timestep has dtype float64, expected float32"),
        ({"timestep": np.zeros((2, 1), np.float32)}, r"timestep has shape \(2, 1\), expected 1 dimensions"),
        ({"hidden_states": np.zeros((2, 6, 9), np.float32)}, r"hidden_states has shape \(2, 6, 9\)"),
        ({"timestep": np.zeros(3, np.float32)}, r"rows.*= 2"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: dict[str, Any], says: str, built: Built) -> None:
    engine = open_engine(built().engine_folder(), "decoder", DEVICE)
    feeds = {
        "hidden_states": np.zeros((2, 6, 8), np.float32),
        "timestep": np.zeros(2, np.float32),
        "encoder_hidden_states": np.zeros((2, 3, 12), np.float32),
        "condition_mask": np.ones((2, 3), np.float32),
        "context_latents": np.zeros((2, 6, 16), np.float32),
    }
    assert run_once(engine, feeds)["velocity"].shape == (2, 6, 8)
    feeds = {name: value for name, value in {**feeds, **change}.items() if value is not None}
    with pytest.raises(ShapeError, match=says):
        run_once(engine, feeds)
    engine.close()
