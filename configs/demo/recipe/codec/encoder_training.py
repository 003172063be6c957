"""Trains the encode graph's network on the corpus: songs played by the decode graph, with any layers, gain and tone."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnxruntime import InferenceSession
from torch import Tensor, nn
from torch.nn import functional

from configs.demo.recipe.codec.decoder import build_decoder
from configs.demo.recipe.codec.encoder import (
    NUM_BLOCKS,
    NUM_NOTES,
    NUM_OUTPUTS,
    WIDTH,
    build_features,
    denormalized,
    normalized,
    save_weights,
)
from configs.demo.recipe.codec.features import NUM_FEATURES, feature_octaves
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.instruments import INSTRUMENTS, pitch_channels
from configs.demo.recipe.latents import FloatArray, latents_from_levels

_LAYER_SHARE: Final = 0.6
_SILENT_SHARE: Final = 0.02
_NOTE_WEIGHT: Final = 6.0
_TIMBRE_WEIGHT: Final = 0.008
_LATEST_START: Final = 272
_DETUNE_SEMITONES: Final = 0.1
_EQUALIZER_KNOTS: Final = 7
_EQUALIZER_DB: Final = 3.0


@dataclass(frozen=True)
class EncoderConfig:
    """The recipe. It ends at `steps` or at `minutes` of training; the learning rate decays to either end."""

    steps: int = 9000
    minutes: float = 8.0
    num_clips: int = 2400
    clip_frames: int = 160
    batch_size: int = 24
    learning_rate: float = 2e-3
    seed: int = 1
    threads: int = 2


class EncoderNetwork(nn.Module):
    """`features [B, F, N]` -> `[B, N, NUM_OUTPUTS]`; its parameters have the names that `build_encoder` takes."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Conv1d(NUM_FEATURES, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(_Block() for _ in range(NUM_BLOCKS))
        self.output = nn.Conv1d(WIDTH, NUM_OUTPUTS, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        values = torch.relu(self.input(features))
        for block in self.blocks:
            values = block(values)
        outputs: Tensor = self.output(values).transpose(1, 2)
        return outputs


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.point = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, values: Tensor) -> Tensor:
        return torch.relu(values + self.point(torch.relu(self.wide(values))))


class Player:
    """Turns levels into audio and audio into features, by the graphs of the codec."""

    def __init__(self) -> None:
        self._decoder = _session(build_decoder())
        self._features = _session(build_features())

    def play(self, levels: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Features `[F, T]` of levels `[T, C]`, played somewhere in a stream, a bit out of tune, with some noise.

        Returns them and the levels in time with them.
        """
        start = np.array([rng.integers(2**15)], np.int64)
        audio = self._decoder.run(None, {"latents": latents_from_levels(levels)[None], "start_frame": start})[0][0]
        speed = 2.0 ** (np.clip(rng.normal(0.0, _DETUNE_SEMITONES), -0.35, 0.35) / 12.0)
        read = np.minimum(np.arange(audio.shape[1]) * speed, audio.shape[1] - 1)
        audio = np.stack([np.interp(read, np.arange(audio.shape[1]), channel) for channel in audio])
        audio = audio + 10.0 ** rng.uniform(-5.0, -3.0) * rng.standard_normal(audio.shape)
        frames = np.minimum(np.round((np.arange(len(levels)) + 0.5) * speed - 0.5), len(levels) - 1).astype(np.int64)
        features: FloatArray = self._features.run(None, {"audio": audio[None].astype(np.float32)})[0][0]
        return features, levels[frames]


def _session(model: onnx.ModelProto) -> InferenceSession:
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Clips:
    """Parts of songs. instruments: index of each layer's instrument, -1 where the layer is absent."""

    features: npt.NDArray[np.float16]  # [N, F, T]
    notes: npt.NDArray[np.float16]  # [N, T, NUM_NOTES]
    instruments: npt.NDArray[np.int64]  # [N, layers]


def draw_clip(rng: np.random.Generator, frames: int) -> tuple[FloatArray, list[int]]:
    """Levels `[T, C]` of a part of a song with any set of its layers, and its instruments."""
    song, start = draw_song(rng), int(rng.integers(_LATEST_START))
    share = 0.0 if rng.random() < _SILENT_SHARE else _LAYER_SHARE
    layers = [layer for layer in INSTRUMENTS if rng.random() < share]
    indices = [names.index(song.instruments[n]) if n in layers else -1 for n, names in INSTRUMENTS.items()]
    return render(song, start + frames, layers)[start:], indices


def make_clips(config: EncoderConfig) -> Clips:
    """Draw and play `num_clips` clips."""
    player = Player()
    rows = []
    for index in range(config.num_clips):
        rng = np.random.default_rng([config.seed, index])
        levels, instruments = draw_clip(rng, config.clip_frames)
        features, levels = player.play(levels, rng)
        rows.append((features.astype(np.float16), levels[:, :NUM_NOTES].astype(np.float16), instruments))
    features_, notes, instruments_ = zip(*rows, strict=True)
    return Clips(np.stack(features_), np.stack(notes), np.array(instruments_, np.int64))


def train_encoder(config: EncoderConfig, path: Path) -> EncoderNetwork:
    """Train the network and write its weights."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    network, begin = EncoderNetwork(), time.monotonic()
    clips = make_clips(config)
    _log(clips=config.num_clips, played_s=round(time.monotonic() - begin, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=0.01)
    rng, step, begin, losses = np.random.default_rng([config.seed, 0]), 0, time.monotonic(), []
    while (progress := max(step / config.steps, (time.monotonic() - begin) / (60.0 * config.minutes))) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / 100) * min(1.0, 1.4 * (1.0 - progress))
        losses.append(
            _train_step(network, optimizer, clips, rng.integers(config.num_clips, size=config.batch_size), rng)
        )
        step += 1
        if step % 200 == 0:
            _log(step=step, loss=round(float(np.mean(losses)), 5), elapsed_s=round(time.monotonic() - begin, 1))
            losses.clear()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, {name: value.detach().numpy() for name, value in network.state_dict().items()})
    return network


def _train_step(
    network: EncoderNetwork,
    optimizer: torch.optim.Optimizer,
    clips: Clips,
    rows: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> float:
    heard = torch.from_numpy(recoloured(clips.features[rows].astype(np.float32), rng))
    notes = torch.from_numpy(clips.notes[rows].astype(np.float32))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(heard)
    loss = encoder_loss(outputs.float(), notes, torch.from_numpy(clips.instruments[rows]))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return float(loss.item())


def recoloured(features: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Features `[B, F, T]` as if the audio were up to 12 dB louder or softer, through another equalizer."""
    octaves = feature_octaves()
    knots = np.linspace(octaves.min(), octaves.max(), _EQUALIZER_KNOTS)
    curves_db = rng.normal(0.0, _EQUALIZER_DB, (len(features), _EQUALIZER_KNOTS))
    gain_db = rng.uniform(-12.0, 12.0, (len(features), 1))
    gain_db = gain_db + np.stack([np.interp(octaves, knots, curve) for curve in curves_db])
    energies = denormalized(features) * 10.0 ** (gain_db[..., None] / 10.0)
    return normalized(np.asarray(energies, np.float32))


def encoder_loss(outputs: Tensor, notes: Tensor, instruments: Tensor) -> Tensor:
    """Squared error of notes `[B, N, NUM_NOTES]`, more where one sounds, and cross entropies of the layers.

    instruments `[B, layers]`: an instrument counts in the frames in which its layer sounds.
    """
    weight = 1.0 + _NOTE_WEIGHT * (notes > 0.02)
    loss = torch.mean(weight * (outputs[..., :NUM_NOTES] - notes) ** 2)
    sizes = [len(names) for names in INSTRUMENTS.values()]
    logits = outputs[..., NUM_NOTES:].split([*sizes, len(sizes)], dim=2)
    present = (instruments >= 0).float()[:, None].expand(logits[-1].shape)
    loss = loss + _TIMBRE_WEIGHT * functional.binary_cross_entropy_with_logits(logits[-1], present)
    for index, layer in enumerate(INSTRUMENTS):
        sounds = notes[..., list(pitch_channels(layer))].amax(dim=2) > 0.05
        labels = torch.where(sounds, instruments[:, index, None], -1)
        entropy = functional.cross_entropy(logits[index].transpose(1, 2), labels, ignore_index=-1, reduction="sum")
        loss = loss + _TIMBRE_WEIGHT * entropy / labels.numel()
    return loss


def _log(**fields: float) -> None:
    print(json.dumps(fields), flush=True)
