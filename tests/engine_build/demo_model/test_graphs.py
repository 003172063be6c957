"""The graph writer."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, checker

from engine_build.demo_model.graphs import GraphWriter


def test_a_written_graph_runs() -> None:
    writer = GraphWriter("double")
    value = writer.input("x", TensorProto.FLOAT, ("n",))
    writer.output("y", writer.node("Mul", value, writer.constant(2.0, np.float32)), TensorProto.FLOAT, ("n",))
    session = ort.InferenceSession(writer.model().SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.array([1.0, 3.0], np.float32)})[0].tolist() == [2.0, 6.0]


def test_a_wrong_graph_is_refused() -> None:
    writer = GraphWriter("wrong")
    writer.output("y", writer.node("Relu", "nothing"), TensorProto.FLOAT, ("n",))
    with pytest.raises(checker.ValidationError):
        writer.model()
