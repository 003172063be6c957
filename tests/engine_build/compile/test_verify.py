"""Verification: seeded inputs, measured errors, refused engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import TinySpec, tiny_decoder, tiny_deployment
from onnx import numpy_helper

from engine_build.compile.verify import sample_inputs, verify
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EngineSpec]:
    request = load_request(tiny_deployment(tmp_path_factory.mktemp("tiny")))
    return {spec.name: spec for spec in engine_specs(request)}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def decoder(change: Callable[[np.ndarray], np.ndarray] = lambda weight: weight) -> ort.InferenceSession:
    """The tiny decoder with its last weight changed."""
    model = tiny_decoder(TinySpec())
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w_out")
    weight.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(weight).copy()), "w_out"))
    return session(model)


def test_an_equal_engine_has_no_error(specs: dict[str, EngineSpec]) -> None:
    assert verify(specs["decoder"], decoder(), decoder(), 1e-9) == {"max_abs": 0.0, "max_rel": 0.0, "rms_rel": 0.0}


@pytest.mark.parametrize("factor", [1.001, 0.9])
def test_the_error_is_measured_against_the_largest_output(specs: dict[str, EngineSpec], factor: float) -> None:
    off = decoder(lambda weight: weight * np.float32(factor))
    error = verify(specs["decoder"], decoder(), off, 1.0)
    assert error["max_rel"] == pytest.approx(abs(factor - 1), rel=1e-2)
    assert error["rms_rel"] == pytest.approx(abs(factor - 1), rel=1e-2)
    assert error["max_abs"] > 0
    with pytest.raises(BuildError, match=r"'decoder' is off by .* expected at most 0\.0005"):
        verify(specs["decoder"], decoder(), off, 5e-4)


def test_one_wrong_weight_is_found(specs: dict[str, EngineSpec]) -> None:
    def nudge(weight: np.ndarray) -> np.ndarray:
        weight[3, 5] += 0.01
        return weight

    with pytest.raises(BuildError, match="is off by"):
        verify(specs["decoder"], decoder(), decoder(nudge), 1e-4)


@pytest.mark.parametrize(("graph", "engine", "who"), [(np.nan, 1.0, "graph"), (1.0, np.inf, "engine")])
def test_values_that_are_not_finite_are_refused(
    specs: dict[str, EngineSpec], graph: float, engine: float, who: str
) -> None:
    sessions = [decoder(lambda weight, by=by: weight * np.float32(by)) for by in (graph, engine)]
    with pytest.raises(
        BuildError, match=rf"decoder: velocity at R=2, T=32.*the {who} gives values that are not finite"
    ):
        verify(specs["decoder"], *sessions, 1e-4)


def test_a_bundle_that_promises_another_size_is_refused(specs: dict[str, EngineSpec]) -> None:
    spec = specs["codec_decode"]
    wrong = replace(spec, samples=tuple({**sizes, "W": sizes["W"] + 1} for sizes in spec.samples))
    assert isinstance(spec.graph.source, Path)
    opened = ort.InferenceSession(str(spec.graph.source))
    verify(spec, opened, opened, 1e-6)
    with pytest.raises(BuildError, match=r"gives shape \[1, 2, 640\], bundle.toml implies \[1, 2, 641\]"):
        verify(wrong, opened, opened, 1e-6)


def test_samples_are_the_same_every_time_and_of_every_kind(specs: dict[str, EngineSpec]) -> None:
    for spec in specs.values():
        for first, second, sizes in zip(sample_inputs(spec), sample_inputs(spec), spec.samples, strict=True):
            for port in spec.inputs:
                values = first[port.name]
                np.testing.assert_array_equal(values, second[port.name])
                assert values.shape == tuple(sizes[letter] for letter in port.letters)
                assert values.dtype == port.dtype
                if port.values == "count":
                    assert values.min() >= 0
                    assert values.max() < sizes[port.limit]
    mask = list(sample_inputs(specs["decoder"]))[2]["condition_mask"]
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert (mask[:, 0] == 1).all()
