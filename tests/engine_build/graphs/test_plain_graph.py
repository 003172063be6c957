"""Graphs of every form in the plain one, which ONNX Runtime gives the same results for."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.plain_graph import opset, plain
from runtime.base.errors import BuildError

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
