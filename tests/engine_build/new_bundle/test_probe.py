"""What is measured by running the graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.factories import TinySpec, tiny_codec_decode, tiny_decoder

from engine_build.graphs.graph_file import Graph, graph_of
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.new_bundle.init import measured_text
from engine_build.new_bundle.probe import LIMIT, CodecFacts, frame_counts, measured_codec
from engine_build.new_bundle.roles import AssignedRole, codec_roles, decoder_roles
from runtime.base.errors import ConfigError
from runtime.engines.manifest import TensorInfo


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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 7, 60])
def test_the_frame_multiple_is_found_by_running(size: int) -> None:
    assert frame_counts(in_blocks(size), roles_of(in_blocks(size))) == (size, size)


def test_a_fixed_length_needs_no_multiple() -> None:
    made = in_blocks(8, frames=16)
    assert frame_counts(made, roles_of(made)) == (1, 1)


@pytest.mark.parametrize("condition", ["", "vector", "tokens"])
def test_every_input_is_fed(condition: str) -> None:
    made = graph_of(tiny_decoder(TinySpec(condition=condition, mask=condition == "tokens", axes=("", "", ""))))
    assert frame_counts(made, roles_of(made)) == (1, 1)


def test_an_output_of_another_length_is_refused() -> None:
    writer = GraphWriter("g")
    latents, _ = writer.input("x", ("n", "l", 4)), writer.input("t", ("n",))
    writer.output("v", writer.op("Concat", latents, latents, axis=1), ("n", "m", 4))
    made = graph_of(writer.model())
    roles = {**roles_of(in_blocks(1)), "velocity": AssignedRole("velocity", made.outputs[0], "given")}
    with pytest.raises(ConfigError, match=r"not a velocity decoder: of latents \[1, 1, 4\] it makes shape \[1, 2, 4\]"):
        frame_counts(made, roles)


def test_a_graph_that_does_not_run_is_refused_with_the_cause() -> None:
    made = in_blocks(128)
    with pytest.raises(ConfigError, match=r"does not run with x \[1, 1, 4\].*Reshape"):
        frame_counts(made, roles_of(made))


def test_a_codecs_hop_and_receptive_field_are_measured() -> None:
    made = graph_of(tiny_codec_decode(TinySpec()))
    assert measured_codec(made, codec_roles(made, 8), 8) == CodecFacts(2, 320, reach_frames=1, margin_frames=1)


def test_a_codec_in_groups_has_an_alignment() -> None:
    made = graph_of(tiny_codec_decode(TinySpec(group_frames=2)))
    found = measured_codec(made, codec_roles(made, 8), 8)
    assert (found.reach_frames, found.margin_frames, found.align_frames) == (2, 2, 2)
    assert found.error < 1e-6


def attending(reach: float) -> Graph:
    """Attention whose weights fall with the distance of two frames, by e every `reach`: every frame changes all."""
    writer = GraphWriter("g")
    latents = writer.input("x", ("b", "t", 4))
    count = writer.op("Gather", writer.op("Shape", latents), writer.constant(1, np.int64))
    frames = writer.op("Range", writer.constant(0, np.int64), count, writer.constant(1, np.int64))
    place = writer.op("Cast", frames, to=1)
    columns, rows = (writer.op("Unsqueeze", place, writer.constant([axis], np.int64)) for axis in (0, 1))
    distance = writer.op("Abs", writer.op("Sub", columns, rows))  # [T, T]
    weights = writer.op("Softmax", writer.op("Mul", distance, writer.constant(-1 / reach)), axis=-1)
    audio = writer.op("Transpose", writer.op("MatMul", weights, latents), perm=[0, 2, 1])
    writer.output("y", audio, ("b", 4, "t"))
    return graph_of(writer.model())


def test_the_margin_of_attention_is_where_its_error_falls_below_the_limit() -> None:
    made = attending(0.5)
    found = measured_codec(made, codec_roles(made, 4), 4)
    # What lies beyond a margin m has about the share exp(-(m + 1) / 0.5) of a frame, 1e-5 for m near 5.
    assert found.margin_frames in (4, 5, 6)
    assert found.margin_frames < found.reach_frames
    assert found.align_frames == 1
    assert 0 < found.error <= LIMIT
    said = f"windows with {found.margin_frames} frames on each side differ from the whole by"
    assert said in measured_text(found)
    assert "heard" not in measured_text(found)


def test_a_codec_that_has_no_windows_tells_by_how_much_they_differ() -> None:
    made = attending(1000.0)
    found = measured_codec(made, codec_roles(made, 4), 4)
    assert found.error > 0.01
    assert "of its peak, which is heard" in measured_text(found)


def conditioned(kind: str, axes: Sequence[int | str]) -> Graph:
    """A decoder with tokens `c` and `m`, which is their mask, or a second condition, or nothing that is used."""
    w = GraphWriter("g")
    x, t, c, m = (w.input(n, s) for n, s in (("x", ("b", "t", 4)), ("t", ("b",)), ("c", axes), ("m", axes[:2])))
    weights = w.op("Unsqueeze", m, w.constant([2], np.int64))
    if kind == "mask":
        tokens = w.op("ReduceMean", w.op("Mul", c, weights), w.constant([1], np.int64))
    else:
        pooled = w.op("ReduceMean", w.op("Tanh", weights), w.constant([1, 2], np.int64))
        tokens = w.op("Add", w.op("ReduceMean", c, w.constant([1], np.int64)), pooled)
    tokens = w.op("MatMul", tokens, w.constant(np.ones((5, 4), np.float32)))
    velocity = w.op("Add", w.op("Mul", x, w.op("Unsqueeze", t, w.constant([1, 2], np.int64))), tokens)
    w.output("v", velocity, ("b", "t", 4))
    return graph_of(w.model())


@pytest.mark.parametrize("axes", [("b", "l", 5), ("", "", 5), ("b", 6, 5)])
def test_a_mask_is_what_leaves_tokens_out(axes: Sequence[int | str]) -> None:
    made = conditioned("mask", axes)
    assert frame_counts(made, roles_of(made)) == (1, 1)
    made = conditioned("a second condition", axes)
    with pytest.raises(ConfigError, match=r"'m' has the shape of a condition mask.*it is no mask") as caught:
        frame_counts(made, roles_of(made))
    assert "one condition, to which a second one is joined" in caught.value.fix


@pytest.mark.parametrize("is_tokens", [True, False])
def test_a_context_is_as_long_as_the_latents(is_tokens: bool) -> None:
    w = GraphWriter("g")
    x, t, context = w.input("x", ("b", "t", 4)), w.input("t", ("b",)), w.input("encoder_context", ("b", "l", 8))
    first = w.op("Slice", context, w.constant([0], np.int64), w.constant([4], np.int64), w.constant([2], np.int64))
    if is_tokens:
        first = w.op("ReduceMean", first, w.constant([1], np.int64))
    w.output("v", w.op("Add", w.op("Add", x, first), w.op("Unsqueeze", t, w.constant([1, 2], np.int64))), ("b", "t", 4))
    made = graph_of(w.model())
    if not is_tokens:
        assert frame_counts(made, roles_of(made)) == (1, 1)
        return
    with pytest.raises(
        ConfigError, match=r"'encoder_context'.*but may be longer than the latents: it is tokens"
    ) as caught:
        frame_counts(made, roles_of(made))
    found = decoder_roles(made, {"condition": "encoder_context"}, never)
    assert caught.value.fix == "--role condition=encoder_context"
    assert frame_counts(made, found) == (1, 1)


def test_a_number_of_frames_is_no_position() -> None:
    w = GraphWriter("g")
    x, length = w.input("z", ("b", "t", 4)), w.input("length", ("b",), np.int64)
    count = w.op("Gather", w.op("Shape", x), w.constant(1, np.int64))
    place = w.op("Range", w.constant(0, np.int64), count, w.constant(1, np.int64))
    inside = w.op("Cast", w.op("Less", place, w.op("Unsqueeze", length, w.constant([1], np.int64))), to=1)
    audio = w.op("Mul", x, w.op("Unsqueeze", inside, w.constant([2], np.int64)))
    w.output("audio", w.op("Transpose", audio, perm=[0, 2, 1]), ("b", 4, "t"))
    made = graph_of(w.model())
    with pytest.raises(
        ConfigError, match=r"'length' has the shape of a start_frame.*with 0 in it the audio is silence"
    ):
        measured_codec(made, codec_roles(made, 4), 4)
