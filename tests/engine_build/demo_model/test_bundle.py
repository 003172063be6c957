"""A checkpoint becomes a whole bundle."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.export

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from engine_build.demo_model.bundle import export_bundle  # noqa: E402
from engine_build.demo_model.bundle_text import bundle_size_bytes, read_bundle_file  # noqa: E402
from engine_build.demo_model.train import TrainConfig, Trainer  # noqa: E402


def test_a_checkpoint_becomes_a_bundle(tmp_path: Path) -> None:
    Trainer(TrainConfig()).save(tmp_path / "checkpoint.pt")
    export_bundle(tmp_path / "checkpoint.pt", tmp_path / "bundle")
    names = {file.name for file in (tmp_path / "bundle").iterdir()}
    assert names == {
        "bundle.toml",
        "codec_decode.onnx",
        "codec_encode.onnx",
        "text_encoder.onnx",
        "decoder.onnx",
        "tokenizer.json",
    }
    assert bundle_size_bytes(tmp_path / "bundle") < 16 * 2**20
    training = read_bundle_file(tmp_path / "bundle")["training"]
    assert training["steps"] == 0
    assert training["export_max_error"] < 1e-5
