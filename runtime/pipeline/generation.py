"""A generation of any length, one segment after the other.

LongGeneration has no thread and no clock: its user submits `next_request()` and passes the finished latents to
`append()`, which returns the new frames. `generate_latents()` and `generate_audio()` do so in the calling thread:

    with open_pipeline(Path("configs/demo.toml")) as pipeline:
        generation = LongGeneration(pipeline, parse_options({"prompt": "calm melody", "seconds": 30.0}))
        for pcm in generate_audio(pipeline, generation): ...
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.audio.finishing import TARGET_LUFS, Finisher, LevelSpan
from runtime.audio.metadata import GenerationMetadata
from runtime.audio.stems import StemDecoder
from runtime.audio.window_decoder import CROSSFADE_S, AudioDecoder, AudioSplicer, surrounding_loudness
from runtime.base.errors import ConfigError, GenerationCancelledError, RequestError, ShapeError
from runtime.base.threads import Workers
from runtime.config.codec import Latents, Pcm
from runtime.music.note_levels import phrases_of
from runtime.music.part_moods import NO_MOODS
from runtime.music.score import Score
from runtime.music.tracker import score_of
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs, denoise_of
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.played_notes import PlayedNotes
from runtime.pipeline.sampling import Sampling
from runtime.pipeline.songs.ending import ending_of
from runtime.pipeline.songs.planner import Caller
from runtime.pipeline.songs.planning import AnyPlan, is_planned, plan_of, think
from runtime.pipeline.sources import has_encoded_latents, kept_frames, settled_options
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptMeaning
from runtime.requests.request import GenerationRequest
from runtime.requests.seeds import draw_seed, segment_seed
from runtime.requests.segments import Segment
from runtime.requests.tasks import is_cover, known_tasks
from runtime.requests.validation import note_spec
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished

OnEvent = Callable[[Event], None]
WINDOW_FRAMES = 64
# What the extraction of a track takes over from the options of what it is extracted from.
EXTRACT_OPTIONS = (
    "prompt", "blend", "negative_prompt", "lyrics", "language", "bpm", "key", "time_signature",
    "steps", "shift", "noise", "guidance", "adapters",
)  # fmt: skip


class LongGeneration:
    """A generation of any length. Used by one thread at a time.

    `seed` is the options' one, or a random one. `plan` is None where it has none; its thinking is done here, blocking,
    its codes are waited for by next_request(), and close() ends them. caller: who waits for both; once it leaves, they
    end in a TickError. Raises RequestError for options that would have no effect, and TickError.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: GenerationOptions,
        inputs: GenerationInputs = NO_INPUTS,
        *,
        caller: Caller | None = None,
    ) -> None:
        bundle, prompts, planner = pipeline.bundle, pipeline.prompts, pipeline.planner
        self.seed = draw_seed() if options.seed is None else options.seed
        bundle.options.check(dict(options))
        self._pipeline, self._given, thinking = pipeline, options, None
        if options.notes is not None:
            phrases = phrases_of(note_spec(bundle), options.notes, bundle.latents.frame_rate_hz)
            inputs = replace(inputs, phrases=phrases)
        self._caller = Caller(inputs.client) if caller is None else caller
        if planner is not None and is_planned(options, inputs, bundle):
            thinking = think(planner, prompts.drawn(options, self.seed), self.seed, self._caller)
            options = options.model_copy(update={**thinking.filled, "task": None})
        self.total_frames = pipeline.lengths.total_frames(options, inputs.known)
        self.total_samples = pipeline.lengths.total_samples(options, inputs.known)
        self.plan: AnyPlan | None = None
        if planner is not None and thinking is not None:
            drawn = prompts.drawn(options, self.seed)
            self.plan = plan_of(planner, drawn, thinking, self.seed, self.total_frames, self._caller)
            inputs = replace(inputs, hints=np.empty((0, bundle.latents.channels), np.float32))
        self.options = options = settled_options(options, inputs, self.total_frames, bundle)
        self.sampling = Sampling.of(options, bundle, denoise=denoise_of(options, inputs.source, bundle))
        self.done_frames = 0
        self._inputs, self._part_frames = inputs, list[int]()
        self._tail = np.empty((0, bundle.latents.channels), np.float32)
        has_tonic = self.plan is not None and bool(self.plan.tonic_chord)
        self.ending = ending_of(options, inputs, self._planned, self._total_s, bundle, has_tonic=has_tonic)
        keeps_source = inputs.source is not None and not is_cover(options, inputs.source)
        is_asked = inputs.condition is None and not keeps_source
        moods = prompts.moods(options, self.seed, self.total_frames) if is_asked else NO_MOODS
        self._notes: PlayedNotes | None = None
        if bundle.notes is not None:
            end_frame = int(self._total_s * bundle.latents.frame_rate_hz)
            chord = None if self.plan is None else self.plan.tonic_chord
            last = self.ending.last_notes(chord, inputs.phrases, bundle.notes, bundle.silence(1)[0], end_frame)
            self._notes = PlayedNotes(bundle.notes, bundle, options, inputs, self.plan, self.total_frames, moods, last)

    @property
    def _total_s(self) -> float:
        codec, rate_hz = self._pipeline.bundle.codec, self._pipeline.bundle.latents.frame_rate_hz
        return self.total_frames / rate_hz if codec is None else self.total_samples / codec.sample_rate_hz

    @property
    def _planned(self) -> dict[str, Any]:
        """What its plan says, by option."""
        return {} if self.plan is None else self.plan.options

    @property
    def segment(self) -> Segment | None:
        """The segment to generate next; None after the last one."""
        return self._pipeline.lengths.next_segment(self.done_frames, self.total_frames)

    @property
    def num_segments(self) -> int:
        """The number of segments in all."""
        canvas, overlap = self._pipeline.lengths.canvas_frames, self._pipeline.lengths.overlap_frames
        return 1 - (-max(self.total_frames - canvas, 0) // (canvas - overlap))

    @property
    def num_steps(self) -> int:
        """The steps of all segments together."""
        return self.num_segments * self.sampling.num_computed

    def next_request(self) -> GenerationRequest | None:
        """The next segment's request, with a new id for each call; None after the last one.

        Blocks until the segment's part of the plan is there. Raises RequestError, and TickError where the plan failed.
        """
        segment = self.segment
        if segment is None:
            return None
        options, index = self._pipeline.prompts.drawn(self.options, self.seed), len(self._part_frames)
        options, inputs = options.model_copy(update={"seed": segment_seed(self.seed, index)}), self._inputs
        if self._notes is not None and (hints := self._notes.hints(segment)) is not None:
            inputs = replace(inputs, hints=hints)
        if self.plan is not None:
            self._inputs = inputs = replace(inputs, hints=self._planned_hints(self.plan, segment))
            notes = (note for phrase in inputs.phrases for note in phrase.notes)
            played = ((note.layer, note.start_frame, note.end_frame) for note in notes)
            options = options.model_copy(update={"prompt": self.plan.prompts(options.prompt, played)})
        return self._pipeline.composer.compose(options, segment, inputs, self._tail)

    @property
    def meanings(self) -> tuple[PromptMeaning, ...]:
        """What of each prompt is played, with what the seed draws, and at the tempo and in the key of its plan.

        () where the model does not tell. Raises RequestError, EngineError.
        """
        if self._inputs.condition is not None:
            return ()
        return self._pipeline.prompts.meanings(self.options.model_copy(update=self._planned), self.seed)

    def close(self) -> None:
        """End its plan where that is still being made; any thread may call it."""
        self._caller.leave()

    def _planned_hints(self, plan: AnyPlan, segment: Segment) -> Latents:
        """Hints `[N, C]` from frame 0 to the segment's end, as far as there are frames."""
        known = self._inputs.hints
        assert known is not None
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
        said = self.options.model_dump(include={"bpm", "time_signature", "key"}) | self._planned
        plan = {} if self.plan is None else self.plan.summary
        found, codec = score_of(self._pipeline.bundle, latents, said, plan.get("sections", ())), self._pipeline.codec
        found = replace(found, is_estimated=self.is_estimated)
        if codec is not None:
            found = found.until(self.total_samples / codec.sample_rate_hz)
        return found.quantized() if quantize else found

    def check_score(self, *, quantize: bool = False) -> None:
        """Raise what score() would, before anything is generated."""
        self.score(np.empty((0, self._pipeline.bundle.latents.channels), np.float32), quantize=quantize)

    def audio_decoder(self, *, is_streamed: bool = True) -> AudioDecoder:
        """What decodes its windows, from the first one on. is_streamed: whether the first audio is wanted soon.

        Raises ConfigError where the bundle has no codec.
        """
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
            finisher = Finisher(
                rate_hz,
                hop,
                self.total_samples,
                target_lufs=target_lufs,
                fade_out_s=self.ending.fade_s,
                silent_s=self.ending.silent_s,
                spans=[
                    LevelSpan(start * hop, end * hop, *levels)
                    for start, end, *levels in (() if self.plan is None else self.plan.levels)
                ],
            )
        return AudioDecoder(hop, self.total_samples, splicer, finisher, np.flatnonzero(kept), is_streamed=is_streamed)

    @property
    def _kept_frames(self) -> NDArray[np.bool_]:
        """`[N]`: whether the audio of a frame is the source's own."""
        return kept_frames(self.options, self._inputs, self.total_frames, self._pipeline.bundle)

    @property
    def is_estimated(self) -> bool:
        """Whether its notes and stems are estimates, as far as they come from latents that were encoded from audio."""
        return has_encoded_latents(self.options, self._inputs, self.total_frames, self._pipeline.bundle)

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
            tracks = all_latents(self._pipeline, self.extractions(latents))
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
        new = latents[segment.keep_frames :][: self.total_frames - self.done_frames]
        if self._notes is not None:
            new = self._notes.continued(new, self.done_frames)
        before, self._tail = self._tail, np.concatenate((self._tail, new))[-self._pipeline.lengths.canvas_frames :]
        if self._notes is not None:
            new = self._notes.heard(new, self.done_frames, before)
        self.done_frames += len(new)
        self._part_frames.append(len(new))
        return new


def generate_latents(
    pipeline: Pipeline, generation: LongGeneration, on_event: OnEvent | None = None, *, wait: bool = False
) -> Generator[Latents, None, None]:
    """Generate all segments, blocking; yields the new frames `[n, C]` of each while the next one is in flight.

    `on_event` is called in the calling thread. Closing the generator cancels the segment in flight and the plan.
    The pipeline's loop must be running. wait: as for the loop's submit. Raises what submit raises, and the error of a
    segment that failed.
    """
    with closing(generate_together(pipeline, {"": generation}, on_event, wait=wait)) as parts:
        for _, new in parts:
            yield new


def generate_together(
    pipeline: Pipeline,
    generations: Mapping[str, LongGeneration],
    on_event: OnEvent | None = None,
    *,
    wait: bool = False,
) -> Generator[tuple[str, Latents], None, None]:
    """As generate_latents(), of generations by name: they are in flight at the same time, and share ticks.

    The first one that fails cancels the others.
    """
    events: SimpleQueue[tuple[str, Event | BaseException]] = SimpleQueue()
    in_flight, left = dict[str, str](), threading.Event()
    # The next segment is submitted by another thread: what is made is not kept back by a plan that is not.
    submitting = Workers(1, "submit", waits=True)

    def submit(name: str) -> None:
        if generations[name].segment is not None:
            in_flight[name] = ""
            submitting.submit(submit_next, name)

    def submit_next(name: str) -> None:
        try:
            request = generations[name].next_request()
            assert request is not None
            in_flight[name] = request.id
            pipeline.loop.submit(request, lambda event: events.put((name, event)), wait=wait, has_left=left.is_set)
        except BaseException as error:
            events.put((name, error))

    try:
        for name in generations:
            submit(name)
        while in_flight:
            # Until the tick thread publishes something of one of them, or one cannot be submitted.
            name, event = events.get()
            if on_event is not None and not isinstance(event, BaseException):
                on_event(event)
            if (latents := _latents_of(event)) is not None:
                del in_flight[name]
                new = generations[name].append(latents)
                submit(name)
                yield name, new
    finally:
        left.set()
        pipeline.loop.wake()
        for generation in generations.values():
            generation.close()
        submitting.shutdown()  # until what is being submitted is, or has been told that nobody waits
        for request_id in filter(None, in_flight.values()):
            pipeline.loop.cancel(request_id)


def all_latents(pipeline: Pipeline, generations: Mapping[str, LongGeneration]) -> dict[str, Latents]:
    """All latents `[T, C]` of generations by name, blocking; each waits for a place. Raises as generate_together()."""
    made: dict[str, list[Latents]] = {name: [] for name in generations}
    for name, new in generate_together(pipeline, generations, wait=True):
        made[name].append(new)
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


def _latents_of(event: Event | BaseException) -> Latents | None:
    """What a request ends with; None as long as it goes on. Raises its error."""
    match event:
        case BaseException():
            raise event
        case Finished(latents=latents):
            return latents
        case Failed(error=error):
            raise error
        case Cancelled(request_id=request_id):
            raise GenerationCancelledError(f"generation {request_id} was cancelled")
    return None
