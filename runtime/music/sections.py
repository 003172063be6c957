"""Sections of a song, the pages that the planner writes them on (see runtime.config.plan_spec), and their prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from runtime.base.errors import RequestError
from runtime.config.explain import sentence
from runtime.config.plan_spec import BPM, KEY, METER, MODE, PlanSpec
from runtime.music.rhythm import Rhythm
from runtime.music.tempo import Tempo
from runtime.requests.option_types import WeightedPrompt

# Kind, layers and bars in tokens.
Item = tuple[int, int, int]


class SectionRequest(NamedTuple):
    """A section that a user asks for."""

    kind: str
    layers: tuple[str, ...]
    bars: int


@dataclass(frozen=True)
class SongSection:
    """A section of a plan, from `start_frame` to `end_frame`; codes: once there are all of them.

    others: layers that it lacks, and that codes which it was given sound all the same. bpm, beats: its tempo, and the
    beats of its bars; bpm 0: not known. sixteenths: of a bar; 0: not known. first_bar: its first bar's number. offset:
    where that begins exactly, in frames from `start_frame` on.
    """

    index: int
    kind: str
    layers: tuple[str, ...]
    bars: int
    start_frame: int
    end_frame: int
    codes: tuple[int, ...] | None
    others: tuple[str, ...] = ()
    bpm: float = 0.0
    beats: int = 0
    first_bar: int = 0
    offset: float = 0.0
    sixteenths: int = 0

    def values(self, rate_hz: float) -> dict[str, Any]:
        """As JSON has it, without its codes."""
        times = {"start_s": round(self.start_frame / rate_hz, 3), "end_s": round(self.end_frame / rate_hz, 3)}
        return {"kind": self.kind, "layers": list(self.layers), "bars": self.bars, **times}


def beats_of(sections: Iterable[SongSection], frames: NDArray[np.int64], rate_hz: float) -> NDArray[np.bool_]:
    """Which of these frames are the nearest ones to beats of the sections that they are in."""
    found = np.zeros(len(frames), bool)
    for each in sections:
        if each.bpm and each.beats:
            inside = (frames >= each.start_frame) & (frames < each.end_frame)
            tempo = Tempo(each.bpm, each.beats)
            found[inside] = tempo.are_beats(frames[inside], each.start_frame + each.offset, rate_hz)
    return found


class SectionLevel(NamedTuple):
    """How loud a section is in its first and its last frame beside other sections, in dB."""

    start_frame: int
    end_frame: int
    first_db: float
    last_db: float


@dataclass(frozen=True)
class Song:
    """What holds for all sections until prompt, tempo or key change: header and style in tokens, and its rhythm."""

    header: tuple[int, ...]
    style: tuple[int, ...]
    rhythm: Rhythm


@dataclass(frozen=True, eq=False)
class CodedSection:
    """A section of a song, number `index` of its plan, from the song's bar number `first_bar` on.

    bars: how many are played of those that it has. codes: made so far.
    """

    index: int
    song: Song
    item: Item
    first_bar: int
    bars: int
    codes: list[int] = field(default_factory=list)

    @property
    def span(self) -> range:
        """The plan's codes that it gets."""
        return self.song.rhythm.code_range(self.first_bar, self.bars)

    @property
    def start_frame(self) -> int:
        """The frame of its first beat."""
        return self.song.rhythm.frame(self.first_bar)

    @property
    def end_frame(self) -> int:
        """The frame of the first beat after it."""
        return self.song.rhythm.frame(self.first_bar + self.bars)

    @property
    def next_bar(self) -> int:
        """The first bar after it."""
        return self.first_bar + self.bars

    def planned(self, spec: PlanSpec, last_frame: int | None, others: tuple[str, ...] = ()) -> SongSection:
        """As users see it; a plan may end before it does. others: as SongSection has them."""
        kind, layers, _ = (found.value(token) for found, token in zip(spec.item, self.item, strict=True))
        end = self.end_frame if last_frame is None else min(self.end_frame, last_frame)
        count = -(-end // self.song.rhythm.frames_per_code) - self.span.start
        codes = tuple(self.codes) if len(self.codes) >= min(count, len(self.span)) else None
        rhythm, start = self.song.rhythm, self.start_frame
        return SongSection(
            self.index,
            kind,
            tuple(layers.split("+")),
            self.bars,
            start,
            end,
            codes,
            others,
            bpm=rhythm.bpm,
            beats=rhythm.beats,
            first_bar=self.first_bar,
            offset=rhythm.exact_frame(self.first_bar) - start,
            sixteenths=sixteenths_of(header_values(spec, self.song)[METER]),
        )


def song_of(spec: PlanSpec, header: Sequence[int], style: Sequence[int], bpm: float | None, rhythm: Rhythm) -> Song:
    """A song of these tokens; bpm: exactly, where it is given. `rhythm`: of the model's grid, with any tempo."""
    fields = {found.name: (found, token) for found, token in zip(spec.header, header, strict=True)}
    meter, meter_token = fields[METER]
    _, bpm_token = fields[BPM]
    tempo = spec.tempo(bpm_token) if bpm is None else bpm
    return Song(tuple(header), tuple(style), rhythm.at(tempo, spec.beats[meter_token - meter.first]))


def header_values(spec: PlanSpec, song: Song) -> dict[str, Any]:
    """What a song's header says, by field; the tempo exactly."""
    values = {found.name: found.value(token) for found, token in zip(spec.header, song.header, strict=True)}
    return {**values, BPM: round(song.rhythm.bpm, 3)}


def sixteenths_of(meter: str) -> int:
    """How many of them a bar of a meter has, such as "6/8"."""
    count, part = meter.split("/")
    return int(count) * 16 // int(part)


def header_options(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a header says that prompts have options for: tempo, beats of a bar, and the key where there is one."""
    if not header:
        return {}
    options = {"bpm": header[BPM], "time_signature": int(header[METER].split("/")[0])}
    return options | ({"key": f"{header[KEY].capitalize()} {header[MODE]}"} if KEY in header and MODE in header else {})


def given_header(spec: PlanSpec, tokens: Collection[int], bpm: float | None) -> dict[int, int]:
    """Places of a plan's header -> the token that a prompt says; nothing where it says several."""
    given: dict[int, int] = {}
    for place, found in enumerate(spec.header):
        said = {token for token in tokens if token in found.tokens}
        if found.name == BPM and bpm is not None:
            said = {found.first + max(0, sum(int(value) <= bpm for value in found.values) - 1)}
        if len(said) == 1:
            given[place] = said.pop()
    return given


def plan_prompt(spec: PlanSpec, tokens: Collection[int]) -> tuple[int, ...]:
    """A plan page up to its header."""
    return (spec.start, *sorted(set(tokens)), spec.plan)


def item_of(spec: PlanSpec, section: SectionRequest) -> Item:
    """A section in tokens. Raises RequestError."""
    sets = {frozenset(value.split("+")): value for value in spec.layers.values}
    wanted: Mapping[str, str | None] = {
        "kind": section.kind,
        "layers": sets.get(frozenset(section.layers)),
        "bars": str(section.bars),
    }
    tokens = []
    for found in spec.item:
        value = wanted[found.name]
        if value not in found.values:
            names = sorted({name for value in spec.layers.values for name in value.split("+")})
            expected = f"some of {', '.join(names)}" if found is spec.layers else f"one of {', '.join(found.values)}"
            raise RequestError(
                f"{found.name} is {getattr(section, found.name)!r}, expected {expected}", field="sections"
            )
        tokens.append(found.token(value))
    return (tokens[0], tokens[1], tokens[2])


def recalled_section(spec: PlanSpec, before: Iterable[CodedSection], section: CodedSection) -> CodedSection | None:
    """The section that another one is played after: the first of its kind before it, or else of its material."""

    def material(other: CodedSection) -> int:
        return spec.materials[other.item[0] - spec.kind.first]

    earlier = [other for other in before if other.song is section.song and other.index < section.index]
    same = [other for other in earlier if other.item[0] == section.item[0]]
    related = [other for other in earlier if material(other) == material(section)]
    return next(iter(same or related), None)


def recalled_frames(recalled: CodedSection, section: CodedSection) -> NDArray[np.int64]:
    """For every frame of a section's codes the frame, of those of the recalled one's codes, that is played again.

    A section that is longer goes on with the recalled one's beginning.
    """
    size = section.song.rhythm.frames_per_code
    offset = np.arange(section.span.start * size, section.span.stop * size) - section.start_frame
    length = recalled.end_frame - recalled.start_frame
    source = recalled.start_frame + np.where(offset >= 0, offset % length, offset)
    found: NDArray[np.int64] = np.clip(source - recalled.span.start * size, 0, len(recalled.span) * size - 1)
    return found


def section_prompt(
    spec: PlanSpec, section: CodedSection, before: CodedSection | None, code_tokens: Mapping[int, Sequence[int]]
) -> tuple[int, ...]:
    """A section's page up to its codes. before: the section before it; code_tokens: of the codes of its last bar."""
    song = section.song
    tokens = [spec.start, *song.header, *song.style]
    if before is not None:
        tokens.append(spec.before)
        for code, digits in code_tokens.items():
            tokens += [*song.rhythm.markers(code, before.first_bar), *digits]
    return (*tokens, spec.section, *section.item)


def last_bar(before: CodedSection) -> range:
    """The codes of the last bar of a section."""
    return before.song.rhythm.code_range(before.next_bar - 1, 1)


PromptText = str | list[WeightedPrompt]


def section_prompts(
    spec: PlanSpec, prompt: PromptText, sections: Sequence[SongSection], start_frame: int, frames: int
) -> PromptText:
    """The prompts of `frames` frames from `start_frame` on, each with its sections' words and a curve over them.

    Curves of `prompt` span the same frames. Where the bundle has no words for layers it stays as it is.
    """
    if not spec.layer_words or not sections:
        return prompt
    if isinstance(prompt, str):
        prompt = spec.with_ensembles(prompt)
    given = [WeightedPrompt(text=prompt)] if isinstance(prompt, str) else prompt
    shares: dict[str, NDArray[np.float32]] = {}
    for section in sections:
        first, end = (min(max(frame - start_frame, 0), frames) for frame in (section.start_frame, section.end_frame))
        first = 0 if section is sections[0] else first
        end = frames if section is sections[-1] else end
        if first < end:
            share = shares.setdefault(_words(spec, section), np.zeros(frames, np.float32))
            share[first:end] = 1.0
    if isinstance(prompt, str) and len(shares) == 1:
        return _joined(prompt, *shares)
    return [
        item.model_copy(update={"text": _joined(text, words), "weight": (_curve(item, frames) * share).tolist()})
        for item, text in ((item, spec.with_ensembles(item.text)) for item in given)
        for words, share in shares.items()
    ]


def with_layers(sections: Sequence[SongSection], played: Iterable[tuple[str, int, int]]) -> tuple[SongSection, ...]:
    """The sections with the layers of what is played in them beside the plan: layer, first frame, the one behind it."""
    spans = list(played)
    return tuple(
        replace(section, others=tuple(dict.fromkeys((*section.others, *layers))))
        if (layers := [name for name, start, end in spans if start < section.end_frame and end > section.start_frame])
        else section
        for section in sections
    )


def _words(spec: PlanSpec, section: SongSection) -> str:
    sounding = {*section.layers, *section.others}
    return ", ".join(words[layer not in sounding] for layer, words in spec.layer_words.items())


def _joined(prompt: str, words: str) -> str:
    return f"{prompt}, {words}" if prompt else words


def _curve(item: WeightedPrompt, frames: int) -> NDArray[np.float32] | float:
    if not isinstance(item.weight, list):
        return item.weight
    places = np.linspace(0, len(item.weight) - 1, frames)
    return np.interp(places, np.arange(len(item.weight)), item.weight).astype(np.float32)


# Far from the limits of the arithmetic, and of any song.
MOST, MOST_BARS = 2**53, 1024
Count = Annotated[int, Field(ge=0, le=MOST)]
Place = Annotated[int, Field(ge=-MOST, le=MOST)]
Frame = Annotated[float, Field(ge=-float(MOST), le=float(MOST), allow_inf_nan=False)]
Bpm = Annotated[float, Field(ge=1.0, le=1000.0, allow_inf_nan=False)]


class SongState(NamedTuple):
    """What a plan is continued from. values: JSON. codes: of its sections, one after the other, int64."""

    values: dict[str, Any]
    codes: NDArray[np.int64]


class _Values(BaseModel):
    """Those of a SongState, as `packed` makes them; tokens are checked against the model's."""

    songs: list[tuple[list[int], list[int], Bpm, int, Frame]]
    song: int | None
    sections: list[tuple[Count, Count, tuple[int, int, int], Count, Annotated[int, Field(ge=0, le=MOST_BARS)], Count]]
    kinds: list[int]
    first_frame: Frame
    asked_frame: Count
    changed_frame: Place = -MOST
    brief_until: Place = -MOST


def check_state(state: SongState, spec: PlanSpec, num_codes: int) -> None:
    """Whether a plan of the model goes on from this. num_codes: codes are less. Raises RequestError."""
    try:
        found = _Values.model_validate(state.values)
    except ValidationError as error:
        raise RequestError(f"the plan's state is damaged: {sentence(error.errors()[0])}") from None
    places = [field.tokens for field in spec.header]
    style = range(0) if spec.style is None else spec.style.tokens
    item = (spec.kind.tokens, spec.layers.tokens, spec.bars.tokens)
    numbers = range(len(found.songs))
    is_sound = (
        all(_fit(header, places) and set(tokens) <= set(style) for header, tokens, *_ in found.songs)
        and all(beats in spec.beats for *_, beats, _ in found.songs)
        and (found.song is None or found.song in numbers)
        and all(song in numbers and _fit(tokens, item) for _, song, tokens, *_ in found.sections)
        and set(found.kinds) <= set(spec.kind.tokens)
        and sum(section[-1] for section in found.sections) == len(state.codes)
        and all(0 <= code < num_codes for code in state.codes.tolist())
    )
    if not is_sound:
        raise RequestError("the plan's state has tokens, songs or codes that the model does not have")


def _fit(tokens: Sequence[int], places: Sequence[range]) -> bool:
    return len(tokens) == len(places) and all(token in place for token, place in zip(tokens, places, strict=True))


def packed(sections: Sequence[CodedSection], song: Song | None, **others: Any) -> SongState:
    """Sections, the newest song and other values."""
    songs = list({id(each): each for each in (*[section.song for section in sections], song) if each}.values())
    numbers = {id(each): number for number, each in enumerate(songs)}
    values = {
        **others,
        "songs": [
            [list(each.header), list(each.style), each.rhythm.bpm, each.rhythm.beats, each.rhythm.first_frame]
            for each in songs
        ],
        "song": None if song is None else numbers[id(song)],
        "sections": [
            [each.index, numbers[id(each.song)], list(each.item), each.first_bar, each.bars, len(each.codes)]
            for each in sections
        ],
    }
    return SongState(values, np.array([code for section in sections for code in section.codes], np.int64))


def unpacked(state: SongState, grid: Rhythm) -> tuple[list[CodedSection], Song | None]:
    """Sections and the newest song."""
    songs = [
        Song(tuple(header), tuple(style), replace(grid, bpm=bpm, beats=beats, first_frame=first_frame))
        for header, style, bpm, beats, first_frame in state.values["songs"]
    ]
    sections, place = list[CodedSection](), 0
    for index, song, (kind, layers, bars_token), first_bar, bars, num_codes in state.values["sections"]:
        codes = state.codes[place : place + num_codes].tolist()
        sections.append(CodedSection(index, songs[song], (kind, layers, bars_token), first_bar, bars, codes))
        place += num_codes
    newest = state.values["song"]
    return sections, None if newest is None else songs[newest]
