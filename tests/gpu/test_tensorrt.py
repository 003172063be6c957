"""TensorRT engines on a real GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from helpers.engine_behaviour import *  # noqa: F403  (tests that every TensorRT engine passes)
from helpers.engine_behaviour import CLOSE, Bench, feeds_of
from simulator.plans import small_graph

from runtime.base.errors import EngineError
from runtime.devices.cuda import probe

pytestmark = pytest.mark.gpu


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    try:
        probe()
    except EngineError as error:
        pytest.skip(str(error))
    pytest.importorskip("tensorrt", exc_type=ImportError)
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_an_engine_agrees_with_onnx_runtime(bench: Bench) -> None:
    engine = bench.build(in_tick=False)
    session = onnxruntime.InferenceSession(small_graph().SerializeToString(), providers=["CPUExecutionProvider"])
    for rows, frames in ((1, 1), (2, 8), (4, 16)):
        feeds = feeds_of(rows, frames)
        found = engine.run(feeds)
        for name, wanted in zip(("y", "positive"), session.run(["y", "positive"], feeds), strict=True):
            np.testing.assert_allclose(found[name], wanted, **CLOSE)


def test_a_profile_names_layers(bench: Bench) -> None:
    engine = bench.build(verbosity="DETAILED", in_tick=False)
    nodes = engine.profile(feeds_of(2, 8), 5)
    assert nodes
    assert all(len(node.runs_ms) == 5 for node in nodes)
    assert sum(node.runs_ms[-1] for node in nodes) > 0
