"""Graph files as users have them: whole, with external data, cut off, missing, not ONNX at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_bundle, tiny_decoder
from onnx import TensorProto, helper

from engine_build.graphs.graph_file import data_files, derived_graph, graph_of, read_graph
from runtime.base.errors import BuildError, ConfigError


def external(folder: Path, location: str = "decoder.onnx.data") -> Path:
    """The tiny decoder with all of its weights in a file beside it."""
    folder.mkdir(exist_ok=True)
    path = folder / "decoder.onnx"
    model = tiny_decoder(TinySpec())
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def test_a_file_is_read_hashed_and_measured(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path) / "decoder.onnx"
    graph = read_graph(path)
    assert graph.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert graph.size_bytes == path.stat().st_size
    assert [tensor.name for tensor in graph.inputs][:2] == ["hidden_states", "timestep"]
    assert graph.inputs[0].shape == ("rows", "frames", 8)
    assert (graph.outputs[0].dtype, graph.label) == ("float32", str(path))
    assert 2000 < graph.weights_bytes < path.stat().st_size


def test_a_graph_made_of_another_has_its_external_data(tmp_path: Path) -> None:
    """Also where that one was made of a third."""
    origin = read_graph(external(tmp_path))
    model = onnx.load(tmp_path / "decoder.onnx", load_external_data=False)
    once = derived_graph(model, origin)
    model.graph.name = "another"
    twice = derived_graph(model, once)
    assert (once.has_data_files, once.folder) == (twice.has_data_files, twice.folder) == (True, tmp_path)
    assert len({origin.sha256, once.sha256, twice.sha256}) == 3
    assert data_files(twice) == [tmp_path / "decoder.onnx.data"]
    assert isinstance(once.source, bytes)
    assert once.size_bytes == len(once.source) + (tmp_path / "decoder.onnx.data").stat().st_size
    assert twice.size_bytes - once.size_bytes == len("another") - len(onnx.load(tmp_path / "decoder.onnx").graph.name)


def test_a_written_graph_has_the_hash_of_its_bytes() -> None:
    graph = graph_of(tiny_decoder(TinySpec()))
    assert isinstance(graph.source, bytes)
    assert graph.sha256 == hashlib.sha256(graph.source).hexdigest()


def test_external_data_counts_in_hash_and_size(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = read_graph(path)
    assert before.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert before.weights_bytes == read_graph(tiny_bundle(tmp_path / "inline") / "decoder.onnx").weights_bytes
    data = path.with_name("decoder.onnx.data")
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert read_graph(path).sha256 != before.sha256


def test_of_a_shared_data_file_a_graph_counts_what_it_uses(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = read_graph(path)
    with path.with_name("decoder.onnx.data").open("ab") as data:
        data.write(bytes(1000))
    after = read_graph(path)
    assert after.size_bytes == before.size_bytes
    assert after.sha256 != before.sha256


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    path = external(tmp_path)
    path.with_name("decoder.onnx.data").unlink()
    with pytest.raises(BuildError, match=r"decoder\.onnx\.data, which does not exist") as caught:
        read_graph(path)
    assert "decoder.onnx.data" in caught.value.fix


def test_truncated_external_data_is_noticed(tmp_path: Path) -> None:
    path = external(tmp_path)
    data = path.with_name("decoder.onnx.data")
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(BuildError, match="is truncated"):
        read_graph(path)


def outside(location: str) -> onnx.TensorProto:
    """A tensor of two numbers whose data is elsewhere."""
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def sparse(location: str) -> onnx.SparseTensorProto:
    indices = helper.make_tensor("indices", TensorProto.INT64, [2], [0, 1])
    return onnx.SparseTensorProto(values=outside(location), indices=indices, dims=[4])


def subgraph(location: str) -> onnx.GraphProto:
    return helper.make_graph([], "inner", [], [], [outside(location)])


def with_attribute(node: onnx.NodeProto, **value: object) -> None:
    node.attribute.append(onnx.AttributeProto(name="hidden", **value))


def with_function(model: onnx.ModelProto, **value: object) -> None:
    node = helper.make_node("Constant", [], ["y"])
    with_attribute(node, **value)
    model.functions.append(onnx.FunctionProto(name="f", domain="local", output=["y"], node=[node]))


# Where a tensor may be in a model.
PLACES: dict[str, Callable[[onnx.ModelProto, str], object]] = {
    "initializer": lambda model, where: model.graph.initializer.append(outside(where)),
    "sparse initializer": lambda model, where: model.graph.sparse_initializer.append(sparse(where)),
    "constant": lambda model, where: with_attribute(model.graph.node[0], t=outside(where)),
    "constants": lambda model, where: with_attribute(model.graph.node[0], tensors=[outside(where)]),
    "sparse constant": lambda model, where: with_attribute(model.graph.node[0], sparse_tensor=sparse(where)),
    "sparse constants": lambda model, where: with_attribute(model.graph.node[0], sparse_tensors=[sparse(where)]),
    "subgraph": lambda model, where: with_attribute(model.graph.node[0], g=subgraph(where)),
    "subgraphs": lambda model, where: with_attribute(model.graph.node[0], graphs=[subgraph(where)]),
    "function": lambda model, where: with_function(model, t=outside(where)),
    "subgraph of a function": lambda model, where: with_function(model, g=subgraph(where)),
    "default of a function": lambda model, where: model.functions.append(
        onnx.FunctionProto(name="f", attribute_proto=[onnx.AttributeProto(name="a", t=outside(where))])
    ),
    "training": lambda model, where: model.training_info.append(
        onnx.TrainingInfoProto(algorithm=subgraph(where), initialization=subgraph(where))
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_external_data_stays_in_the_graphs_folder(
    place: Callable[[onnx.ModelProto, str], object], tmp_path: Path
) -> None:
    path = tmp_path / "bundle" / "decoder.onnx"
    path.parent.mkdir()
    (tmp_path / "weights").write_bytes(bytes(8))
    (path.parent / "weights").write_bytes(bytes(8))
    (path.parent / "link").symlink_to(tmp_path / "weights")
    for location in (
        "../weights", str(tmp_path / "weights"), str(path.parent / "weights"), "link", "x/../../weights", "weights\0"
    ):  # fmt: skip
        model = tiny_decoder(TinySpec())
        place(model, location)
        path.write_bytes(model.SerializeToString())
        with pytest.raises(BuildError, match="in its own folder"):
            read_graph(path)
    model = tiny_decoder(TinySpec())
    place(model, "weights")
    path.write_bytes(model.SerializeToString())
    assert data_files(read_graph(path)) == [path.parent / "weights"]


def test_a_location_of_data_that_is_not_external_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(8))
    inside = outside("../weights")
    inside.data_location, inside.name, inside.raw_data = TensorProto.DEFAULT, "inside", bytes(8)
    model = tiny_decoder(TinySpec())
    model.graph.initializer.extend([inside, outside("weights")])
    (tmp_path / "decoder.onnx").write_bytes(model.SerializeToString())
    assert data_files(read_graph(tmp_path / "decoder.onnx")) == [tmp_path / "weights"]


REFUSED = "tensor 'w' is .*expected one location"


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ((), REFUSED),
        ((("location", "weights"), ("offset", "-8")), REFUSED),
        ((("location", "weights"), ("length", "0x8")), REFUSED),
        ((("location", "weights"), ("offset", "9" * 5000)), REFUSED),
        ((("location", "weights"), ("length", "9" * 20)), REFUSED),
        ((("location", "weights"), ("length", "9" * 19)), "is truncated: 8 bytes"),
        ((("location", "weights"), ("location", "weights")), REFUSED),
        ((("location", "weights"), ("offset", "1")), "is truncated: 8 bytes, decoder.onnx needs 9 bytes"),
    ],
)
def test_external_data_that_says_no_span_is_refused(
    entries: tuple[tuple[str, str], ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "weights").write_bytes(bytes(8))
    model, tensor = tiny_decoder(TinySpec()), outside("weights")
    del tensor.external_data[:]
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    (tmp_path / "decoder.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BuildError, match=says):
        read_graph(tmp_path / "decoder.onnx")


def test_a_tensor_of_a_type_that_onnx_does_not_have_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder(TinySpec())
    model.graph.initializer.add(name="w", data_type=999, dims=[2])
    (tmp_path / "decoder.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BuildError, match="tensor 'w' has ONNX data type 999"):
        read_graph(tmp_path / "decoder.onnx")


def test_a_missing_graph_lists_the_existing_ones(tmp_path: Path) -> None:
    folder = tiny_bundle(tmp_path)
    with pytest.raises(ConfigError, match=r"no graph at .*decode\.onnx .*codec_decode\.onnx"):
        read_graph(folder / "decode.onnx")


def test_a_folder_is_refused_as_a_graph(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder, expected an ONNX file"):
        read_graph(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 100, 2000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tiny_bundle(tmp_path) / "decoder.onnx"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BuildError, match=r"not an ONNX graph.*bytes"):
        read_graph(path)


@pytest.mark.parametrize("content", [b"hello world\n" * 20, b"\x7fELF" + bytes(200), b"PK\x03\x04" + bytes(100), b"\n"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(content)
    with pytest.raises(BuildError, match="not an ONNX graph"):
        read_graph(path)


def test_initializers_among_the_inputs_are_not_inputs(tmp_path: Path) -> None:
    model = tiny_decoder(TinySpec())
    weight = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    path = tmp_path / "decoder.onnx"
    onnx.save(model, path)
    assert weight.name not in [tensor.name for tensor in read_graph(path).inputs]


def test_unnamed_dynamic_dimensions_are_distinct(tmp_path: Path) -> None:
    model = tiny_decoder(TinySpec())
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].Clear()
    names = [tensor.shape[0] for tensor in graph_of(model).inputs]
    assert len(set(names)) == len(names)
    assert names[0] == "hidden_states.0"


def test_a_tensor_without_a_shape_is_refused() -> None:
    model = tiny_decoder(TinySpec())
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(BuildError, match="'velocity' has no shape"):
        graph_of(model)


def test_constants_inside_nodes_count_as_weights() -> None:
    tensor = helper.make_tensor("value", TensorProto.FLOAT, [3], np.float32([1, 2, 3]))
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    assert graph_of(helper.make_model(helper.make_graph([node], "constant", [], [output]))).weights_bytes == 12
