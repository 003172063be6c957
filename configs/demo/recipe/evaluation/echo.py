"""Do notes that a client plays to a live session come back in the bar that they were played for, in the audio too?

A client plays bars of a melody by hand, each note sent when its key is let go, and hears them `bars` bars later. They
are looked for in the notes that the session tells, and in the melody's own audio with librosa's onsets.
"""

from typing import Any, Final

import numpy as np

from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.evaluation.report import Measured, Row
from configs.demo.recipe.evaluation.session_run import PlayedRun
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import SAMPLE_RATE_HZ, SILENCE, FloatArray
from runtime.music.score import Note

PROMPT: Final = "piano melody, bass and drums, {} bpm, d minor"
TEMPOS: Final = (60, 84, 120, 160)
BARS: Final = (1, 2)
PITCHES: Final = (74, 76, 77, 79, 81, 82, 84, 86)
# The beats of the bars that are played, the last ones too.
PHRASE: Final = ((0.0, 1.0, 2.0, 3.0), (0.0, 1.5, 2.5, 3.5), (0.0, 1.0, 2.0, 3.0), (0.5, 3.0))
HELD_BEATS: Final = 0.4
HAND_S: Final = 0.01  # the spread of a hand's onsets
TOLERANCE_S: Final = 0.06
HOP: Final = 128


def measure(player: Player) -> Measured:
    """Every tempo, one and two bars later."""
    rows = [echo_row(player, bpm, bars) for bars in BARS for bpm in TEMPOS]
    figures: dict[str, Any] = {
        f"echo_{name}_{bars}": round(float(np.mean([row[column] for row in rows if row["bars"] == bars])), 4)
        for bars in BARS
        for name, column in (("told", "told"), ("heard", "heard"), ("others", "others"))
    }
    for way in ("told", "heard"):
        figures[f"echo_{way}_sigma_ms_max"] = max(row[f"{way} sigma ms"] for row in rows)
    return Measured(figures, {"Notes that are played to a live session and come back": rows})


def echo_row(player: Player, bpm: int, bars: int, seed: int = 0) -> Row:
    """How many notes come back at their place: as told, and as heard in the melody's audio; with how many others."""
    client, rng = PlayedRun(player, PROMPT.format(bpm), seed), np.random.default_rng(seed)
    client.play(1.0)
    lines = client.bar_lines()
    first = next(i for i, line in enumerate(lines) if line > client.now_s)
    beat = (lines[first + 1] - lines[first]) / 4
    expected = []
    for number, beats in enumerate(PHRASE):
        lines = client.bar_lines()
        for place in beats:
            pitch, start = int(rng.choice(PITCHES)), lines[first + number] + place * beat
            client.play(start + HELD_BEATS * beat)
            played = start + float(rng.normal(0.0, HAND_S))
            client.send([{"pitch": pitch, "seconds": HELD_BEATS * beat}], played, exact=True, bars=bars)
            client.play(client.now_s)
            expected.append((number, place, pitch))
    client.play(lines[first + len(PHRASE) + bars - 1] + 4 * beat)
    end = client.now_s + beat
    client.play(end)
    lines = client.bar_lines()
    notes = [
        Note("melody", pitch, 100, lines[first + number + bars] + place * beat, HELD_BEATS * beat)
        for number, place, pitch in expected
    ]
    window = lines[first + bars] - TOLERANCE_S, lines[first + bars + len(PHRASE)] - TOLERANCE_S
    told = [note for note in client.heard("melody") if window[0] <= note.start_s < window[1]]
    onsets = [time for time in _onsets(player, client.latents) if window[0] <= time < window[1]]
    client.close()
    told_errors = [
        _nearest(note.start_s, [each.start_s for each in told if each.pitch == note.pitch]) for note in notes
    ]
    heard_errors = [_nearest(note.start_s, onsets) for note in notes]
    hits = [error for error in told_errors if abs(error) <= TOLERANCE_S]
    heard = [error for error in heard_errors if abs(error) <= TOLERANCE_S]
    return {
        "bpm": bpm,
        "bars": bars,
        "played": len(notes),
        "told": len(hits) / len(notes),
        "others": len(told) - len(hits),
        "told sigma ms": round(1000 * float(np.std(hits)), 1),
        "heard": len(heard) / len(notes),
        "heard sigma ms": round(1000 * float(np.std(heard)), 1),
        "generations": client.num_generations,
    }


def _onsets(player: Player, latents: FloatArray) -> list[float]:
    """Those of the melody alone, in seconds."""
    import librosa

    alone = latents.copy()
    for layer in LAYERS:
        if layer != "melody":
            alone[:, list(pitch_channels(layer))] = SILENCE
    audio = player.decode(alone).mean(axis=1)
    found = librosa.onset.onset_detect(y=audio, sr=SAMPLE_RATE_HZ, hop_length=HOP, units="time", backtrack=False)
    return [float(time) for time in found]


def _nearest(time_s: float, times_s: list[float]) -> float:
    return min((other - time_s for other in times_s), key=abs, default=np.inf)
