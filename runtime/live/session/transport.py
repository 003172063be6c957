"""Where a session plays: the playhead, the audio that is sent, the band, bar lines, and a clock that is followed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.controls import check_controls
from runtime.live.parts.core import SessionCore
from runtime.live.parts.extend import ExtendMode
from runtime.live.parts.loop import LoopMode
from runtime.live.playback.audio_schedule import AudioSchedule
from runtime.live.playback.bars import BarGrid, BarLines, following, next_line
from runtime.live.playback.canvas import PlayedPart
from runtime.live.playback.navigation import Navigation
from runtime.live.playback.told_notes import ToldNotes
from runtime.live.protocol import messages
from runtime.live.protocol.actions import Action, DecodeWindow, End
from runtime.live.protocol.messages import ClientMessage, SetClock
from runtime.music.tempo import Tempo

# A clock that is followed may differ so much.
TEMPO_TOLERANCE_BPM, PHASE_TOLERANCE_S = 0.3, 0.02
# Changes that wait for their sample, of all kinds together.
MAX_WAITING = 256


class Transport:
    """notes: the client is told those that are played."""

    takes = (
        messages.Ack,
        messages.Play,
        messages.Pause,
        messages.Seek,
        messages.SetBand,
        messages.MuteLayers,
        SetClock,
        messages.Close,
    )

    def __init__(self, core: SessionCore, mode: LoopMode | ExtendMode, epoch: int, *, notes: bool) -> None:
        self._core, self._model, self._mode = core, core.model, mode
        self._timeline, self._playhead, self._controls = core.timeline, core.playhead, core.controls
        facts, played = core.model.notes, None
        if notes and facts is not None:
            played = ToldNotes(facts.spec, facts.silence, core.model.hop_samples, core.playhead)
        self.audio = AudioSchedule(core.model, core.timeline, core.playhead, epoch, played)
        self.lines = BarLines(core.model, core.timeline, self._grids)
        own_band = mode.own_band if isinstance(mode, LoopMode) else lambda canvas: None
        is_loop = isinstance(mode, LoopMode)
        self.navigation = Navigation(core.model, core.frames, is_loop, core.timeline, core.playhead, own_band)

    def _grids(self) -> Sequence[BarGrid]:
        """The bars of the song that is played."""
        song = self._core.references.played_song
        return () if song is None else song.grids

    def handle(self, message: Any, latents: Latents | None, at_sample: int | None) -> int | None:
        """Take a message, now or from a sample on; returns the sample.

        Raises RequestError; then nothing has changed.
        """
        match message:
            case messages.Ack():
                self._playhead.check_ack(message)
                self.audio.skip_missing(self._playhead.ack(message))
            case messages.Play():
                self._playhead.play()
            case messages.Pause():
                self._playhead.pause()
            case messages.Seek():
                self.navigation.seek(message.to_s, at_sample)
            case messages.SetBand():
                self.navigation.set_band(message.start_s, message.end_s, at_sample)
            case messages.MuteLayers():
                self._model.check_layers(message.layers, "layers")
                self._timeline.mute(max(at_sample or 0, self._playhead.reach), set(message.layers))
            case SetClock():
                return self._follow(message)
            case messages.Close():
                self._core.outbox.append(End())
        if (seq := messages.seq_in(message)) is not None:
            self._controls.accept(seq)
        return at_sample

    def advance(self) -> Iterator[Action]:
        """What is to be decoded, and what can be sent."""
        if self._playhead.is_active:
            yield from self.audio.windows()
        yield from self.audio.sendable()

    def begins_at(self, message: ClientMessage) -> int | None:
        """The sample that a message is to begin at; None: at once.

        Raises RequestError where it names a bar in vain, or too many wait already.
        """
        at: messages.InBars | str | float | None = getattr(message, "at", None)
        sample = None
        if isinstance(message, messages.PlayNotes):  # Its `at` says when they were played.
            return None
        if isinstance(at, int | float):
            wanted = round(at * self._model.sample_rate_hz)
            sample = wanted if wanted >= self._playhead.wanted_until else None
        elif at is not None:
            number = at.bars if isinstance(at, messages.InBars) else 1
            sample = next_line(self.lines, self._possible_sample, number, field="at").sample
        if sample is not None or isinstance(message, SetClock):
            waiting = len(self._controls.scheduled) + self._timeline.num_behind(self._playhead.reach)
            if waiting >= MAX_WAITING:
                field, fix = "at" if sample is not None else "type", "wait until they have begun"
                raise RequestError(f"{MAX_WAITING} changes wait already", field=field, fix=fix)
        return sample

    @property
    def _possible_sample(self) -> int:
        """What is to begin there can still be made."""
        return self._playhead.reach + self._core.samples(self._mode.lead_time_s)

    def _follow(self, message: SetClock) -> int | None:
        """Take the tempo and the beats of a clock from a bar on; returns its sample, None where nothing changes.

        Raises RequestError where there is no beat.
        """
        line, sample = following(self.lines, message, self._possible_sample, self._model.sample_rate_hz)
        asked = self._controls.value("bpm") if "bpm" not in self._model.untaken else None
        is_other = abs(message.bpm - (asked or line.bpm)) > TEMPO_TOLERANCE_BPM
        is_moved = self.navigation.put(line.sample, sample, at_least=PHASE_TOLERANCE_S)
        begins = sample if is_moved else line.sample
        if not is_other:
            self._controls.accept(message.seq)
            return begins if is_moved else None
        bpm = self._model.ranges.bpm.nearest(round(message.bpm, 2))
        self._controls.schedule(begins, check_controls({"bpm": bpm}, self._model, "clock"), message.seq)
        return begins

    def is_current(self, window: DecodeWindow) -> bool:
        """Whether the audio of a window is still to be sent. Any thread."""
        return self._playhead.is_attached and self.audio.is_pending(window)

    def played(self, most_s: float) -> PlayedPart:
        """One pass of what a loop repeats; else what was played last, at most so long, from a bar line where there are.

        Raises RequestError where nothing was played, or not all of it is known.
        """
        position, hop = self._playhead.position, self._model.hop_samples
        here, line = self._timeline.at(position), self.lines.at(position)
        nothing = RequestError("nothing was played yet", field="session", fix="play, and ask again")
        if here is None or not here.canvas.parts:
            raise nothing
        writes = (part.piece.name.startswith("write/") for part in here.canvas.parts)
        is_estimated = self._core.references.source is not None or any(writes)
        tempo = None if line is None else Tempo(line.bpm, line.beats)
        if here.band is not None:
            if here.band[0] < here.canvas.start or here.canvas.end < here.band[1]:
                what = "not all of what repeats is made yet"
                raise RequestError(what, field="session", fix="ask again once it was played")
            return PlayedPart(here.canvas, *here.band, True, tempo, is_estimated)
        start, end = here.canvas.start, min(here.canvas_frame_at(position // hop), here.canvas.end)
        begin = max(start, end - round(most_s * self._model.frame_rate_hz))
        if line is not None and tempo is not None:
            newest, bar = end - (position - line.sample) / hop, tempo.bar_frames(self._model.frame_rate_hz)
            begin = max(begin, round(newest - bar * math.floor((newest - begin) / bar)))
        if begin >= end:
            raise nothing
        return PlayedPart(here.canvas, begin, end, False, tempo, is_estimated)
