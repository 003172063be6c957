"""Tempo and meter: what options and prompts say of them, and loops of whole bars."""

from __future__ import annotations

import re
from typing import NamedTuple

from runtime.config.option_ranges import ANY_MODEL, NumberRange
from runtime.requests.options import GenerationOptions

_BPM = re.compile(r"(?<![\d.])(\d{2,3}(?:\.\d+)?) ?bpm\b", re.IGNORECASE)
_METER = re.compile(r"(?<![\d/])([2346])/[48](?![\d/])")
# Beats of a bar by the number that a meter begins with: a beat of 6/8 is three eighths.
BEATS = {2: 2, 3: 3, 4: 4, 6: 2}


class Tempo(NamedTuple):
    """Beats per minute, and of a bar."""

    bpm: float
    beats: int

    def bar_frames(self, frame_rate_hz: float) -> float:
        """How long a bar is, in frames, exactly."""
        return self.beats * 60.0 / self.bpm * frame_rate_hz


def prompt_tempo(prompt: str, taken: NumberRange) -> float | None:
    """The tempo that a text names, such as "124 bpm": the nearest that the model takes.

    None where it names none that any model takes.
    """
    found = _BPM.search(prompt)
    bpm = 0.0 if found is None else float(found[1])
    return None if ANY_MODEL.bpm.outside(bpm) is not None else taken.nearest(bpm)


def tempo_of(options: GenerationOptions, taken: NumberRange) -> Tempo | None:
    """The tempo that options give, else their prompts; None where they give none."""
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    prompt = ", ".join(texts)
    bpm = prompt_tempo(prompt, taken) if options.bpm is None else options.bpm
    if bpm is None:
        return None
    named = _METER.search(prompt)
    meter = options.time_signature or (4 if named is None else int(named[1]))
    return Tempo(bpm, BEATS[meter])


def loop_frames(tempo: Tempo, bars: int, frame_rate_hz: float) -> int:
    """How many frames a loop of so many bars has: at most half a frame more or less than they are."""
    return round(bars * tempo.bar_frames(frame_rate_hz))


def most_bars(tempo: Tempo, frames: int, frame_rate_hz: float) -> int:
    """How many bars at most fit on a canvas of so many frames."""
    bars = int(frames / tempo.bar_frames(frame_rate_hz)) + 1
    return bars if loop_frames(tempo, bars, frame_rate_hz) <= frames else bars - 1


def best_bars(tempo: Tempo, frames: int, frame_rate_hz: float) -> int:
    """Of the numbers of bars that fill more than half of what fits on a canvas, the one that fits the frames best."""
    most = most_bars(tempo, frames, frame_rate_hz)

    def error(bars: int) -> tuple[float, int]:
        exact = bars * tempo.bar_frames(frame_rate_hz)
        return round(abs(loop_frames(tempo, bars, frame_rate_hz) - exact), 6), -bars

    return min(range(most // 2 + 1, most + 1), key=error, default=0)
