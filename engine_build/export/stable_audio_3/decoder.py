"""diffusers' Stable Audio 3 transformer as a decoder: inpainting from the context, duration from token 0.

And what makes its condition tokens of text and length: T5Gemma, the duration embedder, and the learned padding.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import sub
from typing import Any, Final

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor, nn

# From 22 on convolutions are in bfloat16 too. From 23 on attention would be one operator, which TensorRT-RTX does not
# build in float32.
OPSET: Final = 22


class FourierFeatures(nn.Module):
    """cos and sin of `2 pi x f`, with the frequencies as data.

    f reaches 10 000: its last bits decide, and an exponential that another library computes has others. Whole turns are
    taken off before: sines of 62 832 rad are what each library makes of them. What is left is the rounding of `x f`, at
    most 3.1e-3 of the exact features; diffusers, which rounds twice more, is off by 6.4e-3, and by 3.7e-3 from these.
    """

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """f32 `[B, 1]` -> `[B, 2F]`."""
        turns = x * self.frequencies
        angle = (turns - turns.floor()) * (2.0 * math.pi)
        return torch.cat((angle.cos(), angle.sin()), dim=-1)


def reduced_features(features: Any) -> FourierFeatures:
    """For diffusers' module of the time's features."""
    ramp = torch.linspace(0.0, 1.0, features.dim // 2)
    low, high = math.log(features.min_freq), math.log(features.max_freq)
    return FourierFeatures(torch.exp(ramp * (high - low) + low))


class DurationEmbedder(nn.Module):
    """diffusers' embedder of a length in seconds, with these features. Its weights stay where they are."""

    def __init__(self, embedder: Any) -> None:
        super().__init__()
        self.low, self.high = float(embedder.config.min_val), float(embedder.config.max_val)
        self.features, self.linear = FourierFeatures(embedder.freqs), embedder.linear

    def forward(self, seconds: Tensor) -> Tensor:
        """f32 `[B]` -> `[B, D]`."""
        share = (seconds.float().clamp(self.low, self.high) - self.low) / (self.high - self.low)
        found: Tensor = self.linear(self.features(share.reshape(-1, 1)))
        return found


def reduce_angles(transformer: Any, embedder: Any) -> None:
    """Let diffusers' own modules have these features: what else differs from them is seen then."""
    transformer.timestep_features = reduced_features(transformer.timestep_features)
    embedder.forward = DurationEmbedder(embedder).forward


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


class CountedEmbedder(nn.Sequential):
    """Layers for the tokens of a (tokens, counts) pair, which travels as a pair with the attention bias from here."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens `[B, L, D]`, counts `[B, L]` -> `[B, L, hidden]` and `[B, 1, 1, L]`.

        n equal tokens weigh n times the exponential of one's score, that of the score + log n. For 0, the smallest n.
        """
        tokens, counts = pair
        return super().forward(tokens), counts.clamp(min=torch.finfo(torch.float32).tiny).log()[:, None, None]


class CountedAttention:
    """diffusers' cross attention, differential or not, to tokens with an attention bias."""

    def __call__(
        self, attention: Any, hidden_states: Tensor, context: tuple[Tensor, Tensor], context_mask: None = None
    ) -> Tensor:
        """Frames `[B, T, hidden]` -> `[B, T, hidden]`."""
        tokens, bias = context
        *keys, values = attention.to_kv(tokens).chunk(3 if attention.use_differential else 2, dim=-1)
        queries = attention.to_q(hidden_states).chunk(len(keys), dim=-1)

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (attention.heads, attention.dim_heads))

        def attended(query: Tensor, key: Tensor) -> Tensor:
            query, key = attention.q_norm(heads(query)), attention.k_norm(heads(key))
            return dispatch_attention_fn(query, key, heads(values), attn_mask=bias)

        found: Tensor = attention.to_out(reduce(sub, map(attended, queries, keys)).flatten(2, 3))
        return found


class ContextDecoder(nn.Module):
    """The transformer with TickRT's layout. Its weights stay where they are."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        transformer.timestep_features = reduced_features(transformer.timestep_features)
        transformer.to_cond_embed = CountedEmbedder(*transformer.to_cond_embed)
        for block in transformer.transformer_blocks:
            block.cross_attn.set_processor(CountedAttention())
        for name in ("preprocess_conv", "postprocess_conv"):
            setattr(transformer, name, PointwiseLinear(getattr(transformer, name)))
        self.decoder = transformer

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
    ) -> Tensor:
        """Latents `[R, T, C]`, time `[R]`, condition `[R, L, D]`, counts `[R, L]`, context `[R, T, 2C]` -> velocity
        `[R, T, C]`.

        Token 0 of the condition is the duration: the transformer attends to it, and it is its global condition. The
        mask says how often a token counts: padding is one token, and the transformer knows no order of tokens. The
        context's second half is 0 where its first half is known. Text to audio knows nothing: its local condition is
        zeros, as in the authors' code, and not absent, as in diffusers' pipeline.
        """
        known, mask = context_latents.chunk(2, dim=-1)  # [R, T, C]
        keep = 1.0 - mask[..., :1]
        local = torch.cat((keep, known * keep), dim=-1)  # [R, T, 1 + C]
        velocity: Tensor = self.decoder(
            hidden_states.transpose(1, 2),
            timestep,
            (encoder_hidden_states, condition_mask),
            encoder_hidden_states[:, 0],
            local_add_cond=local.transpose(1, 2),
            return_dict=False,
        )[0]
        return velocity.transpose(1, 2)


class PaddedTextEncoder(nn.Module):
    """Token 0 is the duration; the text's tokens follow, and padding up to `max_tokens` of them.

    The transformer attends to padding as to text. It knows no order of tokens, so it does not matter on which side of
    the text padding is.
    """

    def __init__(self, text_encoder: nn.Module, duration_embedder: nn.Module, padding: Tensor, max_tokens: int) -> None:
        super().__init__()
        self.text_encoder, self.duration_embedder = text_encoder, DurationEmbedder(duration_embedder)
        self.max_tokens = max_tokens
        self.register_buffer("padding", padding)  # [D]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, seconds: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and mask int64 `[B, L]`, seconds f32 `[B]` -> condition `[B, 1 + max_tokens, D]`, its mask of ones."""
        bias = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        # A text is shorter than the sliding window of every other layer.
        biases = {"full_attention": bias, "sliding_attention": bias}
        hidden = self.text_encoder(input_ids=input_ids, attention_mask=biases)[0]  # [B, L, D]
        text = torch.where(attention_mask[..., None] > 0, hidden, self.padding)
        padding = self.padding.expand(text.shape[0], self.max_tokens, -1)
        padded = torch.cat((text, padding), dim=1).narrow(1, 0, self.max_tokens)
        condition = torch.cat((self.duration_embedder(seconds)[:, None], padded), dim=1)
        return condition, torch.ones_like(condition[..., 0])
