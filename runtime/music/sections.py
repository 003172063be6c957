"""Sections of a song, and the pages that the planner writes them on: see runtime.config.plan_spec."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.plan_spec import BPM, KEY, METER, MODE, PlanSpec
from runtime.music.rhythm import Rhythm
from runtime.music.tempo import Tempo

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
