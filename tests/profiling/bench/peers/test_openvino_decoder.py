"""Graphs in OpenVINO against ONNX Runtime. Needs the extra `peers`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino", reason="needs pip install 'tickrt[peers]'")

from conftest import Built

from profiling.bench.baseline import decoder_inputs
from profiling.bench.peers.openvino_decoder import OpenVinoDecoder, OpenVinoGraph
from profiling.bench.session import open_session
from profiling.bench.workload import Workload
from runtime.base.errors import EngineError
from runtime.engines.engine import run_once


@pytest.mark.parametrize("threads", [0, 1])
def test_its_velocity_is_that_of_the_engine(built: Built, threads: int) -> None:
    load = Workload(depth=3, frames=32, steps=4)
    with open_session(built()) as session:
        inputs = decoder_inputs(session.engines, session.bundle, load, rows=3)
        output = session.bundle.decoder.outputs.velocity
        expected = run_once(session.engines.decoder, inputs)[output]
        graph = session.bundle.folder / session.bundle.decoder.graph
    decoder = OpenVinoDecoder(graph, inputs, output, threads)
    found = decoder.velocity()
    assert np.abs(expected).max() > 0.1
    assert np.abs(found - expected).max() < 1e-5
    assert decoder.time_ms(2) > 0.0


def test_a_graph_takes_shapes_as_they_come(built: Built) -> None:
    with open_session(built()) as session:
        graph = OpenVinoGraph(session.bundle.graph_path(session.bundle.decoder.graph), threads=1)
        engine = session.engines.decoder
        assert {name: info.dtype for name, info in graph.inputs.items()} == {
            name: info.dtype for name, info in engine.inputs.items()
        }
        for rows, frames in ((1, 32), (2, 16), (1, 32)):
            load = Workload(depth=rows, frames=frames, steps=4)
            inputs = decoder_inputs(session.engines, session.bundle, load, rows)
            expected, found = run_once(engine, inputs), run_once(graph, inputs)
            for name, values in expected.items():
                assert np.abs(found[name] - values).max() < 1e-5 < np.abs(values).max()


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "decoder.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match="does not take"):
        OpenVinoGraph(tmp_path / "decoder.onnx")
    with pytest.raises(EngineError, match="does not take"):
        OpenVinoDecoder(tmp_path / "decoder.onnx", {}, "velocity")
