"""[codec] of bundle.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_bundle

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
