"""What a client of a live session received and what of it was played, with the controls that it was made with."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class AudioRange:
    """Samples `begin..end` of the play axis; first_seq and full_seq as in the chunk's header.

    received_s: when the chunk arrived, on the client's clock.
    """

    begin: int
    end: int
    first_seq: int
    full_seq: int
    received_s: float

    def cut(self, begin: int, end: int) -> AudioRange:
        """The part of it inside `begin..end`; empty (begin >= end) where there is none."""
        return replace(self, begin=max(begin, self.begin), end=min(end, self.end))


class SoundLog:
    """A client that plays by the clock: from `start()` on the playhead moves in real time, also over missing audio.

    Audio that arrives before it is played replaces what was there, audio that arrives later is dropped. `played` lists
    what was played, `gaps` the silence (begin, end) in place of audio that had not arrived; `late_samples`: dropped.
    """

    def __init__(self, sample_rate_hz: int, next_sample: int) -> None:
        self.played: list[AudioRange] = []
        self.gaps: list[tuple[int, int]] = []
        self.late_samples = 0
        self.sample_rate_hz = sample_rate_hz
        self._next_sample = self._played_to = next_sample
        self._started_s: float | None = None
        self._buffered: list[AudioRange] = []
        self._is_silent = False
        self._worst_lead_s: float | None = None

    @property
    def underruns(self) -> int:
        """How often the audio broke off."""
        return len(self.gaps)

    @property
    def missing_samples(self) -> int:
        """All of the silence."""
        return sum(end - begin for begin, end in self.gaps)

    def start(self, now_s: float) -> None:
        """Begin to play; nothing where it plays already."""
        if self._started_s is None:
            self._started_s = now_s

    @property
    def is_playing(self) -> bool:
        """Whether the playhead moves."""
        return self._started_s is not None

    def playhead(self, now_s: float) -> int:
        """The next sample to play."""
        return self._next_sample + (
            0 if self._started_s is None else round((now_s - self._started_s) * self.sample_rate_hz)
        )

    def time_of(self, sample: int) -> float:
        """When the playhead reaches a sample; it must play."""
        assert self._started_s is not None
        return self._started_s + (sample - self._next_sample) / self.sample_rate_hz

    def lead_s(self) -> float:
        """Length of the audio without a gap that follows what was played."""
        end = self._played_to
        for audio in self._buffered:
            if audio.begin > end:
                break
            end = max(end, audio.end)
        return (end - self._played_to) / self.sample_rate_hz

    def take_worst_lead_s(self) -> float:
        """The smallest lead since the last call; the present one where nothing was played."""
        worst, self._worst_lead_s = self._worst_lead_s, None
        return self.lead_s() if worst is None else worst

    def write(self, audio: AudioRange, now_s: float) -> None:
        """Take a chunk that arrived at `now_s`."""
        self.advance(now_s)
        new = audio.cut(self._played_to, audio.end)
        self.late_samples += min(new.begin, audio.end) - audio.begin
        if new.begin >= new.end:
            return
        around = [part for old in self._buffered for part in (old.cut(0, new.begin), old.cut(new.end, old.end))]
        self._buffered = sorted([*(part for part in around if part.begin < part.end), new], key=lambda part: part.begin)

    def advance(self, now_s: float) -> None:
        """Play up to the playhead."""
        playhead = self.playhead(now_s)
        while self._played_to < playhead:
            if self._buffered and self._buffered[0].begin <= self._played_to:
                self._play(playhead)
            else:
                self._skip(min([playhead, *(audio.begin for audio in self._buffered[:1])]))
        if self.is_playing:
            lead_s = self.lead_s()
            self._worst_lead_s = lead_s if self._worst_lead_s is None else min(lead_s, self._worst_lead_s)

    def _play(self, playhead: int) -> None:
        audio = self._buffered[0]
        part = audio.cut(self._played_to, playhead)
        if audio.end <= playhead:
            del self._buffered[0]
        if self.played and self.played[-1] == replace(part, begin=self.played[-1].begin, end=part.begin):
            part = replace(part, begin=self.played.pop().begin)
        self.played.append(part)
        self._played_to, self._is_silent = part.end, False

    def _skip(self, end: int) -> None:
        begin = self.gaps.pop()[0] if self._is_silent else self._played_to
        self.gaps.append((begin, end))
        self._played_to, self._is_silent = end, True

    def first(self, seq: int) -> AudioRange | None:
        """The first audio played that control `seq` has a part in; its begin is where it is played."""
        return next((audio for audio in self.played if audio.first_seq >= seq), None)

    def full(self, seq: int) -> AudioRange | None:
        """The audio played from which on all is made with control `seq`; its begin is where it is played in full."""
        found = None
        for audio in reversed(self.played):
            if audio.full_seq < seq:
                break
            found = audio
        return found
