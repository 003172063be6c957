from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.building import build_engine
from helpers.factories import tiny_deployment
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_graphs, check_rebuilds, tensor_bytes
from engine_build.compile.verify import inputs_at
from engine_build.request import load_request
from engine_build.specs import planner_specs
from engine_build.specs.engine_spec import EngineSpec
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError, ConfigError
from runtime.engines.loading import open_engine


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
    assert (verify["R"], verify["U"], verify["G"]) == ((1, 8, 8), (2, 5, 5), (1, 5, 5))


def test_of_each_range_few_rows_are_compared_and_full_caches_first(specs: dict[str, EngineSpec]) -> None:
    samples = specs["planner"].samples
    assert [(sizes["U"], sizes["R"], sizes["E"]) for sizes in samples[:3]] == [(1, 2, 64), (5, 2, 64), (16, 2, 64)]
    assert max(sizes["R"] for sizes in samples) == 2


def test_an_engine_of_the_cpu_is_verified_in_every_range_and_reused(path: Path) -> None:
    request = load_request(path)
    environment, folder = build_environment("cpu", request.options), request.deployment.engine_folder("cpu")
    with locked(folder):
        for decision in check_rebuilds(request, "cpu", environment=environment):
            if decision.spec.name.startswith(("planner", "sampler")):
                assert build_engine(decision, request, folder, environment).error["max_rel"] < 1e-5
    actions = {d.spec.name: d.action for d in check_rebuilds(request, "cpu", environment=environment)}
    assert [actions[name] for name in ("planner", "planner_draft", "sampler")] == ["reuse"] * 3


def test_tensorrt_updates_the_caches_in_place(path: Path, tmp_path: Path) -> None:
    with simulated():
        from runtime.devices.cuda import CudaDevice

        request = load_request(path)
        environment = build_environment("tensorrt", request.options)
        decisions = {item.spec.name: item for item in check_rebuilds(request, "tensorrt", environment=environment)}
        check_graphs([decisions["planner"], decisions["sampler"]])
        manifest = build_engine(decisions["planner"], request, tmp_path, environment)
        assert (manifest.facts["tried_shapes"], manifest.facts["compared_shapes"]) == (12, 6)
        spec, device = decisions["planner"].spec, CudaDevice()
        engine = open_engine(tmp_path, "planner", device)
        sizes = {**spec.largest, "R": 2, "U": 3, "G": 2, "E": 12, "A": 9}
        feeds = inputs_at(spec.inputs, [sizes], 0)
        outputs = engine.run(feeds)
        assert request.bundle.planner is not None
        names = request.bundle.planner.inputs.past, request.bundle.planner.outputs.present
        for past, present in zip(*names, strict=True):
            assert np.flatnonzero((outputs[present] != feeds[past]).any(axis=(0, 1, 3))).tolist() == [9, 10, 11]
        engine.close()
        device.close()


@pytest.mark.parametrize(("precision", "dtype", "limit"), [("fp32", "float32", 1e-5), ("fp16", "float16", 2e-2)])
def test_the_cuda_provider_builds_them(tmp_path: Path, precision: str, dtype: str, limit: float) -> None:
    path = tiny_deployment(tmp_path, planner={}, more=f'[build]\nprecision = "{precision}"\n')
    with simulated() as machine, simulated_provider(machine):
        request = load_request(path)
        environment = build_environment("cuda", request.options)
        decisions = {item.spec.name: item for item in check_rebuilds(request, "cuda", environment=environment)}
        planner = build_engine(decisions["planner"], request, tmp_path, environment)
        assert planner.error["max_rel"] < limit
        caches = [info.dtype for info in (*planner.inputs, *planner.outputs) if len(info.shape) == 4]
        assert caches == [dtype] * 8
        assert build_engine(decisions["sampler"], request, tmp_path, environment).error["max_rel"] < 1e-5


def test_memory_counts_a_cache_that_is_updated_in_place_once(specs: dict[str, EngineSpec]) -> None:
    spec = specs["planner"]
    cache = 4 * 8 * 2 * 64 * 8
    assert 4 * cache < tensor_bytes(spec) < 5 * cache + 4 * 8 * 5 * 280


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


def test_a_graph_of_one_row_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, planner={})
    file = load_request(path).bundle.graph_path("planner.onnx")
    model = onnx.load(file)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "R":
                dim.dim_value = 1
    onnx.save(model, file)
    with pytest.raises(ConfigError, match=r"is fixed at 1, expected a dynamic one for 1\.\."):
        engine_specs(load_request(path))
