"""What was exported from diffusers uses only operators, with types, that TensorRT's ONNX parser takes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers.tensorrt_operators import problems

from engine_build.precision.recipe import write_recipe

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16"])
def test_every_graph_is_taken_in_every_precision(bundle: Path, tmp_path: Path, recipe: str) -> None:
    found = {}
    for path in sorted(bundle.glob("*.onnx")):
        write_recipe(path, tmp_path / path.name, recipe)  # type: ignore[arg-type]
        found[path.stem] = list(problems(onnx.load(tmp_path / path.name)))
    assert found == {"codec_decode": [], "codec_encode": [], "text_encoder": [], "decoder": []}
