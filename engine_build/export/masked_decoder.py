"""diffusers' ACE-Step transformer as a decoder whose condition tokens have a mask; its export and its check."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine_build.export.torch_export import MAX_BATCH, export_graph, free

INPUT_NAMES: Final = (
    "hidden_states",
    "timestep",
    "encoder_hidden_states",
    "condition_mask",
    "context_latents",
)
OUTPUT_NAME: Final = "velocity"


@dataclass(frozen=True)
class DecoderShape:
    """The fixed dimensions of a decoder's tensors."""

    channels: int
    context_channels: int
    condition_width: int
    frame_multiple: int


class MaskedDecoder(nn.Module):
    """diffusers' ACE-Step transformer with a mask for its condition tokens.

    The model itself has no such input, but its blocks do: the tokens travel to them as a pair with the attention bias.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        decoder.condition_embedder = _PairEmbedder(decoder.condition_embedder)
        for layer in decoder.layers:
            layer.register_forward_pre_hook(_split_pair, with_kwargs=True)

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
    ) -> Tensor:
        """Velocity `[B, T, C]`. Masked tokens get an attention weight of exactly 0.

        The second time of the mean-flow pair equals the first, as in ACE-Step's own inference.
        """
        bias = (1.0 - condition_mask[:, None, None, :]) * torch.finfo(torch.float32).min
        pair = (encoder_hidden_states, bias)
        outputs = self.decoder(hidden_states, timestep, timestep, pair, context_latents, return_dict=False)
        velocity: Tensor = outputs[0]
        return velocity


class _PairEmbedder(nn.Module):
    """Projects the tokens of a (tokens, attention bias) pair and passes the bias on."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens `[B, L, D]` -> `[B, L, hidden]`, bias `[B, 1, 1, L]` unchanged but for its dtype."""
        tokens = self.linear(pair[0])
        return tokens, pair[1].to(tokens.dtype)


def _split_pair(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tokens, bias = kwargs["encoder_hidden_states"]
    return args, {**kwargs, "encoder_hidden_states": tokens, "encoder_attention_mask": bias}


def export_decoder(decoder: nn.Module, shape: DecoderShape, file: Path) -> None:
    """Write a decoder with `MaskedDecoder`'s inputs as an ONNX file; rows B, frames T and tokens L are free."""
    rows, tokens = free("rows", MAX_BATCH), free("tokens")
    frames = shape.frame_multiple * free("blocks")
    export_graph(
        decoder,
        file,
        example_inputs(shape, rows=3, frames=32 * shape.frame_multiple, tokens=5, seed=0),
        inputs=INPUT_NAMES,
        outputs=[OUTPUT_NAME],
        dynamic_shapes=(
            {0: rows, 1: frames},
            {0: rows},
            {0: rows, 1: tokens},
            {0: rows, 1: tokens},
            {0: rows, 1: frames},
        ),
        dimensions={f"{shape.frame_multiple}*blocks": "frames"},
    )


def example_inputs(shape: DecoderShape, rows: int, frames: int, tokens: int, seed: int) -> tuple[Tensor, ...]:
    """Random decoder inputs in the order of `INPUT_NAMES`; about a third of the condition tokens are padding."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(rows, tokens, generator=generator) > 0.3).float()
    mask[:, 0] = 1.0
    return (
        torch.randn(rows, frames, shape.channels, generator=generator),
        torch.rand(rows, generator=generator),
        torch.randn(rows, tokens, shape.condition_width, generator=generator),
        mask,
        torch.randn(rows, frames, shape.context_channels, generator=generator),
    )


def decoder_examples(shape: DecoderShape, rows: int, frames: int, tokens: int, seed: int) -> dict[str, Tensor]:
    """`example_inputs` by name."""
    return dict(zip(INPUT_NAMES, example_inputs(shape, rows, frames, tokens, seed), strict=True))
