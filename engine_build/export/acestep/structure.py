"""ACE-Step's 5 Hz structure as two graphs: latents -> codes (audio tokenizer), codes -> hints (detokenizer)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine_build.export.torch_export import export_graph, free, graph_error, module_outputs, open_without_copies, quiet
from runtime.base.errors import BuildError

MAX_BATCH: Final = 64
EXAMPLE_CODES: Final = 3
CHECKED_CODES: Final = 40
# The share of codes that may differ between torch and ONNX Runtime: values at the limit between two levels.
MAX_UNEQUAL: Final = 0.05


class LatentsToCodes(nn.Module):
    """The audio tokenizer's indices; its patches do not see each other."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer, self.frames = tokenizer, int(tokenizer.pool_window_size)

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, Q * frames, C]` -> codes int64 `[B, Q]`."""
        indices: Tensor = self.tokenizer(latents.unflatten(1, (-1, self.frames)))[1]
        return indices[..., 0]


class CodesToHints(nn.Module):
    """The quantizer's output for codes, and the detokenizer. A table has the digits of every code, so that the graph
    needs no integer division."""

    def __init__(self, quantizer: Any, detokenizer: nn.Module) -> None:
        super().__init__()
        self.project_out, self.detokenizer = quantizer.project_out, detokenizer
        every_code = torch.arange(quantizer.codebook_size)[:, None]
        self.register_buffer("digits", quantizer.get_codes_from_indices(every_code)[0].flatten(0, -2))

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 `[B, Q]` -> hints `[B, Q * frames, C]`."""
        hints: Tensor = self.detokenizer(self.project_out(nn.functional.embedding(codes, self.digits)))
        return hints


def export_codes(tokenizer: Any, file: Path) -> dict[str, int]:
    """Write latents -> codes; returns the entries of `[structure]`. Raises BuildError where the graph differs."""
    quantizers = int(tokenizer.quantizer.num_quantizers)
    if quantizers != 1:
        raise BuildError(f"the audio tokenizer has {quantizers} quantizers, expected 1 code per step")
    module = LatentsToCodes(tokenizer).eval()
    channels = tokenizer.audio_acoustic_proj.in_features
    codes = free("codes")
    export_graph(
        module,
        file,
        (torch.zeros(2, EXAMPLE_CODES * module.frames, channels),),
        inputs=["latents"],
        outputs=["codes"],
        dynamic_shapes=({0: free("batch", MAX_BATCH), 1: module.frames * codes},),
        dimensions={f"{module.frames}*codes": "frames"},
    )
    latents = torch.randn(1, CHECKED_CODES * module.frames, channels, generator=torch.Generator().manual_seed(0))
    with quiet(), torch.no_grad():
        expected = module(latents).numpy()
    unequal = float((open_without_copies(file).run(None, {"latents": latents.numpy()})[0] != expected).mean())
    if unequal > MAX_UNEQUAL:
        raise BuildError(f"{file.name}: {unequal:.0%} of the codes differ from those of its module")
    return {"frames_per_code": module.frames, "num_codes": int(tokenizer.quantizer.codebook_size)}


def export_hints(quantizer: Any, detokenizer: nn.Module, file: Path) -> float:
    """Write codes -> hints; returns the largest difference from its module."""
    module = CodesToHints(quantizer, detokenizer).eval()
    export_graph(
        module,
        file,
        (torch.zeros(2, EXAMPLE_CODES, dtype=torch.int64),),
        inputs=["codes"],
        outputs=["hints"],
        dynamic_shapes=({0: free("batch", MAX_BATCH), 1: free("codes")},),
    )
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(quantizer.codebook_size, (1, CHECKED_CODES), generator=generator)
    examples = [{"codes": codes}]
    return graph_error(file, examples, module_outputs(module, examples))
