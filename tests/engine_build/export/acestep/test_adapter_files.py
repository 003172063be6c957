"""Files that diffusers and PEFT write, read as the runtime reads them; run as a program, writes tests/data/adapters."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.adapters import check_deltas
from helpers.tiny_acestep import tiny_transformer

pytestmark = pytest.mark.export
MODULES = [f"layers.0.self_attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")]
SEED = 5


def write_files(folder: Path) -> None:
    """peft/, diffusers.safetensors, and what each changes the weights `[out, in]` by, as PEFT computes it."""
    import torch
    from diffusers import AceStepPipeline
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    torch.manual_seed(SEED)
    config = LoraConfig(r=4, lora_alpha=6, target_modules=MODULES, rank_pattern={"to_k": 2}, alpha_pattern={"to_v": 3})
    model = get_peft_model(tiny_transformer(turbo=False), config)
    layers = {name: model.base_model.model.get_submodule(name) for name in MODULES}
    for layer in layers.values():
        torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.2)
    model.save_pretrained(folder / "peft")
    state = get_peft_model_state_dict(model)
    AceStepPipeline.save_lora_weights(
        folder / "diffusers",
        {name.removeprefix("base_model.model."): values for name, values in state.items()},
        transformer_lora_adapter_metadata=config.to_dict(),
    )
    found = {name: layer.get_delta_weight("default").detach().numpy() for name, layer in layers.items()}
    np.savez(folder / "deltas.npz", **found)


def test_what_they_write_is_read_with_the_scale_that_peft_computes(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    write_files(tmp_path)
    check_deltas(tmp_path)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
