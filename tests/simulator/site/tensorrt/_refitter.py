"""Refitter: replaces weights of a loaded plan. It reads them from the host's memory when the refit is executed."""

from __future__ import annotations

import ctypes
import hashlib

import onnx

from ._basics import ILogger
from ._engine import ICudaEngine
from ._enums import DataType, Severity
from ._graph import DTYPES, open_graph
from ._rules import Answer, machine

FLOATS = (DataType.FLOAT, DataType.HALF, DataType.BF16)


class Weights:
    """Numbers in memory that the caller keeps."""

    def __init__(self, type: DataType = DataType.FLOAT, ptr: int = 0, count: int = 0) -> None:
        if type not in DataType:
            raise TypeError("__init__(): incompatible constructor arguments: Weights(type, ptr, count)")
        self._type, self._address, self._count = type, int(ptr), int(count)

    @property
    def dtype(self) -> DataType:
        return self._type

    @property
    def size(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return int(self._count * (self._type.itemsize or 0))

    def sim_read(self) -> bytes:
        return ctypes.string_at(self._address, self.nbytes)


class Refitter:
    """The weights of an engine built with REFIT, and those that will replace them."""

    def __init__(self, engine: ICudaEngine, logger: ILogger) -> None:
        if not isinstance(engine, ICudaEngine) or not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments: Refitter(engine, logger)")
        if not engine.refittable:
            machine().break_rule("a Refitter of an engine that was built without REFIT")
        self.sim_engine, self.sim_logger = engine, logger
        self.sim_model = onnx.load_from_string(engine.sim_plan.graph)
        self.sim_tensors = {
            item.name: item for item in self.sim_model.graph.initializer if DTYPES[item.data_type] in FLOATS
        }
        self._set: dict[str, tuple[Weights, str]] = {}

    def get_all_weights(self) -> list[str]:
        return list(self.sim_tensors)

    def get_weights_prototype(self, weights_name: str) -> Weights:
        """Type and number; no memory."""
        item = self.sim_tensors[weights_name]
        count = 1
        for size in item.dims:
            count *= size
        return Weights(DTYPES[item.data_type], 0, count)

    def set_named_weights(self, name: str, weights: Weights) -> bool:
        """Remember where a weight's values are; False where name, type or number is wrong."""
        what = "set_named_weights"
        if name not in self.sim_tensors:
            return self._fail(what, f"no refittable weights with name {name}")
        wanted = self.get_weights_prototype(name)
        if (weights.dtype, weights.size) != (wanted.dtype, wanted.size):
            return self._fail(
                what, f"{name}: {weights.size} {weights.dtype.name}, not {wanted.size} {wanted.dtype.name}"
            )
        self._set[name] = weights, hashlib.sha256(weights.sim_read()).hexdigest()
        return Answer(True, what)

    def get_missing_weights(self) -> list[str]:
        """Weights that are stored together with some that are set."""
        together = machine().faults.get("stored_together", ())
        return [name for name in together if name not in self._set] if self._set.keys() & set(together) else []

    def refit_cuda_engine(self) -> bool:
        """Replace the weights; False where some are missing."""
        what = "refit_cuda_engine"
        if missing := self.get_missing_weights():
            return self._fail(what, f"missing weights: {', '.join(missing)}")
        for name in machine().faults.get("lost_in_refit", ()):
            kind, dims = self.sim_tensors[name].data_type, list(self.sim_tensors[name].dims)
            zeros = bytes(self.get_weights_prototype(name).nbytes)
            self.sim_tensors[name].CopyFrom(onnx.TensorProto(name=name, data_type=kind, dims=dims, raw_data=zeros))
        for name, (weights, digest) in self._set.items():
            data = weights.sim_read()
            if hashlib.sha256(data).hexdigest() != digest:
                machine().break_rule(f"the memory of {name} changed between set_named_weights and the refit")
            kind, dims = self.sim_tensors[name].data_type, list(self.sim_tensors[name].dims)
            self.sim_tensors[name].CopyFrom(onnx.TensorProto(name=name, data_type=kind, dims=dims, raw_data=data))
        self.sim_engine.sim_session, _ = open_graph(self.sim_model.SerializeToString())
        return Answer(True, what)

    def _fail(self, what: str, message: str) -> bool:
        self.sim_logger.log(Severity.ERROR, f"IRefitter: Error Code 3: {message}")
        return Answer(False, what)
