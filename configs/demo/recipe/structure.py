"""Structure: latents -> codes of 5 frames -> hints, by finite scalar quantization (Mentzer et al., 2023).

Codes keep the pitches and drums of each layer by itself: what a layer plays has the same digits beside any other
layers, and a planner can write layer after layer. What is lost on the way, and the instruments, are the decoder's
choice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from configs.demo.recipe.corpus.batches import Bytes, draw_layers, silent_channels
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    CODE_DIGITS,
    CODE_LEVELS,
    FRAMES_PER_CODE,
    LATENT_SCALE,
    NUM_PITCHES,
    SILENCE,
    FloatArray,
    latents_from_levels,
    levels_from_latents,
)
from engine_build.export.torch_export import MAX_BATCH, export_graph, free, graph_error, open_without_copies

ENCODE_FILE: Final = "structure_encode.onnx"
DECODE_FILE: Final = "structure_decode.onnx"
MAX_UNEQUAL: Final = 0.05  # values at the limit between two levels
MAX_ERROR: Final = 1e-4

NOTE_CHANNELS: Final = 55
PIECE_FRAMES: Final = CANVAS_FRAMES // FRAMES_PER_CODE * FRAMES_PER_CODE
_WIDTH: Final = 96
_DIGITS: Final = CODE_DIGITS // len(LAYERS)
_PLACE: Final = CODE_LEVELS**_DIGITS
# Drums are short: their few frames count more than pitches.
DRUM_WEIGHT: Final = 4.0


class _Residual(nn.Module):
    """A convolution over neighbouring codes, added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1), nn.SiLU(), nn.Conv1d(_WIDTH, _WIDTH, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Features `[B, width, Q]` -> the same shape."""
        return features + self.block(features)


def _encoder(patch: int) -> nn.Sequential:
    """A layer's levels in 5 frames `[B, patch, Q]` -> its digits, which do not depend on other codes."""
    return nn.Sequential(
        nn.Conv1d(patch, _WIDTH, 1), nn.SiLU(), nn.Conv1d(_WIDTH, _WIDTH, 1), nn.SiLU(), nn.Conv1d(_WIDTH, _DIGITS, 1)
    )


def _decoder(patch: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(_DIGITS, _WIDTH, 3, padding=1), nn.SiLU(), _Residual(), nn.Conv1d(_WIDTH, patch, 1))


class StructureTokenizer(nn.Module):
    """Both directions, each layer by itself. Levels `[B, Q * 5, 55]`; digits `[B, Q, 20]` in -2 .. 2, by layer."""

    def __init__(self) -> None:
        super().__init__()
        patches = [FRAMES_PER_CODE * len(pitch_channels(layer)) for layer in LAYERS]
        self.encoders = nn.ModuleList(_encoder(patch) for patch in patches)
        self.decoders = nn.ModuleList(_decoder(patch) for patch in patches)

    def digits(self, latents: Tensor) -> Tensor:
        """Latents `[B, Q * 5, C]` -> real-valued digits `[B, Q, 20]` between -2 and 2."""
        levels = (latents - SILENCE) / LATENT_SCALE
        found = []
        for layer, encoder in zip(LAYERS, self.encoders, strict=True):
            channels = pitch_channels(layer)
            patches = levels[:, :, channels.start : channels.stop].unflatten(1, (-1, FRAMES_PER_CODE)).flatten(2)
            found.append(encoder(patches.transpose(1, 2)).transpose(1, 2))
        return (CODE_LEVELS // 2) * torch.tanh(torch.cat(found, dim=2))

    def levels(self, digits: Tensor) -> Tensor:
        """Digits `[B, Q, 20]` -> levels `[B, Q * 5, 55]`."""
        by_layer = dict(zip(LAYERS, digits.split(_DIGITS, dim=2), strict=True))
        decoders, levels = dict(zip(LAYERS, self.decoders, strict=True)), []
        for layer in sorted(LAYERS, key=lambda name: pitch_channels(name).start):
            patches = decoders[layer](by_layer[layer].transpose(1, 2)).transpose(1, 2)
            levels.append(patches.unflatten(2, (FRAMES_PER_CODE, -1)).flatten(1, 2))
        return torch.cat(levels, dim=2)

    def forward(self, latents: Tensor) -> Tensor:
        """Levels `[B, Q * 5, 55]` of latents `[B, Q * 5, C]` by way of rounded digits; gradients pass."""
        digits = self.digits(latents)
        return self.levels(digits + (torch.round(digits) - digits).detach())


class LatentsToCodes(nn.Module):
    """The encoder as the bundle's graph. A layer's digits are a number that is exact in float32."""

    def __init__(self, tokenizer: StructureTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.register_buffer("powers", _powers(), persistent=False)
        self.register_buffer("places", torch.tensor([_PLACE**index for index in range(len(LAYERS))]), persistent=False)

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, Q * 5, C]` -> codes int64 `[B, Q]`."""
        digits = torch.round(self.tokenizer.digits(latents)) + CODE_LEVELS // 2
        numbers = (digits.unflatten(2, (len(LAYERS), -1)) * self.powers).sum(dim=-1).to(torch.int64)
        return (numbers * self.places).sum(dim=-1)


class CodesToHints(nn.Module):
    """The decoder as the bundle's graph. A layer's number is exact in float32; its digits are found there."""

    def __init__(self, tokenizer: StructureTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.register_buffer("powers", _powers(), persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 `[B, Q]` -> hints `[B, Q * 5, C]`, silent in the channels of timbre."""
        numbers = []
        for _ in LAYERS:
            rest = codes // _PLACE
            numbers.append(codes - rest * _PLACE)
            codes = rest
        places = torch.floor((torch.stack(numbers, dim=-1).to(torch.float32)[..., None] + 0.5) / self.powers)
        digits = places - CODE_LEVELS * torch.floor((places + 0.5) / CODE_LEVELS) - CODE_LEVELS // 2
        levels = self.tokenizer.levels(digits.flatten(2)).clamp(0.0, 1.0)
        return nn.functional.pad(levels, (0, CHANNELS - NOTE_CHANNELS)) * LATENT_SCALE + SILENCE


def _powers() -> Tensor:
    return torch.tensor([CODE_LEVELS**place for place in range(_DIGITS)], dtype=torch.float32)


@dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer's recipe."""

    steps: int = 1500
    batch_size: int = 16
    learning_rate: float = 3e-3
    seed: int = 1
    log_every: int = 250


def train_tokenizer(
    songs: Sequence[Song], levels: Bytes, config: TokenizerConfig, log: Callable[..., None] = lambda **_: None
) -> StructureTokenizer:
    """Train on songs' levels uint8 `[N, T, C]`, with any of their layers.

    Noise and gain make codes of encoded audio like those of songs. Sounding levels and drums count more.
    """
    torch.manual_seed(config.seed)
    tokenizer, rng = StructureTokenizer(), np.random.default_rng([config.seed, 2])
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=config.learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.steps, pct_start=min(0.1, 100 / config.steps)
    )
    importance = torch.ones(NOTE_CHANNELS)
    importance[NUM_PITCHES:] = DRUM_WEIGHT
    for step in range(1, config.steps + 1):
        clean = torch.from_numpy(_draw_levels(songs, levels, config.batch_size, rng))
        gain = torch.from_numpy(rng.uniform(0.6, 1.2, (len(clean), 1, 1)).astype(np.float32))
        heard = LATENT_SCALE * (gain * clean + 0.04 * torch.randn_like(clean)) + SILENCE
        loss = torch.mean(importance * (1.0 + 4.0 * clean) * (tokenizer(heard) - clean) ** 2)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tokenizer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % config.log_every == 0:
            log(tokenizer_step=step, tokenizer_loss=loss.item())
    tokenizer.eval()
    return tokenizer


def _draw_levels(songs: Sequence[Song], levels: Bytes, size: int, rng: np.random.Generator) -> FloatArray:
    """Levels f32 `[B, PIECE_FRAMES, 55]` of crops."""
    crops = np.empty((size, PIECE_FRAMES, NOTE_CHANNELS), np.float32)
    for crop in crops:
        index, start = int(rng.integers(len(songs))), int(rng.integers(levels.shape[1] - PIECE_FRAMES + 1))
        crop[:] = levels[index, start : start + PIECE_FRAMES, :NOTE_CHANNELS] / np.float32(255.0)
        crop[:, [c for c in silent_channels(draw_layers(songs[index], rng)) if c < NOTE_CHANNELS]] = 0.0
    return crops


def hints_of(tokenizer: StructureTokenizer, levels: Bytes) -> Bytes:
    """Hints uint8 `[N, T, C]` of levels of the same shape, in pieces as the runtime makes them."""
    encode, decode = LatentsToCodes(tokenizer), CodesToHints(tokenizer)
    num_frames = levels.shape[1]
    hints = np.zeros_like(levels)
    with torch.no_grad():
        for first in range(0, len(levels), 64):
            for start in range(0, num_frames, PIECE_FRAMES):
                piece = levels[first : first + 64, start : start + PIECE_FRAMES] / np.float32(255.0)
                missing = -piece.shape[1] % FRAMES_PER_CODE
                latents = torch.from_numpy(latents_from_levels(np.pad(piece, ((0, 0), (0, missing), (0, 0)))))
                heard = levels_from_latents(decode(encode(latents)).numpy())[:, : piece.shape[1]]
                hints[first : first + 64, start : start + PIECE_FRAMES] = np.round(255.0 * heard)
    return hints


def export_structure(tokenizer: StructureTokenizer, folder: Path) -> None:
    """Write both graphs. Raises RuntimeError where they differ from torch."""
    encode, decode = LatentsToCodes(tokenizer).eval(), CodesToHints(tokenizer).eval()
    codes, batch = free("codes"), free("batch", MAX_BATCH)
    latents = 2.0 * torch.rand(3, 4 * FRAMES_PER_CODE, CHANNELS, generator=torch.Generator().manual_seed(0))
    export_graph(
        encode,
        folder / ENCODE_FILE,
        (latents,),
        inputs=["latents"],
        outputs=["codes"],
        dynamic_shapes=({0: batch, 1: FRAMES_PER_CODE * codes},),
        dimensions={f"{FRAMES_PER_CODE}*codes": "frames"},
    )
    export_graph(
        decode,
        folder / DECODE_FILE,
        (encode(latents),),
        inputs=["codes"],
        outputs=["hints"],
        dynamic_shapes=({0: batch, 1: codes},),
    )
    latents = 2.0 * torch.rand(2, PIECE_FRAMES, CHANNELS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        codes_of = encode(latents)
        wanted = decode(codes_of).numpy()
    found = open_without_copies(folder / ENCODE_FILE).run(None, {"latents": latents.numpy()})[0]
    if (share := float(np.mean(found != codes_of.numpy()))) > MAX_UNEQUAL:
        raise RuntimeError(
            f"{ENCODE_FILE}: {share:.0%} of the codes differ from torch's, allowed are {MAX_UNEQUAL:.0%}"
        )
    if (error := graph_error(folder / DECODE_FILE, [{"codes": codes_of}], [wanted])) > MAX_ERROR:
        raise RuntimeError(f"{DECODE_FILE} differs from torch by {error:.1e}, allowed is {MAX_ERROR:.0e}")
