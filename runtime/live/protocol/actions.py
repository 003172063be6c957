"""What a live session asks of its host: generations, step parameters, windows to decode, audio and messages to send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NewType

from runtime.base.errors import NoNotesError, RequestError, did_you_mean
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.deployment import ModelIdentity
from runtime.config.notes import NotesSpec
from runtime.config.option_ranges import ANY_MODEL, ControlsSpec, OptionRanges
from runtime.config.plan_spec import PlanSpec
from runtime.engines.adapters import NO_ADAPTERS, AdapterCatalog
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import Mode
from runtime.live.protocol.server_messages import PlanChoices, ServerMessage
from runtime.music.note_levels import Phrase
from runtime.music.part_moods import NO_MOODS, PartMoods, Thinning
from runtime.music.sections import SectionRequest, SongSection, SongState, check_state
from runtime.music.tempo import Tempo, loop_frames, tempo_of
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptMeaning, PromptWords
from runtime.requests.request import SOLVERS
from runtime.requests.segments import Segment
from runtime.requests.validation import takes_notes

# Controls' values by name as the option table has them, None for the default: what `check_controls` has passed. Nothing
# behind it validates a value again.
CheckedControls = NewType("CheckedControls", dict[str, Any])
# Copies with other values are not validated: these are controls, or lie between two of them.
NO_OPTIONS = GenerationOptions(prompt="")


@dataclass(frozen=True)
class SongFacts:
    """What a session has to know of the plans that a model makes. is_default: sessions have one unless they say no.

    group_size, silent: as PlanChoices has them. num_codes: codes are less. check_state: raises RequestError for what no
    plan goes on from.
    """

    spec: PlanSpec
    frames_per_code: int
    num_codes: int
    group_size: int = 0
    is_default: bool = True
    silent: tuple[int, ...] = ()
    check_state: Callable[[SongState], None] = field(default=lambda state: None, compare=False)

    @property
    def choices(self) -> PlanChoices:
        """What a section can be."""
        layers = dict.fromkeys(name for value in self.spec.layers.values for name in value.split("+"))
        bars = [int(value) for value in self.spec.bars.values]
        return PlanChoices(
            kinds=list(self.spec.kind.values),
            layers=list(layers),
            bars=bars,
            group_size=self.group_size,
            silent=list(self.silent),
        )

    @classmethod
    def of(cls, bundle: Bundle) -> SongFacts | None:
        """Those of a bundle; None where its planner plans no sections."""
        planner, structure = bundle.planner, bundle.structure
        if planner is None or planner.plan is None or structure is None:
            return None
        sizes = [group.count for group in planner.codes.groups]
        num_codes = structure.num_codes
        facts = cls(planner.plan, structure.frames_per_code, num_codes, 0, planner.default)
        facts = replace(facts, check_state=partial(check_state, spec=planner.plan, num_codes=num_codes))
        is_by_layer = len(sizes) == len(facts.choices.layers) and len(set(sizes)) == 1
        if not is_by_layer:
            return facts
        facts, silent, layers = replace(facts, group_size=sizes[0]), planner.plan.silent, facts.choices.layers
        if any(layer not in silent for layer in layers):
            return facts
        pairs = zip(layers, planner.codes.groups, strict=True)
        return replace(facts, silent=tuple([silent[layer] - group.first for layer, group in pairs]))


@dataclass(frozen=True, eq=False)
class NoteFacts:
    """What a session has to know of a model's notes: where latents have them, and silence `[C]`.

    takes_hints: generations follow notes that they are given.
    """

    spec: NotesSpec
    silence: Latents
    takes_hints: bool = True

    @classmethod
    def of(cls, bundle: Bundle) -> NoteFacts | None:
        """Those of a bundle; None where it has no [notes]."""
        if bundle.notes is None:
            return None
        return cls(bundle.notes, bundle.silence(1)[0], takes_notes(bundle))


# Most of the work of a shorter window is its margins, which others wait for: with 16 sessions of the demo on two cores
# a change is heard in half the time that it takes with windows of 0.2 s.
WINDOW_S = 0.64


@dataclass(frozen=True)
class LiveModel:
    """What a session has to know of an open pipeline.

    latent_channels: C. lengths: the values of T that generations have, in order; the last is the canvas. margin_frames,
    window_frames: the codec's context on both sides of a window, and its longest window. align_frames: it works in
    groups of so many frames of the canvas, counted from frame 0, and is given whole ones. defaults: the values of
    controls that the model sets, by name. untaken: controls that it can make nothing of. ranges: of controls that are
    numbers. words: which words of texts are understood; None where the model has no text. meaning: what is played of a
    text, with the options that its template has and a session's seed; None where the model does not tell. moods: what
    the prompts say of single parts. catalog: the adapters that there are now. plan: None where no session has one.
    identity: which model it is now. notes: what its latents say of notes, and silence `[C]`; None: nothing. has_stems:
    layers can be told apart. music: its musical controls. loop_lengths: the values of T that loops have; (): those of
    generations. solvers: what its decoder can do. steps_of: how many steps a generation takes whose client sets no
    number; None: that of `defaults`. window_s: the shortest window, but where a placement ends.
    """

    sample_rate_hz: int
    channels: int
    hop_samples: int
    frame_rate_hz: float
    latent_channels: int
    lengths: tuple[int, ...]
    overlap_frames: int
    margin_frames: int
    window_frames: int
    align_frames: int = 1
    has_text: bool = True
    has_encoder: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)
    untaken: frozenset[str] = frozenset()
    ranges: OptionRanges = ANY_MODEL
    words: Callable[[Iterable[str]], PromptWords] | None = None
    meaning: Callable[[str, GenerationOptions, int], PromptMeaning] | None = None
    moods: Callable[[GenerationOptions, int], PartMoods] = lambda options, seed: NO_MOODS
    catalog: Callable[[], AdapterCatalog] = lambda: NO_ADAPTERS
    plan: SongFacts | None = None
    identity: Callable[[], ModelIdentity] = ModelIdentity
    notes: NoteFacts | None = None
    has_stems: bool = False
    music: ControlsSpec = field(default_factory=ControlsSpec)
    loop_lengths: tuple[int, ...] = ()
    steps_of: Callable[[GenerationOptions], int] | None = None
    solvers: Collection[str] = SOLVERS
    window_s: float = WINDOW_S

    def known_notes(self, field: str) -> NoteFacts:
        """What it says of notes. field: of the message that needs them. Raises NoNotesError."""
        if self.notes is None:
            raise NoNotesError("the bundle has no [notes]", field=field, fix="leave it out")
        return self.notes

    @property
    def layers(self) -> Mapping[str, tuple[int, ...]]:
        """The channels of each layer that can be silent while others sound; none where layers cannot be told apart."""
        if self.notes is None or not self.has_stems:
            return {}
        return {layer.name: layer.all_channels for layer in self.notes.spec.layers}

    def check_layers(self, names: Collection[str], field: str) -> None:
        """Raises RequestError where one of these layers cannot be silent. field: of the message that names them."""
        known = self.layers
        if names and not known:
            raise RequestError("this model cannot tell its layers apart", field=field, fix="leave it out")
        for name in names:
            if name not in known:
                what = f"there is no layer {name!r:.60}, expected some of {', '.join(known)}"
                raise RequestError(what, field=field, fix=did_you_mean(name, known))

    def thinned(self, moods: PartMoods, latents: Latents, options: GenerationOptions) -> Latents:
        """Latents `[T, C]` of a generation without the notes that sparse parts lack."""
        if self.notes is None or not moods.sparse:
            return latents
        tempo = tempo_of(options, self.ranges.bpm)
        thinning = Thinning(self.notes.spec, self.notes.silence, moods.sparse, tempo and tempo.bpm, self.frame_rate_hz)
        return thinning.thinned(latents)

    def heard(self, moods: PartMoods, silent: Collection[str], latents: Latents) -> Latents:
        """Latents `[n, C]` as loud as they are heard, in which these layers are silent; they were checked."""
        if self.notes is None:
            return latents
        return self._without(silent, moods.with_levels(latents, self.notes.spec, self.notes.silence))

    def _without(self, layers: Collection[str], latents: Latents) -> Latents:
        if not layers or self.notes is None:
            return latents
        channels = [channel for name in layers for channel in self.layers[name]]
        silenced = latents.copy()  # [n, C]
        silenced[:, channels] = self.notes.silence[channels]
        return silenced

    def lengths_of(self, mode: Mode) -> tuple[int, ...]:
        """The values of T that a session's canvas, or a segment of it, may have, in order."""
        return (mode == "loop" and self.loop_lengths) or self.lengths

    def canvas_frames(self, seconds: float | None, mode: Mode = "loop") -> int:
        """The first length that holds `seconds`; None: the canvas. Raises RequestError."""
        if seconds is None:
            return self.lengths[-1]
        wanted, lengths = seconds * self.frame_rate_hz - 1e-6, self.lengths_of(mode)
        found = next((frames for frames in lengths if frames >= wanted), None)
        if found is None:
            raise RequestError(f"a canvas is at most {lengths[-1] / self.frame_rate_hz:g} s", field="seconds")
        return found

    def bars_frames(self, bars: int, tempo: Tempo | None) -> int:
        """The first length from the canvas on that holds a loop of so many bars; the canvas where none does."""
        wanted = 0 if tempo is None else loop_frames(tempo, bars, self.frame_rate_hz)
        return next((n for n in self.lengths_of("loop") if n >= max(wanted, self.lengths[-1])), self.lengths[-1])


@dataclass(frozen=True, eq=False)
class SessionJob:
    """One generation of a session. `id` is unique in the process; it is the request's id and its session in the loop.

    tail `[n, C]`: the frames before the segment's new ones, as RequestComposer.compose takes it; None where the segment
    keeps none. source `[T, C]`: already the segment's frames. noise `[T, C]`: instead of the seed's. full_seq: the
    newest seq whose change the job has from its first step on. is_refresh: it replaces audio that exists. timbre
    `[F, C]`: latents of a reference. hints `[T, C]`: of the structure that it follows, already the segment's frames.
    sections: of the plan whose hints these are, by the segment's frames; the prompts say what sounds in each. phrases:
    notes over the hints, by the segment's frames; exact: those of them that the session writes into its latents, too.
    loop_frames: those of a loop that is denoised as a circle.
    """

    id: str
    options: GenerationOptions
    segment: Segment
    tail: Latents | None
    source: Latents | None
    noise: Latents | None
    full_seq: int
    is_refresh: bool
    timbre: Latents | None = None
    hints: Latents | None = None
    sections: tuple[SongSection, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    exact: tuple[Phrase, ...] = ()
    loop_frames: int | None = None


@dataclass(frozen=True, eq=False)
class DecodeWindow:
    """Latents to decode: `values` `[n, C]`, whose first is frame `start_frame` on the play axis.

    The audio from `start_sample` on is `codec.decode(values, start_frame)[trim_begin:trim_end]`. The windows of a
    session may be decoded in any order. is_first: the client does not play yet.
    """

    index: int
    epoch: int
    values: Latents
    start_frame: int
    trim_begin: int
    trim_end: int
    start_sample: int
    first_seq: int
    full_seq: int
    is_replacing: bool = False
    is_after_underrun: bool = False
    is_first: bool = False

    @property
    def num_samples(self) -> int:
        """Length of the audio in samples."""
        return self.trim_end - self.trim_begin

    @property
    def end_sample(self) -> int:
        """The sample after its last one."""
        return self.start_sample + self.num_samples

    def may_be_overtaken_by(self, later: DecodeWindow) -> bool:
        """Whether audio that continues what was sent may leave before this replacement of earlier samples."""
        return self.is_replacing and not later.is_replacing and self.end_sample <= later.start_sample


@dataclass(frozen=True)
class SongBeginning:
    """A plan to open: what for, and the state that it goes on from; None: at the beginning."""

    options: GenerationOptions
    seed: int
    state: SongState | None = None


@dataclass(frozen=True)
class SongEdit:
    """A change of a plan from a frame of it on: other sections, other codes, or options that it is planned anew for.

    seq: of the message that asks for other sections or codes.
    """

    from_frame: int
    sections: tuple[SectionRequest, ...] | None = None
    codes: tuple[int, ...] | None = None
    options: GenerationOptions | None = None
    seq: int | None = None


@dataclass(frozen=True)
class MakeHints:
    """Make hints of the plan's frames `start_frame` .. `start_frame + frames`, in another thread.

    begin: first open a plan in place of the one that there is. change: first change it. `plan_made(number, ...)` or
    `plan_failed(number, ...)` gets what came of it.
    """

    number: int
    begin: SongBeginning | None
    change: SongEdit | None
    start_frame: int
    frames: int


@dataclass(frozen=True, eq=False)
class MadeHints:
    """What was made: hints `[n, C]`, and header, sections and state of the plan then."""

    header: Mapping[str, Any]
    sections: tuple[SongSection, ...]
    hints: Latents
    state: SongState


@dataclass(frozen=True)
class FindWords:
    """Find the words of texts, in another thread; `words_found(seq, ...)` takes them. Only the newest counts.

    options: those that fill the prompts' templates. seed: the session's.
    """

    seq: int
    texts: tuple[str, ...]
    options: GenerationOptions = NO_OPTIONS
    seed: int = 0


@dataclass(frozen=True)
class UpdateSteps:
    """Change step parameters of generations in flight: fields of StepOptions, none of them None.

    Curves span each job's segment: `step_parameters` of the patch and the segment gives what the loop takes.
    `step_applied(seq, job_ids, tick)` reports that it has been passed on.
    """

    job_ids: tuple[str, ...]
    patch: CheckedControls
    seq: int


@dataclass(frozen=True)
class StopHints:
    """End what is being made of the plan; it goes on with a MakeHints that begins. Nothing needs to be reported."""


@dataclass(frozen=True)
class CancelJob:
    """End a generation; nothing about it needs to be reported."""

    job_id: str


@dataclass(frozen=True)
class Commit:
    """Store a snapshot."""


@dataclass(frozen=True)
class End:
    """The client has closed the session."""


# A job is composed and submitted; `generation_*` methods report what becomes of it. A window is decoded; `decoded()`
# takes the PCM. A chunk and a message are sent to the client.
Work = SessionJob | MakeHints | StopHints | FindWords | UpdateSteps | CancelJob | DecodeWindow
Action = Work | AudioChunk | ServerMessage | Commit | End
