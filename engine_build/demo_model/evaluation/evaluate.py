"""Figures of a bundle: adherence to held-out prompts, difference between seeds, continuation of known frames."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine_build.demo_model.bundle_text import OVERLAP_FRAMES
from engine_build.demo_model.corpus.prompts import Request, draw_request
from engine_build.demo_model.corpus.songs import LAYERS, Song, draw_song, render
from engine_build.demo_model.evaluation.measure import difference, in_key_energy, is_tempo, layers_present
from engine_build.demo_model.evaluation.player import Player
from engine_build.demo_model.latents import (
    CANVAS_FRAMES,
    FloatArray,
    latents_from_levels,
    levels_from_latents,
)

HELD_OUT_SEED: Final = 2_000_003
NUM_PROMPTS: Final = 64
SEEDS_DIFFER_BY: Final = 0.1


@dataclass(frozen=True)
class Scores:
    """Shares in [0, 1], each over all prompts that name the property."""

    in_key: float
    layers_present: float
    layers_absent: float
    tempo: float

    def rounded(self, prefix: str = "") -> dict[str, float]:
        """The values rounded, for bundle.toml."""
        return {f"{prefix}{name}": round(value, 4) for name, value in vars(self).items()}


def held_out_requests(count: int = NUM_PROMPTS) -> list[Request]:
    """Prompts of songs that training never drew."""
    rngs = (np.random.default_rng([HELD_OUT_SEED, index]) for index in range(count))
    return [draw_request(draw_song(rng), rng) for rng in rngs]


def score(requests: Sequence[Request], rolls: Iterable[FloatArray]) -> Scores:
    """Score levels `[T, C]`, one per request, each for what its own prompt names."""
    in_key, present, absent, tempo = [], [], [], []
    for request, levels in zip(requests, rolls, strict=True):
        sounding = layers_present(levels)
        present += [layer in sounding for layer in request.layers_asked]
        absent += [layer not in sounding for layer in request.layers_excluded]
        if request.names_key:
            in_key.append(in_key_energy(levels, request.song.root, request.song.mode))
        if request.names_tempo:
            tempo.append(is_tempo(levels, request.song.bpm))
    means = [float(np.mean(values)) if values else 1.0 for values in (in_key, present, absent, tempo)]
    return Scores(*means)


def evaluate(player: Player) -> dict[str, Any]:
    """All figures: of the bundle, also in live sessions, and of the corpus itself under the same detectors."""
    requests = held_out_requests()
    prompts = [request.prompt for request in requests]
    rolls = levels_from_latents(player.play(prompts, seed=1000))
    live_rolls = levels_from_latents(player.play(prompts, seed=1000, live=True))
    ceiling = score(requests, (render(request.song, CANVAS_FRAMES) for request in requests))
    return {
        "prompts": len(requests),
        **score(requests, rolls).rounded(),
        **score(requests, live_rolls).rounded("live_"),
        **seed_figures(player, requests[:16], rolls[:16]),
        **continuation_scores(player, [request for request in requests if request.names_tempo]).rounded("continued_"),
        **ceiling.rounded("ceiling_"),
    }


def seed_figures(player: Player, requests: Sequence[Request], rolls: FloatArray) -> dict[str, float]:
    """How much other seeds differ from `rolls`: the share that is another piece, and the smallest difference."""
    others = levels_from_latents(player.play([request.prompt for request in requests], seed=2000))
    differences = [difference(roll, other) for roll, other in zip(rolls, others, strict=True)]
    share = float(np.mean(np.array(differences) > SEEDS_DIFFER_BY))
    return {"seeds_differ": share, "seeds_difference_min": round(min(differences), 4)}


def continuation_scores(player: Player, requests: Sequence[Request]) -> Scores:
    """Scores of what follows the known end of a song's canvas, measured against everything that is true of the song."""
    songs = [request.song for request in requests]
    ends = np.stack([render(song, CANVAS_FRAMES)[-OVERLAP_FRAMES:] for song in songs])
    prompts = [request.prompt for request in requests]
    latents = player.continue_from(prompts, latents_from_levels(ends), seed=3000)
    rolls = levels_from_latents(latents)[:, OVERLAP_FRAMES:]
    return score([_everything_of(song) for song in songs], rolls)


def _everything_of(song: Song) -> Request:
    absent = tuple(layer for layer in LAYERS if layer not in song.layers)
    return Request("", song, tuple(song.layers), absent, names_tempo=True, names_key=True)
