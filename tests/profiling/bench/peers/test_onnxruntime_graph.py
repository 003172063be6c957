"""A graph file in ONNX Runtime with default options against the built engine."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Built

from profiling.bench.baseline import decoder_inputs
from profiling.bench.peers.onnxruntime_graph import OnnxRuntimeGraph
from profiling.bench.session import open_session
from profiling.bench.workload import Workload
from runtime.base.errors import ShapeError
from runtime.engines.engine import run_once


def test_it_takes_and_gives_what_the_engine_does(built: Built) -> None:
    with open_session(built()) as session:
        inputs = decoder_inputs(session.engines, session.bundle, Workload(depth=2, frames=32, steps=4), rows=2)
        expected = run_once(session.engines.decoder, inputs)
        engine = session.engines.decoder
        graph = OnnxRuntimeGraph(session.bundle.graph_path(session.bundle.decoder.graph), threads=1)
    assert {name: info.dtype for name, info in graph.inputs.items()} == {
        name: info.dtype for name, info in engine.inputs.items()
    }
    found = run_once(graph, inputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() < 1e-5 < np.abs(values).max()
    with pytest.raises(ShapeError):
        run_once(graph, {name: array.astype(np.float64) for name, array in inputs.items()})
