"""A decoder that jumps: ACE-Step's second time is where a step ends, and guidance is an input."""

import copy
from typing import Final

import torch
from torch import Tensor, nn

from configs.demo.recipe.model import DECODER_CONFIG, MIN_TIME, ClockedDecoder
from engine_build.export.acestep.graphs import MaskedDecoder

GUIDANCE_FEATURES: Final = 3
GUIDANCE_WIDTH: Final = 64


class GuidedTime(nn.Module):
    """`time_embed_r` of a pair (t - r, log g) in place of t - r. Guidance of 1 adds exactly 0."""

    def __init__(self, embed: nn.Module, width: int) -> None:
        super().__init__()
        self.embed = embed
        self.features = nn.Linear(GUIDANCE_FEATURES, GUIDANCE_WIDTH, bias=False)
        self.mean = nn.Linear(GUIDANCE_WIDTH, width, bias=False)
        self.scales = nn.Linear(GUIDANCE_WIDTH, 6 * width, bias=False)
        for zero in (self.mean, self.scales):
            nn.init.zeros_(zero.weight)

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs `[B, 2]` -> the embedding `[B, width]` and its projection `[B, 6, width]`."""
        mean, scales = self.embed(pair[:, 0])
        log = pair[:, 1:]
        hidden = nn.functional.silu(self.features(torch.cat([log, log**2, log**3], dim=-1)))
        return mean + self.mean(hidden), scales + self.scales(hidden).view_as(scales)


class FirstColumn(nn.Module):
    """`time_embed` of the first column of a pair (t, log g)."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs `[B, 2]` -> the embedding and its projection."""
        found: tuple[Tensor, Tensor] = self.embed(pair[:, 0])
        return found


class JumpDecoder(ClockedDecoder):
    """A clocked decoder with two more inputs: where the jump ends, and the guidance that is built in."""

    def __init__(self, decoder: MaskedDecoder) -> None:
        super().__init__(decoder)
        transformer = decoder.decoder
        transformer.time_embed = FirstColumn(transformer.time_embed)
        transformer.time_embed_r = GuidedTime(transformer.time_embed_r, int(DECODER_CONFIG["hidden_size"]))

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
        frame_numbers: Tensor,
        timestep_r: Tensor,
        guidance: Tensor,
    ) -> Tensor:
        """Mean velocity `[B, T, C]` from `timestep` to `timestep_r` under a guidance `[B]`, in one row each."""
        given = encoder_hidden_states, condition_mask, context_latents, frame_numbers
        clean = self.jump_clean(hidden_states, (timestep, timestep_r), guidance, *given)
        velocity: Tensor = (hidden_states - clean) / timestep.clamp(min=MIN_TIME)[:, None, None]
        return velocity

    def jump_clean(
        self,
        latents: Tensor,
        times: tuple[Tensor, Tensor],
        guidance: Tensor,
        condition: Tensor,
        keep: Tensor,
        context: Tensor,
        frame_numbers: Tensor | None = None,
    ) -> Tensor:
        """`x - t u(x, t, r, g)`: the clean latents where r = 0. Times (t, r) `[B]` each, guidance `[B]`."""
        log = torch.log(guidance.clamp(min=1e-3))
        begin, end = torch.stack([times[0], log], dim=-1), torch.stack([times[1], torch.zeros_like(log)], dim=-1)
        estimate: Tensor = self.clean(latents, begin, condition, keep, context, end, frame_numbers)
        return estimate


def new_student(decoder: ClockedDecoder | JumpDecoder) -> JumpDecoder:
    """The teacher's weights; where the inputs are new, they change nothing yet."""
    found = copy.deepcopy(decoder)
    student = found if isinstance(found, JumpDecoder) else JumpDecoder(found.masked)
    student.requires_grad_(True)
    return student
