"""ONNX Runtime's CUDA provider on a real GPU: results, asynchronous launches, captures, refused graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT

from engine_build.compile.builder import build_deployment
from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.reference_session import onnxruntime
from engine_build.precision.sample_states import decoder_sample_states
from runtime.base.errors import CaptureError, EngineError, TickError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engine
from runtime.engines.onnxruntime_cuda import need_provider

pytestmark = pytest.mark.gpu
DEMO = ROOT / "configs/demo.toml"
LIMITS = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.08}


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    """Skip with the reason where there is no GPU or no provider."""
    try:
        need_provider(onnxruntime())
        open_device("cuda").close()
    except TickError as error:
        pytest.skip(error.what)


@pytest.fixture
def device() -> Iterator[Any]:
    device = open_device("cuda")
    yield device
    device.close()


def demo(folder: Path, precision: str) -> Deployment:
    """The demo bundle, built for the target cuda in a precision, with few step variants."""
    text = DEMO.read_text(encoding="utf-8").replace('"demo"', f'"{(DEMO.parent / "demo").as_posix()}"', 1)
    path = folder / "demo.toml"
    path.write_text(f'{text}\n[build]\nprecision = "{precision}"\nstep_variants = ["plain"]\n', encoding="utf-8")
    deployment = load_deployment(path)
    build_deployment(deployment, target="cuda")
    return deployment


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_demo_decoder_in_every_precision(tmp_path: Path, device: Any, precision: str) -> None:
    deployment = demo(tmp_path, precision)
    bundle = load_bundle(deployment.bundle)
    engine = open_engine(deployment.engine_folder("cuda"), "decoder", device, in_tick=True)
    assert engine.manifest.error["max_rel"] < LIMITS[precision]
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    reference = open_engine_on_cpu(tmp_path)
    for feed in decoder_sample_states(bundle, graph, steps=3):
        expected = reference.run(feed)["velocity"]
        found = launched(engine, device, feed)
        assert np.abs(found - expected).max() < LIMITS[precision] * np.abs(expected).max()
        np.testing.assert_allclose(engine.run(feed)["velocity"], found, atol=1e-2 * float(np.abs(expected).max()))


def open_engine_on_cpu(folder: Path) -> Any:
    deployment = load_deployment(folder / "demo.toml")
    build_deployment(deployment, target="cpu")
    return open_engine(deployment.engine_folder("cpu"), "decoder", open_device("cpu"))


def launched(engine: Any, device: Any, feed: Any) -> np.ndarray:
    """One launch on the main stream, bound to device memory."""
    tensors = {name: device.zeros(array.shape, array.dtype) for name, array in feed.items()}
    for name, array in feed.items():
        device.upload(tensors[name], np.ascontiguousarray(array), device.main)
    shape = feed["hidden_states"].shape
    velocity, found = device.zeros(shape, np.float32), device.staging(shape, np.float32)
    execution = engine.bind({**tensors, "velocity": velocity})
    execution.launch(device.main)
    device.download(found, velocity, device.main)
    device.main.record().wait()
    return found.copy()


def test_a_launch_is_asynchronous(tmp_path: Path, device: Any) -> None:
    """Launching many executes is faster than running them: the last event is not done yet."""
    deployment = demo(tmp_path, "fp32")
    bundle = load_bundle(deployment.bundle)
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    engine = open_engine(deployment.engine_folder("cuda"), "decoder", device, in_tick=True)
    feed = next(iter(decoder_sample_states(bundle, graph, steps=1)))
    many = {name: np.repeat(array, 8, axis=0) for name, array in feed.items()}
    tensors = {name: device.zeros(array.shape, array.dtype) for name, array in many.items()}
    velocity = device.zeros(many["hidden_states"].shape, np.float32)
    execution = engine.bind({**tensors, "velocity": velocity})
    execution.launch(device.main)
    device.main.record().wait()
    events = []
    for _ in range(20):
        execution.launch(device.main)
        events.append(device.main.record())
    assert not events[-1].is_done
    events[-1].wait()


def test_a_capture_works_or_raises_capture_error(tmp_path: Path, device: Any) -> None:
    deployment = demo(tmp_path, "fp32")
    bundle = load_bundle(deployment.bundle)
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    engine = open_engine(deployment.engine_folder("cuda"), "decoder", device, in_tick=True)
    first, second = decoder_sample_states(bundle, graph, steps=2)
    tensors = {name: device.zeros(array.shape, array.dtype) for name, array in first.items()}
    velocity = device.zeros(first["hidden_states"].shape, np.float32)
    found = device.staging(first["hidden_states"].shape, np.float32)
    execution = engine.bind({**tensors, "velocity": velocity})
    execution.launch(device.main)
    execution.warm_up(device.main)
    try:
        launch = device.capture(device.main, lambda: execution.warm_up(device.main)).launch
    except CaptureError:
        launch = execution.launch
    for feed in (first, second, first):
        for name, array in feed.items():
            device.upload(tensors[name], np.ascontiguousarray(array), device.main)
        launch(device.main)
        device.download(found, velocity, device.main)
        device.main.record().wait()
        np.testing.assert_allclose(found, engine.run(feed)["velocity"], atol=1e-3)


def test_an_operator_without_a_kernel_is_refused_at_build(tmp_path: Path) -> None:
    import onnx

    deployment = load_deployment(tiny_deployment(tmp_path))
    path = deployment.bundle / "decoder.onnx"
    model = onnx.load(path)
    next(node for node in model.graph.node if node.op_type == "Tanh").op_type = "Asinh"
    onnx.save(model, path)
    with pytest.raises((EngineError, TickError), match=r"no CUDA kernel|copied between GPU and host"):
        build_deployment(deployment, target="cuda")
