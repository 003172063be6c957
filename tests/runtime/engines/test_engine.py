"""Names of variants, the choice of a variant, and the check of tensors against an engine's inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Built

from runtime.base.errors import EngineNotBuiltError, ShapeError
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice
from runtime.engines.engine import (
    condition_width,
    decoder_shapes,
    features_of,
    run_once,
    smallest_superset,
    variant_name,
)
from runtime.engines.loading import open_engine

DEVICE = HostDevice()


def test_variant_names_and_features_are_inverse() -> None:
    for features in (set(), {"dcw"}, {"guidance", "blend"}):
        assert features_of(f"step.{variant_name(frozenset(features))}") == features


def test_the_smallest_variant_with_all_features_is_chosen() -> None:
    engines: Any = {frozenset(names): None for names in ((), ("a",), ("a", "b"), ("a", "b", "c"))}
    assert smallest_superset(engines, frozenset("b")) == {"a", "b"}
    assert smallest_superset(engines, frozenset()) == frozenset()
    with pytest.raises(EngineNotBuiltError, match=r"features z; built: a, a\+b"):
        smallest_superset(engines, frozenset("z"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestep": None}, r"no tensor given for 'timestep'"),
        ({"timestep": np.zeros(2, np.float64)}, r"timestep has dtype float64, expected float32"),
        ({"timestep": np.zeros((2, 1), np.float32)}, r"timestep has shape \(2, 1\), expected 1 dimensions"),
        ({"hidden_states": np.zeros((2, 6, 9), np.float32)}, r"hidden_states has shape \(2, 6, 9\)"),
        ({"timestep": np.zeros(3, np.float32)}, r"rows.*= 2"),
    ],
)
def test_a_tensor_of_wrong_dtype_or_shape_is_refused_by_name(
    change: dict[str, Any], message: str, built: Built
) -> None:
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
    with pytest.raises(ShapeError, match=message):
        run_once(engine, feeds)
    engine.close()


@pytest.mark.parametrize("axes", [("rows", "frames", "tokens"), ("", "", ""), ("tokens", "rows", "frames")])
def test_shapes_follow_roles_not_names_of_axes(built: Built, axes: tuple[str, str, str]) -> None:
    deployment = built(axes=axes)
    roles = load_bundle(deployment.bundle).decoder.inputs
    decoder = open_engine(deployment.engine_folder(), "decoder", DEVICE)
    assert list(decoder_shapes(decoder, roles, rows=2, frames=6, tokens=3).values()) == [
        (2, 6, 8), (2,), (2, 3, 12), (2, 3), (2, 6, 16)
    ]  # fmt: skip
    assert condition_width(decoder, roles) == 12
    decoder.close()
