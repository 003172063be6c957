"""The states of a generation: one feed per step, with every input of the decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.factories import tiny_bundle

from engine_build.graphs.graph_file import read_graph
from engine_build.precision.sample_states import decoder_sample_states
from runtime.config.bundle import load_bundle


@pytest.mark.parametrize("changes", [{}, {"text_encoder": False}, {"mask": False, "context": False}])
def test_every_step_has_all_inputs(tmp_path: Path, changes: dict[str, bool]) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny", **changes))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    states = list(decoder_sample_states(bundle, graph, steps=3, threads=1))
    assert len(states) == 3
    for state in states:
        assert set(state) == {info.name for info in graph.inputs}
        assert all(len(values) == 2 for values in state.values()), "a positive and a negative row"
    times = [float(state[bundle.decoder.inputs.time][0]) for state in states]
    assert times == sorted(times, reverse=True)
    first, last = (state[bundle.decoder.inputs.latents] for state in (states[0], states[-1]))
    assert not np.array_equal(first, last)


def test_the_states_are_the_same_every_time(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    first, second = (list(decoder_sample_states(bundle, graph, steps=2, threads=1)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])
