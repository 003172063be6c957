"""A generation of any length, one segment after the other.

LongGeneration has no thread and no clock: its user submits `next_request()` and passes the finished latents to
`append()`, which returns the new frames. `generate_latents()` and `generate_audio()` do so in the calling thread:

    with open_pipeline(Path("configs/demo.toml")) as pipeline:
        generation = LongGeneration(pipeline, parse_options({"prompt": "calm melody", "seconds": 30.0}))
        for pcm in generate_audio(pipeline, generation): ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from runtime.audio.finishing import TARGET_LUFS, Finisher, Span
from runtime.audio.metadata import GenerationMetadata
from runtime.audio.stems import StemDecoder
from runtime.audio.window_decoder import CROSSFADE_S, AudioDecoder, AudioSplicer, surrounding_loudness
from runtime.base.errors import ConfigError, GenerationCancelledError, RequestError, ShapeError
from runtime.config.codec import Latents, Pcm
from runtime.music.envelopes import Breath, Marks
from runtime.music.first_bars import FirstBars
from runtime.music.note_levels import phrase_mask, phrases_of, with_notes
from runtime.music.part_moods import NO_MOODS, Thinning
from runtime.music.score import Score
from runtime.music.sections import beats_of
from runtime.music.tempo import tempo_of
from runtime.music.tracker import score_of
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs, denoise_of
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.songs.ending import CUT, Ending, LastNotes, ending_of
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.planning import AnyPlan, is_planned
from runtime.pipeline.songs.sequences import Caller
from runtime.pipeline.sources import has_encoded_latents, kept_frames, settled_options
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptMeaning
from runtime.requests.request import DENOISE_MIN, GenerationRequest
from runtime.requests.seeds import draw_seed, segment_seed
from runtime.requests.segments import Segment, requested_mask
from runtime.requests.tasks import TRACK_OPTIONS, is_cover, known_tasks
from runtime.requests.validation import note_spec, takes_notes
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished

OnEvent = Callable[[Event], None]
WINDOW_FRAMES = 64
# What the extraction of a track takes over from the options of what it is extracted from.
EXTRACT_OPTIONS = (
    "prompt", "blend", "negative_prompt", "lyrics", "language", "bpm", "key", "time_signature",
    "steps", "shift", "noise", "guidance", "adapters",
)  # fmt: skip


class LongGeneration:
    """A generation of any length, or without end where `is_endless`. Used by one thread at a time.

    `options` may be replaced between segments; the next request uses the new ones. `seed` is the options' one, or a
    random one. `plan` is None where it has none; its thinking is done here, blocking, its codes are waited for by
    next_request(), and close() ends them. caller: who waits for both; once it leaves, they end in a TickError. Raises
    RequestError for options that would have no effect, and TickError.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: GenerationOptions,
        inputs: GenerationInputs = NO_INPUTS,
        *,
        is_endless: bool = False,
        caller: Caller | None = None,
    ) -> None:
        self.seed = draw_seed() if options.seed is None else options.seed
        pipeline.bundle.options.check(dict(options))
        self._given, thinking = options, None
        if options.notes is not None:
            rate_hz = pipeline.bundle.latents.frame_rate_hz
            inputs = replace(inputs, phrases=phrases_of(note_spec(pipeline.bundle), options.notes, rate_hz))
        self._caller = Caller(inputs.client) if caller is None else caller
        if pipeline.planner is not None and not is_endless and is_planned(options, inputs, pipeline.bundle):
            thinking = pipeline.planner.think(pipeline.with_drawn(options, self.seed), self.seed, self._caller)
            options = options.model_copy(update={**thinking.filled, "task": None})
        self.total_frames = None if is_endless else pipeline.total_frames(options, inputs.known)
        self.total_samples = None if is_endless else pipeline.total_samples(options, inputs.known)
        self.plan: AnyPlan | None = None
        if pipeline.planner is not None and thinking is not None and self.total_frames is not None:
            drawn = pipeline.with_drawn(options, self.seed)
            self.plan = pipeline.planner.plan(drawn, thinking, self.seed, self.total_frames, self._caller)
            inputs = replace(inputs, hints=np.empty((0, pipeline.bundle.latents.channels), np.float32))
        if self.total_frames is not None:
            options = settled_options(options, inputs, self.total_frames, pipeline.bundle)
        self.options = options
        self.done_frames = 0
        self._pipeline = pipeline
        self._inputs = inputs
        self._index = 0
        self._part_frames: list[int] = []
        self._first_bars: FirstBars | None = None
        self._ending, self._last_notes = self._planned_ending()
        self._breath = self._new_breath()
        self._tail = np.empty((0, pipeline.bundle.latents.channels), np.float32)
        keeps_source = inputs.source is not None and not is_cover(options, inputs.source)
        is_asked = inputs.condition is None and not keeps_source
        self._moods = pipeline.part_moods(options, self.seed, self.total_frames) if is_asked else NO_MOODS
        self._thinning: Thinning | None = None

    def _planned_ending(self) -> tuple[Ending, LastNotes | None]:
        """How it ends, and the notes that it ends with. Raises RequestError for an ending that it cannot have."""
        if self.total_frames is None:
            return CUT, None
        bundle, plan = self._pipeline.bundle, self.plan
        codec, rate_hz = bundle.codec, bundle.latents.frame_rate_hz
        total_s = self.total_frames / rate_hz if codec is None else (self.total_samples or 0) / codec.sample_rate_hz
        chord = () if plan is None else plan.tonic_chord
        planned = {} if plan is None else plan.options
        ending = ending_of(self.options, self._inputs, planned, total_s, bundle, has_tonic=bool(chord))
        if ending.ring_frame is None or bundle.notes is None:
            return ending, None
        first, silence = ending.ring_frame, bundle.silence(1)[0]
        kept = frozenset(phrase.layer for phrase in self._inputs.phrases if phrase.end_frame > first)
        return ending, LastNotes(bundle.notes, silence, chord, first, int(total_s * rate_hz), kept)

    def _new_breath(self) -> Breath | None:
        """What gives its notes the envelopes of their instruments; None where nothing says them, or all is kept."""
        bundle, options = self._pipeline.bundle, self.options
        is_kept = options.task in TRACK_OPTIONS or denoise_of(options, self._inputs.source, bundle) <= DENOISE_MIN
        if bundle.notes is None or not bundle.notes.has_envelopes or is_kept:
            return None
        return Breath(bundle.notes, bundle.silence(1)[0])

    def _breathing(self, new: Latents, breath: Breath) -> Latents:
        """The next frames `[n, C]`; held notes are struck again on beats, but for those that were given."""
        bundle, phrases, start = self._pipeline.bundle, self._inputs.phrases, self.done_frames
        spec, rate_hz = note_spec(bundle), bundle.latents.frame_rate_hz
        given = phrase_mask(phrases, spec, new.shape, start)
        frames = np.arange(start, start + len(new))
        beats: NDArray[np.bool_] | None
        if isinstance(self.plan, SongPlan):
            beats = beats_of(self.plan.sections, frames, rate_hz)
        else:
            follows = self._inputs.known is not None or self.options.codes is not None
            tempo = None if follows else tempo_of(self.options, bundle.options.bpm)
            beats = None if tempo is None else tempo.are_beats(frames, 0.0, rate_hz)
        mask = requested_mask(self.options, Segment(start, len(new), 0, self.total_frames), rate_hz)
        kept = np.zeros(len(new), bool) if mask is None else mask == 0.0
        fixed = kept[:, None] | (given & self.options.notes_exact)
        return breath.shaped(new, Marks(beats, given, fixed))

    @property
    def ring_frame(self) -> int | None:
        """Where its last notes begin, which ring out; None where none do."""
        return self._ending.ring_frame

    @property
    def segment(self) -> Segment | None:
        """The segment to generate next; None after the last one."""
        return self._pipeline.next_segment(self.done_frames, self.total_frames)

    @property
    def num_segments(self) -> int | None:
        """The number of segments in all; None without an end."""
        if self.total_frames is None:
            return None
        after_first = max(self.total_frames - self._pipeline.canvas_frames, 0)
        return 1 - (-after_first // (self._pipeline.canvas_frames - self._pipeline.overlap_frames))

    @property
    def num_steps(self) -> int:
        """The steps of all segments together; 0 without an end."""
        steps = len(self.options.timesteps or ()) or self.options.steps or self._pipeline.bundle.sampler.steps
        return (self.num_segments or 0) * steps

    def next_request(self) -> GenerationRequest | None:
        """The next segment's request, with a new id for each call; None after the last one.

        Blocks until the segment's part of the plan is there. Raises RequestError, and TickError where the plan failed.
        """
        segment = self.segment
        if segment is None:
            return None
        options = self._pipeline.with_drawn(self.options, self.seed)
        options, inputs = options.model_copy(update={"seed": segment_seed(self.seed, self._index)}), self._inputs
        if self._first_bars is not None:
            begin = segment.start_frame - segment.first_frame
            inputs = replace(inputs, hints=self._first_bars.hints(begin, segment.first_frame + segment.frames))
        if self.plan is not None:
            self._inputs = inputs = replace(inputs, hints=self._planned_hints(self.plan, segment))
            played = (
                (note.layer, note.start_frame, note.end_frame) for each in self._inputs.phrases for note in each.notes
            )
            options = options.model_copy(update={"prompt": self.plan.prompts(options.prompt, played)})
        return self._pipeline.compose(options, segment, inputs, self._tail)

    @property
    def meanings(self) -> tuple[PromptMeaning, ...]:
        """What of each prompt is played, with what the seed draws, and at the tempo and in the key of its plan.

        () where the model does not tell. Raises RequestError, EngineError.
        """
        if self._inputs.condition is not None:
            return ()
        planned = {} if self.plan is None else self.plan.options
        return self._pipeline.meanings(self.options.model_copy(update=planned), self.seed)

    def close(self) -> None:
        """End its plan where that is still being made; any thread may call it."""
        self._caller.leave()

    def _planned_hints(self, plan: AnyPlan, segment: Segment) -> Latents:
        """Hints `[N, C]` from frame 0 to the segment's end, as far as there are frames."""
        assert self.total_frames is not None
        known = self._inputs.hints if self._inputs.hints is not None else np.empty((0, 0), np.float32)
        end = min(segment.start_frame + segment.frames, self.total_frames)
        return known if len(known) >= end else np.concatenate((known, plan.hints(len(known), end - len(known))))

    def metadata(self) -> GenerationMetadata:
        """What a file of this generation says about it; its plan as far as it is made: codes where there are all."""
        options = self._given.model_dump(mode="json", exclude_unset=True, include=set(GenerationOptions.model_fields))
        names = ("source", "target", "structure", "condition", "timbre")
        arrays = {name: getattr(self._inputs, name) for name in names}
        return GenerationMetadata(
            model=self._pipeline.bundle.name,
            model_version=self._pipeline.bundle.version,
            **asdict(self._pipeline.identity),
            options=options | {"seed": self.seed},
            plan={} if self.plan is None else self.plan.summary,
            inputs={
                name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items() if array is not None
            },
        )

    def score(self, latents: Latents, *, quantize: bool = False) -> Score:
        """The notes of all its latents `[T, C]`, with its plan's or its options' tempo, meter and key.

        quantize: they lie on the plan's beat. Raises RequestError where the bundle has no [notes], or no plan a beat.
        """
        said = self.options.model_dump(include={"bpm", "time_signature", "key"})
        plan = {} if self.plan is None else self.plan.summary
        said |= {} if self.plan is None else self.plan.options
        found, codec = score_of(self._pipeline.bundle, latents, said, plan.get("sections", ())), self._pipeline.codec
        found = replace(found, is_estimated=self.is_estimated)
        if codec is not None and self.total_samples is not None:
            found = found.until(self.total_samples / codec.sample_rate_hz)
        return found.quantized() if quantize else found

    def check_score(self, *, quantize: bool = False) -> None:
        """Raise what score() would, before anything is generated."""
        self.score(np.empty((0, self._pipeline.bundle.latents.channels), np.float32), quantize=quantize)

    def audio_decoder(self) -> AudioDecoder:
        """What decodes its windows, from the first one on. Raises ConfigError where the bundle has no codec."""
        codec = self._pipeline.bundle.codec
        if codec is None:
            raise ConfigError(f"bundle {self._pipeline.bundle.name!r} has no [codec]: it makes latents, not audio")
        rate_hz, hop, open_source = codec.sample_rate_hz, codec.hop_samples, self._inputs.source_audio
        kept, splicer, loudness = self._kept_frames, None, None
        if kept.any() and open_source is not None:
            splicer = AudioSplicer(kept, hop, round(CROSSFADE_S * rate_hz), open_source())
            loudness = surrounding_loudness(kept, hop, rate_hz, open_source()) if self.options.finish else None
        finisher = None
        if self.options.finish:
            target_lufs = TARGET_LUFS if loudness is None else loudness
            _, fade_s, silent_s = self._ending
            finisher = Finisher(
                rate_hz,
                hop,
                self.total_samples,
                target_lufs=target_lufs,
                fade_out_s=fade_s,
                silent_s=silent_s,
                spans=[
                    Span(start * hop, end * hop, *levels)
                    for start, end, *levels in (() if self.plan is None else self.plan.levels)
                ],
            )
        return AudioDecoder(hop, self.total_samples, splicer, finisher, np.flatnonzero(kept))

    @property
    def _kept_frames(self) -> NDArray[np.bool_]:
        """`[N]`: whether the audio of a frame is the source's own; `[0]` without an end."""
        if self.total_frames is None:
            return np.zeros(0, bool)
        return kept_frames(self.options, self._inputs, self.total_frames, self._pipeline.bundle)

    @property
    def is_estimated(self) -> bool:
        """Whether its notes and stems are estimates, as far as they come from latents that were encoded from audio."""
        total, bundle = self.total_frames, self._pipeline.bundle
        return total is not None and has_encoded_latents(self.options, self._inputs, total, bundle)

    @property
    def sample_rate_hz(self) -> int:
        """Samples per second of its audio; 0 where the bundle has no codec."""
        codec = self._pipeline.bundle.codec
        return 0 if codec is None else codec.sample_rate_hz

    @property
    def num_stems(self) -> int:
        """Its mix, and its tracks or layers; 1 where the bundle has neither."""
        notes = self._pipeline.bundle.notes
        return 1 + (len(self.tracks) or (0 if notes is None else len(notes.layers)))

    @property
    def tracks(self) -> tuple[str, ...]:
        """The stems that are extracted, by a generation each; () where its stems are layers, or there are none."""
        return () if self._pipeline.bundle.stems is None else self._pipeline.bundle.stems.tracks

    @property
    def has_notes(self) -> bool:
        """Whether score() has them."""
        return self._pipeline.bundle.notes is not None

    @property
    def has_exact_stems(self) -> bool:
        """Whether its stems sum to its mix: not where that has samples of a source, and not extracted tracks."""
        return not self.tracks and not self._kept_frames.any()

    def extractions(self, latents: Latents) -> dict[str, LongGeneration]:
        """For each of its tracks, the generation that extracts it from all latents `[T, C]` of this one.

        Raises RequestError.
        """
        names = set(EXTRACT_OPTIONS) & self.options.model_fields_set
        values = {name: getattr(self.options, name) for name in names} | {"seed": self.seed, "task": "extract"}
        inputs = GenerationInputs(source=latents, client=self._inputs.client)
        return {
            track: LongGeneration(self._pipeline, GenerationOptions(**values, track=track), inputs)
            for track in self.tracks
        }

    def stems(self, latents: Latents, tracks: Mapping[str, Latents] | None = None) -> Iterator[dict[str, Pcm]]:
        """The finished audio of all its latents `[T, C]` and of their stems, in windows: as StemDecoder.decode().

        tracks: what its extractions gave, `[T, C]` each; without them they are generated here, blocking. Raises
        RequestError where the bundle has no [stems], EngineError, and what generating them raises.
        """
        self.check_stems()
        codec = self._pipeline.codec
        assert codec is not None
        if tracks is None:
            tracks = generate_together(self._pipeline, self.extractions(latents))
        stems = StemDecoder(self.audio_decoder(), codec, self._pipeline.bundle, tracks)
        cutter = codec.window_cutter(WINDOW_FRAMES, total_frames=len(latents))
        # In the parts that they were made in: what is measured of loudness depends on them.
        for part in np.split(latents, np.cumsum(self._part_frames[:-1])):
            yield from map(stems.decode, cutter.cut(part))

    def check_stems(self) -> None:
        """Raises RequestError where the bundle has no [stems]."""
        if self._pipeline.bundle.stems is None:
            what = f"bundle {self._pipeline.bundle.name!r} has no [stems]: its layers cannot be told apart"
            can_extract = "extract" in known_tasks(self._pipeline.bundle)
            more = ", or name the tracks that it can extract in [stems] of bundle.toml" if can_extract else ""
            raise RequestError(what, field="stems", fix=f"leave them out{more}")

    def append(self, latents: Latents) -> Latents:
        """Take the finished latents `[T, C]` of `segment`; returns its new frames `[n, C]`. Raises ShapeError."""
        segment = self.segment
        if segment is None or len(latents) != segment.frames:
            expected = "none: the generation is complete" if segment is None else f"{segment.frames} frames"
            raise ShapeError(f"got {len(latents)} frames of latents, expected {expected}")
        new = latents[segment.keep_frames :]
        if self.total_frames is not None:
            new = new[: self.total_frames - self.done_frames]
        if self.options.notes_exact:
            new = self._with_exact_notes(new)
        if self._breath is not None:
            new = self._breathing(new, self._breath)
        if self.done_frames == 0 and (bar_frames := self._bar_frames) is not None and len(new) >= bar_frames:
            bundle = self._pipeline.bundle
            self._first_bars = FirstBars(note_spec(bundle), bundle.silence(1)[0], new, bar_frames)
        before, self._tail = self._tail, np.concatenate((self._tail, new))[-self._pipeline.canvas_frames :]
        notes, silence = self._pipeline.bundle.notes, self._pipeline.bundle.silence(1)[0]
        if notes is not None and self._moods.sparse:
            new = self._thinned(new)
        if self._last_notes is not None:
            new = self._last_notes.written(new, self.done_frames, before)
        if notes is not None and self._moods.level_db:
            new = self._moods.with_levels(new, notes, silence, self.done_frames)
        self.done_frames += len(new)
        self._index += 1
        self._part_frames.append(len(new))
        return new

    @property
    def _bar_frames(self) -> float | None:
        """How long its bars are, where the first ones keep the beat: there is neither a planner nor a source."""
        bundle, inputs, options = self._pipeline.bundle, self._inputs, self.options
        is_free = inputs.known is None and inputs.condition is None and options.codes is None
        if not is_free or bundle.planner is not None or not takes_notes(bundle):
            return None
        tempo = tempo_of(options, bundle.options.bpm)
        return None if tempo is None else tempo.bar_frames(bundle.latents.frame_rate_hz)

    def _thinned(self, new: Latents) -> Latents:
        """The next frames `[n, C]` without the notes that sparse parts lack."""
        bundle = self._pipeline.bundle
        assert bundle.notes is not None
        if self._thinning is None:
            planned = {} if self.plan is None else self.plan.options
            tempo = tempo_of(self.options.model_copy(update=planned), bundle.options.bpm)
            rate_hz, silence = bundle.latents.frame_rate_hz, bundle.silence(1)[0]
            self._thinning = Thinning(bundle.notes, silence, self._moods.sparse, tempo and tempo.bpm, rate_hz)
        return self._thinning.thinned(new)

    def _with_exact_notes(self, new: Latents) -> Latents:
        """The next frames `[n, C]` with exactly the notes that were given."""
        bundle = self._pipeline.bundle
        assert bundle.notes is not None
        return with_notes(new, self._inputs.phrases, bundle.notes, bundle.silence(1)[0], self.done_frames)


def generate_latents(
    pipeline: Pipeline, generation: LongGeneration, on_event: OnEvent | None = None, *, wait: bool = False
) -> Generator[Latents, None, None]:
    """Generate all segments, blocking; yields the new frames `[n, C]` of each while the next one is in flight.

    `on_event` is called in the calling thread. Closing the generator cancels the segment in flight and the plan.
    The pipeline's loop must be running. wait: as for the loop's submit. Raises what submit raises, and the error of a
    segment that failed.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    submitted = None
    try:
        submitted = _submit_next(pipeline, generation, events, wait)
        while submitted is not None:
            new = generation.append(_wait_for_latents(events, on_event))
            submitted = _submit_next(pipeline, generation, events, wait)
            yield new
    finally:
        generation.close()
        if submitted is not None:
            pipeline.loop.cancel(submitted)


def generate_together(pipeline: Pipeline, generations: Mapping[str, LongGeneration]) -> dict[str, Latents]:
    """All latents `[T, C]` of generations by name, blocking. They are in flight at the same time, and share ticks.

    Each waits for a place. The first one that fails cancels the others. Raises what submit raises, and its error.
    """
    events: SimpleQueue[tuple[str, Event]] = SimpleQueue()
    made: dict[str, list[Latents]] = {name: [] for name in generations}
    submitted = dict[str, str]()

    def submit(name: str) -> None:
        """Its next segment, if there is one. Blocks until there is a place."""
        if (request := generations[name].next_request()) is not None:
            submitted[name] = pipeline.loop.submit(request, lambda event: events.put((name, event)), wait=True)

    try:
        for name in generations:
            submit(name)
        while submitted:
            # Until the tick thread publishes something of one of them.
            name, event = events.get()
            if (latents := _latents_of(event)) is not None:
                del submitted[name]
                made[name].append(generations[name].append(latents))
                submit(name)
    finally:
        for request_id in submitted.values():
            pipeline.loop.cancel(request_id)
    return {name: np.concatenate(parts) for name, parts in made.items()}


def generate_audio(
    pipeline: Pipeline,
    generation: LongGeneration,
    on_event: OnEvent | None = None,
    *,
    window_frames: int = WINDOW_FRAMES,
    wait: bool = False,
    on_latents: Callable[[Latents], None] | None = None,
) -> Generator[Pcm, None, None]:
    """As generate_latents(), but yields PCM `[N, channels]` float32, decoded in windows. Also raises ConfigError.

    on_latents: gets the new frames before they are decoded.
    """
    decoder, codec = generation.audio_decoder(), pipeline.codec
    assert codec is not None
    cutter = codec.window_cutter(window_frames, total_frames=generation.total_frames)
    with closing(generate_latents(pipeline, generation, on_event, wait=wait)) as pieces:
        for latents in pieces:
            if on_latents is not None:
                on_latents(latents)
            for window in cutter.cut(latents):
                pcm = decoder.decode(window, codec)
                if len(pcm):
                    yield pcm


def _submit_next(pipeline: Pipeline, generation: LongGeneration, events: SimpleQueue[Event], wait: bool) -> str | None:
    """Submit the next segment; returns its request id, None after the last one."""
    request = generation.next_request()
    return None if request is None else pipeline.loop.submit(request, events.put, wait=wait)


def _wait_for_latents(events: SimpleQueue[Event], on_event: OnEvent | None) -> Latents:
    """Block until one request ends. Raises its error."""
    while True:
        event = events.get()
        if on_event is not None:
            on_event(event)
        if (latents := _latents_of(event)) is not None:
            return latents


def _latents_of(event: Event) -> Latents | None:
    """What a request ends with; None as long as it goes on. Raises its error."""
    match event:
        case Finished(latents=latents):
            return latents
        case Failed(error=error):
            raise error
        case Cancelled(request_id=request_id):
            raise GenerationCancelledError(f"generation {request_id} was cancelled")
    return None
