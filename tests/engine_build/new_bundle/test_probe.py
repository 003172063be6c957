"""What is measured by running the graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_codec_decode, tiny_decoder

from engine_build.graphs.graph_file import Graph, graph_of
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.new_bundle.probe import CodecFacts, codec_facts, frame_multiple
from engine_build.new_bundle.roles import AssignedRole, codec_roles, decoder_roles
from runtime.engines.manifest import TensorInfo
from runtime.errors import ConfigError


def never(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
    raise AssertionError(role)


def roles_of(made: Graph) -> dict[str, AssignedRole]:
    return decoder_roles(made, {}, never)


def in_blocks(size: int, frames: int | str = "l") -> Graph:
    """A decoder that takes its latents in blocks of `size` frames."""
    writer = GraphWriter("g")
    latents, _ = writer.input("x", ("n", frames, 4)), writer.input("t", ("n",))
    blocks = writer.op("Reshape", latents, writer.constant([0, -1, size, 4], np.int64))
    writer.output("v", writer.op("Reshape", blocks, writer.constant([0, -1, 4], np.int64)), ("n", frames, 4))
    return graph_of(writer.model())


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_frame_multiple_is_found_by_running(size: int) -> None:
    assert frame_multiple(in_blocks(size), roles_of(in_blocks(size))) == size


def test_a_fixed_length_needs_no_multiple() -> None:
    made = in_blocks(8, frames=16)
    assert frame_multiple(made, roles_of(made)) == 1


@pytest.mark.parametrize("condition", ["", "vector", "tokens"])
def test_every_input_is_fed(condition: str) -> None:
    made = graph_of(tiny_decoder(TinySpec(condition=condition, mask=condition == "tokens", axes=("", "", ""))))
    assert frame_multiple(made, roles_of(made)) == 1


def test_an_output_of_another_length_is_refused() -> None:
    writer = GraphWriter("g")
    latents, _ = writer.input("x", ("n", "l", 4)), writer.input("t", ("n",))
    writer.output("v", writer.op("Concat", latents, latents, axis=1), ("n", "m", 4))
    made = graph_of(writer.model())
    roles = {**roles_of(in_blocks(1)), "velocity": AssignedRole("velocity", made.outputs[0], "given")}
    with pytest.raises(ConfigError, match=r"not a velocity decoder: of latents \[1, 1, 4\] it makes shape \[1, 2, 4\]"):
        frame_multiple(made, roles)


def test_a_graph_that_does_not_run_is_refused_with_the_cause() -> None:
    made = in_blocks(128)
    with pytest.raises(ConfigError, match=r"does not run with x \[1, 1, 4\].*Reshape"):
        frame_multiple(made, roles_of(made))


def test_a_codecs_hop_and_receptive_field_are_measured() -> None:
    made = graph_of(tiny_codec_decode(TinySpec()))
    assert codec_facts(made, codec_roles(made, 8), 8) == CodecFacts(2, 320, 1)
