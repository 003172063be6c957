"""The peak memory of an export: at most 1.3 times its largest part in float32, over an export of nearly nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.export_memory import peak_bytes
from helpers.tiny_acestep import TRANSFORMER, save_checkpoint

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak memory is read from /proc"),
]

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

WIDE = {
    **TRANSFORMER,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def test_an_export_needs_little_more_than_its_largest_part(tmp_path: Path) -> None:
    tiny = save_checkpoint(tmp_path / "tiny", encoder=False, text=False)
    large = save_checkpoint(tmp_path / "large", encoder=False, text=False)
    for file in (large / "transformer").iterdir():
        file.unlink()
    transformer: Any = diffusers.AceStepTransformer1DModel(**WIDE).to(torch.bfloat16)
    transformer.save_pretrained(large / "transformer", max_shard_size="40MB")
    weights_bytes = 4 * sum(parameter.numel() for parameter in transformer.parameters())
    assert weights_bytes > 200e6
    assert len(list((large / "transformer").glob("*.safetensors"))) > 2
    more_bytes = peak_bytes("acestep", large, tmp_path / "b") - peak_bytes("acestep", tiny, tmp_path / "a")
    print(f"{more_bytes / weights_bytes:.2f} times the weights")
    assert more_bytes < 1.3 * weights_bytes
