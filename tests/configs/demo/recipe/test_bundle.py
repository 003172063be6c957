"""A checkpoint becomes a whole bundle."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.export

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from configs.demo.recipe.bundle import export_bundle  # noqa: E402
from configs.demo.recipe.bundle_text import (  # noqa: E402
    ENCODER_FILE,
    SIZE_LIMIT_BYTES,
    bundle_size_bytes,
    read_bundle_file,
)
from configs.demo.recipe.codec.encoder import save_weights, weight_shapes  # noqa: E402
from configs.demo.recipe.structure import StructureTokenizer  # noqa: E402
from configs.demo.recipe.train import TrainConfig, Trainer  # noqa: E402
from runtime.config.bundle import load_bundle  # noqa: E402


def test_a_checkpoint_becomes_a_bundle(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: 0.02 * rng.standard_normal(shape) for name, shape in weight_shapes().items()}
    save_weights(tmp_path / ENCODER_FILE, weights)
    Trainer(TrainConfig(), StructureTokenizer()).save(tmp_path / "checkpoint.pt")
    export_bundle(tmp_path / "checkpoint.pt", tmp_path / "bundle")
    names = {file.name for file in (tmp_path / "bundle").iterdir()}
    assert names == {
        "bundle.toml",
        "codec_decode.onnx",
        "codec_encode.onnx",
        "structure_encode.onnx",
        "structure_decode.onnx",
        "timbre_encoder.onnx",
        "text_encoder.onnx",
        "decoder.onnx",
        "tokenizer.json",
        "meaning.json",
    }
    assert bundle_size_bytes(tmp_path / "bundle") < SIZE_LIMIT_BYTES
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.structure is not None
    assert bundle.structure.num_codes == 5**20
    assert bundle.adapters is not None
    assert "layers.0.self_attn.to_q" in bundle.adapters.matrices
    training = read_bundle_file(tmp_path / "bundle")["training"]
    assert training["steps"] == 0
    assert training["export_max_error"] < 1e-4
