"""Cuts a stream of frames into windows with a margin on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from runtime.config.codec import Latents

# What is more urgent waits no longer than this for windows that are decoded as one.
MOST_TOGETHER_MS = 30.0


@dataclass(frozen=True)
class Window:
    """`frames` frames of a stream and their margins.

    values `[margin_before + frames + margin after, C]`; start_frame: the number of the first of them. `index` counts
    windows from 0. `is_last`: the stream ends with this window. following: in the first window after a part arrived,
    the others that are complete with it; None in these.
    """

    values: Latents
    start_frame: int
    margin_before: int
    frames: int
    index: int
    is_last: bool
    following: tuple[Window, ...] | None = None

    @property
    def first_frame(self) -> int:
        """The number of the first frame after the margin."""
        return self.start_frame + self.margin_before

    @property
    def end_frame(self) -> int:
        """The number of the first frame of the margin behind it."""
        return self.first_frame + self.frames

    def with_next(self, following: Window) -> Window:
        """Both as one. following: the stream's next one, whose frames begin where this one's end."""
        new = self.start_frame + len(self.values) - following.start_frame  # the first of its frames that this lacks
        values, frames = np.concatenate((self.values, following.values[new:])), self.frames + following.frames
        return replace(self, values=values, frames=frames, is_last=following.is_last, following=None)


def together(windows: Sequence[Window], cost_ms: Callable[[int], float], most_frames: int) -> list[list[Window]]:
    """Neighbours to decode as one, as their margins would be decoded twice: in all they take less than each alone.

    There are as few of these as may be, of even numbers of windows, but two at least, for two workers. Each takes
    MOST_TOGETHER_MS at most and has `most_frames` at most. cost_ms: what so many frames take, margins counted.
    """
    alone = sum(cost_ms(len(window.values)) for window in windows)
    for number in range(2, len(windows)):
        bounds = [index * len(windows) // number for index in range(number + 1)]
        runs = [list(windows[begin:end]) for begin, end in pairwise(bounds)]
        lengths = [run[-1].start_frame + len(run[-1].values) - run[0].start_frame for run in runs]
        costs = [cost_ms(length) for length in lengths]
        if max(lengths) <= most_frames and max(costs) <= MOST_TOGETHER_MS and sum(costs) < alone:
            return runs
    return [[window] for window in windows]


class WindowCutter:
    """Cuts frames that arrive in parts into windows of `window_frames`. Used by one thread at a time.

    margin_frames: the frames on both sides of a window, fewer at the ends of the stream. total_frames: the length of
    the stream; None where it has no end. first_frames: the length of the first window, at most half of the stream.
    start_frame: the number of the stream's first frame. align_frames: windows and their margins begin at multiples of
    it, counted from the stream's first frame, and end there, but at the stream's end; the margin is a multiple of it,
    and lengths of windows are rounded down to one.

    A window ends where a part ends, less the margin, so that it does not wait for the next part. Windows depend on
    these numbers and the lengths of the parts only, not on time: equal generations give equal bytes.
    """

    def __init__(
        self,
        margin_frames: int,
        window_frames: int,
        total_frames: int | None = None,
        *,
        first_frames: int | None = None,
        start_frame: int = 0,
        align_frames: int = 1,
    ) -> None:
        def whole(frames: int) -> int:
            return max(frames // align_frames, 1) * align_frames

        self._margin_frames, self._align_frames = margin_frames, align_frames
        self._window_frames = whole(window_frames)
        self._start_frame = start_frame
        self._end_frame = None if total_frames is None else start_frame + total_frames
        self._first_frames = self._window_frames
        if first_frames is not None and total_frames is not None:
            self._first_frames = whole(min(first_frames, max(1, total_frames // 2)))
        self._values: Latents | None = None
        self._values_start = start_frame
        self._next_frame = start_frame
        self._index = 0

    def cut(self, values: Latents) -> list[Window]:
        """Take `[T, C]` more frames; the windows that are complete with them."""
        # [frames kept + T, C]
        self._values = values if self._values is None else np.concatenate((self._values, values))
        windows: list[Window] = []
        while (window := self._next_window(self._values)) is not None:
            windows.append(window)
        if windows:
            windows[0] = replace(windows[0], following=tuple(windows[1:]))
        return windows

    def end(self, values: Latents) -> list[Window]:
        """As cut(), for the last part of a stream that has no total_frames."""
        self._end_frame = self._values_start + len(values) + (0 if self._values is None else len(self._values))
        return self.cut(values)

    def _next_window(self, values: Latents) -> Window | None:
        begin, start, margin = self._next_frame, self._values_start, self._margin_frames
        arrived = start + len(values)
        ready = arrived - margin
        ready -= (ready - self._start_frame) % self._align_frames
        if self._end_frame is not None and arrived >= self._end_frame:
            ready = self._end_frame
        end = min(begin + (self._window_frames if self._index else self._first_frames), ready)
        if end <= begin:
            return None
        low, high = max(start, begin - margin), min(arrived, end + margin)
        is_last = end == self._end_frame
        # [margins + frames, C]
        window = Window(values[low - start : high - start], low, begin - low, end - begin, self._index, is_last)
        self._values_start = max(start, end - margin)
        self._values = values[self._values_start - start :]  # [frames kept, C]
        self._next_frame = end
        self._index += 1
        return window
