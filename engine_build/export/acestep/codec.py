"""diffusers' Oobleck autoencoder as the two halves of a codec."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import remove_weight_norm

from engine_build.export.codec_graphs import CodecLayout
from runtime.base.errors import BuildError


def layout_of(vae: Any) -> CodecLayout:
    """The layout from a VAE's configuration. Raises BuildError for strides that do not give whole frames."""
    config = vae.config
    if any(ratio % 2 for ratio in config.downsampling_ratios):
        raise BuildError(
            f"the vae has downsampling_ratios {list(config.downsampling_ratios)}, expected even ones: "
            "an odd stride makes its frames and its audio differ in length"
        )
    return CodecLayout(
        sample_rate_hz=int(config.sampling_rate),
        channels=int(config.audio_channels),
        hop_samples=math.prod(config.downsampling_ratios),
        latent_channels=int(config.decoder_input_channels),
    )


class LatentsToAudio(nn.Module):
    """The VAE's decoder on frames."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, T, C]` -> audio `[B, A, T * hop]`."""
        audio: Tensor = self.decoder(latents.transpose(1, 2))
        return audio


class AudioToLatents(nn.Module):
    """The VAE's encoder, deterministic: the mode of the posterior."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, audio: Tensor) -> Tensor:
        """Audio `[B, A, T * hop]` -> latents `[B, T, C]`."""
        mean: Tensor = self.encoder(audio).chunk(2, dim=1)[0]
        return mean.transpose(1, 2)


def without_weight_norm(vae: nn.Module) -> nn.Module:
    """The VAE with its normalised weights multiplied out, in place."""
    for module in vae.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            remove_weight_norm(module)
    return vae
