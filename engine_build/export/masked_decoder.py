"""diffusers' ACE-Step transformer as a decoder whose condition tokens have a mask."""

from typing import Any

import torch
from torch import Tensor, nn


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
