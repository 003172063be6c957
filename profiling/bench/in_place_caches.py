"""A decode whose caches are updated in place, in turn with the same graph whose caches are concatenated. On the CPU.

Concatenated caches are bound to memory that is there already: what allocating it would take comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from profiling.bench.session import BenchSession
from profiling.bench.statistics import mean_ms, paired_ratio, time_in_turn
from runtime.base.errors import ConfigError
from runtime.devices.device import Device, Tensor
from runtime.engines.engine import Engine
from runtime.engines.manifest import Manifest
from runtime.tick.language.kv_cache import KvCache

LENGTHS = (256, 1024, 4096)
SETTLED = 8
CONCAT_FILE = "concat.onnx"

Arrays = Mapping[str, NDArray[Any]]


def measure_in_place(session: BenchSession, times: int, lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    """Milliseconds of a decode of one row at several lengths, both ways; [] on a GPU. Raises TickError."""
    spec, engines = session.bundle.planner, session.engines.planner
    assert spec is not None
    assert engines is not None
    lengths = [length for length in lengths if length <= spec.capacity and session.device.kind == "cpu"]
    if not lengths:
        return []
    with TemporaryDirectory() as folder:
        concat = _open_concat(session, engines.planner.manifest, Path(folder))
        try:
            return [_compare(session, engines.planner, concat, length, times) for length in lengths]
        finally:
            concat.close()


def _compare(session: BenchSession, in_place: Engine, concat: Engine, length: int, times: int) -> dict[str, Any]:
    """A decode of position `length - 1`; difference: the largest of the logits."""
    device, arrays = session.device, _inputs(session, in_place, length)
    decodes = [
        _Decode(device, in_place, _grown_in_place(session, in_place, arrays, length), arrays),
        _Decode(device, concat, _concatenated(session, in_place, arrays, length), arrays),
    ]
    for decode in decodes * SETTLED:
        decode.time_ms()
    concat_ms, (in_place_ms,) = time_in_turn(decodes[1].time_ms, [decodes[0].time_ms], times)
    logits = [decode.logits for decode in decodes]
    return {
        "length": length,
        "ms": round(float(np.median(in_place_ms)), 3),
        "concat_ms": round(float(np.median(concat_ms)), 3),
        "ratio": round(paired_ratio(concat_ms, in_place_ms).median, 3),
        "difference": float(np.abs(logits[0] - logits[1]).max()),
    }


class _Decode:
    """One engine's decode, bound to `tensors`; inputs that these do not have are uploaded from `arrays`."""

    def __init__(self, device: Device, engine: Engine, tensors: Mapping[str, Tensor], arrays: Arrays) -> None:
        self._stream = device.main
        bound = dict(tensors)
        for name in engine.inputs.keys() - tensors.keys():
            bound[name] = device.zeros(arrays[name].shape, arrays[name].dtype)
            device.upload(bound[name], arrays[name], self._stream)
        (name,) = engine.outputs.keys() - tensors.keys()
        info = engine.outputs[name]
        self._logits = bound[name] = device.zeros((1, 1, int(info.shape[-1])), info.dtype)
        self._execution = engine.bind(bound)

    def time_ms(self) -> float:
        """One execute."""
        return mean_ms(lambda: self._execution.launch(self._stream), 1, lambda: self._stream.record().wait())

    @property
    def logits(self) -> NDArray[Any]:
        """Of the last execute, `[1,1,V]`."""
        assert self._logits.host is not None
        return self._logits.host


def _inputs(session: BenchSession, engine: Engine, length: int) -> dict[str, NDArray[Any]]:
    """Inputs of a decode by name, random caches of `length - 1` positions `[H,M,J]` among them."""
    spec, random = session.bundle.planner, np.random.default_rng(length)
    assert spec is not None
    names, last = spec.inputs, length - 1
    values: dict[str, Any] = {
        names.tokens: [[spec.codes.groups[0].first]], names.position: [last], names.write: [last],
        names.window: [spec.window_input], names.pick: [[[0]]], names.slots: np.arange(length),
    }  # fmt: skip
    for name in names.past:
        values[name] = random.standard_normal([int(size) for size in engine.inputs[name].shape[1:]])
        values[name][:, last:] = 0.0
    return {name: np.asarray(value, engine.inputs[name].dtype) for name, value in values.items()}


def _grown_in_place(session: BenchSession, engine: Engine, arrays: Arrays, length: int) -> dict[str, Tensor]:
    spec, device = session.bundle.planner, session.device
    assert spec is not None
    cache = KvCache(device, device.main, engine, spec, rows=1)
    cache.write(0, [arrays[name] for name in spec.inputs.past])
    return cache.tensors(0, 1, cache.span(length))


def _concatenated(session: BenchSession, engine: Engine, arrays: Arrays, length: int) -> dict[str, Tensor]:
    """Caches of one position less, and memory for those with the new one."""
    spec, device, found = session.bundle.planner, session.device, dict[str, Tensor]()
    assert spec is not None
    for past, present in zip(spec.inputs.past, spec.outputs.present, strict=True):
        known = np.ascontiguousarray(arrays[past][None, :, : length - 1])
        found[past] = device.zeros(known.shape, known.dtype)
        device.upload(found[past], known, device.main)
        found[present] = device.zeros((1, known.shape[1], length, known.shape[3]), known.dtype)
    return found


def _open_concat(session: BenchSession, manifest: Manifest, folder: Path) -> Engine:
    """The engine's graph with concatenated caches, as an engine in `folder`."""
    from runtime.engines.onnxruntime import OnnxRuntimeEngine

    model = onnx.load(session.deployment.engine_folder() / manifest.engine_file)
    concatenate(model)
    onnx.save(model, folder / CONCAT_FILE, save_as_external_data=True)
    shapes = {item.name: _shape(item) for item in (*model.graph.input, *model.graph.output)}
    inputs, outputs = (
        tuple(info.model_copy(update={"shape": shapes[info.name]}) for info in infos)
        for infos in (manifest.inputs, manifest.outputs)
    )
    changed = manifest.model_copy(update={"engine_file": CONCAT_FILE, "inputs": inputs, "outputs": outputs})
    return OnnxRuntimeEngine(changed, folder, device=session.device, threads=1)


def concatenate(model: onnx.ModelProto) -> None:
    """Replace every TensorScatter into a cache, and the Slice that attention reads, by a Concat, in the model itself.

    The caches' capacity becomes a free dimension: as many positions as there are. Raises ConfigError.
    """
    graph, renamed = model.graph, dict[str, str]()
    values = {item.name: item for item in (*graph.input, *graph.output)}
    scatters = [node for node in graph.node if node.op_type == "TensorScatter"]
    if not scatters:
        raise ConfigError("the planner's graph has no caches that are updated in place", fix="export it again")
    for node in scatters:
        past, new, _ = node.input
        node.op_type, node.input[:] = "Concat", [past, new]
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("axis", 2))
        for name, size in ((past, "held"), (node.output[0], "grown")):
            values[name].type.tensor_type.shape.dim[2].dim_param = size
    grown = {node.output[0] for node in scatters}
    for node in [node for node in graph.node if node.op_type == "Slice" and node.input[0] in grown]:
        renamed[node.output[0]] = node.input[0]
        graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _shape(item: onnx.ValueInfoProto) -> Sequence[int | str]:
    return tuple(size.dim_param or size.dim_value for size in item.type.tensor_type.shape.dim)
