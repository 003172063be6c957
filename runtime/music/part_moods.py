"""Moods of single parts, on latents: how loud the notes of a layer are, and which of them are left out.

Letters: T frames, C latent channels, K keys of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Latents
from runtime.config.notes import NotesSpec
from runtime.requests.prompt_words import BoundMood

# Notes that begin within so many frames begin together; the beat where no tempo is known.
TOGETHER_FRAMES, BEAT_S = 2, 0.5
# Of a beat, so much is between notes that stay.
BEAT_SHARE = 0.85


@dataclass(frozen=True)
class PartMoods:
    """level_db: by layer how much louder its notes are, a number or `[N]` per frame. sparse: layers with few notes."""

    level_db: Mapping[str, float | NDArray[np.float32]] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.level_db or self.sparse)

    def with_levels(self, latents: Latents, spec: NotesSpec, silence: Latents, start_frame: int = 0) -> Latents:
        """Latents `[T, C]` from `start_frame` on, as loud as they are heard; silence `[C]`."""
        made = latents
        for layer in spec.layers:
            level_db = self.level_db.get(layer.name, 0.0)
            if not isinstance(level_db, float):
                level_db = level_db[start_frame : start_frame + len(latents), None]
            if np.any(level_db):
                made = made.copy() if made is latents else made
                channels = list(layer.channels)
                gain = np.float32(10.0) ** (np.asarray(level_db, np.float32) / 20)
                made[:, channels] = (made[:, channels] - silence[channels]) * gain + silence[channels]
        return made


NO_MOODS = PartMoods()


def part_moods(bound: Sequence[Iterable[BoundMood]], weights: Sequence[float | NDArray[np.float32]]) -> PartMoods:
    """Those of prompts that are blended with weights; what one of them thins is sparse while it has half the weight."""
    total = np.maximum(sum(np.asarray(weight, np.float32) for weight in weights), np.float32(1e-6))
    levels, sparse = dict[str, NDArray[Any]](), dict[str, float]()
    for moods, weight in zip(bound, weights, strict=True):
        share = np.asarray(weight, np.float32) / total
        for layer, level_db in {mood.layer: mood.level_db for mood in moods if mood.level_db}.items():
            levels[layer] = levels.get(layer, np.float32(0.0)) + share * np.float32(level_db)
        for layer in {mood.layer for mood in moods if mood.is_sparse}:
            sparse[layer] = sparse.get(layer, 0.0) + float(share.mean())
    return PartMoods(
        {layer: level if level.ndim else float(level) for layer, level in levels.items()},
        frozenset(layer for layer, share in sparse.items() if share >= 0.5),
    )


class Thinning:
    """Leaves notes out that follow another one of their layer within a beat; what they repeat goes on. One thread.

    silence `[C]`. bpm: None: not known.
    """

    def __init__(
        self, spec: NotesSpec, silence: Latents, layers: Iterable[str], bpm: float | None, frame_rate_hz: float
    ) -> None:
        beat_s = BEAT_S if bpm is None else 60.0 / bpm
        self._spec, self._silence, self._least = spec, silence, BEAT_SHARE * beat_s * frame_rate_hz
        self._layers = {layer.name: _ThinLayer(len(layer.keys)) for layer in spec.layers if layer.name in set(layers)}

    def thinned(self, latents: Latents) -> Latents:
        """The next frames `[T, C]` without them."""
        made = latents.copy() if self._layers else latents
        for layer in self._spec.layers:
            if layer.name in self._layers:
                channels = list(layer.channels)
                silence = self._silence[channels]
                levels = np.maximum(made[:, channels] - silence, 0.0) / self._spec.scale
                thin = self._layers[layer.name].thinned(levels, self._spec.on, self._least)
                made[:, channels] = silence + np.float32(self._spec.scale) * thin
        return made


class _ThinLayer:
    """A layer's last frame, as it was and as it is, and which of its keys sound by a note that stays."""

    def __init__(self, keys: int) -> None:
        self._before, self._made, self._stays = np.zeros(keys), np.zeros(keys), np.zeros(keys, bool)
        self._frame, self._last = 0, -np.inf

    def thinned(self, levels: Latents, on: float, least: float) -> Latents:
        """Levels `[T, K]` of which a note's rise stays where the last one that did is `least` frames before it."""
        made = np.empty_like(levels)
        for row, level in enumerate(levels):
            begins = (level > on) & (level - self._before > on / 2)
            if begins.any() and self._frame - self._last >= least:
                self._last = self._frame
            self._stays[begins] = self._frame - self._last < TOGETHER_FRAMES
            made[row] = np.where(self._stays, level, np.minimum(level, self._made))
            self._before, self._made, self._frame = level, made[row], self._frame + 1
        return made
