"""What becomes of the notes in new frames of a generation: exact ones, envelopes, sparse parts, levels, the last chord.

Letters: n new frames, C latent channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.notes import NotesSpec
from runtime.music.envelopes import Breath, Marks
from runtime.music.first_bars import FirstBars
from runtime.music.note_levels import phrase_mask, with_notes
from runtime.music.part_moods import PartMoods, Thinning
from runtime.music.sections import beats_of
from runtime.music.tempo import tempo_of
from runtime.pipeline.compose import GenerationInputs, denoise_of
from runtime.pipeline.songs.ending import LastNotes
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.planning import AnyPlan
from runtime.requests.options import GenerationOptions
from runtime.requests.request import DENOISE_MIN
from runtime.requests.segments import Segment, requested_mask
from runtime.requests.tasks import TRACK_OPTIONS
from runtime.requests.validation import takes_notes


class PlayedNotes:
    """The notes of one generation, from its first frame on. One thread at a time.

    last: the notes that it ends with.
    """

    def __init__(
        self,
        spec: NotesSpec,
        bundle: Bundle,
        options: GenerationOptions,
        inputs: GenerationInputs,
        plan: AnyPlan | None,
        total_frames: int,
        moods: PartMoods,
        last: LastNotes | None,
    ) -> None:
        self._spec, self._bundle, self._options, self._inputs = spec, bundle, options, inputs
        self._plan, self._total_frames, self._moods, self._last = plan, total_frames, moods, last
        self._silence, self._rate_hz = bundle.silence(1)[0], bundle.latents.frame_rate_hz
        is_kept = options.task in TRACK_OPTIONS or denoise_of(options, inputs.source, bundle) <= DENOISE_MIN
        self._breath = Breath(spec, self._silence) if spec.has_envelopes and not is_kept else None
        self._thinning: Thinning | None = None
        self._first_bars: FirstBars | None = None

    def hints(self, segment: Segment) -> Latents | None:
        """Hints `[N, C]` of a segment that keep the beat of the first bars; None where there are none."""
        if self._first_bars is None:
            return None
        begin = segment.start_frame - segment.first_frame
        return self._first_bars.hints(begin, segment.first_frame + segment.frames)

    def continued(self, new: Latents, start: int) -> Latents:
        """The next frames `[n, C]` as what follows goes on from them: with exact notes, in their envelopes."""
        if self._options.notes_exact:
            new = with_notes(new, self._inputs.phrases, self._spec, self._silence, start)
        if self._breath is not None:
            new = self._breath.shaped(new, self._marks(new, start))
        if start == 0 and (bar_frames := self._bar_frames) is not None and len(new) >= bar_frames:
            self._first_bars = FirstBars(self._spec, self._silence, new, bar_frames)
        return new

    def heard(self, new: Latents, start: int, before: Latents) -> Latents:
        """The next frames `[n, C]` as they are heard. before `[m, C]`: those before them, as `continued` gave them."""
        if self._moods.sparse:
            if self._thinning is None:
                tempo = tempo_of(self._options.model_copy(update=self._planned), self._bundle.options.bpm)
                bpm = tempo and tempo.bpm
                self._thinning = Thinning(self._spec, self._silence, self._moods.sparse, bpm, self._rate_hz)
            new = self._thinning.thinned(new)
        if self._last is not None:
            new = self._last.written(new, start, before)
        return self._moods.with_levels(new, self._spec, self._silence, start) if self._moods.level_db else new

    @property
    def _planned(self) -> Mapping[str, Any]:
        return {} if self._plan is None else self._plan.options

    @property
    def _bar_frames(self) -> float | None:
        """How long its bars are, where the first ones keep the beat: there is neither a planner nor a source."""
        inputs, options = self._inputs, self._options
        is_free = inputs.known is None and inputs.condition is None and options.codes is None
        if not is_free or self._bundle.planner is not None or not takes_notes(self._bundle):
            return None
        tempo = tempo_of(options, self._bundle.options.bpm)
        return None if tempo is None else tempo.bar_frames(self._rate_hz)

    def _marks(self, new: Latents, start: int) -> Marks:
        """Held notes are struck again on beats, but for those that were given."""
        given = phrase_mask(self._inputs.phrases, self._spec, new.shape, start)
        frames = np.arange(start, start + len(new))
        beats: NDArray[np.bool_] | None
        if isinstance(self._plan, SongPlan):
            beats = beats_of(self._plan.sections, frames, self._rate_hz)
        else:
            follows = self._inputs.known is not None or self._options.codes is not None
            tempo = None if follows else tempo_of(self._options, self._bundle.options.bpm)
            beats = None if tempo is None else tempo.are_beats(frames, 0.0, self._rate_hz)
        mask = requested_mask(self._options, Segment(start, len(new), 0, self._total_frames), self._rate_hz)
        kept = np.zeros(len(new), bool) if mask is None else mask == 0.0
        return Marks(beats, given, kept[:, None] | (given & self._options.notes_exact))
