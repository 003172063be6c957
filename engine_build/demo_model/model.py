"""The demo decoder: diffusers' ACE-Step transformer at 2.8 M parameters, with one embedding per concept."""

from typing import Final

import torch
from diffusers import AceStepTransformer1DModel
from torch import Tensor, nn

from engine_build.demo_model.latents import CHANNELS
from engine_build.demo_model.vocabulary import CONCEPTS
from engine_build.export import MaskedDecoder

CONDITION_WIDTH: Final = 64
DECODER_CONFIG: Final = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "in_channels": 3 * CHANNELS,
    "audio_acoustic_hidden_dim": CHANNELS,
    "patch_size": 2,
    "rope_theta": 10_000.0,
    "sliding_window": 32,
    "encoder_hidden_size": CONDITION_WIDTH,
}


class DemoModel(nn.Module):
    """Decoder and concept table, trained together. Row `ALWAYS_ID` of the table is the token that is always there."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = MaskedDecoder(AceStepTransformer1DModel(**DECODER_CONFIG))
        self.concepts = nn.Embedding(len(CONCEPTS) + 1, CONDITION_WIDTH)

    def forward(self, latents: Tensor, time: Tensor, concept_ids: Tensor, mask: Tensor, context: Tensor) -> Tensor:
        """Velocity f32 `[B, T, C]` of latents `[B, T, C]` at flow time `[B]`.

        Args:
            latents: f32 `[B, T, C]`, T even.
            time: f32 `[B]`, 1 is noise.
            concept_ids: int64 `[B, L]`, rows of the concept table.
            mask: f32 `[B, L]`, 1 keep, 0 padding.
            context: f32 `[B, T, 2C]`, known latents and the generate mask.
        """
        velocity: Tensor = self.decoder(latents, time, self.concepts(concept_ids), mask, context)
        return velocity


def num_parameters(module: nn.Module) -> int:
    """How many trained numbers a module holds."""
    return sum(parameter.numel() for parameter in module.parameters())


def new_model(seed: int) -> DemoModel:
    """A freshly initialised model. AdaLN gates start small, so that every block starts near the identity."""
    torch.manual_seed(seed)
    model = DemoModel()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.normal_(model.concepts.weight, std=1.0)
    return model
