"""Networks and the ONNX parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from ._basics import Dims, ILogger
from ._enums import (
    STRONGLY_TYPED_ONLY,
    DataType,
    LayerType,
    NetworkDefinitionCreationFlag,
    Severity,
)
from ._graph import DTYPES, signature
from ._rules import Answer, machine

OPSETS = range(9, 26 if STRONGLY_TYPED_ONLY else 25)
UNSUPPORTED = ("NonMaxSuppressionV2", "Optional", "SequenceMap", "StringNormalizer", "Unique", "RegexFullMatch")


# Operators whose inputs at these places are shapes.
SHAPES = {
    "ConstantOfShape": (0,), "Expand": (1,), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3), "Slice": (1, 2, 4),
    "Tile": (1,), "TopK": (1,), "Pad": (1,),
}  # fmt: skip


def _shaping_values(model: onnx.ModelProto) -> set[str]:
    """The values that decide the shape of another; what depends on sizes alone decides none."""
    found: set[str] = set()
    for node in reversed(model.graph.node):
        if found.intersection(node.output) and node.op_type not in ("Shape", "Size"):
            found.update(node.input)
        found.update(node.input[place] for place in SHAPES.get(node.op_type, ()) if place < len(node.input))
    return found


def _read_data(model: onnx.ModelProto, folder: Path) -> None:
    """Read external weights as the real parser does, which follows links."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entry = {item.key: item.value for item in tensor.external_data}
            with (folder / entry["location"]).open("rb") as file:
                file.seek(int(entry.get("offset", 0)))
                tensor.raw_data = file.read(int(entry.get("length", -1)))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]


class ITensor:
    """One network input or output."""

    def __init__(
        self, name: str, dtype: DataType, shape: tuple[int, ...], *, is_input: bool, is_shape_tensor: bool = False
    ) -> None:
        self._name, self._dtype, self._shape, self._is_input = name, dtype, Dims(shape), is_input
        self._is_shape_tensor = is_shape_tensor

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> DataType:
        return self._dtype

    @property
    def shape(self) -> Dims:
        return self._shape

    @property
    def is_network_input(self) -> bool:
        return self._is_input

    @property
    def is_shape_tensor(self) -> bool:
        return self._is_shape_tensor


class IAttention:
    """An attention with its input layer. Where it may not be decomposed, it needs a fused kernel."""

    def __init__(self) -> None:
        self.decomposable = False


class ILayer:
    """A layer. As in the real bindings it has its own kind's properties once `__class__` is set to that kind."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.sim_node, self.sim_attention = node, IAttention()

    @property
    def name(self) -> str:
        return self.sim_node.name

    @property
    def type(self) -> Any:
        return LayerType.ATTENTION_INPUT if self.sim_node.op_type == "Attention" else LayerType.ELEMENTWISE


class IAttentionInputLayer(ILayer):
    """Where an attention begins."""

    @property
    def attention(self) -> IAttention:
        return self.sim_attention


class INetworkDefinition:
    """A network."""

    def __init__(self, flags: int) -> None:
        self.sim_flags = flags
        self.sim_model: onnx.ModelProto | None = None
        self.sim_tensors: list[ITensor] = []
        self.sim_layers: list[ILayer] = []

    @property
    def num_layers(self) -> int:
        return len(self.sim_layers)

    def get_layer(self, index: int) -> ILayer:
        return self.sim_layers[index]

    @property
    def sim_is_strongly_typed(self) -> bool:
        flag = 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return STRONGLY_TYPED_ONLY or bool(self.sim_flags & flag)

    @property
    def num_inputs(self) -> int:
        return len(self.sim_side(True))

    def get_input(self, index: int) -> ITensor:
        return self.sim_side(True)[index]

    def sim_side(self, is_input: bool) -> list[ITensor]:
        return [tensor for tensor in self.sim_tensors if tensor.is_network_input == is_input]


class ParserError:
    """An error of the parser."""

    def __init__(self, desc: str, *, node: int = -1, name: str = "", operator: str = "") -> None:
        self._desc, self.sim_node, self._name, self._operator = desc, node, name, operator

    def desc(self) -> str:
        return self._desc

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator

    def __str__(self) -> str:
        return f"In node {self.sim_node} with name: {self._name} and operator: {self._operator}: {self._desc}"


class OnnxParser:
    """Reads an ONNX file into a network."""

    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        if not isinstance(network, INetworkDefinition) or not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments: OnnxParser(network, logger)")
        self._network, self.sim_logger = network, logger
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        """Parse a file; external data lies beside it."""
        if not isinstance(model, str):
            raise TypeError(f"parse_from_file(): incompatible function arguments: {type(model).__name__}, takes str")
        try:
            parsed = onnx.load(model, load_external_data=False)
            _read_data(parsed, Path(model).parent)
        except (OSError, DecodeError, onnx.checker.ValidationError) as error:
            return self._fail(ParserError(f"Failed to parse ONNX model {model}: {error}"))
        return self._take(parsed)

    def parse(self, model: Any, path: str | None = None) -> bool:
        """Parse bytes; external data lies beside `path`."""
        try:
            parsed = onnx.load_from_string(bytes(memoryview(model)))
            if path is not None:
                _read_data(parsed, Path(path).parent)
        except (OSError, DecodeError, onnx.checker.ValidationError) as error:
            return self._fail(ParserError(f"Failed to parse ONNX model: {error}"))
        return self._take(parsed)

    def _take(self, model: onnx.ModelProto) -> bool:
        if not self._network.sim_is_strongly_typed:
            machine().break_rule("a network of TensorRT 10 is not strongly typed: create_network needs STRONGLY_TYPED")
        opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
        if opset not in OPSETS:
            return self._fail(ParserError(f"opset {opset} is not supported, {OPSETS[0]} to {OPSETS[-1]} are"))
        for index, node in enumerate(model.graph.node):
            if not onnx.defs.has(node.op_type, node.domain) or node.op_type in UNSUPPORTED:
                desc = f"Plugin not found, are the plugin name, version, and namespace correct? ({node.op_type})"
                return self._fail(ParserError(desc, node=index, name=node.name, operator=node.op_type))
        tensors = list(signature(model))
        for name, kind, _, _ in tensors:
            if kind not in DTYPES:
                return self._fail(ParserError(f"tensor {name}: ONNX data type {kind} is not supported"))
        self._network.sim_model = model
        self._network.sim_layers = [ILayer(node) for node in model.graph.node]
        shaping = _shaping_values(model)
        self._network.sim_tensors = [
            ITensor(name, DTYPES[k], shape, is_input=i, is_shape_tensor=name in shaping)
            for name, k, shape, i in tensors
        ]
        return Answer(True, "the parser")

    def _fail(self, error: ParserError) -> bool:
        self._errors.append(error)
        self.sim_logger.log(Severity.ERROR, f"[ONNX Parser] {error}")
        return Answer(False, "the parser")
