"""Tempo and meter: what options and prompts say of them, and loops of whole bars."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.config.option_ranges import ANY_MODEL, NumberRange
from runtime.config.words import written_tempo
from runtime.requests.options import GenerationOptions

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

    def are_beats(self, frames: NDArray[np.int64], first_frame: float, frame_rate_hz: float) -> NDArray[np.bool_]:
        """Whether frames are the nearest ones to beats; one of them is at `first_frame`, exactly."""
        places = (frames[:, None] + (-0.5, 0.5) - first_frame) / self.bar_frames(frame_rate_hz) * self.beats
        before, after = np.floor(places).T
        is_beat: NDArray[np.bool_] = after > before
        return is_beat


def prompt_tempo(prompt: str, taken: NumberRange) -> float | None:
    """The tempo that a text names, such as "124 bpm" or "at 124": the nearest that the model takes.

    None where it names none that any model takes.
    """
    bpm = written_tempo(prompt)
    return None if bpm is None or ANY_MODEL.bpm.outside(bpm) is not None else taken.nearest(bpm)


def tempo_of(options: GenerationOptions, taken: NumberRange) -> Tempo | None:
    """The tempo that options give, else their prompts; None where they give none."""
    bpm = prompt_tempo(_prompt_of(options), taken) if options.bpm is None else options.bpm
    return None if bpm is None else Tempo(bpm, BEATS[_meter_of(options)])


def sixteenths_of_bar(options: GenerationOptions) -> int:
    """How many sixteenths a bar has, by the meter that options give, else their prompts; 16 where they give none."""
    meter = _meter_of(options)
    return 12 if meter == 6 else 4 * BEATS[meter]


def _meter_of(options: GenerationOptions) -> int:
    """The number that the meter begins with, as BEATS has it."""
    named = _METER.search(_prompt_of(options))
    return options.time_signature or (4 if named is None else int(named[1]))


def _prompt_of(options: GenerationOptions) -> str:
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    return ", ".join(texts)


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
