"""Is the beat kept? Drums against the grid in files, live and in loops; seams of loops; clocks out and in."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.evaluation.session_run import SessionRun
from configs.demo.recipe.instruments import pitch_channels
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    FRAME_RATE_HZ,
    SAMPLE_RATE_HZ,
    FloatArray,
    levels_from_latents,
)
from runtime.live.protocol.messages import LivePrompt, Mode
from runtime.live.protocol.server_messages import Beat, State
from runtime.music.clock import CLOCK, BarLine, ClockOut
from runtime.music.tempo import Tempo, best_bars, loop_frames

Values = npt.NDArray[np.float64]

TEMPOS: Final = (97, 120, 124, 140)
# So slow that four bars are longer than the canvas.
SLOW_TEMPOS: Final = (60, 75, 84)
LONG_BARS: Final = 4
GENRES: Final = ("techno", "house", "trance", "disco", "rock", "pop")
PROMPTS: Final = tuple(f"{genre}, {{bpm}} bpm, drums and bass" for genre in GENRES)
FIRST_SEED: Final = 500
SECONDS: Final = 60.0
LOOPED_S: Final = 30.0
FIRST_CANVAS_S: Final = CANVAS_FRAMES / FRAME_RATE_HZ
# The first channels of the drums; a blow is a rise of a level by more than this from one frame to the next.
KICK_AND_SNARE: Final = 2
MIN_RISE: Final = 0.3
DIVISIONS: Final = 4  # of a beat: sixteenths
LOOP_TEMPOS: Final = tuple(bpm / 10 for bpm in range(600, 1801, 7))
CLOCK_S: Final = 600.0
FOLLOWED_BPM: Final = 124.3


class OnGrid(NamedTuple):
    """How onsets lie on a grid: the length of their mean direction, 1 exact, and how far that is off, in steps."""

    onsets: int
    coherence: float
    offset: float


def measure(player: Player, clock_s: float = CLOCK_S) -> Measured:
    """All of it."""
    kinds = {"files": file_row, "live": live_row, "loops": loop_row}
    tables = {name: [row(player, bpm) for bpm in TEMPOS] for name, row in kinds.items()}
    tables["long_loops"] = [long_loop_row(player, bpm) for bpm in SLOW_TEMPOS]
    figures: Figures = {}
    for name, rows in tables.items():
        figures[f"beat_{name}_coherence_min"] = min(row["coherence"] for row in rows)
        figures[f"beat_{name}_offset_max_ms"] = max(abs(row["offset ms"]) for row in rows)
    figures["beat_seam_max_ms"] = max(seam_ms(bpm) for bpm in LOOP_TEMPOS)
    figures |= clock_figures(player, clock_s) | followed_figures(player)
    return Measured(figures, {f"Kick and snare against sixteenths, {name}": rows for name, rows in tables.items()})


def drum_onsets_s(latents: FloatArray) -> Values:
    """When kick and snare are struck in latents `[T, C]`: where their levels rise most."""
    levels = levels_from_latents(latents)[:, pitch_channels("drums")][:, :KICK_AND_SNARE]  # [T, 2]
    rise = np.pad(np.diff(levels, axis=0, prepend=np.zeros_like(levels[:1])), ((1, 1), (0, 0)))  # [T + 2, 2]
    is_onset = (rise[1:-1] > MIN_RISE) & (rise[1:-1] >= rise[:-2]) & (rise[1:-1] > rise[2:])
    return np.sort(np.nonzero(is_onset)[0]) / FRAME_RATE_HZ


def on_grid(turns: Values) -> OnGrid:
    """Onsets in steps of their grid from one of its lines on; offset in steps."""
    mean = complex(np.exp(2j * np.pi * turns).mean()) if len(turns) else 0j
    return OnGrid(len(turns), abs(mean), float(np.angle(mean)) / (2 * np.pi))


def _row(bpm: float, turns: Sequence[Values]) -> Row:
    found = on_grid(np.concatenate(turns))
    offset_ms = found.offset * 60e3 / bpm / DIVISIONS
    return {
        "bpm": bpm,
        "onsets": found.onsets,
        "coherence": round(found.coherence, 4),
        "offset ms": round(offset_ms, 2),
    }


def file_row(player: Player, bpm: float, prompts: Sequence[str] = PROMPTS, seconds: float = SECONDS) -> Row:
    """Files after their first canvas, as users get them: planned. Against the grid from 0 s on."""
    options = {"seconds": seconds, "plan": None}
    pieces = [Piece(prompt.format(bpm=bpm), FIRST_SEED + index, options) for index, prompt in enumerate(prompts)]
    onsets = [drum_onsets_s(latents) for latents in player.generate(pieces)]
    return _row(bpm, [each[each >= FIRST_CANVAS_S] * bpm / 60 * DIVISIONS for each in onsets])


def live_row(player: Player, bpm: float, prompts: Sequence[str] = PROMPTS, seconds: float = SECONDS) -> Row:
    """Sessions without an end after their first canvas, against the bar lines that they tell."""
    return _session_row(player, bpm, prompts, seconds, "extend")


def loop_row(player: Player, bpm: float, prompts: Sequence[str] = PROMPTS, seconds: float = LOOPED_S) -> Row:
    """Loops after their first pass, against the bar lines that they tell."""
    return _session_row(player, bpm, prompts, seconds, "loop")


def long_loop_row(player: Player, bpm: float, prompts: Sequence[str] = PROMPTS, seconds: float = 2 * LOOPED_S) -> Row:
    """Loops of four bars that are longer than the canvas, after its length, against the bar lines that they tell."""
    return _session_row(player, bpm, prompts, seconds, "loop", LONG_BARS)


def _session_row(
    player: Player, bpm: float, prompts: Sequence[str], seconds: float, mode: Mode, bars: int | None = None
) -> Row:
    return _row(bpm, [_session_turns(player, prompt.format(bpm=bpm), seconds, mode, bars) for prompt in prompts])


def _session_turns(player: Player, prompt: str, seconds: float, mode: Mode, bars: int | None) -> Values:
    run = SessionRun(player, mode=mode, prompts=[LivePrompt(text=prompt)], seed=FIRST_SEED, bars=bars)
    run.run(seconds)
    run.close()
    onsets = drum_onsets_s(run.played)
    later = onsets[(onsets >= FIRST_CANVAS_S) & (onsets < seconds)]
    starts, steps = grids(beats_of(run), later)
    turns: Values = (later - starts) / steps
    return turns


def beats_of(run: SessionRun) -> list[Beat]:
    """The bar lines that a session has told, in order."""
    return [state.beat for state in run.of(State) if state.beat is not None]


def grids(beats: Sequence[Beat], onsets_s: Values) -> tuple[Values, Values]:
    """For each onset where its newest bar line lies, and the step of the grid from there on, in s."""
    lines = {beat.sample / SAMPLE_RATE_HZ: 60 / beat.bpm / DIVISIONS for beat in beats}
    starts, steps = np.array(sorted(lines)), np.array([lines[start] for start in sorted(lines)])
    index = np.maximum(np.searchsorted(starts, onsets_s + 1e-9, "right") - 1, 0)
    return starts[index], steps[index]


def seam_ms(bpm: float) -> float:
    """How far the beat jumps with each pass of a loop."""
    tempo = Tempo(bpm, 4)
    bars = best_bars(tempo, CANVAS_FRAMES, FRAME_RATE_HZ)
    error = loop_frames(tempo, bars, FRAME_RATE_HZ) - bars * tempo.bar_frames(FRAME_RATE_HZ)
    return round(abs(error) / FRAME_RATE_HZ * 1e3, 3)


def clock_figures(player: Player, seconds: float, bpm: float = 124.0) -> Figures:
    """The clock of a session without an end, against the formula: how far off its pulses are."""
    run = SessionRun(player, mode="extend", prompts=[LivePrompt(text=PROMPTS[0].format(bpm=bpm))], seed=FIRST_SEED)
    clock, found = ClockOut(SAMPLE_RATE_HZ), list[int]()
    clock.start(0)
    told, step_s = 0, 1.0
    for step in range(1, round(seconds / step_s)):
        run.run(step_s)
        states = run.of(State)
        for state in states[told:]:
            if state.beat is not None:
                clock.line(BarLine(state.beat.sample, state.beat.bar, state.beat.bpm, state.beat.beats))
        told = len(states)
        found += [
            sample for sample, message in clock.until(round(step * step_s * SAMPLE_RATE_HZ)) if message[0] == CLOCK
        ]
    run.close()
    pulses = np.array(found, np.float64)
    exact = np.arange(len(found)) * 60 * SAMPLE_RATE_HZ / (24 * bpm)
    return {"beat_clock_drift_ms": round(float(np.abs(pulses - exact).max()) / SAMPLE_RATE_HZ * 1e3, 4)}


def followed_figures(player: Player) -> Figures:
    """A controller's clock at another tempo: bars until the session has it, and how far off its beats are then."""
    run = SessionRun(player, mode="extend", prompts=[LivePrompt(text=PROMPTS[0].format(bpm=120))], seed=FIRST_SEED)
    run.run(8.0)
    beat_samples = 60 / FOLLOWED_BPM * SAMPLE_RATE_HZ
    sample = 7.9 * SAMPLE_RATE_HZ  # a beat of the controller
    applied = run.change("clock", bpm=FOLLOWED_BPM, sample=round(sample))
    sent_s = 8.0
    run.run(12.0)
    run.close()
    assert applied is not None
    assert applied.at_sample is not None
    bar_s = 4 * 60 / 120
    newest = beats_of(run)[-1]
    error = (newest.sample - sample + beat_samples / 2) % beat_samples - beat_samples / 2
    onsets = drum_onsets_s(run.played)
    later = onsets[onsets >= applied.at_sample / SAMPLE_RATE_HZ + 0.1]
    played = on_grid((later - sample / SAMPLE_RATE_HZ) * FOLLOWED_BPM / 60 * DIVISIONS)
    return {
        "beat_followed_bpm": newest.bpm,
        "beat_followed_after_bars": round((applied.at_sample / SAMPLE_RATE_HZ - sent_s) / bar_s, 3),
        "beat_followed_error_ms": round(abs(error) / SAMPLE_RATE_HZ * 1e3, 2),
        "beat_followed_coherence": round(played.coherence, 4),
    }
