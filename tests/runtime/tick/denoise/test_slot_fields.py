"""The table of a tick's tensors agrees with the graphs that read them and with the requests that fill them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from engine_build.graphs.step_graph import rows_graph, step_graph
from runtime.config.sampler import APG, GuidanceSpec
from runtime.tick.denoise.slot_fields import (
    ADAPTERS,
    FIELDS,
    LAYOUT,
    ROWS_FEATURES,
    STATES,
    STEP_FEATURES,
    TENSORS,
    TickTensor,
    rows_inputs,
    step_inputs,
    written_states,
)

C = 4
SIZES = {"S": 3, "R": 3, "T": 6, "C": C, "K": 1, "N": 1, "B": 3, "1": 1}
STEP_VARIANTS = [
    frozenset(chosen)
    for size in (0, 1, 2, len(STEP_FEATURES))
    for chosen in combinations(sorted(STEP_FEATURES), size)
    if not {"rcfg", "rescale"} & {*chosen} or "guidance" in chosen
]
RULES = (APG, GuidanceSpec(rule="plain"))
ROWS_VARIANTS = [frozenset(chosen) for size in range(3) for chosen in combinations(sorted(ROWS_FEATURES), size)]


def read_inputs(graph: onnx.GraphProto) -> set[str]:
    """The inputs of a graph that a node or an output takes."""
    used = {name for node in graph.node for name in node.input}
    return used & {value.name for value in graph.input}


def as_text(features: frozenset[str]) -> str:
    return "+".join(sorted(features)) or "plain"


@pytest.mark.parametrize("guidance", RULES, ids=str)
@pytest.mark.parametrize("features", STEP_VARIANTS, ids=as_text)
def test_the_step_graph_reads_exactly_the_tables_inputs(features: frozenset[str], guidance: GuidanceSpec) -> None:
    graph = step_graph(C, features, guidance=guidance).graph
    names = [tensor.name for tensor in step_inputs(features, guidance.rule)]
    assert [value.name for value in graph.input] == names
    assert read_inputs(graph) == set(names)


@pytest.mark.parametrize("features", ROWS_VARIANTS, ids=as_text)
def test_the_rows_graph_reads_exactly_the_tables_inputs(features: frozenset[str]) -> None:
    graph = rows_graph(C, features).graph
    names = [tensor.name for tensor in rows_inputs(features)]
    assert [value.name for value in graph.input] == names
    assert read_inputs(graph) == set(names)


def test_every_tensor_is_an_input_of_a_graph() -> None:
    read = {tensor.name for tensor in (*step_inputs(STEP_FEATURES), *rows_inputs(ROWS_FEATURES))}
    assert read | ADAPTERS.keys() == {tensor.name for tensor in TENSORS}


def test_names_are_unique_and_every_tensor_is_of_one_kind() -> None:
    kinds = (FIELDS, STATES, LAYOUT, ADAPTERS)
    assert sum(map(len, kinds)) == len({tensor.name for tensor in TENSORS}) == len(TENSORS)


@pytest.mark.parametrize("guidance", RULES, ids=str)
@pytest.mark.parametrize("features", STEP_VARIANTS, ids=as_text)
def test_written_states_are_the_step_graphs_state_outputs(features: frozenset[str], guidance: GuidanceSpec) -> None:
    outputs = [value.name for value in step_graph(C, features, guidance=guidance).graph.output]
    written = written_states(features, guidance.rule)
    assert {f"next_{name}" for name in written} == {o for o in outputs if o != "finite"}
    assert written[0] == "latents"


def test_without_blend_a_slot_has_one_row_of_each_side() -> None:
    shapes = {tensor.name: tensor.shape(C) for tensor in step_inputs({"guidance"})}
    assert (shapes["positive_rows"], shapes["negative_rows"]) == (("slots", 1), ("slots", 1))


def neutral_rows(tensor: TickTensor) -> np.ndarray[Any, Any]:
    return np.full([SIZES[letter] for letter in tensor.letters], tensor.neutral, tensor.dtype)


@pytest.mark.parametrize("features", [f for f in STEP_VARIANTS if f and "blend" not in f], ids=as_text)
def test_neutral_rows_change_nothing(features: frozenset[str]) -> None:
    random = np.random.default_rng(1)

    def feeds(chosen: frozenset[str]) -> dict[str, Any]:
        found = {tensor.name: neutral_rows(tensor) for tensor in step_inputs(chosen)}
        rows = np.arange(3)[:, None]
        found |= {name: rows for name in ("positive_rows", "negative_rows") if name in found}
        return {**found, "latents": latents, "velocity": velocity, "time": time, "next_time": time - np.float32(0.1)}

    latents, velocity = (random.standard_normal((3, 6, C)).astype(np.float32) for _ in range(2))
    time = np.array([0.9, 0.5, 0.2], np.float32)
    plain, found = (
        ort.InferenceSession(step_graph(C, chosen).SerializeToString()).run(["next_latents"], feeds(chosen))[0]
        for chosen in (frozenset[str](), features)
    )
    np.testing.assert_allclose(found, plain, atol=1e-5)
