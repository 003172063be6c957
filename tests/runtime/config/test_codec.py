"""[codec] and [structure] of bundle.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_bundle
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.codec import WINDOW_FRAMES, CodecDecodeOutputs, CodecDecodeSpec, CodecDecodeTensors


def test_a_bundle_names_both_halves_and_their_tensors(tmp_path: Path) -> None:
    codec = load_bundle(tiny_bundle(tmp_path)).codec
    assert codec is not None
    assert codec.encode is not None
    assert (codec.decode.outputs.audio, codec.encode.inputs.audio) == ("audio", "audio")
    assert (codec.decode.inputs.latents, codec.encode.outputs.latents) == ("latents", "latents")


def test_a_window_is_bounded_where_the_bundle_does_not_say_so() -> None:
    inputs, outputs = CodecDecodeTensors(latents="latents"), CodecDecodeOutputs(audio="audio")
    spec = CodecDecodeSpec(graph="decode.onnx", inputs=inputs, outputs=outputs)
    assert (spec.window_frames, spec.margin_frames, spec.inputs.start_frame) == (WINDOW_FRAMES, 0, None)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("hop_samples = ", "hop_samples = -", "codec.hop_samples: expected at least 1"),
        ("gain_db = ", "gain_db = 99", "codec.gain_db: expected at most 24"),
        ('graph = "codec_decode.onnx"', "", "codec.decode.graph: is missing"),
    ],
)
def test_a_wrong_value_is_named(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path) / "bundle.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=says):
        load_bundle(path.parent)


def test_a_bundle_names_graphs_tensors_and_codes(tmp_path: Path) -> None:
    structure = load_bundle(tiny_bundle(tmp_path, structure=True)).structure
    assert structure is not None
    assert (structure.frames_per_code, structure.num_codes) == (FRAMES_PER_CODE, NUM_CODES)
    assert (structure.encode.inputs.latents, structure.decode.outputs.hints) == ("latents", "hints")
    assert [structure.num_codes_of(frames) for frames in (1, 3, 4)] == [1, 1, 2]
    assert [structure.codes_per_piece(frames) for frames in (1, 3, 32)] == [1, 1, 10]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("frames_per_code = 3", "frames_per_code = 0", "structure.frames_per_code: expected at least 1"),
        ('outputs = { codes = "codes" }', "outputs = {}", "structure.encode.outputs.codes"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tiny_bundle(tmp_path, structure=True) / "bundle.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_bundle(tmp_path)


def test_structure_needs_a_context(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[structure\] needs \[context\]"):
        load_bundle(tiny_bundle(tmp_path, structure=True, context=False))
