"""The demo decoder: diffusers' ACE-Step transformer at 2.8 M parameters, with clocks and a table of tokens."""

import math
from typing import Final

import torch
from diffusers import AceStepTransformer1DModel
from torch import Tensor, nn

from engine_build.demo_model.corpus.songs import HALF_FRAME, TEMPOS_BPM
from engine_build.demo_model.corpus.vocabulary import NUM_TOKENS, fixed_columns
from engine_build.demo_model.latents import CHANNELS, FRAME_RATE_HZ
from engine_build.export.masked_decoder import MaskedDecoder

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


_CYCLES_PER_BEAT: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 3.0, 4.0)
_PULSES_PER_BEAT: Final = (1 / 4, 1.0, 2.0, 4.0)
NUM_CLOCKS: Final = 2 * len(_CYCLES_PER_BEAT) + len(_PULSES_PER_BEAT)


class ClockedDecoder(nn.Module):
    """A decoder with time inputs: the clocks of the prompt's tempo replace spare mask channels.

    The transformer knows only distances between frames, and the mask is the same in all of its C channels. The first
    columns of the condition are the tempo, one-hot; its clocks (sines and cosines of bar, beat and their parts, and
    pulses where notes of a piece that begins at frame 0 may start) replace the last mask channels.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.masked = decoder
        beats_per_frame = torch.tensor(TEMPOS_BPM, dtype=torch.float64) / (60.0 * FRAME_RATE_HZ)
        cycles = beats_per_frame[:, None] * torch.tensor(_CYCLES_PER_BEAT, dtype=torch.float64)
        pulses = beats_per_frame[:, None] * torch.tensor(_PULSES_PER_BEAT, dtype=torch.float64)
        self.register_buffer("radians_per_frame", (2.0 * math.pi * cycles).float(), persistent=False)  # [7, 8]
        self.register_buffer("pulses_per_frame", pulses.float(), persistent=False)  # [7, 4]

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
    ) -> Tensor:
        """Velocity `[B, T, C]`; the inputs of `MaskedDecoder`."""
        tempo = (encoder_hidden_states[:, :, : len(TEMPOS_BPM)] * condition_mask[:, :, None]).sum(dim=1)  # [B, 7]
        clocks = torch.einsum("bn,ntk->btk", tempo, self._waves(hidden_states.shape[1]))
        pulses = torch.einsum("bn,ntk->btk", tempo, self._pulses(hidden_states.shape[1]))
        is_from_the_top = context_latents[:, :, CHANNELS:].amin(dim=(1, 2))  # [B], 1 where no frame is known
        kept = context_latents[:, :, : 2 * CHANNELS - NUM_CLOCKS]
        context = torch.cat([kept, clocks, pulses * is_from_the_top[:, None, None]], dim=-1)
        velocity: Tensor = self.masked(hidden_states, timestep, encoder_hidden_states, condition_mask, context)
        return velocity

    def _waves(self, num_frames: int) -> Tensor:
        """Sines and cosines `[7, T, 16]`."""
        angles = self._frames(num_frames) * self.radians_per_frame[:, None]
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)

    def _pulses(self, num_frames: int) -> Tensor:
        """1 in the frames nearest to a possible note start, `[7, T, 4]`."""
        frames = self._frames(num_frames)
        starts = torch.floor((frames + HALF_FRAME) * self.pulses_per_frame[:, None])
        before = torch.floor((frames + HALF_FRAME - 1.0) * self.pulses_per_frame[:, None])
        return starts - before

    def _frames(self, num_frames: int) -> Tensor:
        return torch.arange(num_frames, device=self.radians_per_frame.device, dtype=torch.float32)[None, :, None]


class DemoModel(nn.Module):
    """Decoder and token table, trained together; the first columns of the table are written, not learned."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = ClockedDecoder(MaskedDecoder(AceStepTransformer1DModel(**DECODER_CONFIG)))
        fixed = torch.from_numpy(fixed_columns())
        self.register_buffer("fixed_columns", fixed, persistent=False)
        self.learned_columns = nn.Parameter(torch.randn(NUM_TOKENS, CONDITION_WIDTH - fixed.shape[1]))

    def token_table(self) -> Tensor:
        """f32 `[NUM_TOKENS, D]`, one row per condition token."""
        return torch.cat([self.fixed_columns, self.learned_columns], dim=1)

    def forward(self, latents: Tensor, time: Tensor, token_ids: Tensor, mask: Tensor, context: Tensor) -> Tensor:
        """Velocity f32 `[B, T, C]` of latents `[B, T, C]` at flow time `[B]`.

        Args:
            latents: f32 `[B, T, C]`, T even.
            time: f32 `[B]`, 1 is noise.
            token_ids: int64 `[B, L]`, rows of the token table.
            mask: f32 `[B, L]`, 1 keep, 0 padding.
            context: f32 `[B, T, 2C]`, known latents and the generate mask.
        """
        velocity: Tensor = self.decoder(latents, time, self.token_table()[token_ids], mask, context)
        return velocity


def num_parameters(module: nn.Module) -> int:
    """Number of trained parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def new_model(seed: int) -> DemoModel:
    """A freshly initialised model."""
    torch.manual_seed(seed)
    model = DemoModel()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
