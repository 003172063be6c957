"""The states of a generation: one feed per step, with every input of the decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from helpers.factories import SECOND_FAMILY, tiny_bundle

from engine_build.graphs.graph_file import read_graph
from engine_build.precision.sample_states import calibration_states, decoder_sample_states, middle
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


def test_a_generation_has_the_times_of_its_bundle_and_guidance_where_it_may(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny", **SECOND_FAMILY))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    first, second = decoder_sample_states(bundle, graph, steps=2, threads=1)
    names = bundle.decoder.inputs
    middle_time = 1 / (1 + np.exp(-2.1))
    np.testing.assert_allclose([first[names.time][0], second[names.time][0]], [1.0, middle_time], rtol=1e-6)
    runner = ort.InferenceSession(str(bundle.graph_path(bundle.decoder.graph)))
    velocity = runner.run(None, dict(first))[0][1]  # of the positive row
    expected = first[names.latents][1] + (middle_time - 1) * velocity
    np.testing.assert_allclose(second[names.latents][1], expected, atol=1e-5)


def test_the_states_are_the_same_every_time(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    first, second = (list(decoder_sample_states(bundle, graph, steps=2, threads=1)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])


def test_calibration_has_several_generations_that_continue_each_other(tmp_path: Path) -> None:
    """Other ones than those that errors are measured on."""
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph, names = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder.inputs
    states = list(calibration_states(bundle, graph, steps=2, threads=1))
    assert len(states) == 6
    assert names.context is not None
    first, second = states[0][names.context][0], states[2][names.context][0]
    half, channels = len(first) // 2, bundle.latents.channels
    assert (first[:, channels:] == 1).all()
    np.testing.assert_array_equal(second[:, channels] == 0, np.arange(len(second)) < half)
    assert not np.array_equal(first[:half, :channels], second[:half, :channels])
    measured = next(iter(decoder_sample_states(bundle, graph, steps=2, threads=1)))
    assert not np.array_equal(measured[names.latents], states[0][names.latents])


def test_prompts_are_cut_to_the_words_that_the_model_accepts(tmp_path: Path) -> None:
    """A token for each letter, and one for the null prompt, to which a first word that is too long is cut."""
    for limit, expected in ((32, [31, 31, 28]), (6, [1, 5, 5])):
        bundle = load_bundle(tiny_bundle(tmp_path / f"tiny-{limit}", max_tokens=limit))
        graph, names = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder.inputs
        assert names.condition is not None
        assert names.condition_mask is not None
        states = list(calibration_states(bundle, graph, steps=1, threads=1))
        assert [state[names.condition_mask].sum(axis=1).tolist() for state in states] == [[1, n] for n in expected]
        for state in states:
            null, positive = state[names.condition]
            assert not null[1:].any(), "padded"
            assert positive.any(axis=1).all()


def test_the_middle_of_a_state_is_one_too(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph, names = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder.inputs
    state = next(iter(calibration_states(bundle, graph, steps=1, threads=1)))
    whole, cut = state[names.latents], middle(bundle, state, 4)
    start = (whole.shape[1] - 4) // 2
    np.testing.assert_array_equal(cut[names.latents], whole[:, start : start + 4])
    assert {name for name in state if cut[name].shape != state[name].shape} == {names.latents, names.context}
    assert middle(bundle, state, 10**6)[names.latents].shape == whole.shape
