"""Which instrument plays: the nearest centroid among a layer's instruments, learned on the corpus's audio."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.evaluation.sound import Values, timbre_features
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS
from configs.demo.recipe.latents import FloatArray, latents_from_levels

SONGS_PER_INSTRUMENT: Final = 24
SHRINKAGE: Final = 0.2
CLIP_FRAMES: Final = 128
_SEED: Final = 5_000_003

Decode = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class InstrumentEar:
    """Per layer the centroids of its instruments' features, and what makes the features' spread within them white."""

    centroids: dict[str, Values]  # [instruments, F]
    whitening: dict[str, Values]  # [F, F]

    def instrument(self, layer: str, audio: FloatArray) -> str:
        """Which of a layer's instruments plays, alone, in audio f32 `[samples, 2]`."""
        differences = (self.centroids[layer] - timbre_features(audio)) @ self.whitening[layer]
        return INSTRUMENTS[layer][int(np.argmin(np.square(differences).sum(axis=1)))]


def train_ear(
    decode: Decode, layers: Sequence[str] = LAYERS, songs_per_instrument: int = SONGS_PER_INSTRUMENT
) -> InstrumentEar:
    """Learn from songs of the corpus with one layer, decoded by the codec."""
    centroids, whitening = {}, {}
    for layer in layers:
        features = np.stack(
            [
                [
                    timbre_features(decode(solo(layer, name, [_SEED, index, song])))
                    for song in range(songs_per_instrument)
                ]
                for index, name in enumerate(INSTRUMENTS[layer])
            ]
        )  # [instruments, songs, F]
        centroids[layer] = features.mean(axis=1)
        whitening[layer] = _whitening((features - centroids[layer][:, None]).reshape(-1, features.shape[-1]))
    return InstrumentEar(centroids, whitening)


def _whitening(residuals: Values) -> Values:
    """A matrix `[F, F]` that makes residuals `[N, F]` white, their correlations shrunk (Ledoit & Wolf, 2004)."""
    spread = residuals.std(axis=0) + 1e-3
    correlation = residuals.T @ residuals / len(residuals) / np.outer(spread, spread)
    values, vectors = np.linalg.eigh((1 - SHRINKAGE) * correlation + SHRINKAGE * np.eye(len(spread)))
    whitening: Values = vectors / np.sqrt(values) / spread[:, None]
    return whitening


def solo(layer: str, instrument: str, seed: list[int]) -> FloatArray:
    """Latents `[CLIP_FRAMES, C]` of a song's one layer, played by an instrument."""
    song = draw_song(np.random.default_rng(seed))
    song = replace(
        song, instruments={**song.instruments, layer: instrument}, section=None, loudness=max(song.loudness, 1)
    )
    return latents_from_levels(render(song, CLIP_FRAMES, [layer]))
