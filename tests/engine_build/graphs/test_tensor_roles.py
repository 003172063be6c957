"""Roles against graphs: errors name the role, the tensor, and the graph's tensors."""

from __future__ import annotations

import pytest
from helpers.factories import TinySpec, tiny_decoder

from engine_build.graphs.graph_file import Graph, graph_of
from engine_build.specs.engine_spec import Port, check_free, check_ports
from runtime.base.errors import ConfigError

INPUTS = (
    Port("decoder.inputs.latents", "hidden_states", "RTC"),
    Port("decoder.inputs.time", "timestep", "R"),
    Port("decoder.inputs.condition", "encoder_hidden_states", "RLD"),
    Port("decoder.inputs.condition_mask", "condition_mask", "RL"),
    Port("decoder.inputs.context", "context_latents", "RTX"),
)
OUTPUTS = (Port("decoder.outputs.velocity", "velocity", "RTC"),)
KNOWN = {"C": 8, "X": 16}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(tiny_decoder(TinySpec()))


def changed(index: int, **fields: str) -> tuple[Port, ...]:
    ports = list(INPUTS)
    found = {"role": ports[index].role, "name": ports[index].name, "letters": ports[index].letters}
    ports[index] = Port(**{**found, **fields})
    return tuple(ports)


def test_fixed_sizes_of_the_graph_are_returned(graph: Graph) -> None:
    assert check_ports(graph, INPUTS, OUTPUTS, KNOWN) == {"C": 8, "X": 16, "D": 12}


def test_a_role_without_a_tensor_lists_the_graphs_own(graph: Graph) -> None:
    with pytest.raises(ConfigError) as caught:
        check_ports(graph, changed(0, name="latents"), OUTPUTS, KNOWN)
    found = str(caught.value)
    for part in ("decoder.inputs.latents names 'latents'", "hidden_states float32[rows, frames, 8]", "timestep"):
        assert part in found
    assert "bundle.toml" in caught.value.fix


def test_an_output_is_not_accepted_as_an_input(graph: Graph) -> None:
    with pytest.raises(ConfigError, match="not an input of"):
        check_ports(graph, changed(0, name="velocity"), OUTPUTS, KNOWN)


@pytest.mark.parametrize(
    ("ports", "known", "says"),
    [
        (changed(1, dtype="int64"), KNOWN, r"'timestep' \(decoder.inputs.time\) is float32, expected int64"),
        (changed(1, letters="RT"), KNOWN, r"'timestep'.* has shape \[rows\], expected \[rows, frames\]"),
        (INPUTS, {"C": 64, "X": 16}, r"\(latent channels\) is 8, expected 64"),
        (INPUTS, {"C": 8, "X": 8}, r"\(context channels\) is 16, expected 8"),
        (INPUTS[:-1], KNOWN, "the inputs context_latents, which have no role in bundle.toml"),
    ],
)
def test_a_role_that_does_not_match_is_refused(
    graph: Graph, ports: tuple[Port, ...], known: dict[str, int], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check_ports(graph, ports, OUTPUTS, known)


def test_an_output_without_a_role_is_refused(graph: Graph) -> None:
    with pytest.raises(ConfigError, match="the outputs velocity"):
        check_ports(graph, INPUTS, (), KNOWN)


def test_one_letter_has_one_size() -> None:
    model = tiny_decoder(TinySpec())
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 9
    with pytest.raises(ConfigError, match=r"output 'velocity'.*latent channels.* is 9, expected 8"):
        check_ports(graph_of(model), INPUTS, OUTPUTS, KNOWN)


def test_a_fixed_dimension_is_refused_for_a_range() -> None:
    model = tiny_decoder(TinySpec())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    fixed = graph_of(model)
    with pytest.raises(ConfigError, match=r"dimension 0 of 'hidden_states' \(rows\) is fixed at 1.*for 1\.\.8"):
        check_free(fixed, INPUTS, {"R": (1, 8)})
    check_free(fixed, INPUTS, {"R": (1, 1), "T": (2, 64)})
