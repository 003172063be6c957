"""Do blends on the page's pad keep the level of their corners? Presets, blended as the page does in a live session."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from configs.demo.recipe.evaluation import sound
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.latents import SAMPLE_RATE_HZ
from runtime.audio.finishing import block_energies, loudness_lufs

Weights = tuple[float, float, float, float]


class Preset(NamedTuple):
    """Corners A to D of a preset of the page, and its controls."""

    prompts: tuple[str, str, str, str]
    options: Mapping[str, Any]


PRESETS: Final[Mapping[str, Preset]] = {
    "Nightfall": Preset(
        (
            "lo-fi piano, bass and brushes, A minor, 84 bpm",
            "calm guitar arps, strings pads, A minor, 84 bpm",
            "energetic synth arps, bass, 808, A minor, 84 bpm",
            "flute lead, choir pads, drums, A minor, 84 bpm",
        ),
        {},
    ),
    "Clockwork": Preset(
        (
            "only house drums and synth bass, E dorian, 124 bpm",
            "marimba arpeggio and drums, E dorian, 124 bpm",
            "calm sparse whistle melody, E dorian, 124 bpm",
            "trance, E dorian, 124 bpm",
        ),
        {"guidance": 2.7},
    ),
}
# Places of the pad: A is 0, 0, B 1, 0, C 0, 1, D 1, 1.
PLACES: Final = {
    "A": (0.0, 0.0), "B": (1.0, 0.0), "C": (0.0, 1.0), "D": (1.0, 1.0),
    "A+B": (0.5, 0.0), "C+D": (0.5, 1.0), "A+C": (0.0, 0.5), "B+D": (1.0, 0.5), "centre": (0.5, 0.5),
}  # fmt: skip
NUM_SEEDS: Final = 4
FIRST_SEED: Final = 8300
BLENDS: Final = ("velocity", "tokens")


def weights_of(x: float, y: float) -> Weights:
    """Weights of A to D at a place of the pad, bilinear; they sum to 1."""
    return ((1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y)


def measure(player: Player) -> Measured:
    """Canvases of every place and seed in a live session's steps, without a plan; corners by velocity and by tokens."""
    figures, tables = Figures(), dict[str, Sequence[Row]]()
    for blend in BLENDS:
        rows = [row for name in PRESETS for row in _preset_rows(player, name, blend)]
        tables[f"Levels over the pad, {blend}, {NUM_SEEDS} seeds from {FIRST_SEED}"] = rows
        figures |= {f"blend_{blend}_{name}": value for name, value in blend_figures(rows).items()}
    return Measured(figures, tables)


def _preset_rows(player: Player, name: str, blend: str) -> list[Row]:
    preset = PRESETS[name]
    options = {**preset.options, "steps": player.pipeline.bundle.sampler.live_steps, "blend": blend, "plan": False}
    asked = [(weights_of(*place), FIRST_SEED + seed) for place in PLACES.values() for seed in range(NUM_SEEDS)]
    latents = player.generate([Piece(_blended(preset, weights), seed, options) for weights, seed in asked])
    audio = [player.decode(each) for each in latents]
    parts = [np.concatenate(audio[start : start + NUM_SEEDS]) for start in range(0, len(audio), NUM_SEEDS)]
    rms = {place: sound.level_db(part) for place, part in zip(PLACES, parts, strict=True)}
    lufs = {place: _lufs(part) for place, part in zip(PLACES, parts, strict=True)}
    return [place_row(name, place, rms, lufs) for place in PLACES]


def _blended(preset: Preset, weights: Weights) -> list[dict[str, Any]]:
    """Prompts as the page sends them; one of weight 0 is not heard and not sent."""
    return [{"text": text, "weight": weight} for text, weight in zip(preset.prompts, weights, strict=True) if weight]


def _lufs(audio: Any) -> float:
    return loudness_lufs(block_energies(audio, SAMPLE_RATE_HZ)) or sound.QUIET_DB


def place_row(preset: str, place: str, rms_db: Mapping[str, float], lufs: Mapping[str, float]) -> Row:
    """A place's levels, and how far each lies above the energy mean of its corners, in dB."""
    return {
        "preset": preset,
        "place": place,
        "RMS dB": round(rms_db[place], 2),
        "LUFS": round(lufs[place], 2),
        "RMS above corners": round(rms_db[place] - corner_mean_db(rms_db, place), 2),
        "LUFS above corners": round(lufs[place] - corner_mean_db(lufs, place), 2),
    }


def corner_mean_db(levels_db: Mapping[str, float], place: str) -> float:
    """The energy mean of the corners, each with its weight at a place."""
    weights = zip("ABCD", weights_of(*PLACES[place]), strict=True)
    return 10 * math.log10(sum(weight * 10 ** (levels_db[corner] / 10) for corner, weight in weights))


def blend_figures(rows: Sequence[Row]) -> Figures:
    """The largest deviations of a blend, that of the centre and of A+B (RMS, the lowest of the presets), in dB."""
    blends = [row for row in rows if row["place"] not in "ABCD"]
    return {
        "rms_deviation_db": max((row["RMS above corners"] for row in blends), key=abs),
        "lufs_deviation_db": max((row["LUFS above corners"] for row in blends), key=abs),
        "centre_db": min(row["RMS above corners"] for row in rows if row["place"] == "centre"),
        "a_and_b_db": min(row["RMS above corners"] for row in rows if row["place"] == "A+B"),
    }
