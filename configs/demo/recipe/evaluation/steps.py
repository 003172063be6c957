"""How many steps are enough? Generations of few steps against a converged one of the same seed and prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from configs.demo.recipe.evaluation import listening
from configs.demo.recipe.evaluation.measure import SOUNDING_LEVEL, difference
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Measured, Row
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray, levels_from_latents

PROMPTS: Final = (
    "lofi hip hop beats to study",
    "rock in E minor at 140 bpm",
    "melody and bass in C major",
    "calm pads",
    "techno in A minor at 130 bpm",
    "jazz with piano chords, upright bass and saxophone melody",
    "drum solo, 120 bpm",
    "trance arpeggios, bass and drums at 138 bpm",
)
STEPS: Final = (6, 8, 12, 16, 32, 100)
CONVERGED_STEPS: Final = 200  # the most that a request may have
CONVERGED: Final[Mapping[str, Any]] = {"steps": CONVERGED_STEPS, "solver": "ab2", "cfg_interval_end": 1.0}
FIRST_SEED: Final = 8400
NOTE_CHANNELS: Final = 55
# A level that rises so much in a frame begins a note.
RISE: Final = 0.12


def measure(player: Player) -> Measured:
    """By number of steps the onsets' F1 and the distances to the converged solution; other_seed: what is no nearer."""
    converged = _generated(player, CONVERGED)
    rows = [steps_row(str(steps), player, _generated(player, {"steps": steps}), converged) for steps in STEPS]
    rows.append(steps_row("other_seed", player, _generated(player, {"steps": 32}, 1000), converged))
    figures = {
        f"steps_{row['steps']}_{name}": row[column]
        for row in rows
        for name, column in (("onset_f1", "librosa onset F1"), ("note_f1", "note F1"), ("mel_db", "log-mel dB"))
    }
    return Measured(figures, {f"Steps against {CONVERGED_STEPS}, seeds from {FIRST_SEED}": rows})


def _generated(player: Player, options: Mapping[str, Any], more: int = 0) -> list[FloatArray]:
    pieces = [Piece(prompt, FIRST_SEED + i + more, {"plan": False, **options}) for i, prompt in enumerate(PROMPTS)]
    return player.generate(pieces)


def steps_row(name: str, player: Player, found: Sequence[FloatArray], converged: Sequence[FloatArray]) -> Row:
    """Means over pieces."""
    onsets, notes, mels, differences = [], [], [], []
    for each, true in zip(found, converged, strict=True):
        audio, true_audio = player.decode(each), player.decode(true)
        levels, true_levels = levels_from_latents(each), levels_from_latents(true)
        onsets.append(listening.match_f1(listening.onset_times_s(audio), listening.onset_times_s(true_audio)))
        notes.append(note_f1(levels, true_levels))
        mels.append(listening.mel_distance_db(audio, true_audio))
        differences.append(difference(levels, true_levels))
    return {
        "steps": name,
        "librosa onset F1": round(float(np.mean(onsets)), 4),
        "worst": round(min(onsets), 4),
        "note F1": round(float(np.mean(notes)), 4),
        "log-mel dB": round(float(np.mean(mels)), 3),
        "levels": round(float(np.mean(differences)), 4),
    }


def note_f1(levels: FloatArray, true: FloatArray) -> float:
    """F1 of the notes' beginnings, channel by channel, at most `listening.ONSET_TOLERANCE_S` apart."""
    matched, count = 0.0, 0
    for channel in range(NOTE_CHANNELS):
        first, second = _starts_s(levels[:, channel]), _starts_s(true[:, channel])
        number = len(first) + len(second)
        matched += number * listening.match_f1(first, second) if number else 0.0
        count += number
    return matched / count if count else 1.0


def _starts_s(level: FloatArray) -> list[float]:
    """Where a channel's level `[T]` starts to rise by `RISE` in a frame to what sounds."""
    is_rise = np.diff(level, prepend=np.float32(0.0)) > RISE
    is_start = is_rise & ~np.concatenate(([False], is_rise[:-1])) & (level > SOUNDING_LEVEL)
    return [float(frame) / FRAME_RATE_HZ for frame in np.flatnonzero(is_start)]
