"""The planner: a decoder of Qwen3's layout (Yang et al., "Qwen3 Technical Report", 2025), tensors named as there."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from configs.demo.recipe.latents import CODE_LEVELS
from configs.demo.recipe.planner.tokens import (
    DIGITS_PER_GROUP,
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_GROUPS,
    NUM_TOKENS,
)

_INITIAL_STD: Final = 0.04


@dataclass(frozen=True)
class PlannerShape:
    """Sizes by their names in a Qwen3 checkpoint's config.json."""

    vocab_size: int = NUM_TOKENS
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True


SHAPE: Final = PlannerShape()


class _Attention(nn.Module):
    def __init__(self, shape: PlannerShape) -> None:
        super().__init__()
        width, head = shape.hidden_size, shape.head_dim
        self.head_dim = head
        self.q_proj = nn.Linear(width, shape.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * head, width, bias=False)
        self.q_norm = nn.RMSNorm(head, shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head, shape.rms_norm_eps)

    def forward(self, hidden: Tensor, rotation: Tensor, past: "Cache") -> Tensor:
        """Hidden states `[B, S, H]` -> the same shape; keys and values go into the cache."""
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _rotate(self.q_norm(query), rotation), _rotate(self.k_norm(key), rotation)
        key, value = past.append(key, value)
        length, total = query.shape[2], key.shape[2]
        seen = None if length == total else torch.ones(length, total, dtype=torch.bool).tril(total - length)
        heard = nn.functional.scaled_dot_product_attention(
            query, key, value, seen, is_causal=seen is None, enable_gqa=True
        )
        attended: Tensor = self.o_proj(heard.transpose(1, 2).flatten(2))
        return attended


class _Mlp(nn.Module):
    def __init__(self, shape: PlannerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states `[B, S, H]` -> the same shape."""
        moved: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return moved


class _Layer(nn.Module):
    def __init__(self, shape: PlannerShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(shape), _Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, hidden: Tensor, rotation: Tensor, past: "Cache") -> Tensor:
        """Hidden states `[B, S, H]` -> the same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, past)
        moved: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return moved


class Cache:
    """Keys and values `[B, Hkv, S, D]` of one layer: those of all tokens so far, or none in training."""

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens so far, the new ones last."""
        if self._key is not None and self._value is not None:
            key, value = torch.cat([self._key, key], 2), torch.cat([self._value, value], 2)
        if self._keeps:
            self._key, self._value = key, value
        return key, value


class TokenTable(nn.Module):
    """The rows of all tokens. A code's token has its own row and one for each of its digits: similar codes are near."""

    def __init__(self, num_tokens: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(_INITIAL_STD * torch.randn(num_tokens, width))
        self.digits = nn.Parameter(_INITIAL_STD / 2 * torch.randn(NUM_GROUPS, DIGITS_PER_GROUP, CODE_LEVELS, width))
        with torch.no_grad():
            self.rows[FIRST_CODE_ID:] = 0.0

    def forward(self) -> Tensor:
        """The table `[V, H]`."""
        numbers, rows = torch.arange(GROUP_SIZE), self.rows[FIRST_CODE_ID:].unflatten(0, (NUM_GROUPS, GROUP_SIZE))
        for place in range(DIGITS_PER_GROUP):
            rows = rows + self.digits[:, place, numbers // CODE_LEVELS**place % CODE_LEVELS]
        return torch.cat([self.rows[:FIRST_CODE_ID], rows.flatten(0, 1)])


class Planner(nn.Module):
    """Tokens -> hidden states. The head is the table of tokens."""

    def __init__(self, shape: PlannerShape = SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.table = TokenTable(NUM_TOKENS, shape.hidden_size)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        for name, parameter in self.layers.named_parameters():
            if parameter.dim() > 1:
                is_last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=_INITIAL_STD / (2.0 * len(self.layers)) ** (0.5 * is_last))

    def forward(self, hidden: Tensor, caches: list[Cache] | None = None, position: int = 0) -> Tensor:
        """Normalised hidden states `[B, S, H]` of tokens' rows `[B, S, H]`, the first at `position`."""
        rotation = _rotation(self.shape, position, hidden.shape[1])
        for layer, past in zip(self.layers, caches or [Cache() for _ in self.layers], strict=True):
            hidden = layer(hidden, rotation, past)
        normalised: Tensor = self.norm(hidden)
        return normalised


def checkpoint_tensors(model: Planner) -> dict[str, npt.NDArray[np.float32]]:
    """The weights by their names in a Qwen3 checkpoint."""
    tensors = {name: value for name, value in model.state_dict().items() if not name.startswith("table.")}
    tensors["embed_tokens.weight"] = model.table().detach()
    return {f"model.{name}": value.numpy() for name, value in tensors.items()}


def _rotation(shape: PlannerShape, position: int, count: int) -> Tensor:
    """Cosines and sines `[2, S, D]` of the rotary embedding, its halves alike."""
    powers = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    angles = torch.arange(position, position + count)[:, None] / shape.rope_theta**powers
    return torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2).to(torch.float32)


def _rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    low, high = heads.chunk(2, -1)
    return heads * rotation[0] + torch.cat([-high, low], -1) * rotation[1]
