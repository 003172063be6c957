"""Graph files as users have them: whole, with external data, cut off, missing, not ONNX at all."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import strangers_graphs as strangers
from helpers.factories import TinySpec, tiny_bundle, tiny_decoder, tiny_deployment
from helpers.paths import DEMO
from onnx import TensorProto, helper, numpy_helper

from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import (
    Graph,
    data_files,
    decoder_graph,
    derived_graph,
    graph_of,
    load_model,
    messages_of,
    read_graph,
    with_axis_names,
)
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.plain_graph import opset, plain
from engine_build.graphs.reference_session import (
    exact_options,
    exact_session,
    graph_session,
    model_of,
    onnxruntime_errors,
    run_reason,
    session,
)
from engine_build.request import load_request
from engine_build.specs import engine_specs as module
from engine_build.specs.engine_specs import engine_specs
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


LETTERS = {"x": "RTC", "time": "R", "tokens": "RLC", "y": "RTC"}


def renamed(path: Path, name: str, **how: Any) -> Path:
    """The graph in a file, with every axis that has a name called so, those of values within too. how: see save."""
    model = onnx.load(path)
    for dimension in messages_of(model, onnx.TensorShapeProto.Dimension):
        if dimension.dim_param:
            dimension.dim_param = name
    onnx.save(model, path, **how)
    return path


def test_one_name_for_all_axes_is_replaced_and_onnx_runtime_runs_the_graph(tmp_path: Path) -> None:
    """With the names as they are it takes memory of one tensor for another one, of another size."""
    demo = load_request(DEMO)
    source = demo.bundle.graph_path(demo.bundle.decoder.graph)
    path = Path(shutil.copy(source, tmp_path))
    external = {"save_as_external_data": True, "location": "decoder.onnx.data", "size_threshold": 1024}
    graph = read_graph(renamed(path, "n", **external))
    found = decoder_graph(demo.bundle.model_copy(update={"folder": tmp_path}))
    assert {info.name: info.shape for info in found.inputs}["encoder_hidden_states"][:2] == ("R", "L")
    assert (found.label, found.sha256 == graph.sha256) == (str(path), False)
    sizes, random = {"R": 3, "T": 34, "L": 16}, np.random.default_rng(0)
    feeds: dict[str, Any] = {
        info.name: random.uniform(0.1, 1, [sizes.get(str(size), size) for size in info.shape]).astype(np.float32)
        for info in found.inputs
    }
    expected, renewed = (exact_session(each, 1).run(None, feeds)[0] for each in (read_graph(source), found))
    np.testing.assert_array_equal(renewed, expected)
    with pytest.raises(Exception, match="attempting to re-use buffer"):
        exact_session(graph, 1).run(None, feeds)


def stated(**shapes: tuple[int | str, ...]) -> Graph:
    """A graph of these inputs, the last of which is the output too."""
    values = {n: onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    output = values.pop("y")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    return graph_of(onnx.helper.make_model(onnx.helper.make_graph([node], "g", list(values.values()), [output])))


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": ("a", "b", 2), "time": ("a",), "tokens": ("a", "c", 2), "y": ("a", "b", 2)},
        {"x": ("a", "b", 2), "time": ("d",), "tokens": ("e", "c", 2), "y": ("f", "g", 2)},
        {"x": (None, None, 2), "time": (None,), "tokens": (4, None, 2), "y": (None, None, 2)},
        {"x": (4, 8, 2), "time": (4,), "tokens": (4, 8, 2), "y": (4, 8, 2)},
    ],
    ids=["equal names", "other names in every tensor", "no names", "fixed"],
)
def test_names_that_contradict_nothing_stay(shapes: dict[str, Any]) -> None:
    graph = stated(**shapes)
    assert with_axis_names(graph, LETTERS) is graph


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": ("a", "a", 2), "time": ("t",), "tokens": ("r", "l", 2), "y": ("o", "p", 2)},
        {"x": ("r", "t", 2), "time": ("r",), "tokens": ("t", "l", 2), "y": ("r", "t", 2)},
        {"x": ("r", "t", 2), "time": ("r",), "tokens": ("r", "l", 2), "y": ("r", "l", 2)},
    ],
    ids=["in one tensor", "in two inputs", "of an output"],
)
def test_a_name_of_two_roles_is_replaced_and_fixed_sizes_stay(shapes: dict[str, Any]) -> None:
    graph = stated(**shapes)
    found = with_axis_names(graph, LETTERS)
    wanted = {name: tuple(2 if letter == "C" else letter for letter in letters) for name, letters in LETTERS.items()}
    assert {info.name: info.shape for info in (*found.inputs, *found.outputs)} == wanted
    assert load_model(found.source).graph.node == load_model(graph.source).graph.node


def test_graphs_that_we_make_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no engine is built again for it."""
    kept: list[bool] = []

    def noted(graph: Graph, letters: dict[str, str]) -> Graph:
        kept.append((found := with_axis_names(graph, letters)) is graph)
        return found

    monkeypatch.setattr(module, "with_axis_names", noted)
    tiny = tiny_deployment(tmp_path, conditions=True, planner={"capacity": 96, "thinking": False}, depth=2)
    specs = [spec for deployment in (DEMO, tiny) for spec in engine_specs(load_request(deployment))]
    assert kept == [True] * len(specs)


def test_every_graph_of_a_bundle_may_have_one_name_for_all_axes(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, conditions=True, planner={"capacity": 96, "thinking": False}, depth=2)
    plain = {spec.name: spec for spec in engine_specs(load_request(path))}
    tiny_bundle(tmp_path / "tiny", conditions=True, planner={"capacity": 96, "thinking": False})
    for file in (tmp_path / "tiny").glob("*.onnx"):
        renamed(file, "n")
    for spec in engine_specs(load_request(path)):
        ranks = [[len(info.shape) for info in graph.inputs] for graph in (spec.graph, plain[spec.name].graph)]
        assert ranks[0] == ranks[1]
        names: dict[str, str] = {}
        for info in spec.graph.inputs:
            for letter, size in zip(spec.letters[info.name], info.shape, strict=True):
                assert isinstance(size, int) or names.setdefault(size, letter) == letter


X = np.array([[1, -2, 3, -4]], np.float32)
FLOAT = TensorProto.FLOAT


def model_of_nodes(
    nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] | None = None, version: int = 18, **parts: object
) -> onnx.ModelProto:
    """x `[rows, 4]` -> y."""
    x, y = (helper.make_tensor_value_info(name, FLOAT, ("rows", 4)) for name in "xy")
    graph = helper.make_graph(nodes, "stranger", [x], [y], **parts)
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=8)


def run(model: onnx.ModelProto) -> np.ndarray:
    found: np.ndarray = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})[0]
    return found


def plain_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return plain(onnx.ModelProto.FromString(model.SerializeToString()))


def leaky(version: int = 18, kind: str = "LeakyRelu") -> onnx.FunctionProto:
    """A function whose attribute has a default that is not its operator's."""
    node = helper.make_node(kind, ["a"], ["b"])
    node.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    default, opsets = helper.make_attribute("alpha", 0.5), [helper.make_opsetid("", version)]
    return helper.make_function("own", "Leaky", ["a"], ["b"], [node], opsets, attribute_protos=[default])


@pytest.mark.parametrize("given", [{}, {"alpha": 0.25}])
@pytest.mark.parametrize("version", [18, 17])
def test_functions_are_inlined_with_the_attributes_of_their_calls(given: dict[str, float], version: int) -> None:
    call = helper.make_node("Leaky", ["x"], ["y"], domain="own", **given)
    model = model_of_nodes([call], [leaky(version)])
    made = plain_copy(model)
    assert not made.functions
    np.testing.assert_array_equal(run(made), run(model))


def test_a_function_of_operators_that_changed_stays_and_runs() -> None:
    """ReduceMax of opset 13 has axes as an attribute."""
    node = helper.make_node("ReduceMax", ["a"], ["b"], axes=[1])
    function = helper.make_function("own", "Peak", ["a"], ["b"], [node], [helper.make_opsetid("", 13)])
    add = helper.make_node("Add", ["x", "peak"], ["y"])
    model = model_of_nodes([helper.make_node("Peak", ["x"], ["peak"], domain="own"), add], [function])
    assert [each.name for each in plain_copy(model).functions] == ["Peak"]


def test_constants_of_every_form_become_initializers() -> None:
    values, places = numpy_helper.from_array(np.array([2.0], np.float32), "s"), numpy_helper.from_array(np.array([3]))
    nodes = [
        helper.make_node("Constant", [], ["a"], value_floats=[1.0, 2.0, 3.0, 4.0]),
        helper.make_node("Constant", [], ["b"], value_float=0.5),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([1.0], np.float32))),
        helper.make_node("Constant", [], ["d"], sparse_value=helper.make_sparse_tensor(values, places, [4])),
        helper.make_node("Sum", ["x", "a", "b", "c", "d", "s"], ["y"]),
    ]
    model = model_of_nodes(nodes, sparse_initializer=[helper.make_sparse_tensor(values, places, [4])])
    made = plain_copy(model)
    assert ([node.op_type for node in made.graph.node], list(made.graph.sparse_initializer)) == (["Sum"], [])
    np.testing.assert_array_equal(run(made), X + [1, 2, 3, 8] + 1.5)


def test_a_constant_that_is_an_input_with_a_default_is_none() -> None:
    weight = numpy_helper.from_array(np.full(4, 2, np.float32), "w")
    model = model_of_nodes([helper.make_node("Mul", ["x", "w"], ["y"])], initializer=[weight])
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [4]))
    model.ir_version = 3
    made = plain_copy(model)
    assert [value.name for value in made.graph.input] == ["x"]
    np.testing.assert_array_equal(run(made), 2 * X)


def test_constants_of_two_bodies_with_one_name_stay_apart() -> None:
    def branch(number: float) -> onnx.GraphProto:
        inner = helper.make_node("Add", ["x", "w"], ["out"])
        constant = numpy_helper.from_array(np.float32([number]), "w")
        return helper.make_graph([inner], "b", [], [helper.make_tensor_value_info("out", FLOAT, None)], [constant])

    choice = helper.make_node("If", ["flag"], ["z"], then_branch=branch(1), else_branch=branch(2))
    other = helper.make_node("If", ["not"], ["u"], then_branch=branch(10), else_branch=branch(20))
    flags = [numpy_helper.from_array(np.array(value), name) for name, value in (("flag", True), ("not", False))]
    model = model_of_nodes([choice, other, helper.make_node("Add", ["z", "u"], ["y"])], initializer=flags)
    made = plain_copy(model)
    assert len(made.graph.initializer) == 2 + 4
    np.testing.assert_array_equal(run(made), 2 * X + 21)


def test_a_model_without_a_standard_opset_is_refused() -> None:
    with pytest.raises(BuildError, match="names no opset of the standard ONNX domain"):
        opset(helper.make_model(onnx.GraphProto(), opset_imports=[helper.make_opsetid("own", 1)]))


def product() -> onnx.ModelProto:
    """y = 2 x, as a matrix product."""
    graph = GraphWriter("product")
    x = graph.input("x", ("rows", 32))
    graph.output("y", graph.op("MatMul", x, graph.constant(2 * np.eye(32), name="weight")), ("rows", 32))
    return graph.model()


def test_the_model_of_a_file_comes_without_its_external_data(tmp_path: Path) -> None:
    path = tmp_path / "product.onnx"
    onnx.save(product(), path, save_as_external_data=True, location="product.data", size_threshold=64)
    (weight,) = model_of(read_graph(path)).graph.initializer
    assert weight.data_location == onnx.TensorProto.EXTERNAL
    assert model_of(graph_of(product())) == product()


def test_the_reference_keeps_one_copy_of_its_weights() -> None:
    options = graph_session(graph_of(product()), BuildConfig(threads=1)).get_session_options()
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_a_graph_that_does_not_load_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(BuildError, match=r"does not load the decoder") as caught:
        session(path, exact_options(1), "the decoder")
    assert "polygraphy inspect model FILE" in caught.value.fix


def test_a_failing_execute_names_the_node_and_those_that_it_is_in() -> None:
    """A Reshape without a name in the body of a Loop that has one."""
    graph = strangers.with_loop("going").model()
    loop = next(node for node in graph.graph.node if node.op_type == "Loop")
    body = next(item.g for item in loop.attribute if item.name == "body")
    body.node.insert(1, strangers.node("Reshape", ["m", "sizes"], "reshaped"))
    body.node[2].input[0] = "reshaped"
    graph.graph.initializer.append(numpy_helper.from_array(np.array([7, -1, 5]), "sizes"))
    runner = session(graph.SerializeToString(), exact_options(1), "graph")
    with pytest.raises(onnxruntime_errors()) as caught:
        runner.run(None, {"latents": np.zeros((1, 3, 4), np.float32), "timestep": np.zeros(1, np.float32)})
    found = run_reason(caught.value)
    assert found.startswith(f"a node Reshape in node {loop.name!r} (Loop): ")
    assert found.endswith("Input shape:{1,3,4}, requested shape:{7,-1,5}")
    assert "onnxruntime_src" not in found
