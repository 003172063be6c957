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

from engine_build.demo_model.codec.decoder import build_decoder
from engine_build.demo_model.codec.encoder import (
    NUM_BLOCKS,
    WIDTH,
    build_features,
    denormalized,
    normalized,
    save_weights,
)
from engine_build.demo_model.codec.features import NUM_FEATURES, feature_octaves
from engine_build.demo_model.corpus.rendering import render
from engine_build.demo_model.corpus.songs import draw_song
from engine_build.demo_model.instruments import LAYERS, TIMBRE_CHANNELS, channels_of
from engine_build.demo_model.latents import CHANNELS, FloatArray, latents_from_levels

_LAYER_SHARE: Final = 0.6
_SILENT_SHARE: Final = 0.02
_NOTE_WEIGHT: Final = 6.0
_TIMBRE_WEIGHT: Final = 0.5
_SKIPPED_FRAMES: Final = 16


@dataclass(frozen=True)
class EncoderConfig:
    """The recipe. minutes: of training, after the songs are played; the learning rate decays to fit."""

    minutes: float = 7.0
    num_clips: int = 1800
    clip_frames: int = 160
    batch_size: int = 24
    learning_rate: float = 2e-3
    seed: int = 1
    threads: int = 2


class EncoderNetwork(nn.Module):
    """`features [B, F, N]` -> `levels [B, N, 64]`; its parameters have the names that `build_encoder` takes."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Conv1d(NUM_FEATURES, WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(_Block() for _ in range(NUM_BLOCKS))
        self.output = nn.Conv1d(WIDTH, CHANNELS, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        values = torch.relu(self.input(features))
        for block in self.blocks:
            values = block(values)
        levels: Tensor = self.output(values).transpose(1, 2)
        return levels


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

    def features(self, levels: FloatArray, rng: np.random.Generator) -> FloatArray:
        """`[F, T]` of levels `[T, C]`, played somewhere in a stream, with a little noise."""
        start = np.array([rng.integers(2**15)], np.int64)
        audio = self._decoder.run(None, {"latents": latents_from_levels(levels)[None], "start_frame": start})[0]
        noise = np.float32(10.0 ** rng.uniform(-5.0, -3.0)) * rng.standard_normal(audio.shape, np.float32)
        features: FloatArray = self._features.run(None, {"audio": audio + noise})[0][0]
        return features


def _session(model: onnx.ModelProto) -> InferenceSession:
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def draw_levels(rng: np.random.Generator, frames: int) -> FloatArray:
    """A part of a song `[T, C]` with any set of its layers."""
    levels = render(draw_song(rng), _SKIPPED_FRAMES + frames + 256)
    start = int(rng.integers(_SKIPPED_FRAMES + 256))
    levels = levels[start : start + frames]
    silent = rng.random() < _SILENT_SHARE
    for layer in LAYERS:
        if silent or rng.random() > _LAYER_SHARE:
            levels[:, list(channels_of(layer))] = 0.0
    return levels


def make_clips(config: EncoderConfig) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    """Features `[N, F, T]` and levels `[N, T, C]` of `num_clips` clips."""
    player = Player()
    features, levels = [], []
    for index in range(config.num_clips):
        rng = np.random.default_rng([config.seed, index])
        clip = draw_levels(rng, config.clip_frames)
        features.append(player.features(clip, rng).astype(np.float16))
        levels.append(clip.astype(np.float16))
    return np.stack(features), np.stack(levels)


def train_encoder(config: EncoderConfig, path: Path) -> EncoderNetwork:
    """Train the network and write its weights."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    network = EncoderNetwork()
    begin = time.monotonic()
    features, levels = make_clips(config)
    _log(clips=config.num_clips, played_s=round(time.monotonic() - begin, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=0.01)
    rng, step, begin, losses = np.random.default_rng([config.seed, 0]), 0, time.monotonic(), []
    while (progress := (time.monotonic() - begin) / (60.0 * config.minutes)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / 100) * min(1.0, 1.4 * (1.0 - progress))
        rows = rng.integers(len(features), size=config.batch_size)
        heard = torch.from_numpy(recoloured(features[rows].astype(np.float32), rng))
        loss = level_loss(network(heard), torch.from_numpy(levels[rows].astype(np.float32)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        step += 1
        losses.append(loss.item())
        if step % 100 == 0:
            _log(step=step, loss=round(float(np.mean(losses)), 5), elapsed_s=round(time.monotonic() - begin, 1))
            losses.clear()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, {name: value.detach().numpy() for name, value in network.state_dict().items()})
    return network


def recoloured(features: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Features `[B, F, T]` as if the audio were up to 12 dB louder or softer, and brighter or darker."""
    gain_db = rng.uniform(-12.0, 12.0, (len(features), 1, 1))
    tilt_db = rng.uniform(-8.0, 8.0, (len(features), 1, 1)) * feature_octaves()[None, :, None]
    energies = denormalized(features) * 10.0 ** ((gain_db + tilt_db) / 10.0)
    return np.asarray(normalized(energies), np.float32)


def level_loss(found: Tensor, levels: Tensor) -> Tensor:
    """Mean squared error; where a note sounds it counts more."""
    weight = 1.0 + _NOTE_WEIGHT * (levels > 0.02)
    weight[..., [channel for channels in TIMBRE_CHANNELS.values() for channel in channels]] = _TIMBRE_WEIGHT
    return torch.mean(weight * (found - levels) ** 2)


def _log(**fields: float) -> None:
    print(json.dumps(fields), flush=True)
