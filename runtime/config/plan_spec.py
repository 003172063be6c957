"""`[planner.plan]` in bundle.toml: tokens of plans with sections, and of the pages that their structure codes stand on.

A plan page: `start`, the tokens of the prompt in ascending order, `plan`, a token of every field of `header`, then
kind, layers and bars of each section, the end token. A section page: `start`, the header, the prompt's tokens of
`style`; but for the first section `before` and the marked codes of the last bar before it; `section`, its kind, layers
and bars, then its marked codes: each behind its markers (one of `bar_markers` where a bar begins in it, then `recall`
and the tokens of the code that it recalls, where the section recalls one, then one of `clock_markers`). Markers are
given, never sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable
from runtime.config.words import with_word

# Fields of the header from which tempo, meter and scale follow.
BPM, METER, KEY, MODE = "bpm", "meter", "key", "mode"
KEYS = ("c", "c#", "d", "d#", "e", "f", "f#", "g", "g#", "a", "a#", "b")
Step = Annotated[int, Field(ge=0, lt=len(KEYS))]
# Of more layers that a prompt asks for, the main kinds but the first may lack some.
MAIN_LAYERS = 3
PitchClasses = Annotated[int, Field(ge=0, lt=1 << len(KEYS))]
Frames = Annotated[int, Field(ge=0, lt=1 << 32)]
Decibels = Annotated[float, Field(ge=-24.0, le=24.0)]
PlaceInBeat = Annotated[float, Field(ge=0.0, lt=1.0)]


class TokenRange(TomlTable):
    """`count` tokens from `first` on."""

    first: int = Field(ge=0)
    count: int = Field(ge=1)

    @property
    def end(self) -> int:
        """One behind the last."""
        return self.first + self.count

    @property
    def tokens(self) -> range:
        """All of them."""
        return range(self.first, self.end)


class PlanField(TomlTable):
    """One place of a plan: `first` stands for the first of `values`, the token behind it for the second, and so on."""

    name: str
    first: int = Field(ge=0)
    values: tuple[str, ...] = Field(min_length=1)

    @property
    def end(self) -> int:
        """One behind the last token."""
        return self.first + len(self.values)

    @property
    def tokens(self) -> range:
        """All of them."""
        return range(self.first, self.end)

    def value(self, token: int) -> str:
        """What a token stands for."""
        return self.values[token - self.first]

    def token(self, value: str) -> int:
        """The token of a value. Raises ValueError where there is none."""
        return self.first + self.values.index(value)


class PlanSpec(TomlTable):
    """Songs in sections, planned in tokens of their own.

    prompt: the text that the tokenizer makes the prompt's tokens of; its placeholders are those of [text_encoder].
    header: what holds for a whole song; its fields "bpm", whose values are the least of each token's range, and
    "meter" are read. beats: of a bar, by value of "meter". kind, layers (names joined by "+"), bars: of a section.
    materials: of every kind the number of what it plays; a section recalls the first of its kind before it, or else of
    its material. style: what further words of a prompt become, which are read with every section. beginning, ending:
    the kinds that only begin and only end a song. tags: other names of kinds that may stand in lyrics.
    dynamics: by kind how loud finished audio is where a section begins and ends, in dB, beside that of the other kinds.
    ensembles: words of a prompt, and what planner and decoder read in their place. voices: words of a prompt, and how
    many layers all sections then have at least. unasked: words of a prompt, and the layers that then sound only where
    others of its words, but for genres and the like (those of `tempos`), ask for them.
    clocks_per_beat: of `clock_markers`, which tell where in its bar a code's last frame lies. layer_words: by layer
    what the prompt of a section says where it sounds, and where it is silent. silent: by layer the code token that
    means its silence, which is given in sections without it. absent: by layer the token of a prompt that leaves it out
    of all sections. named: by layer the token of a prompt that asks for it. main: the kinds that have the layers that a
    prompt asks for, the first one all of them, the others up to MAIN_LAYERS. most_in_a_row: how many sections of a kind
    follow each other at most; 0: any number. beginning_bars: how many bars of `beginning` a song has at most, if
    it can have so few; 0: any number. tempos: by value of a header's field, such as a genre, the lowest and the highest
    tempo of songs whose prompts name it and no tempo. scales: by value of the header's "mode" the semitones above its
    "key", whose values are `KEYS`. pitches: by group of codes and its token the pitch classes that it sounds, one bit
    each, the lowest is C; a token that sounds one outside the song's scale is not sampled. Scales and pitches are given
    both or not at all. steps: by value of a header's field, such as a genre or meter, where in a beat notes may begin;
    the last field of the header that has steps decides; where none has, notes begin anywhere. onsets: by group of codes
    and its token the frames in which a note begins, one bit each, the lowest is the code's first; a token with one that
    is not the nearest to a step is not sampled, a group may have none. Steps and onsets are given both or not at all.
    openings: how many times the first codes of a section that recalls none are drawn at most,
    until their notes, as [notes] of the bundle tells them, have the tonic that the header names and no layer holds the
    same ones all the time; 1: once, unjudged.
    temperature, top_p: of header and sections, where they are not those of [planner.sampler].
    """

    prompt: str = "{prompt}"
    start: int = Field(ge=0)
    plan: int = Field(ge=0)
    before: int = Field(ge=0)
    section: int = Field(ge=0)
    recall: int = Field(ge=0)
    header: tuple[PlanField, ...]
    kind: PlanField
    layers: PlanField
    bars: PlanField
    style: TokenRange | None = None
    bar_markers: TokenRange
    clock_markers: TokenRange
    clocks_per_beat: int = Field(ge=1)
    beats: tuple[int, ...]
    materials: tuple[int, ...]
    beginning: str = ""
    ending: str = ""
    tags: Mapping[str, str] = {}
    dynamics: Mapping[str, tuple[Decibels, Decibels]] = {}
    ensembles: Mapping[str, str] = {}
    voices: Mapping[str, int] = {}
    unasked: Mapping[str, tuple[str, ...]] = {}
    layer_words: Mapping[str, tuple[str, str]] = {}
    silent: Mapping[str, int] = {}
    absent: Mapping[str, int] = {}
    named: Mapping[str, int] = {}
    main: tuple[str, ...] = ()
    most_in_a_row: int = Field(default=0, ge=0)
    beginning_bars: int = Field(default=0, ge=0)
    tempos: Mapping[str, tuple[int, int]] = {}
    scales: tuple[tuple[Step, ...], ...] = ()
    pitches: tuple[tuple[PitchClasses, ...], ...] = ()
    steps: Mapping[str, tuple[PlaceInBeat, ...]] = {}
    onsets: tuple[tuple[Frames, ...], ...] = ()
    openings: int = Field(default=1, ge=1, le=16)
    temperature: float | None = Field(default=None, gt=0.0, le=10.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    most_sections: int = Field(default=16, ge=1)

    @property
    def item(self) -> tuple[PlanField, ...]:
        """The fields of a section."""
        return (self.kind, self.layers, self.bars)

    def field_at(self, place: int) -> PlanField:
        """The field at a place of the plan."""
        later = place - len(self.header)
        return self.header[place] if later < 0 else self.item[later % len(self.item)]

    def field(self, name: str) -> PlanField:
        """A field of the header."""
        return next(field for field in self.header if field.name == name)

    def layers_without(self, prompt: Collection[int]) -> list[int]:
        """The layers' tokens that a prompt's tokens rule out; none where that would be all."""
        absent = {layer for layer, token in self.absent.items() if token in prompt}
        found = [self.layers.token(value) for value in self.layers.values if absent & set(value.split("+"))]
        return found if len(found) < len(self.layers.values) else []

    def tempo(self, token: int) -> int:
        """Beats per minute: the middle of the range that a token of "bpm" stands for."""
        lowest, width = self._tempos_of(token)
        return lowest + width // 2

    def tempos_without(self, prompt: Collection[int]) -> list[int]:
        """The tokens of "bpm" that do not fit what a prompt names; none where it names a tempo, or no token fits."""
        tokens = self.field(BPM).tokens
        named = {field.value(token) for field in self.header for token in field.tokens if token in prompt}
        ranges = [self.tempos[value] for value in named if value in self.tempos]
        fit = {token for token in tokens for low, high in ranges if self._has_tempo(token, low, high)}
        return [] if not fit or any(token in prompt for token in tokens) else sorted(set(tokens) - fit)

    def _has_tempo(self, token: int, low: int, high: int) -> bool:
        lowest, width = self._tempos_of(token)
        return lowest <= high and low < lowest + width

    def _tempos_of(self, token: int) -> tuple[int, int]:
        """The least tempo of a token and how many there are; the last range is as wide as the one before it."""
        field = self.field(BPM)
        lowest, index = [int(value) for value in field.values], token - field.first
        if len(lowest) == 1:
            return lowest[0], 1
        later = min(index + 1, len(lowest) - 1)
        return lowest[index], lowest[later] - lowest[later - 1]

    def with_ensembles(self, text: str) -> str:
        """A text with what stands for the names of ensembles in it."""
        for name, meaning in self.ensembles.items():
            text = with_word(text, name, meaning)
        return text

    def layers_named(self, prompt: Collection[int]) -> frozenset[str]:
        """The layers that a prompt's tokens ask for."""
        return frozenset(layer for layer, token in self.named.items() if token in prompt)

    def layers_of(self, item: Sequence[int]) -> frozenset[str]:
        """The layers of a section's tokens."""
        return frozenset(self.layers.value(item[1]).split("+"))

    def main_layers(self, kind: str, named: frozenset[str]) -> frozenset[str]:
        """Those of the layers that a prompt asks for that a section of a kind has at least."""
        is_full = kind in self.main[:1] or (kind in self.main and len(named) <= MAIN_LAYERS)
        return named if is_full else frozenset()

    def bars_of_kind(self, kind: str) -> list[int]:
        """How many bars a section of a kind may have."""
        bars = [int(value) for value in self.bars.values]
        most = self.beginning_bars if kind == self.beginning and self.beginning_bars else max(bars)
        return [n for n in bars if n <= most] or [min(bars)]

    def scale(self, header: Sequence[int]) -> int:
        """The pitch classes of the scale that a header's tokens name, as in `pitches`; all of them without `scales`."""
        if not self.scales:
            return (1 << len(KEYS)) - 1
        steps = self.scales[self._index(header, MODE)]
        return sum({1 << (self.tonic(header) + step) % len(KEYS) for step in steps})

    def steps_of(self, header: Sequence[int]) -> tuple[float, ...]:
        """Where in a beat of a song with these tokens notes may begin; () for anywhere."""
        values = [field.value(token) for field, token in zip(self.header, header, strict=True)]
        return next((self.steps[value] for value in reversed(values) if value in self.steps), ())

    def tonic(self, header: Sequence[int]) -> int:
        """The pitch class of the key that a header's tokens name, 0 is C."""
        return self._index(header, KEY)

    def tonic_chord(self, header: Sequence[int]) -> tuple[int, ...]:
        """Pitch classes of the triad on a header's tonic, that first; () without a key, without scales no third."""
        if KEY not in [field.name for field in self.header]:
            return ()
        tonic, steps = self.tonic(header), self.scales[self._index(header, MODE)] if self.scales else (7,)
        third = [step for step in (4, 3) if step in steps][:1]
        return tuple((tonic + step) % len(KEYS) for step in (0, *third, 7))

    def _index(self, header: Sequence[int], name: str) -> int:
        return next(token - each.first for each, token in zip(self.header, header, strict=True) if each.name == name)

    def ends(self) -> Iterator[tuple[str, int]]:
        """The last token of everything, plus 1, with its name."""
        for name in ("start", "plan", "before", "section", "recall"):
            yield name, getattr(self, name) + 1
        for name, tokens in (("silent", self.silent), ("absent", self.absent), ("named", self.named)):
            yield from ((f"{name}.{layer}", token + 1) for layer, token in tokens.items())
        for index, field in enumerate(self.header):
            yield f"header.{index}", field.end
        for name in ("kind", "layers", "bars", "style", "bar_markers", "clock_markers"):
            if (found := getattr(self, name)) is not None:
                yield name, found.end

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        self._check_header(BPM, METER)
        for field in (self.field(BPM), self.bars):
            if not all(value.isdecimal() and int(value) for value in field.values):
                raise ValueError(f"values of {field.name} have to be numbers above 0")
        lengths = {"beats": (self.beats, self.field(METER)), "materials": (self.materials, self.kind)}
        for name, (numbers, field) in lengths.items():
            if len(numbers) != len(field.values):
                raise ValueError(f"{name} has {len(numbers)} numbers, expected one for each of {len(field.values)}")
        known = {value for field in self.header for value in field.values}
        for value, (low, high) in self.tempos.items():
            if value not in known or low > high:
                raise ValueError(f"tempos has {value!r} from {low} to {high} bpm: a value of header, and ascending")
        for value in self.steps:
            if value not in known:
                raise ValueError(f"steps has {value!r}, which is no value of header")
        if bool(self.steps) != bool(self.onsets):
            raise ValueError("steps and onsets are read together: give both, or neither")
        for kind in (*self.tags.values(), *self.main, *self.dynamics, self.beginning, self.ending):
            if kind and kind not in self.kind.values:
                raise ValueError(f"there is no kind {kind!r}, there are {', '.join(self.kind.values)}")
        most = max(int(value) for value in self.bars.values)
        if self.bar_markers.count < most:
            raise ValueError(f"bar_markers has {self.bar_markers.count} tokens, sections have up to {most} bars")
        return self

    @model_validator(mode="after")
    def _check_openings(self) -> Self:
        if self.openings > 1:
            self._check_keys()
        return self

    @model_validator(mode="after")
    def _check_scales(self) -> Self:
        if bool(self.scales) != bool(self.pitches):
            raise ValueError("scales and pitches are read together: give both, or neither")
        if not self.scales:
            return self
        self._check_keys()
        self._check_header(MODE)
        modes = self.field(MODE).values
        if len(self.scales) != len(modes):
            raise ValueError(f"scales has {len(self.scales)} of them, expected one for each of {', '.join(modes)}")
        return self

    def _check_keys(self) -> None:
        self._check_header(KEY)
        if (keys := self.field(KEY).values) != KEYS:
            raise ValueError(f"values of {KEY} are {', '.join(keys)}; expected {', '.join(KEYS)}")

    def _check_header(self, *expected: str) -> None:
        names = [field.name for field in self.header]
        for name in expected:
            if names.count(name) != 1:
                raise ValueError(f"header has {', '.join(names) or 'nothing'}, expected {name} once")
