"""What ONNX Runtime raises: the real library's classes, by call, and that the simulated provider raises the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors
from simulator.fixture import Machine, simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.reference_session import onnxruntime_errors
from runtime.base.errors import EngineError, EngineMismatchError, OutOfMemoryError
from runtime.devices.device import HostDevice
from runtime.devices.machine import open_device
from runtime.engines import onnxruntime as engines
from runtime.engines.manifest import Manifest, TensorInfo
from runtime.engines.onnxruntime import OnnxRuntimeEngine
from runtime.engines.onnxruntime_cuda import CPU_PROVIDER, CUDA_PROVIDER, NOTHING_TO_RECORD, RECORDING, executing

Feeds = dict[str, np.ndarray]
GOOD: Feeds = {"x": np.arange(4, dtype=np.float32), "i": np.array([1]), "size": np.array([1, 4])}
# What fails -> the feeds that do, the class that `run` raises, and TickRT's. Binding and run_with_iobinding raise
# RuntimeError for all of them.
FAILURES: dict[str, tuple[Feeds, type[Exception], type[EngineError]]] = {
    "a node": ({"i": np.array([9])}, ort_errors.InvalidArgument, EngineError),
    "memory": ({"size": np.array([1 << 44, 4])}, ort_errors.Fail, OutOfMemoryError),
    "a size beyond 64 bits": ({"size": np.array([1 << 60, 4])}, ort_errors.Fail, EngineError),
    "rank": ({"x": np.zeros((1, 4), np.float32)}, ort_errors.InvalidArgument, EngineError),
    "dtype": ({"x": np.zeros(4, np.float64)}, ort_errors.InvalidArgument, EngineError),
}


def small() -> onnx.ModelProto:
    """y = the largest of x, spread to `size`, plus x[i]."""
    graph = GraphWriter("small")
    x, i, size = graph.input("x", ("n",)), graph.input("i", ("m",), np.int64), graph.input("size", ("k",), np.int64)
    largest = graph.op("ReduceMax", graph.op("Expand", x, size), keepdims=0)
    graph.output("y", graph.op("Add", graph.op("Gather", x, i), largest), ("m",))
    return graph.model()


def session() -> ort.InferenceSession:
    options = engines.session_options(1)
    return ort.InferenceSession(small().SerializeToString(), options, providers=[CPU_PROVIDER])


def run_bound(feeds: Feeds, opened: ort.InferenceSession, y: np.ndarray | None = None) -> None:
    binding, y = opened.io_binding(), np.zeros(1, np.float32) if y is None else y
    for name, value in feeds.items():
        binding.bind_input(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
    opened.run_with_iobinding(binding)


def engine_of(folder: Path, model: bytes) -> OnnxRuntimeEngine:
    (folder / "small.onnx").write_bytes(model)
    infos = [TensorInfo(name=name, dtype=str(feed.dtype), shape=("n",)) for name, feed in GOOD.items()]
    fields: dict[str, Any] = {
        "name": "small", "target": "cpu", "tool_versions": {}, "device": {}, "graph_sha256": "", "build": {},
        "engine_file": "small.onnx", "engine_sha256": "", "size_bytes": 1, "error": {}, "build_s": 0.0,
    }  # fmt: skip
    outputs = (TensorInfo(name="y", dtype="float32", shape=("m",)),)
    manifest = Manifest(**fields, inputs=tuple(infos), outputs=outputs)
    return OnnxRuntimeEngine(manifest, folder, device=HostDevice(), threads=1)


@pytest.mark.parametrize("what", FAILURES)
def test_classes_by_call(what: str) -> None:
    changed, of_run, translated = FAILURES[what]
    opened, feeds = session(), GOOD | changed
    calls: dict[type[Exception], Callable[[], Any]] = {
        of_run: lambda: opened.run(["y"], feeds),
        RuntimeError: lambda: run_bound(feeds, opened),
    }
    for raised, call in calls.items():
        with pytest.raises(onnxruntime_errors()) as caught:
            call()
        assert type(caught.value) is raised
        with pytest.raises(translated) as ours:
            executing("small", call)
        assert type(ours.value) is translated
    run_bound(GOOD, opened)  # it goes on


def test_classes_of_bindings() -> None:
    opened, x = session(), GOOD["x"]
    place: tuple[Any, ...] = ("cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding = opened.io_binding()
    for call in (
        lambda: binding.bind_input("unknown", *place),
        lambda: binding.bind_output("unknown", *place),
        lambda: binding.bind_input("x", "cuda", *place[1:]),
        lambda: binding.bind_input("x", "cpu", 0, x.dtype, (-1,), x.ctypes.data),
        lambda: run_bound(GOOD, opened, np.zeros(3, np.float32)),
        lambda: run_bound(GOOD, opened, np.zeros(1, np.float64)),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert type(caught.value) is RuntimeError
        with pytest.raises(EngineError, match="small failed to execute"):
            executing("small", call)


def test_an_engine_raises_ours_from_both_ways_of_running_it(tmp_path: Path) -> None:
    engine, device = engine_of(tmp_path, small().SerializeToString()), HostDevice()
    for changed, _, kind in (FAILURES["a node"], FAILURES["memory"]):
        feeds = GOOD | changed
        tensors = {name: device.zeros(feed.shape, feed.dtype) for name, feed in feeds.items()}
        for name, feed in feeds.items():
            assert tensors[name].host is not None
            tensors[name].host[...] = feed
        with pytest.raises(kind) as of_run:
            engine.run(feeds)
        # One name stands for three sizes here, which ONNX Runtime does not check.
        execution = engines.OnnxRuntimeExecution(session(), engine, tensors | {"y": device.zeros((1,), np.float32)})
        with pytest.raises(kind) as of_launch:
            execution.launch(device.main)
        assert type(of_run.value) is type(of_launch.value) is kind
    engine.close()


def model(op_type: str, *, opset: int = 17, ir: int = 9, dtype: int = TensorProto.FLOAT) -> bytes:
    x, y = (helper.make_tensor_value_info(name, dtype, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"])], "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("data", "raised"),
    [
        (b"no protobuf", ort_errors.InvalidProtobuf),
        (b"", ort_errors.InvalidArgument),
        (model("Nothing"), ort_errors.InvalidGraph),
        (model("Sin", opset=99), ort_errors.Fail),
        (model("Sin", ir=99), ort_errors.Fail),
    ],
    ids=["no protobuf", "nothing", "operator", "opset", "IR version"],
)
def test_classes_of_files_that_do_not_load(data: bytes, raised: Any, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(data)
    with pytest.raises(raised) as caught:
        ort.InferenceSession(path, engines.session_options(1), providers=[CPU_PROVIDER])
    assert type(caught.value) is raised
    with pytest.raises(EngineMismatchError, match=r"small\.onnx does not load"):
        engine_of(tmp_path, data)


@pytest.fixture
def machine() -> Any:
    with simulated() as machine:
        yield machine


def test_the_simulated_provider_raises_what_the_real_library_does(machine: Machine) -> None:
    device = open_device("cuda")
    with simulated_provider(machine, recordable=True, refuses=lambda shapes: "x" * (shapes["x"] == (4,))):
        opened = engines.ort.InferenceSession(
            small().SerializeToString(), engines.session_options(1), [(CUDA_PROVIDER, {})], enable_fallback=0
        )
        binding, x = opened.io_binding(), device.zeros((4,), np.float32)
        place: tuple[Any, ...] = ("cuda", 0, x.dtype, x.shape, x.address)
        binding.bind_input("x", *place)
        options = ort.RunOptions()
        for key, value in RECORDING.items():
            options.add_run_config_entry(key, value)
        for call, says in (
            (lambda: binding.bind_input("unknown", *place), "unknown"),
            (lambda: binding.bind_output("unknown", *place), "unknown"),
            (lambda: opened.run_with_iobinding(binding), "Error in execution: x"),
            (lambda: opened.run_with_iobinding(binding, options), f"Error in execution: {NOTHING_TO_RECORD}"),
        ):
            with pytest.raises(RuntimeError, match=says) as caught:
                call()
            assert type(caught.value) is RuntimeError
    device.close()
