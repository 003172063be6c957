"""The demo decoder: diffusers' ACE-Step transformer with clocks, a table of tokens and a timbre encoder."""

import math
from typing import Final

import torch
from diffusers import AceStepTransformer1DModel
from torch import Tensor, nn

from configs.demo.recipe.corpus.rendering import HALF_FRAME
from configs.demo.recipe.corpus.vocabulary import FIRST_TEMPO_ID, NUM_TOKENS, fixed_columns, tempo_interpolation
from configs.demo.recipe.instruments import TIMBRE_CHANNELS
from configs.demo.recipe.latents import CHANNELS, SILENCE
from engine_build.export.acestep.graphs import MaskedDecoder

CONDITION_WIDTH: Final = 96
NUM_FIXED: Final = 15
TIMBRE_TOKENS: Final = 2
DECODER_CONFIG: Final = {
    "hidden_size": 256,
    "intermediate_size": 608,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "in_channels": 3 * CHANNELS,
    "audio_acoustic_hidden_dim": CHANNELS,
    "patch_size": 2,
    "rope_theta": 10_000.0,
    "sliding_window": 32,
    "encoder_hidden_size": CONDITION_WIDTH,
}

# Below this flow time the velocity points at the clean latents less steeply, so that it stays finite.
MIN_TIME: Final = 0.05
_CYCLES_PER_BEAT: Final = (1 / 2, 1.0, 2.0, 3.0, 4.0)
_CYCLES_PER_BAR: Final = (1 / 4, 1 / 2, 1.0)
NUM_WAVES: Final = 2 * (len(_CYCLES_PER_BEAT) + len(_CYCLES_PER_BAR))
NUM_CLOCKS: Final = NUM_WAVES + 4
NUM_SPARE: Final = NUM_CLOCKS + 12  # clocks and scale


class ClockedDecoder(nn.Module):
    """A decoder with inputs of time and scale: both replace spare mask channels.

    The transformer knows only distances between frames, and the mask is the same in all of its C channels. The first
    columns of the condition are beats per frame, bars per beat, and whether beats are in three; the clocks (sines and
    cosines of four bars, bar, beat and their parts, and pulses where notes of a piece that begins at frame 0 may start)
    replace the last mask channels. The columns behind those are the scale's pitch classes; they replace 12 more.

    The transformer estimates the clean latents, which is the easier task where they are mostly silence (Li & He, "Back
    to Basics: Let Denoising Generative Models Denoise", 2025); the velocity is `(latents - clean) / time`.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.masked = decoder
        self.register_buffer("cycles_per_beat", torch.tensor(_CYCLES_PER_BEAT), persistent=False)
        self.register_buffer("cycles_per_bar", torch.tensor(_CYCLES_PER_BAR), persistent=False)

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
        frame_numbers: Tensor | None = None,
    ) -> Tensor:
        """Velocity `[B, T, C]`; the inputs of `MaskedDecoder`, and the numbers `[B, T]` of the frames, from 0 on."""
        given = encoder_hidden_states, condition_mask, context_latents
        clean = self.clean(hidden_states, timestep, *given, frame_numbers=frame_numbers)
        velocity: Tensor = (hidden_states - clean) / timestep.clamp(min=MIN_TIME)[:, None, None]
        return velocity

    def clean(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
        timestep_r: Tensor | None = None,
        frame_numbers: Tensor | None = None,
    ) -> Tensor:
        """The estimate of the clean latents `[B, T, C]`."""
        rhythm = (encoder_hidden_states[:, :, :3] * condition_mask[:, :, None]).sum(dim=1)  # [B, 3]
        if frame_numbers is None:
            frame_numbers = torch.arange(hidden_states.shape[1], device=rhythm.device, dtype=torch.float32)[None]
        frames = frame_numbers[:, :, None]
        known, generate = context_latents.split([CHANNELS, CHANNELS], dim=-1)
        is_from_the_top = generate.amin(dim=(1, 2)) * (known - SILENCE).abs().amax(dim=(1, 2)).lt(1e-3)  # [B]
        pulses = self.pulses(rhythm, frames) * is_from_the_top[:, None, None]
        scale = (encoder_hidden_states[:, :, 3:NUM_FIXED] * condition_mask[:, :, None]).sum(dim=1)  # [B, 12]
        scales = scale[:, None].expand(-1, hidden_states.shape[1], -1)
        kept = generate[:, :, : CHANNELS - NUM_SPARE]
        context = torch.cat([known, kept, scales, self.waves(rhythm, frames), pulses], dim=-1)
        estimate: Tensor = self.masked(
            hidden_states, timestep, encoder_hidden_states, condition_mask, context, timestep_r
        )
        return estimate

    def waves(self, rhythm: Tensor, frames: Tensor) -> Tensor:
        """Sines and cosines `[B, T, NUM_WAVES]` of the tempo and meter `[B, 3]` at frames `[B or 1, T, 1]`."""
        beats, bars = rhythm[:, :1], rhythm[:, :1] * rhythm[:, 1:2]  # per frame
        cycles = torch.cat([beats * self.cycles_per_beat, bars * self.cycles_per_bar], dim=-1)
        angles = 2.0 * math.pi * frames * cycles[:, None, :]
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)

    def pulses(self, rhythm: Tensor, frames: Tensor) -> Tensor:
        """1 in the frames nearest to a possible note start `[B, T, 4]`: of bars, beats, their parts and half parts."""
        beats, bars, in_three = rhythm[:, :1], rhythm[:, :1] * rhythm[:, 1:2], rhythm[:, 2:3]
        parts = beats * (2.0 + in_three)
        rates = torch.cat([bars, beats, parts, 2.0 * parts], dim=-1)[:, None, :]
        starts = torch.floor((frames + HALF_FRAME) * rates)
        return starts - torch.floor((frames + HALF_FRAME - 1.0) * rates)


class TimbreEncoder(nn.Module):
    """The instruments of a reference as condition tokens. It reads only the timbre channels: no notes come along."""

    def __init__(self) -> None:
        super().__init__()
        channels = sorted(channel for channels in TIMBRE_CHANNELS.values() for channel in channels)
        self.register_buffer("channels", torch.tensor(channels), persistent=False)
        self.frame = nn.Sequential(nn.Linear(len(channels), 96), nn.SiLU())
        self.tokens = nn.Sequential(
            nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, TIMBRE_TOKENS * (CONDITION_WIDTH - NUM_FIXED))
        )

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, T, C]` -> tokens `[B, P, D]`, whose written columns are 0."""
        features = self.frame(latents.index_select(2, self.channels)).mean(dim=1)
        tokens = self.tokens(features).unflatten(1, (TIMBRE_TOKENS, -1))
        return nn.functional.pad(tokens, (NUM_FIXED, 0))


class DemoModel(nn.Module):
    """Decoder, token table and timbre encoder, trained together.

    The first columns of the table are written, not learned. The others of the tempos' tokens lie on lines between a few
    learned ones, so that training reaches every tempo.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decoder = ClockedDecoder(MaskedDecoder(AceStepTransformer1DModel(**DECODER_CONFIG)))
        self.timbre = TimbreEncoder()
        self.register_buffer("fixed_columns", torch.from_numpy(fixed_columns()), persistent=False)
        self.register_buffer("tempo_interpolation", torch.from_numpy(tempo_interpolation()), persistent=False)
        num_tempos, num_anchors = self.tempo_interpolation.shape
        self.learned_tempos = nn.Parameter(torch.randn(num_anchors, CONDITION_WIDTH - NUM_FIXED))
        self.learned_columns = nn.Parameter(torch.randn(NUM_TOKENS - num_tempos, CONDITION_WIDTH - NUM_FIXED))

    def token_table(self) -> Tensor:
        """f32 `[NUM_TOKENS, D]`, one row per condition token."""
        tempos = self.tempo_interpolation @ self.learned_tempos
        before, after = self.learned_columns[:FIRST_TEMPO_ID], self.learned_columns[FIRST_TEMPO_ID:]
        return torch.cat([self.fixed_columns, torch.cat([before, tempos, after])], dim=1)

    def condition(self, token_ids: Tensor, mask: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Condition `[B, P + L, D]` of token ids int64 `[B, L]` and a reference `[B, F, C]`, and its mask."""
        timbre = self.timbre(reference)
        tokens = torch.cat([timbre, self.token_table()[token_ids]], dim=1)
        return tokens, torch.cat([torch.ones_like(timbre[:, :, 0]), mask], dim=1)

    def clean(
        self, latents: Tensor, time: Tensor, token_ids: Tensor, mask: Tensor, reference: Tensor, context: Tensor
    ) -> Tensor:
        """The estimate of the clean latents f32 `[B, T, C]` of latents `[B, T, C]` at flow time `[B]`.

        Args:
            latents: f32 `[B, T, C]`, T even.
            time: f32 `[B]`, 1 is noise.
            token_ids: int64 `[B, L]`, rows of the token table.
            mask: f32 `[B, L]`, 1 keep, 0 padding.
            reference: f32 `[B, F, C]`, latents whose instruments are meant; silence where the prompt says them.
            context: f32 `[B, T, 2C]`, known latents or hints, and the generate mask.
        """
        condition, keep = self.condition(token_ids, mask, reference)
        estimate: Tensor = self.decoder.clean(latents, time, condition, keep, context)
        return estimate


def num_parameters(module: nn.Module) -> int:
    """Number of trained parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def new_model(seed: int) -> DemoModel:
    """A freshly initialised model."""
    torch.manual_seed(seed)
    model = DemoModel()
    for module in model.decoder.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
