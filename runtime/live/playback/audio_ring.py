"""The receiving side of a live stream: PCM addressed by absolute sample, read in order.

The page's audio worklet does the same; both are tested with the operations of tests/data/audio_ring.json.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Pcm

CROSSFADE_S = 0.025


class AudioRing:
    """The samples from the playhead on, at most `capacity_s` of them. One thread at a time; reading allocates nothing.

    A write that begins where other samples are crossfades from them over 25 ms, unless it continues the last write that
    replaced samples. Samples before the playhead or beyond the capacity are dropped. `late_samples`, `missing_samples`:
    dropped because they were late; read as silence because they were not there. `underruns`: how often the audio broke
    off. Silence before the first audio does not count.
    """

    def __init__(self, sample_rate_hz: int, channels: int, *, capacity_s: float = 10.0, start_sample: int = 0) -> None:
        self.sample_rate_hz = sample_rate_hz
        self.late_samples = self.missing_samples = self.underruns = 0
        self._capacity = round(capacity_s * sample_rate_hz)
        self._crossfade = round(CROSSFADE_S * sample_rate_hz)
        # [capacity, channels]; sample n is at n % capacity
        self._pcm = np.zeros((self._capacity, channels), np.float32)
        self._is_written = np.zeros(self._capacity, np.bool_)  # [capacity]
        self.clear(start_sample)

    def clear(self, start_sample: int) -> None:
        """Drop everything and go on at `start_sample`; for a new epoch."""
        self._pcm[:] = 0.0
        self._is_written[:] = False
        self.playhead_sample = self.end_sample = start_sample
        self._replaced_to = -1
        self._is_playing = self._has_begun = False
        self._worst_lead: int | None = None

    @property
    def lead_s(self) -> float:
        """How far the samples that are there reach beyond the playhead."""
        return max(0, self.end_sample - self.playhead_sample) / self.sample_rate_hz

    def take_worst_lead_s(self) -> float:
        """The smallest lead after a read since the last call; the present one where nothing was read."""
        worst, self._worst_lead = self._worst_lead, None
        return self.lead_s if worst is None else worst / self.sample_rate_hz

    def write(self, start_sample: int, pcm: Pcm) -> int:
        """Store float32 `[n, channels]` whose first sample is `start_sample`; returns how many samples were taken."""
        late = min(max(0, self.playhead_sample - start_sample), len(pcm))
        self.late_samples += late
        start = start_sample + late
        taken = pcm[late : late + max(0, self.playhead_sample + self._capacity - start)]  # [taken, channels]
        if not len(taken):
            return 0
        end, continues = start + len(taken), start == self._replaced_to
        places = np.arange(start, end) % self._capacity  # [taken]
        was_written = self._is_written[places]  # [taken]
        if not continues:
            taken = self._crossfaded(taken, places, was_written)
        if continues or was_written.any():
            self._replaced_to = end
        self._pcm[places] = taken  # rows of [capacity, channels]
        self._is_written[places] = True
        self.end_sample = max(self.end_sample, end)
        return len(taken)

    def _crossfaded(self, pcm: Pcm, places: NDArray[np.int64], was_written: NDArray[np.bool_]) -> Pcm:
        """`pcm`, mixed at its beginning with the samples that it replaces there."""
        old = len(pcm) if was_written.all() else int(was_written.argmin())
        length = min(self._crossfade, old)
        if not length:
            return pcm
        weights = (np.arange(1, length + 1, dtype=np.float32) / np.float32(length + 1))[:, None]  # [fade, 1]
        mixed = pcm.copy()  # [taken, channels]
        mixed[:length] = weights * pcm[:length] + (1.0 - weights) * self._pcm[places[:length]]  # [fade, channels]
        return mixed

    def read(self, out: Pcm) -> int:
        """Fill `out` `[n, channels]` and advance the playhead by n; returns how many samples of it are silence."""
        done = missing = 0
        while done < len(out):
            begin = self.playhead_sample % self._capacity
            count = min(len(out) - done, self._capacity - begin)
            missing += self._take(begin, out[done : done + count])  # [count, channels], up to the end of the ring
            done += count
        lead = max(0, self.end_sample - self.playhead_sample)
        self._worst_lead = lead if self._worst_lead is None else min(lead, self._worst_lead)
        return missing

    def _take(self, begin: int, out: Pcm) -> int:
        """Move one piece of the ring that does not wrap into `out`."""
        # views: [count, channels], [count]
        part, is_written = self._pcm[begin : begin + len(out)], self._is_written[begin : begin + len(out)]
        missing = len(out) - int(np.count_nonzero(is_written))
        self._count(missing, bool(is_written[0]), bool(is_written[-1]), missing < len(out))
        out[:] = part
        part[:] = 0.0
        is_written[:] = False
        self.playhead_sample += len(out)
        return missing

    def _count(self, missing: int, begins_with_audio: bool, ends_with_audio: bool, has_audio: bool) -> None:
        if missing and (self._is_playing or begins_with_audio):
            self.underruns += 1
        if self._has_begun or begins_with_audio:
            self.missing_samples += missing
        self._has_begun = self._has_begun or has_audio
        self._is_playing = ends_with_audio
