"""The two graphs of a codec, latents -> audio and audio -> latents, of any autoencoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from engine_build.export.cleanup import name_dimensions
from engine_build.export.torch_export import OPSET, export_graph, free, open_without_copies

MAX_BATCH: Final = 64
EXAMPLE_FRAMES: Final = 9


@dataclass(frozen=True)
class CodecLayout:
    """The fixed numbers of a codec."""

    sample_rate_hz: int
    channels: int
    hop_samples: int
    latent_channels: int

    @property
    def frame_rate_hz(self) -> float:
        """Latent frames per second."""
        return self.sample_rate_hz / self.hop_samples


def export_halves(
    decode: nn.Module, encode: nn.Module, layout: CodecLayout, decode_file: Path, encode_file: Path, opset: int = OPSET
) -> None:
    """Write latents `[B, T, C]` -> audio `[B, A, T * hop]`, and back; B and T are free."""
    batch, frames = free("batch", MAX_BATCH), free("frames")
    export_graph(
        decode,
        decode_file,
        (torch.zeros(2, EXAMPLE_FRAMES, layout.latent_channels),),
        inputs=["latents"],
        outputs=["audio"],
        dynamic_shapes=({0: batch, 1: frames},),
        dimensions={f"{layout.hop_samples}*frames": "samples"},
        opset=opset,
    )
    blocks = layout.hop_samples * free("blocks")
    export_graph(
        encode,
        encode_file,
        (torch.zeros(2, layout.channels, EXAMPLE_FRAMES * layout.hop_samples),),
        inputs=["audio"],
        outputs=["latents"],
        dynamic_shapes=({0: batch, 2: blocks},),
        dimensions={f"{layout.hop_samples}*blocks": "samples"},
        opset=opset,
    )
    model = onnx.load(encode_file, load_external_data=False)
    name_dimensions(model, {model.graph.output[0].type.tensor_type.shape.dim[1].dim_param: "frames"})
    encode_file.write_bytes(model.SerializeToString())


def encode_silence(
    file: Path, layout: CodecLayout, margin_frames: int, frames: int, period_frames: int = 1
) -> NDArray[np.float32]:
    """Latents `[frames, C]` of digital silence from its first sample on: after the margin they repeat."""
    kept = margin_frames + period_frames
    audio = np.zeros((1, layout.channels, (kept + margin_frames) * layout.hop_samples), np.float32)
    latents = open_without_copies(file).run(None, {"audio": audio})[0][0, :kept]
    return np.concatenate((latents, np.tile(latents[margin_frames:], (-(-frames // period_frames), 1))))[:frames]
