"""ONNX graphs as input of the builder: a file with its external data, or serialized bytes; checked and hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import helper

from runtime.base.errors import BuildError, ConfigError
from runtime.base.untrusted import quoted
from runtime.config.bundle import Bundle
from runtime.engines.manifest import TensorInfo, file_sha256

LARGE_BYTES = 1 << 30
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Graph:
    """One graph: its source (a path, or the serialized bytes), its hash including external data, its tensors.

    `size_bytes`: file and its external data, which may be a part of a data file; `weights_bytes`: its initializers in
    memory; `has_data_files`: whether it has external data. data_folder: where that lies, of a graph that exists in
    memory only. label: its name in messages, the path of the file that it is, or is made from.
    """

    source: Path | bytes
    sha256: str
    size_bytes: int
    weights_bytes: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    has_data_files: bool = False
    data_folder: Path | None = None
    label: str = "generated graph"

    @property
    def folder(self) -> Path:
        """Where its external data lies, if it has any."""
        return self.source.parent if isinstance(self.source, Path) else self.data_folder or Path()

    @property
    def is_large(self) -> bool:
        """Whether an execute on the CPU takes seconds."""
        return self.weights_bytes > LARGE_BYTES


def graph_of(model: onnx.ModelProto) -> Graph:
    """A model that exists in memory only."""
    data = model.SerializeToString(deterministic=True)
    return Graph(
        source=data,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        weights_bytes=_weights_bytes(model),
        inputs=_tensor_infos(model.graph.input),
        outputs=_tensor_infos(model.graph.output),
    )


def derived_graph(model: onnx.ModelProto, origin: Graph) -> Graph:
    """A model made from a graph, which shares its external data."""
    graph = replace(graph_of(model), label=origin.label)
    if not origin.has_data_files:
        return graph
    sha256 = hashlib.sha256(f"{graph.sha256} {origin.sha256}".encode()).hexdigest()
    own = len(origin.source) if isinstance(origin.source, bytes) else origin.source.stat().st_size
    size_bytes = graph.size_bytes + origin.size_bytes - own
    return replace(graph, sha256=sha256, size_bytes=size_bytes, has_data_files=True, data_folder=origin.folder)


def data_files(graph: Graph) -> list[Path]:
    """The files with a graph's external data."""
    if not graph.has_data_files:
        return []
    tensors = (
        tensor for tensor in _tensors(load_model(graph.source)) if tensor.data_location == onnx.TensorProto.EXTERNAL
    )
    entries = (item for tensor in tensors for item in tensor.external_data)
    return [graph.folder / location for location in sorted({item.value for item in entries if item.key == "location"})]


def read_graph(path: Path) -> Graph:
    """Read a graph's structure without its external data, and hash both.

    Raises ConfigError where the file is missing, BuildError where it is not an ONNX graph or lacks its external data.
    """
    _check_is_file(path)
    model = load_model(path)
    external_bytes = _check_external_data(model, path)
    data = [path.parent / location for location in sorted(external_bytes)]
    weights = {tensor.name for tensor in model.graph.initializer}
    _check_names(model.graph, path)
    return Graph(
        source=path,
        sha256=_sha256(path, data),
        size_bytes=path.stat().st_size + sum(external_bytes.values()),
        weights_bytes=_weights_bytes(model),
        inputs=_tensor_infos([value for value in model.graph.input if value.name not in weights]),
        outputs=_tensor_infos(model.graph.output),
        has_data_files=bool(data),
        label=str(path),
    )


def _check_names(graph: onnx.GraphProto, path: Path) -> None:
    """Inputs and outputs are known by their names."""
    names = [value.name for value in (*graph.input, *graph.output)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BuildError(
            f"{path} has {quoted(twice[0])} twice among its inputs and outputs",
            fix="give each a name of its own: a result that is an input needs a node Identity",
        )


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, expected an ONNX file", fix="correct the graph's name in bundle.toml")
    if not path.is_file():
        found = ", ".join(sorted(file.name for file in path.parent.glob("*.onnx"))) or "none"
        raise ConfigError(f"no graph at {path} (ONNX files there: {found})", fix="correct its name in bundle.toml")


def load_model(source: Path | bytes) -> onnx.ModelProto:
    """A graph as a model, without its external data. Raises BuildError."""
    if isinstance(source, bytes):
        return onnx.load_model_from_string(source)
    fix = "copy or export the file again"
    try:
        model = onnx.load(source, format="protobuf", load_external_data=False)
    except DecodeError as error:
        what = f"{source} is not an ONNX graph or is truncated ({_size(source)}): {error}"
        raise BuildError(what, fix=fix) from error
    if not model.graph.node or not model.graph.output:
        raise BuildError(f"{source} is not an ONNX graph: it has no nodes or no outputs ({_size(source)})", fix=fix)
    _open_negative_dimensions(model.graph)
    return model


def _open_negative_dimensions(graph: onnx.GraphProto) -> None:
    """Some exporters write -1 for a dimension that is dynamic; ONNX Runtime and TensorRT read it so, passes do not."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.Clear()


def _check_external_data(model: onnx.ModelProto, path: Path) -> dict[str, int]:
    """Bytes of external data by location; each must be in the graph's folder and long enough."""
    ends: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location, offset, size = _external_span(tensor, path)
            ends[location] = max(offset + size, ends.get(location, 0))
            sizes[location] = sizes.get(location, 0) + size
    for location, end in ends.items():
        _check_data_file(path, location, end)
    return sizes


def _external_span(tensor: onnx.TensorProto, path: Path) -> tuple[str, int, int]:
    """Location, offset and bytes of a tensor's external data."""
    entry = {item.key: item.value for item in tensor.external_data}
    offset, length = entry.get("offset", "0"), entry.get("length", str(_tensor_bytes(tensor)))
    if len(entry) < len(tensor.external_data) or not (
        entry.get("location") and _is_count(offset) and _is_count(length)
    ):
        raise BuildError(
            f"{path}: the external data of tensor {quoted(tensor.name)} is {quoted(entry)}, expected one location, and "
            "offset and length in bytes",
            fix="export it again",
        )
    return entry["location"], int(offset), int(length)


def _is_count(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 20


def _check_data_file(path: Path, location: str, end: int) -> None:
    data = path.parent / location
    if Path(location).is_absolute() or not _is_beside(path, data):
        raise BuildError(
            f"{path} has external data in {quoted(location)}, expected a file in its own folder",
            fix='save it again: onnx.save(onnx.load(OLD), NEW, save_as_external_data=True, location="weights.data")',
        )
    if not os.path.isfile(data):  # False where no file can have the name
        raise BuildError(f"{path} has external data in {data}, which does not exist", fix=f"copy {location} beside it")
    if data.stat().st_size < end:
        raise BuildError(f"{data} is truncated: {_size(data)}, {path.name} needs {end} bytes", fix="copy it again")


def _is_beside(path: Path, data: Path) -> bool:
    try:
        return data.resolve().is_relative_to(path.parent.resolve())
    except (OSError, ValueError):  # a loop of links, a zero byte
        return False


def _sha256(path: Path, data: Sequence[Path]) -> str:
    """The file's hash where there is no external data; else a hash over the hashes of all files."""
    if not data:
        return file_sha256(path)
    lines = [f"{file.relative_to(path.parent)} {file_sha256(file)}" for file in data]
    return hashlib.sha256("\n".join([file_sha256(path), *lines]).encode()).hexdigest()


def messages_of(message: Message, kind: type[M]) -> Iterator[M]:
    """Every message of a kind in a model, wherever it is: in bodies and functions, too."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                if isinstance(inner, kind):
                    yield inner
                else:
                    yield from messages_of(inner, kind)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: what loads the model opens the external data of each."""
    return messages_of(model, onnx.TensorProto)


def _weights_bytes(model: onnx.ModelProto) -> int:
    return sum(_tensor_bytes(tensor) for tensor in _tensors(model))


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    try:
        return int(prod(tensor.dims)) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError:
        raise BuildError(f"the graph's tensor {quoted(tensor.name)} has ONNX data type {tensor.data_type}") from None


def _tensor_infos(values: Sequence[onnx.ValueInfoProto]) -> tuple[TensorInfo, ...]:
    return tuple(_tensor_info(value) for value in values)


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind, form = value.type.tensor_type, value.type.WhichOneof("value")
    if form not in (None, "tensor_type"):
        word = form.removesuffix("_type").replace("_", " ")
        raise BuildError(f"the graph's {quoted(value.name)} is a {word}, expected a tensor", fix="export it as tensors")
    if not kind.HasField("shape"):
        raise BuildError(
            f"the graph's {value.name!r} has no shape", fix="export it with the ranks of its inputs and outputs"
        )
    shape = tuple(_dimension(value.name, axis, dim) for axis, dim in enumerate(kind.shape.dim))
    return TensorInfo(name=value.name, dtype=_dtype_name(value.name, kind.elem_type), shape=shape)


def _dimension(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> int | str:
    """A dynamic dimension without a name gets a unique one, so that no two count as equal."""
    if not dim.HasField("dim_value"):
        return dim.dim_param or f"{name}.{axis}"
    if not dim.dim_value:
        raise BuildError(
            f"the graph's {quoted(name)} has size 0 in dimension {axis}: it holds nothing",
            fix=f"export it again, with a name for a dynamic dimension: dynamic_axes={{{name!r}: {{{axis}: 'n'}}}}",
        )
    return int(dim.dim_value)


def _dtype_name(name: str, element: int) -> str:
    try:
        return str(np.dtype(helper.tensor_dtype_to_np_dtype(element)).name)
    except KeyError:
        raise BuildError(f"the graph's {name!r} has ONNX data type {element}, which numpy does not have") from None


def _size(path: Path) -> str:
    return f"{path.stat().st_size} bytes"


def with_axis_names(graph: Graph, letters: Mapping[str, str]) -> Graph:
    """A graph whose axes are called by their shape letters, where one name of its own stands for several; else `graph`.

    letters: those of every input and output, by name. To TensorRT, to ONNX Runtime's reuse of memory and to what binds
    an engine, axes of one name are of one size.
    """
    if not _is_contradictory(graph, letters):
        return graph
    model = load_model(graph.source)
    for dimension in messages_of(model, onnx.TensorShapeProto.Dimension):
        dimension.ClearField("dim_param")
    for value in (*model.graph.input, *model.graph.output):
        for letter, dimension in zip(letters.get(value.name, ""), value.type.tensor_type.shape.dim, strict=False):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = letter
    return derived_graph(model, graph)


def decoder_graph(bundle: Bundle) -> Graph:
    """A bundle's decoder, see with_axis_names. Raises ConfigError, BuildError as read_graph does."""
    graph, decoder = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder
    ranks = {info.name: len(info.shape) for info in graph.inputs}
    letters = decoder.inputs.letters(ranks.get(decoder.inputs.condition or "", 3))
    return with_axis_names(graph, {**letters, decoder.outputs.velocity: "RTC"})


def _is_contradictory(graph: Graph, letters: Mapping[str, str]) -> bool:
    """Whether one name stands for several letters of inputs; other axes follow from these."""
    free = {letter for info in graph.inputs for letter in letters.get(info.name, "")}
    named: dict[str, str] = {}
    return any(
        isinstance(size, str) and letter in free and named.setdefault(size, letter) != letter
        for info in (*graph.inputs, *graph.outputs)
        for letter, size in zip(letters.get(info.name, ""), info.shape, strict=False)
    )
