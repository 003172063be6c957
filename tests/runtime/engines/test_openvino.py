"""Engines on OpenVINO."""

from __future__ import annotations

import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built, Loops
from helpers.backends import FEW_VARIANTS, OPENVINO, Backend
from helpers.generations import FEATURES, expected_latents, make, run_all

from runtime.base.errors import EngineError, EngineMismatchError, ShapeError
from runtime.config.deployment import Deployment
from runtime.devices.device import HostDevice, Tensor
from runtime.devices.machine import num_cores
from runtime.engines.engine import Engine
from runtime.engines.loading import open_engine
from runtime.engines.manifest import BACKEND, OPENVINO_DEVICE, Manifest, manifest_path, read_manifest

openvino = pytest.importorskip("openvino", reason="needs pip install 'tickrt[openvino]'")
(BACKEND_OPENVINO,) = OPENVINO.values
DEVICE = HostDevice()
Feeds = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def deployment(built: Built) -> Deployment:
    assert isinstance(BACKEND_OPENVINO, Backend)
    return built(backend=BACKEND_OPENVINO)


def feeds_of(rows: int = 2, seed: int = 0) -> Feeds:
    random = np.random.default_rng(seed)
    shapes = {"hidden_states": (rows, 16, 8), "encoder_hidden_states": (rows, 5, 12), "context_latents": (rows, 16, 16)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    times = random.uniform(0.1, 0.9, rows).astype(np.float32)
    return {**feeds, "timestep": times, "condition_mask": np.ones((rows, 5), np.float32)}


def bound(feeds: Feeds) -> dict[str, Tensor]:
    """Tensors with these values, and one for the velocity."""
    tensors = {name: DEVICE.zeros(values.shape, values.dtype) for name, values in feeds.items()}
    for name, values in feeds.items():
        DEVICE.upload(tensors[name], values, DEVICE.main)
    return {**tensors, "velocity": DEVICE.zeros(feeds["hidden_states"].shape, np.float32)}


@pytest.fixture(scope="module")
def engine(deployment: Deployment) -> Engine:
    return open_engine(deployment.engine_folder(), "decoder", DEVICE, threads=1, in_tick=True)


@pytest.fixture(scope="module")
def reference(built: Built) -> Engine:
    return open_engine(built().engine_folder("cpu"), "decoder", DEVICE, threads=1)


def manifest_of(deployment: Deployment, name: str = "decoder") -> Manifest:
    return read_manifest(manifest_path(deployment.engine_folder(), name))


def test_every_engine_of_the_target_runs_in_openvino(deployment: Deployment) -> None:
    manifest = manifest_of(deployment)
    assert (manifest.target, manifest.engine_file, [*manifest.data_files]) == (
        "openvino",
        "decoder.xml",
        ["decoder.bin"],
    )
    assert manifest.facts[BACKEND] == "openvino: as asked for"
    assert manifest.tool_versions.keys() == {"openvino", "onnxruntime"}
    assert manifest.error["max_rel"] < 1e-5
    assert {file.suffix for file in deployment.engine_folder().iterdir()} == {".xml", ".bin", ".json"}


def test_an_execution_writes_into_its_tensors_and_can_be_repeated(engine: Engine, reference: Engine) -> None:
    tensors = bound(feeds_of())
    execution = engine.bind(tensors)
    assert execution.prepare(DEVICE.main)
    execution.warm_up(DEVICE.main)
    for seed in range(3):
        feeds = feeds_of(seed=seed)
        for name, values in feeds.items():
            DEVICE.upload(tensors[name], values, DEVICE.main)
        execution.launch(DEVICE.main)
        np.testing.assert_allclose(tensors["velocity"].host, reference.run(feeds)["velocity"], atol=1e-5)  # type: ignore[arg-type]
        np.testing.assert_array_equal(tensors["velocity"].host, engine.run(feeds)["velocity"])  # type: ignore[arg-type]
    execution.make()
    execution.release()


def test_executions_of_other_shapes_alternate(engine: Engine, reference: Engine) -> None:
    sides = [bound(feeds_of(rows, rows)) for rows in (2, 5)]
    executions = [engine.bind(side) for side in sides]
    for execution in executions * 2:
        execution.launch(DEVICE.main)
    for side, rows in zip(sides, (2, 5), strict=True):
        wanted = reference.run(feeds_of(rows, rows))["velocity"]
        np.testing.assert_allclose(side["velocity"].host, wanted, atol=1e-5)  # type: ignore[arg-type]


def test_a_row_has_the_same_bits_beside_others(engine: Engine) -> None:
    ours, theirs = feeds_of(3, 0), feeds_of(3, 1)
    mixed = {name: np.concatenate([values[:1], theirs[name][1:]]) for name, values in ours.items()}
    np.testing.assert_array_equal(engine.run(ours)["velocity"][:1], engine.run(mixed)["velocity"][:1])


def test_beside_step_graphs_in_onnx_runtime_a_generation_has_the_same_bits_beside_others(loops: Loops) -> None:
    """Target cpu, whose decoder runs in OpenVINO."""
    loop = loops(more=f'{FEW_VARIANTS}backend = "openvino"\n')
    libraries = {type(loop.engines.decoder).__name__, *(type(each).__name__ for each in loop.engines.steps.values())}
    assert libraries == {"OpenVinoEngine", "OnnxRuntimeEngine"}
    requests = [make(name, **FEATURES[name]) for name in ("plain", "guided", "two_conditions", "shift")]
    alone = [run_all(loop, request).latents(request.id) for request in requests]
    together = run_all(loop, *requests)
    for request, latents in zip(requests, alone, strict=True):
        np.testing.assert_array_equal(together.latents(request.id), latents)
        np.testing.assert_allclose(latents, expected_latents(loop, request), atol=1e-4, rtol=1e-4)


def test_of_one_thread_outside_of_ticks_it_executes_for_several_callers(deployment: Deployment) -> None:
    folder, most = deployment.engine_folder(), min(num_cores(), 4)
    for threads, in_tick, callers in ((1, False, most), (1, True, 1), (2, False, 1)):
        opened: Any = open_engine(folder, "codec_decode", DEVICE, threads=threads, in_tick=in_tick)
        assert opened.compiled.get_property("NUM_STREAMS") == callers
        assert opened.compiled.get_property("INFERENCE_NUM_THREADS") == callers * threads
        opened.close()


def test_an_execute_allocates_nothing(engine: Engine) -> None:
    execution = engine.bind(bound(feeds_of()))
    tracemalloc.start()
    try:
        for _ in range(500):
            execution.launch(DEVICE.main)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            execution.launch(DEVICE.main)
        assert tracemalloc.get_traced_memory()[0] - before < 500
    finally:
        tracemalloc.stop()


def test_any_thread_runs_it(engine: Engine, reference: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: engine.run(feeds_of(seed=seed))["velocity"], range(12)))
    for seed, velocity in enumerate(found):
        np.testing.assert_allclose(velocity, reference.run(feeds_of(seed=seed))["velocity"], atol=1e-5)


def test_a_profile_has_the_times_of_every_layer(engine: Engine) -> None:
    nodes = engine.profile(feeds_of(), 3)
    assert "FullyConnected" in {node.op_type for node in nodes}
    assert all(len(node.runs_ms) == 3 for node in nodes)
    assert sum(sum(node.runs_ms) for node in nodes) > 0


def test_a_tensor_of_another_shape_is_refused_when_bound(engine: Engine) -> None:
    tensors = bound(feeds_of())
    with pytest.raises(ShapeError, match="velocity has shape"):
        engine.bind({**tensors, "velocity": DEVICE.zeros((3, 16, 8), np.float32)})


def test_a_failed_execute_is_an_error_and_others_go_on(engine: Engine) -> None:
    feeds = feeds_of()
    tensors = bound(feeds)
    execution, wanted = engine.bind(tensors), engine.run(feeds)["velocity"]
    for _ in range(2):
        with pytest.raises(EngineError, match="decoder with hidden_states 2x16x8 failed to execute"):
            engine.run({**feeds, "context_latents": feeds["context_latents"][:, :7]})
        np.testing.assert_array_equal(engine.run(feeds)["velocity"], wanted)
        execution.launch(DEVICE.main)
        np.testing.assert_array_equal(tensors["velocity"].host, wanted)  # type: ignore[arg-type]


def test_a_file_that_does_not_load_is_an_error_with_the_fix(deployment: Deployment, tmp_path: Path) -> None:
    from runtime.engines.openvino import OpenVinoEngine

    manifest = manifest_of(deployment)
    (tmp_path / manifest.engine_file).write_text("<net/>")
    with pytest.raises(EngineMismatchError, match="does not load") as caught:
        OpenVinoEngine(manifest, tmp_path, device=DEVICE, fix="tickrt-build x.toml")
    assert caught.value.fix == "tickrt-build x.toml"


def test_a_device_that_is_not_there_is_an_error(deployment: Deployment) -> None:
    from runtime.engines.openvino import OpenVinoEngine

    manifest = manifest_of(deployment)
    other = manifest.model_copy(update={"build": {**manifest.build, OPENVINO_DEVICE: "TPU"}})
    with pytest.raises(EngineError, match="finds no device 'TPU' here, but CPU") as caught:
        OpenVinoEngine(other, deployment.engine_folder(), device=DEVICE)
    assert OPENVINO_DEVICE in caught.value.fix


def test_other_weights_are_refused(deployment: Deployment) -> None:
    weights: Any = object()
    with pytest.raises(EngineMismatchError, match="take no other weights"):
        open_engine(deployment.engine_folder(), "decoder", DEVICE, weights=weights)


def test_without_the_package_the_error_says_what_to_install(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "runtime.engines.openvino", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(EngineError, match="needs OpenVINO") as caught:
        open_engine(deployment.engine_folder(), "decoder", DEVICE)
    assert caught.value.fix == "pip install 'tickrt[openvino]'"


def test_an_output_that_is_smaller_than_its_tensor_is_an_error(deployment: Deployment) -> None:
    """A graph whose output is not as the manifest says."""
    from runtime.engines.openvino import OpenVinoEngine

    manifest = manifest_of(deployment)
    free = (manifest.outputs[0].model_copy(update={"shape": ("a", "b", "c")}),)
    engine = OpenVinoEngine(
        manifest.model_copy(update={"outputs": free}), deployment.engine_folder(), device=DEVICE, threads=1
    )
    execution = engine.bind({**bound(feeds_of()), "velocity": DEVICE.zeros((3, 16, 8), np.float32)})
    with pytest.raises(EngineError, match=r"OpenVINO gives 'velocity' as 2x16x8 .* expected 3x16x8 in its tensor"):
        execution.launch(DEVICE.main)
    engine.close()
