"""diffusers' Oobleck autoencoder as the codec's two graphs, and their receptive fields in frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import remove_weight_norm

from engine_build.export.codec_graphs import CodecLayout, export_halves
from engine_build.export.torch_export import open_without_copies
from runtime.errors import BuildError

PROBE_FRAMES: Final = 33
MAX_PROBE_FRAMES: Final = 600


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


def export_codec(vae: Any, decode_file: Path, encode_file: Path) -> None:
    """Write both halves. The VAE's normalised weights are multiplied out, in place."""
    layout = layout_of(vae)
    for module in vae.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            remove_weight_norm(module)
    decode, encode = LatentsToAudio(vae.decoder), AudioToLatents(vae.encoder)
    export_halves(decode, encode, layout, decode_file, encode_file)


def decode_margin(file: Path, layout: CodecLayout) -> int:
    """Frames on both sides of a window that its audio depends on, read off the exported graph. Raises BuildError."""
    session = open_without_copies(file)

    def touched(frames: int) -> NDArray[np.bool_]:
        latents = np.zeros((1, frames, layout.latent_channels), np.float32)
        latents[:, frames // 2] = np.nan
        audio = session.run(None, {"latents": latents})[0]
        return np.asarray(np.isnan(audio).any(axis=(0, 1)).reshape(frames, -1).any(axis=1))

    return _reach(touched)


def encode_margin(file: Path, layout: CodecLayout) -> int:
    """Frames of audio on both sides of a window that its latents depend on. Raises BuildError."""
    session = open_without_copies(file)

    def touched(frames: int) -> NDArray[np.bool_]:
        audio = np.zeros((1, layout.channels, frames, layout.hop_samples), np.float32)
        audio[:, :, frames // 2] = np.nan
        latents = session.run(None, {"audio": audio.reshape(1, layout.channels, -1)})[0]
        return np.asarray(np.isnan(latents).any(axis=(0, 2)))

    return _reach(touched)


def _reach(touched: Callable[[int], NDArray[np.bool_]]) -> int:
    """The receptive field in frames: the distance to which a NaN in the middle frame propagates."""
    frames = PROBE_FRAMES
    while frames <= MAX_PROBE_FRAMES:
        found = np.flatnonzero(touched(frames))
        reach = int(np.abs(found - frames // 2).max())
        if reach < frames // 2:
            return reach
        frames = 2 * frames + 1
    raise BuildError(f"the codec's receptive field is more than {MAX_PROBE_FRAMES // 2} frames: windows would not pay")
