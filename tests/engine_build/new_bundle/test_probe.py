"""What is measured by running the graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.building import build_engine
from helpers.factories import TinySpec, tiny_decoder
from helpers.graph_engine import GraphEngine

import tickrt
from engine_build.compile.builder import build
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.graphs.adapter_graph import adapter_graph
from engine_build.graphs.graph_file import Graph, graph_of, load_model, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.new_bundle.init import InitOptions, init, measured_text
from engine_build.new_bundle.probe import LIMIT, frame_counts, measured_codec
from engine_build.new_bundle.roles import NAMES, AssignedRole, codec_roles, decoder_roles
from engine_build.request import load_request
from runtime.audio.codec import Codec
from runtime.base.errors import ConfigError, TickError
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterSpec
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


C, HOP = 4, 10


def ints(w: GraphWriter, *values: int) -> str:
    return w.constant(list(values), np.int64)


def grouped(w: GraphWriter, x: str, group: int, *, pads: bool) -> str:
    """Each frame with the mean of its group. pads: any T is taken, filled up with zeros to whole groups."""
    count = w.op("Shape", x, start=1, end=2)
    if pads:
        rest = w.op("Mod", w.op("Neg", count), ints(w, group))
        x = w.op("Pad", x, w.op("Concat", ints(w, 0, 0, 0, 0), rest, ints(w, 0), axis=0))
    blocks = w.op("Reshape", x, ints(w, 0, -1, group, C))
    mixed = w.op("Add", blocks, w.op("ReduceMean", blocks, ints(w, 2)))
    flat = w.op("Reshape", mixed, ints(w, 0, -1, C))
    return w.op("Slice", flat, ints(w, 0), count, ints(w, 1)) if pads else flat


def reflected(w: GraphWriter, x: str, reach: int) -> str:
    """The mean of `reach` frames on each side, mirrored at the ends, which takes more than `reach` frames."""
    padded = w.op("Pad", x, ints(w, 0, reach, 0, 0, reach, 0), mode="reflect")
    kernel = w.constant(np.full((C, 1, 2 * reach + 1), 1 / (2 * reach + 1), np.float32), name="kernel")
    mean = w.op("Conv", w.op("Transpose", padded, perm=[0, 2, 1]), kernel, group=C)
    return w.op("Transpose", mean, perm=[0, 2, 1])


def of_kind(w: GraphWriter, x: str, kind: str) -> str:
    for part in kind.split(", "):
        name, _, number = part.partition(" ")
        if name == "mirrors":
            x = reflected(w, x, int(number))
        elif name != "plain":
            x = grouped(w, x, int(number), pads=name == "fills")
    return x


def codec_of(kind: str) -> onnx.ModelProto:
    """Tone per frame of what `of_kind` makes: [B, T, C] -> [B, 1, T * HOP]."""
    w = GraphWriter("codec_decode")
    x = of_kind(w, w.input("z", ("b", "t", C)), kind)
    weight = w.constant(np.random.default_rng(0).standard_normal((C, HOP)).astype(np.float32), name="w")
    w.output("audio", w.op("Reshape", w.op("Tanh", w.op("MatMul", x, weight)), ints(w, 0, 1, -1)), ("b", 1, "n"))
    return w.model()


def decoder_of(kind: str) -> onnx.ModelProto:
    w = GraphWriter("decoder")
    x, t = w.input("x", ("b", "t", C)), w.input("time", ("b",))
    v = w.op("Mul", of_kind(w, x, kind), w.op("Unsqueeze", t, ints(w, 1, 2)))
    w.output("v", v, ("b", "t", C))
    return w.model()


# Kind -> (multiple or alignment, shortest, least margin).
CODECS = {
    "plain": (1, 1, 0), "groups 3": (3, 3, 0), "groups 5": (5, 5, 0), "groups 7": (7, 7, 0), "groups 12": (12, 12, 0),
    "groups 20": (20, 20, 0), "fills 3": (3, 1, 0), "fills 5": (5, 1, 0), "fills 9": (9, 1, 0), "fills 12": (12, 1, 0),
    "mirrors 4": (1, 5, 4), "mirrors 9": (1, 10, 9), "mirrors 4, groups 3": (3, 6, 6),
}  # fmt: skip


@pytest.mark.parametrize("kind", CODECS)
def test_a_codecs_groups_shortest_and_margin_are_measured_and_windows_are_the_whole(kind: str, tmp_path: Path) -> None:
    align, shortest, margin = CODECS[kind]
    model = codec_of(kind)
    facts = measured_codec(graph_of(model), codec_roles(graph_of(model), C), C)
    assert (facts.align_frames, facts.shortest_frames, facts.hop_samples) == (align, shortest, HOP)
    assert facts.error < 1e-6
    assert facts.margin_frames == margin
    codec = codec_in(tmp_path, model)
    whole = np.random.default_rng(1).standard_normal((align * 20, C)).astype(np.float32)
    (expected,) = GraphEngine(model).run({"z": whole[None]}).values()
    for window_frames in (1, 7, 40):
        cutter = codec.window_cutter(window_frames, total_frames=len(whole))
        parts = [codec.decode_window(window) for window in cutter.cut(whole)]
        np.testing.assert_allclose(np.concatenate(parts), expected[0].T, atol=1e-5)
    for frames in range(1, 2 * shortest + 1):
        assert codec.decode(whole[:frames]).shape == (frames * HOP, 1)


def codec_in(folder: Path, model: onnx.ModelProto) -> Codec:
    """As init writes it."""
    onnx.save(decoder_of("plain"), folder / "model.onnx")
    onnx.save(model, folder / "codec.onnx")
    init(InitOptions(folder / "model.onnx", folder / "codec.onnx", folder, {}, None, 1000, force=False))
    return Codec(load_bundle(folder), GraphEngine(model))


DECODERS = {
    "plain": (1, 1), "groups 3": (3, 3), "groups 5": (5, 5), "groups 30": (30, 30), "fills 5": (1, 1),
    "mirrors 4": (1, 5), "mirrors 9, groups 5": (5, 10),
}  # fmt: skip


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoders_multiple_and_shortest_are_measured(kind: str) -> None:
    graph = graph_of(decoder_of(kind))
    assert frame_counts(graph, decoder_roles(graph, {}, lambda role, fitting: None)) == DECODERS[kind]


@pytest.mark.parametrize(
    ("decoder", "codec"), [("groups 5", "groups 3"), ("mirrors 4", "mirrors 9"), ("plain", "fills 5")]
)
def test_what_init_writes_is_built_and_makes_sound(decoder: str, codec: str, tmp_path: Path) -> None:
    onnx.save(decoder_of(decoder), tmp_path / "model.onnx")
    onnx.save(codec_of(codec), tmp_path / "codec.onnx")
    init(InitOptions(tmp_path / "model.onnx", tmp_path / "codec.onnx", tmp_path, {}, None, 1000, force=False))
    path = tmp_path / "deployment.toml"
    path.write_text(f'{path.read_text()}\n[build]\nstep_variants = ["plain"]\nthreads = 1\n')
    build(load_request(path))
    with tickrt.open(path) as made:
        for seconds in (0.1, 1.0):
            audio = made.generate(seconds=seconds, seed=1)
            assert len(audio.pcm) == round(seconds * audio.sample_rate_hz)


DECODER = tiny_decoder(TinySpec())
PLACES = [
    (value.name, axis)
    for value in (*DECODER.graph.input, *DECODER.graph.output)
    for axis in range(len(value.type.tensor_type.shape.dim))
]
# None: neither a size nor a name, as torch's exporter writes dimensions that it cannot name.
WRITTEN = (-1, 0, 3, 2**40, None, "frames", "a+b*2 ß")


def written(places: list[tuple[str, int]], size: int | str | None) -> onnx.ModelProto:
    """The decoder with this in some of its dimensions."""
    model = onnx.ModelProto()
    model.CopyFrom(DECODER)
    for value in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in places:
                dim.Clear()
                if size is not None:
                    setattr(dim, "dim_param" if isinstance(size, str) else "dim_value", size)
    return model


def built(model: onnx.ModelProto, folder: Path) -> str:
    """What is said of a model that init or build refuses; "" where its decoder was built."""
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, path)
    usual = ("hidden_states", "timestep", "context_latents", "encoder_hidden_states", "condition_mask")
    roles = dict(zip(list(NAMES)[1:], usual, strict=False))
    try:
        init(InitOptions(path, None, folder, roles, None, None, force=False))
        with (folder / "deployment.toml").open("a", encoding="utf-8") as file:
            file.write('[build]\nstep_variants = ["plain"]\nthreads = 1\n')
        request = load_request(folder / "deployment.toml")
        environment, engines = build_environment("cpu", request.options), request.deployment.engine_folder()
        with locked(engines):
            decoder = check_rebuilds(request, "cpu", environment=environment)[0]
            build_engine(decoder, request, engines, environment)
    except TickError as error:
        return f"{error.what}\n{error.fix}"
    assert request.deployment.max_rows >= 1
    return ""


@pytest.mark.parametrize("size", WRITTEN, ids=repr)
def test_any_dimension_of_any_tensor_builds_or_is_refused_in_words(size: int | str | None, tmp_path: Path) -> None:
    said = {place: built(written([place], size), tmp_path / "-".join(map(str, place))) for place in PLACES}
    is_dynamic = size in (None, "") or (isinstance(size, int) and size < 0)
    for (name, axis), text in said.items():
        if size == 0:
            assert f"'{name}' has size 0 in dimension {axis}" in text
        elif is_dynamic and axis < 2:
            assert not text, (name, axis, text)
        else:  # what was built needs no words
            assert text == "" or name in text, (name, axis, text)


@pytest.mark.parametrize("size", [-1, None], ids=repr)
def test_the_weights_of_adapters_have_as_many_rows_as_there_are(size: int | None, tmp_path: Path) -> None:
    onnx.save(written(PLACES, size), tmp_path / "model.onnx")
    matrices = {"in": {"weight": "w_in", "inputs": 8, "outputs": 16}}
    model = adapter_graph(load_model(tmp_path / "model.onnx"), AdapterSpec(matrices=matrices), "hidden_states")
    shapes = {info.name: info.shape for info in graph_of(model).inputs}
    assert shapes["adapter_weights"][0] == "adapter_weights.0"
    assert read_graph(tmp_path / "model.onnx").inputs[0].shape[0] == "hidden_states.0"
