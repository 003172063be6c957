"""diffusers' Stable Audio 3 transformer as a decoder: inpainting from the context, duration from token 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine_build.export.torch_export import MAX_BATCH, export_graph, free

INPUT_NAMES: Final = ("hidden_states", "timestep", "encoder_hidden_states", "context_latents")
OUTPUT_NAME: Final = "velocity"
# From 22 on convolutions are in bfloat16 too. From 23 on attention would be one operator, which TensorRT-RTX does not
# build in float32.
OPSET: Final = 22


@dataclass(frozen=True)
class DecoderShape:
    """The fixed dimensions of a decoder's tensors. tokens: one of the duration, and those of the text with padding."""

    channels: int
    tokens: int
    condition_width: int
    frame_multiple: int


class FourierFeatures(nn.Module):
    """cos and sin of `2 pi x f`, with the frequencies as data.

    f reaches 10 000: its last bits decide, and an exponential that another library computes has others.
    """

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """f32 `[B, 1]` -> `[B, 2F]`, rounded as torch rounds it: factor by factor."""
        angle = x * self.frequencies * 2.0 * math.pi
        return torch.cat((angle.cos(), angle.sin()), dim=-1)


class PointwiseLinear(nn.Module):
    """A convolution of single frames as a linear layer, which takes adapters; the weights are the convolution's."""

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        out, channels, _ = convolution.weight.shape
        self.linear = nn.Linear(channels, out, bias=False, device="meta")
        self.linear.weight = nn.Parameter(convolution.weight.detach()[..., 0], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, T]` -> `[B, C, T]`."""
        found: Tensor = self.linear(x.transpose(1, 2)).transpose(1, 2)
        return found


class ContextDecoder(nn.Module):
    """The transformer with TickRT's layout. Its weights stay where they are."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        features = transformer.timestep_features
        ramp = torch.linspace(0.0, 1.0, features.dim // 2)
        low, high = math.log(features.min_freq), math.log(features.max_freq)
        transformer.timestep_features = FourierFeatures(torch.exp(ramp * (high - low) + low))
        for name in ("preprocess_conv", "postprocess_conv"):
            setattr(transformer, name, PointwiseLinear(getattr(transformer, name)))
        self.decoder = transformer

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, context_latents: Tensor
    ) -> Tensor:
        """Latents `[R, T, C]`, time `[R]`, condition `[R, L, D]`, context `[R, T, 2C]` -> velocity `[R, T, C]`.

        Token 0 of the condition is the duration: the transformer attends to it, and it is its global condition. The
        context's second half is 0 where its first half is known. Text to audio knows nothing: its local condition is
        zeros, as in the authors' code, and not absent, as in diffusers' pipeline.
        """
        known, mask = context_latents.chunk(2, dim=-1)  # [R, T, C]
        keep = 1.0 - mask[..., :1]
        local = torch.cat((keep, known * keep), dim=-1)  # [R, T, 1 + C]
        velocity: Tensor = self.decoder(
            hidden_states.transpose(1, 2),
            timestep,
            encoder_hidden_states,
            encoder_hidden_states[:, 0],
            local_add_cond=local.transpose(1, 2),
            return_dict=False,
        )[0]
        return velocity.transpose(1, 2)


def export_decoder(decoder: ContextDecoder, shape: DecoderShape, file: Path) -> None:
    """Write the decoder as an ONNX file; rows R and frames T are free."""
    rows, multiple = free("rows", MAX_BATCH), shape.frame_multiple
    frames = free("frames") if multiple == 1 else multiple * free("blocks")
    example = decoder_inputs(shape, rows=3, frames=16 * multiple, seed=0)
    export_graph(
        decoder,
        file,
        tuple(example.values()),
        inputs=INPUT_NAMES,
        outputs=[OUTPUT_NAME],
        dynamic_shapes=({0: rows, 1: frames}, {0: rows}, {0: rows}, {0: rows, 1: frames}),
        dimensions={f"{multiple}*blocks": "frames"},
        opset=OPSET,
    )


def decoder_inputs(shape: DecoderShape, rows: int, frames: int, seed: int) -> dict[str, Tensor]:
    """Random inputs by name; the first half of the frames is known."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.randn(rows, frames, shape.channels, generator=generator)
    mask = torch.ones(rows, frames, shape.channels)
    mask[:, : frames // 2] = 0.0
    values = (
        torch.randn(rows, frames, shape.channels, generator=generator),
        torch.rand(rows, generator=generator),
        torch.randn(rows, shape.tokens, shape.condition_width, generator=generator),
        torch.cat((known, mask), dim=-1),
    )
    return dict(zip(INPUT_NAMES, values, strict=True))
