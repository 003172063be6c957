"""CPU sessions over graphs: exact options, external data, errors of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import strangers_graphs as strangers
from onnx import numpy_helper

from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import graph_of, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.reference_session import (
    exact_options,
    graph_session,
    model_of,
    onnxruntime_errors,
    run_reason,
    session,
)
from runtime.base.errors import BuildError


def product() -> onnx.ModelProto:
    """y = 2 x, as a matrix product."""
    graph = GraphWriter("product")
    x = graph.input("x", ("rows", 32))
    graph.output("y", graph.op("MatMul", x, graph.constant(2 * np.eye(32), name="weight")), ("rows", 32))
    return graph.model()


def test_graphs_in_memory_and_in_files_run(tmp_path: Path) -> None:
    path = tmp_path / "product.onnx"
    onnx.save(product(), path, save_as_external_data=True, location="product.data", size_threshold=64)
    x = np.ones((3, 32), np.float32)
    for graph in (graph_of(product()), read_graph(path)):
        (y,) = graph_session(graph, BuildConfig(threads=1)).run(None, {"x": x})
        np.testing.assert_array_equal(y, 2 * x)


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
