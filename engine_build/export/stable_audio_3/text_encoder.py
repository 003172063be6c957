"""Text and length -> condition tokens in one graph: T5Gemma, the duration embedder, and the learned padding."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from engine_build.export.stable_audio_3.decoder import OPSET, DurationEmbedder
from engine_build.export.torch_export import export_graph, free

INPUT_NAMES: Final = ("input_ids", "attention_mask", "seconds")
OUTPUT_NAMES: Final = ("condition", "condition_mask")
MAX_BATCH: Final = 64


class TextEncoderModule(nn.Module):
    """Token 0 is the duration; the text's tokens follow, and padding up to `max_tokens` of them.

    The transformer attends to padding as to text. It knows no order of tokens, so it does not matter on which side of
    the text padding is.
    """

    def __init__(self, text_encoder: nn.Module, duration_embedder: nn.Module, padding: Tensor, max_tokens: int) -> None:
        super().__init__()
        self.text_encoder, self.duration_embedder = text_encoder, DurationEmbedder(duration_embedder)
        self.max_tokens = max_tokens
        self.register_buffer("padding", padding)  # [D]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, seconds: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 `[B, L]`, seconds f32 `[B]` -> condition `[B, 1 + max_tokens, D]`, its mask of ones."""
        bias = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        # A text is shorter than the sliding window of every other layer.
        biases = {"full_attention": bias, "sliding_attention": bias}
        hidden = self.text_encoder(input_ids=input_ids, attention_mask=biases)[0]  # [B, L, D]
        text = torch.where(attention_mask[..., None] > 0, hidden, self.padding)
        padding = self.padding.expand(text.shape[0], self.max_tokens, -1)
        padded = torch.cat((text, padding), dim=1).narrow(1, 0, self.max_tokens)
        condition = torch.cat((self.duration_embedder(seconds)[:, None], padded), dim=1)
        return condition, torch.ones_like(condition[..., 0])


def export_text_encoder(module: TextEncoderModule, file: Path) -> None:
    """Write the graph; texts B and tokens L are free."""
    batch, tokens = free("batch", MAX_BATCH), free("tokens")
    export_graph(
        module,
        file,
        tuple(text_inputs(2, 7).values()),
        inputs=INPUT_NAMES,
        outputs=OUTPUT_NAMES,
        dynamic_shapes=({0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: batch}),
        opset=OPSET,
    )


def text_inputs(texts: int, tokens: int) -> dict[str, Tensor]:
    """Ids below 30, texts of different lengths, and lengths in seconds, by name."""
    ids = torch.arange(texts * tokens).reshape(texts, tokens) * 7 % 30
    mask = (torch.arange(tokens) <= torch.arange(texts)[:, None] + tokens // 2).long()
    values = (ids, mask, torch.linspace(10.0, 100.0, texts))
    return dict(zip(INPUT_NAMES, values, strict=True))
