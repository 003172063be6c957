"""What a session generates: when the next generation starts, what becomes of its latents, and what clients write."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.core import SessionCore
from runtime.live.parts.extend import ExtendMode
from runtime.live.parts.loop import LoopMode
from runtime.live.parts.pieces import Pieces
from runtime.live.parts.running import Running
from runtime.live.playback.canvas import Piece
from runtime.live.protocol.actions import Action, CancelJob, NoteFacts, SessionJob
from runtime.live.protocol.messages import WriteAudio
from runtime.live.storage.document import StoredGenerations
from runtime.music.envelopes import Breath, Marks
from runtime.music.note_levels import phrase_mask, with_notes
from runtime.music.sections import beats_of
from runtime.music.tempo import tempo_of
from runtime.requests.request import DENOISE_MIN
from runtime.requests.segments import requested_mask


class Generations:
    """Those of one session; its mode says which frames they have, and where their latents go."""

    def __init__(self, core: SessionCore, mode: LoopMode | ExtendMode) -> None:
        self.mode = mode
        self._core, self._model, self._flights = core, core.model, core.flights
        self._wanted_since_s: float | None = None

    @property
    def takes(self) -> tuple[type, ...]:
        """Messages."""
        return (WriteAudio, *self.mode.takes)

    def handle(self, message: Any, latents: Latents | None, at_sample: int | None) -> None:
        """Take a message. latents `[n, C]`: of WriteAudio. Raises RequestError; then nothing has changed."""
        if isinstance(message, WriteAudio):
            self._write(message, latents)
        else:
            self.mode.handle(message)
        self._core.controls.accept(message.seq)

    def follow_song(self) -> None:
        """Play by a song from the beginning on; a loop has none."""
        assert isinstance(self.mode, ExtendMode)
        self.mode.follow_song()

    def wanted_s(self) -> float | None:
        """Since when one more generation is wanted; None where none is."""
        now_s = self._core.clock.now_s
        if not self._core.playhead.is_active or now_s < self.mode.ready_s or not self.mode.is_wanted:
            self._wanted_since_s = None
        elif self._wanted_since_s is None:
            self._wanted_since_s = now_s
        return self._wanted_since_s

    def advance(self, prefix: str, *, may_generate: bool, may_draft: bool) -> Iterator[Action]:
        """Bring them up to what holds now. prefix: of the ids of jobs. may_draft: before a complete generation."""
        if not self._core.playhead.is_attached:
            yield from self.stop()
        self.settle()
        if not self._core.playhead.is_active:
            return
        if self.mode.song is not None and (work := self.mode.song.work()) is not None:
            yield work
        if self.mode.is_dirty:
            # An append is not worth finishing where a refresh is needed.
            yield from map(CancelJob, self._flights.cancel_appends())
        if (update := self._flights.update()) is not None:
            yield update
        if may_generate and self.wanted_s() is not None:
            yield self.start(prefix, may_draft=may_draft)

    def stop(self) -> list[Action]:
        """Forget what is in flight, as a stored session has; what was wanted is wanted again. Returns how to end it."""
        return [*map(CancelJob, self._flights.clear()), *self.mode.stop()]

    def settle(self) -> None:
        """Where the newest generation has all that was changed since, what it made counts as complete up to now."""
        if not self.mode.is_pending and not self.mode.is_dirty:
            self._flights.settle()

    def start(self, prefix: str, *, may_draft: bool = True) -> SessionJob:
        """The next generation, with the newest values; a draft of it only where that `may_draft`."""
        running = self.mode.new(f"{prefix}/{self._flights.num_started}", may_draft)
        self._flights.start(running)
        self._wanted_since_s = None
        return running.job

    def finish(self, job_id: str, latents: Latents, took_s: float | None = None) -> bool:
        """Take a generation's latents `[T, C]`; False where the canvas stays as it is. took_s: since it was started."""
        done = self._flights.finish(job_id, took_s)
        if done is None:
            return False
        if (facts := self._model.notes) is not None:
            latents = with_notes(latents, done.job.exact, facts.spec, facts.silence)
            if facts.spec.has_envelopes:
                latents = self._breathing(done, latents, facts)
        options = done.basis.key[0]
        moods = self._model.moods(options, int(self._core.controls.value("seed")))
        latents = self._model.thinned(moods, latents, options)
        if not self.mode.place(done, Piece(f"latents/{done.number}", latents), moods):
            return False
        self._flights.num_placed += 1
        return True

    def _breathing(self, done: Running, latents: Latents, facts: NoteFacts) -> Latents:
        """Latents `[T, C]` whose notes have the envelopes of their instruments."""
        job, rate_hz = done.job, self._model.frame_rate_hz
        if job.source is not None and job.options.denoise is not None and job.options.denoise <= DENOISE_MIN:
            return latents
        given, frames = phrase_mask(job.phrases, facts.spec, latents.shape), np.arange(len(latents))
        follows = job.source is not None or job.hints is not None  # and has their beat
        tempo = None if follows and not done.is_draft else tempo_of(job.options, self._model.ranges.bpm)
        beats = beats_of(job.sections, frames, rate_hz) if job.sections else None
        if beats is None and tempo is not None:
            beats = tempo.are_beats(frames, -job.segment.start_frame, rate_hz)
        mask = requested_mask(job.options, job.segment, rate_hz)
        kept = np.zeros(len(latents), bool) if mask is None else mask == 0.0
        fixed = kept[:, None] | phrase_mask(job.exact, facts.spec, latents.shape)
        return self.mode.shaped(Breath(facts.spec, facts.silence), done, latents, Marks(beats, given, fixed))

    def write_region(self, message: WriteAudio) -> tuple[int, Latents]:
        """What a write overwrites, as it is now: the offset of its first sample in the region, the frames `[n, C]`.

        The caller decodes them, puts the audio in or adds it, encodes, and passes the result to `handle`. Raises
        RequestError.
        """
        start, frames, offset = self._located(message)
        canvas = self._core.timeline.canvas
        return offset, canvas.rows(frame % canvas.end for frame in range(start, start + frames))

    def _write(self, message: WriteAudio, latents: Latents | None) -> None:
        """Put latents of `write_region` into the canvas and make them a part of the source.

        Generations in flight do not know of it: they are cancelled.
        """
        start, frames, _ = self._located(message)
        if latents is None or latents.shape != (frames, self._model.latent_channels):
            raise RequestError("the audio could not be encoded", field="samples")
        flights, was_dirty = self._flights, self.mode.is_dirty
        stopped = flights.clear()
        self.mode.write(start, Piece(f"write/{message.seq}", latents), message.seq)
        if stopped or was_dirty or flights.latest is None:
            flights.latest = None
        else:
            flights.latest.key = flights.key()
        self._core.outbox += map(CancelJob, stopped)

    def _located(self, message: WriteAudio) -> tuple[int, int, int]:
        """A write's first canvas frame, its frames, and the offset of its first sample in them. Raises RequestError."""
        if not self._model.has_encoder:
            raise RequestError("the bundle cannot turn audio into latents", field="type")
        align = self._model.align_frames
        group = align * self._model.hop_samples
        index, offset = divmod(self._core.samples(message.at_s), group)
        frames = -(-(offset + message.samples) // group) * align
        return self.mode.region(index * align, frames), frames, offset

    @property
    def due_s(self) -> float:
        """When something is to be done that only waits for the time; inf: not before another call."""
        ready_s = self.mode.ready_s if self.mode.ready_s > self._core.clock.now_s else math.inf
        return min(ready_s, self._flights.due_s, self.mode.due_s)

    @property
    def is_current(self) -> bool:
        """Whether the canvas has all changes, but for appends in flight."""
        return not self.mode.is_dirty and self._flights.is_latest_made

    def stored(self, pieces: Pieces) -> StoredGenerations:
        """Counters, source, timbre, structure, and what the mode keeps. What is in flight starts again afterwards."""
        given, flights, song = self._core.references, self._flights, self.mode.song
        return StoredGenerations(
            num_started=flights.num_started,
            num_placed=flights.num_placed,
            is_current=self.is_current,
            times_s=list(flights.times.newest_s),
            source=pieces.store_source(given.source),
            timbre=None if given.timbre is None else pieces.store(given.timbre.piece),
            structure=pieces.store_source(given.structure),
            plan=None if song is None else song.maker.stored(pieces),
            notes=None if given.notes is None else given.notes.stored(),
            **self.mode.stored(pieces),
        )

    def restore(self, stored: StoredGenerations, pieces: Pieces) -> None:
        """Go on as those of a state. Raises RequestError and StoreError."""
        given, timbre = self._core.references, stored.timbre
        given.put("source", pieces.load_source(stored.source))
        given.put("structure", pieces.load_source(stored.structure))
        given.put("timbre", pieces.load_source(None if timbre is None else (None, None, timbre, 0)))
        if given.notes is not None and stored.notes is not None:
            given.notes.restore(stored.notes)
        self.mode.restore(stored, pieces)
        self._flights.restore(stored.num_started, stored.num_placed, stored.times_s, stored.is_current)
