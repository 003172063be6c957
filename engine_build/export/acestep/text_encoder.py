"""Text -> condition tokens, as ACE-Step's pipeline makes them for text2music, with no lyrics and no reference audio.

The pipeline packs lyrics, timbre and text, in this order. Without lyrics and reference the first two are constant, so
they are computed once and are a prefix in the graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from diffusers import AceStepPipeline
from torch import Tensor, nn

from engine_build.export.torch_export import export_graph, free, quiet
from runtime.config.bundle import PROMPT, SECONDS

INPUT_NAMES: Final = ("input_ids", "attention_mask")
OUTPUT_NAMES: Final = ("condition", "condition_mask")
MAX_BATCH: Final = 64
# The pipeline's own limits: tokens of a text with its template, and seconds of silence where a reference would be.
MAX_TEXT_TOKENS: Final = 256
REFERENCE_S: Final = 30
LANGUAGE: Final = "en"
_ANY_LENGTH_S: Final = 987_654


@dataclass(frozen=True)
class TextEncoderLayout:
    """The text encoder's entries in bundle.toml."""

    template: str
    max_tokens: int
    prefix_tokens: int


class TextEncoder(nn.Module):
    """Text encoder and projection, after a constant prefix f32 `[P, D]`."""

    def __init__(self, text_encoder: nn.Module, projector: nn.Module, prefix: Tensor) -> None:
        super().__init__()
        self.text_encoder = text_encoder
        self.projector = projector
        self.register_buffer("prefix", prefix[None])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 `[B, L]` -> condition `[B, P + L, D]`, mask f32 `[B, P + L]`.

        The text encoder is causal: padding after the text does not change the text's tokens.
        """
        hidden = self.text_encoder(input_ids=input_ids, use_cache=False).last_hidden_state
        rows = input_ids.shape[0]
        condition = torch.cat([self.prefix.expand(rows, -1, -1), self.projector(hidden)], dim=1)
        kept = torch.cat([torch.ones(rows, self.prefix.shape[1]), attention_mask.float()], dim=1)
        return condition, kept


def export_text_encoder(
    condition_encoder: Any, text_encoder: Any, tokenizer: Any, frame_rate_hz: float, file: Path, tokenizer_file: Path
) -> TextEncoderLayout:
    """Write the text encoder's graph and the tokenizer."""
    template, lyrics = prompt_texts()
    prefix = constant_prefix(condition_encoder, text_encoder, tokenizer, lyrics, frame_rate_hz)
    batch, tokens = free("batch", MAX_BATCH), free("tokens")
    ids = torch.zeros(2, 7, dtype=torch.int64)
    export_graph(
        TextEncoder(text_encoder, condition_encoder.text_projector, prefix),
        file,
        (ids, torch.ones_like(ids)),
        inputs=INPUT_NAMES,
        outputs=OUTPUT_NAMES,
        dynamic_shapes=({0: batch, 1: tokens}, {0: batch, 1: tokens}),
    )
    tokenizer.backend_tokenizer.save(str(tokenizer_file))
    return TextEncoderLayout(template, MAX_TEXT_TOKENS, len(prefix))


def prompt_texts() -> tuple[str, str]:
    """The pipeline's text2music template, with placeholders for prompt and length; and its text for empty lyrics."""
    text, lyrics = AceStepPipeline._format_prompt(
        AceStepPipeline, PROMPT, lyrics="", vocal_language=LANGUAGE, audio_duration=float(_ANY_LENGTH_S)
    )
    return text.replace(str(_ANY_LENGTH_S), SECONDS), lyrics


def constant_prefix(
    condition_encoder: Any, text_encoder: Any, tokenizer: Any, lyrics: str, frame_rate_hz: float
) -> Tensor:
    """Condition tokens f32 `[P, D]` of lyrics and silent reference, by the condition encoder's own packing."""
    ids = tokenizer(lyrics, return_tensors="pt").input_ids
    with quiet(), torch.no_grad():
        embedded = text_encoder.get_input_embeddings()(ids)
        tokens, kept = condition_encoder(
            text_hidden_states=torch.zeros(1, 1, embedded.shape[-1]),
            text_attention_mask=torch.zeros(1, 1, dtype=torch.bool),
            lyric_hidden_states=embedded,
            lyric_attention_mask=torch.ones(1, ids.shape[1], dtype=torch.bool),
            refer_audio_acoustic_hidden_states_packed=condition_encoder.silence_latent[
                :, : math.ceil(REFERENCE_S * frame_rate_hz)
            ],
            refer_audio_order_mask=torch.zeros(1, dtype=torch.int64),
        )
    prefix: Tensor = tokens[0][kept[0]]
    return prefix
