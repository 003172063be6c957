"""diffusers' SAME autoencoder as the codec's two graphs, whose attention is in groups of tokens.

A latent frame is a segment of 1 + stride tokens. SAME-L attends to the tokens at most a segment away: each segment's
queries attend to its own and the neighbouring segments' keys, so that no graph has a product of all tokens with all
tokens. SAME-S attends within chunks of two segments, in the second half of its blocks shifted by one segment; diffusers
does not have this rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from diffusers.models.autoencoders.autoencoder_same import _apply_rotary_partial
from torch import Tensor, nn

from engine_build.export.codec_graphs import CodecLayout
from runtime.base.errors import BuildError

# Added to the score of a key that a query does not attend to: e^LOW is 0, and two of them are finite.
LOW: Final = -1e30


@dataclass(frozen=True)
class AttentionRule:
    """Which tokens attend to each other.

    chunk_frames: SAME-S's chunks; 0: SAME-L's sliding window. blocks: transformer blocks of a half of the codec.
    """

    chunk_frames: int
    window_frames: int
    blocks: int

    @property
    def margin_frames(self) -> int:
        """Frames on both sides of a window that it depends on: exact.

        A sliding window reaches one of its widths further in each block; chunks, however many blocks there are, the
        rest of a chunk and of the shifted chunk that it is in.
        """
        return self.chunk_frames or self.window_frames * self.blocks

    @property
    def align_frames(self) -> int:
        """A window begins at a multiple of it."""
        return self.chunk_frames or 1


def same_layout(vae: Any) -> CodecLayout:
    """The layout from the configuration."""
    config = vae.config
    return CodecLayout(
        sample_rate_hz=int(config.sampling_rate),
        channels=int(config.audio_channels),
        hop_samples=int(vae.downsampling_ratio),
        latent_channels=int(config.latent_dim),
    )


def attention_of(vae: Any, chunk_frames: int) -> AttentionRule:
    """The rule of both halves. Raises BuildError for an autoencoder of several resampling blocks."""
    if len(vae.config.encoder_strides) != 1:
        raise BuildError(f"the vae has encoder_strides {list(vae.config.encoder_strides)}, expected one of them")
    return AttentionRule(chunk_frames, int(vae.config.sliding_window), int(vae.config.encoder_transformer_depths[0]))


class WindowAttention:
    """diffusers' attention processor for tokens in segments, `[B, T, 1 + S, D]`: the band mask, segment by segment.

    Rotary positions count from the first of a segment's keys, as only differences matter: a window of frames has the
    angles of the whole.
    """

    def __init__(self, window_frames: int) -> None:
        self._window_frames = window_frames

    def __call__(self, attn: Any, hidden_states: Tensor, attn_mask: Tensor) -> Tensor:
        """attn_mask: f32 `[T, 1 + S, K]` with K = (1 + 2W)(1 + S), added to the scores."""
        segment = hidden_states.shape[2]
        projected = attn.to_qkv(hidden_states).split(attn.heads * attn.dim_heads, dim=-1)
        *pairs, values = (part.unflatten(-1, (attn.heads, attn.dim_heads)) for part in projected)  # [B, T, 1 + S, H, E]
        freqs = attn.rope((1 + 2 * self._window_frames) * segment, hidden_states.device)  # [K, rotated channels]
        own = freqs[self._window_frames * segment :][:segment]
        v = self._neighbours(values).transpose(2, 3)  # [B, T, H, K, E]
        outputs = []
        for query, key in zip(pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :], strict=True):
            q = _apply_rotary_partial(attn.q_norm(query), own).transpose(2, 3)  # [B, T, H, 1 + S, E]
            k = _apply_rotary_partial(self._neighbours(attn.k_norm(key)), freqs).transpose(2, 3)  # [B, T, H, K, E]
            scores = q @ k.transpose(-1, -2) * attn.dim_heads**-0.5 + attn_mask[:, None]  # [B, T, H, 1 + S, K]
            outputs.append((scores.softmax(-1) @ v).transpose(2, 3).flatten(-2))  # [B, T, 1 + S, D]
        found: Tensor = attn.to_out(outputs[0] if len(outputs) == 1 else outputs[0] - outputs[1])
        return found

    def mask(self, frames: int, segment: int) -> Tensor:
        """f32 `[T, 1 + S, K]`: 0 where a segment's query attends to a key, LOW where not."""
        reach = self._window_frames * segment
        queries, keys = torch.arange(segment)[:, None] + reach, torch.arange(segment + 2 * reach)
        band = torch.where((keys - queries).abs() <= reach, 0.0, LOW)  # [1 + S, K]
        outside = self._neighbours(torch.zeros(1, frames, segment, 1, 1), LOW)  # [1, T, K, 1, 1]
        return band + outside[0, :, None, :, 0, 0]

    def _neighbours(self, x: Tensor, outside: float = 0.0) -> Tensor:
        """`[B, T, 1 + S, H, E]` -> `[B, T, K, H, E]`; a constant outside the sequence."""
        ends = (self._window_frames, self._window_frames)
        padded = nn.functional.pad(x, (0, 0, 0, 0, 0, 0, *ends), value=outside)
        return torch.cat([padded[:, i : i + x.shape[1]] for i in range(1 + sum(ends))], dim=2)


class Segments(nn.Module):
    """The transformer blocks of one half on segments of tokens, `[B, T, 1 + S, D]` -> the same."""

    def __init__(self, block: Any, rule: AttentionRule) -> None:
        super().__init__()
        self.transformers, self.rule = block.transformers, rule
        self.attention = WindowAttention(rule.window_frames)
        if not rule.chunk_frames:
            for layer in self.transformers:
                layer.attn.set_processor(self.attention)

    def forward(self, x: Tensor) -> Tensor:
        """Chunks: T is a multiple of them."""
        if self.rule.chunk_frames:
            return self._in_chunks(x)
        mask = self.attention.mask(x.shape[1], x.shape[2])
        for layer in self.transformers:
            x = layer(x, attn_mask=mask)
        return x

    def _in_chunks(self, x: Tensor) -> Tensor:
        """The second half of the blocks sees chunks that begin half a chunk earlier; the ends are repeated for them."""
        half, shift = len(self.transformers) // 2, self.rule.chunk_frames // 2
        x = self._chunks(x, self.transformers[:half])
        x = torch.cat((x[:, :shift], x, x[:, -shift:]), dim=1)
        return self._chunks(x, self.transformers[half:])[:, shift:-shift]

    def _chunks(self, x: Tensor, layers: Any) -> Tensor:
        tokens = x.reshape(-1, self.rule.chunk_frames * x.shape[2], x.shape[3])
        for layer in layers:
            tokens = layer(tokens)
        return tokens.reshape(x.shape)


class SameDecoder(nn.Module):
    """The decoder on frames, without the noise that the authors' code may add."""

    def __init__(self, vae: Any, rule: AttentionRule) -> None:
        super().__init__()
        (block,) = vae.decoder.blocks
        self.bottleneck, self.projection, self.patches = vae.bottleneck, vae.decoder.proj, vae.patch_embed
        self.new_tokens, self.stride, self.mapping = block.new_tokens, block.stride, block.mapping
        self.segments = Segments(block, rule)

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, T, C]` -> audio `[B, A, T * hop]`."""
        frames = latents.shape[1]
        seeds = _whole_chunks(self.projection(self.bottleneck.decode(latents)), self.segments.rule)[:, :, None]
        new = self.new_tokens[None].expand(seeds.shape[0], seeds.shape[1], self.stride, -1)
        tokens = self.segments(torch.cat((seeds, new), dim=2)).narrow(1, 0, frames)[:, :, 1:]  # [B, T, S, D]
        audio: Tensor = self.patches.decode(self.mapping(tokens.flatten(1, 2).transpose(1, 2)))
        return audio


class SameEncoder(nn.Module):
    """The encoder on frames."""

    def __init__(self, vae: Any, rule: AttentionRule) -> None:
        super().__init__()
        (block,) = vae.encoder.blocks
        self.bottleneck, self.projection, self.patch_size = vae.bottleneck, vae.encoder.proj, vae.config.patch_size
        self.new_tokens, self.stride, self.mapping = block.new_tokens, block.stride, block.mapping
        self.segments = Segments(block, rule)

    def forward(self, audio: Tensor) -> Tensor:
        """Audio `[B, A, T * hop]` -> latents `[B, T, C]`. A chunk that is not full ends with silence."""
        frames = audio.shape[2] // (self.stride * self.patch_size)
        patches = audio.unflatten(2, (frames, self.stride, self.patch_size)).permute(0, 2, 3, 1, 4)  # [B, T, S, A, P]
        patches = _whole_chunks(patches.flatten(3), self.segments.rule)  # [B, T', S, A * P]
        mapped = self.mapping(patches.flatten(1, 2).transpose(1, 2)).transpose(1, 2)
        tokens = mapped.unflatten(1, (patches.shape[1], self.stride))  # [B, T', S, D]
        new = self.new_tokens[None].expand(tokens.shape[0], tokens.shape[1], 1, -1)
        outputs = self.segments(torch.cat((tokens, new), dim=2)).narrow(1, 0, frames)[:, :, -1]  # [B, T, D]
        latents: Tensor = self.bottleneck.encode(self.projection(outputs).transpose(1, 2)).transpose(1, 2)
        return latents


def _whole_chunks(x: Tensor, rule: AttentionRule) -> Tensor:
    """`[B, T, ...]` with zeros up to a multiple of the chunk."""
    if not rule.chunk_frames:
        return x
    more = rule.chunk_frames - 1
    padded = nn.functional.pad(x, (*(0, 0) * (x.ndim - 2), 0, more))
    return padded.narrow(1, 0, (x.shape[1] + more) // rule.chunk_frames * rule.chunk_frames)
