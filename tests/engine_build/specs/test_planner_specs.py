from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment

from engine_build.config import load_request
from engine_build.graphs.tensorrt_rules import problems, too_large
from engine_build.specs import planner_specs
from engine_build.specs.engine_spec import EngineSpec, input_shapes, sizes_at
from engine_build.specs.engine_specs import engine_specs
from runtime.errors import BuildError, ConfigError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_deployment(tmp_path_factory.mktemp("planner"), planner={"draft": True})


@pytest.fixture(scope="module")
def specs(path: Path) -> dict[str, EngineSpec]:
    return {spec.name: spec for spec in engine_specs(load_request(path))}


def test_one_engine_has_prefill_decode_and_verify_as_shape_ranges(specs: dict[str, EngineSpec]) -> None:
    assert {"planner", "planner_draft", "sampler"} <= specs.keys()
    prefill, decode, verify = specs["planner"].ranges
    assert (prefill["R"], prefill["U"], prefill["G"], prefill["E"]) == ((1, 1, 2), (16,) * 3, (1,) * 3, (16, 32, 64))
    assert (decode["R"], decode["U"], decode["G"], decode["E"]) == ((1, 8, 8), (1,) * 3, (1,) * 3, (1, 32, 64))
    assert (verify["R"], verify["U"], verify["G"]) == ((1, 8, 8), (2, 5, 5), (2, 5, 5))


def test_tensorrt_takes_the_graphs_at_the_largest_shapes_of_every_range(specs: dict[str, EngineSpec]) -> None:
    from engine_build.build.rebuild_check import preparation_shapes
    from engine_build.graphs.reference_session import model_of
    from engine_build.graphs.tensorrt_preparation import prepare
    from runtime.engines.value_shapes import value_shapes

    for name in ("planner", "sampler"):
        spec = specs[name]
        model = prepare(model_of(spec.graph), preparation_shapes(spec))
        for ranges in spec.ranges:
            values = value_shapes(model, input_shapes(spec, sizes_at(spec, ranges, 2)))
            assert not list(problems(model, values))
            assert not list(too_large(model, values))
            assert {node.output[0] for node in model.graph.node} <= values.keys()


def test_an_older_onnxruntime_is_refused_with_the_one_that_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_specs, "tool_versions", lambda target: {"onnxruntime": "1.24.4"})
    with pytest.raises(BuildError, match=r"onnxruntime 1\.24\.4 does not run a planner.*expected 1\.25") as raised:
        engine_specs(load_request(path))
    assert raised.value.fix == "pip install 'onnxruntime>=1.25'"


def test_a_capacity_that_is_not_the_graphs_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, planner={})
    bundle = tmp_path / "tiny" / "bundle.toml"
    bundle.write_text(bundle.read_text("utf-8").replace("capacity = 64", "capacity = 80"), encoding="utf-8")
    with pytest.raises(ConfigError, match="capacity\\) is 64, expected 80"):
        engine_specs(load_request(path))
