"""Numbers of frames that graphs take: groups of any length, shortest ones; what init writes is built and converts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.graph_engine import GraphEngine

import tickrt
from engine_build.compile.builder import build
from engine_build.graphs.graph_file import graph_of
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.new_bundle.init import InitOptions, init
from engine_build.new_bundle.probe import frame_counts, measured_codec
from engine_build.new_bundle.roles import codec_roles, decoder_roles
from engine_build.request import load_request
from runtime.audio.codec import Codec
from runtime.config.bundle import load_bundle
from runtime.config.codec import CodecDecodeOutputs, CodecDecodeSpec, CodecDecodeTensors

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


def test_margins_too_small_for_the_shortest_are_refused() -> None:
    roles = {"inputs": CodecDecodeTensors(latents="z"), "outputs": CodecDecodeOutputs(audio="a"), "graph": "codec.onnx"}
    assert CodecDecodeSpec(**roles, align_frames=3).window_frames == 255  # type: ignore[arg-type]
    fine = CodecDecodeSpec(**roles, margin_frames=6, align_frames=3, shortest_frames=8)  # type: ignore[arg-type]
    assert [fine.missing(frames) for frames in (1, 8, 9, 10)] == [8, 1, 0, 2]
    with pytest.raises(ValueError, match="is shorter than shortest_frames 10"):
        CodecDecodeSpec(**roles, margin_frames=6, align_frames=3, shortest_frames=10)  # type: ignore[arg-type]
