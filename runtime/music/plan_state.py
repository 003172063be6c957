"""A plan as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from runtime.base.errors import RequestError
from runtime.config.explain import sentence
from runtime.config.plan_spec import PlanSpec
from runtime.music.rhythm import Rhythm
from runtime.music.sections import CodedSection, Song

# Far from the limits of the arithmetic, and of any song.
MOST, MOST_BARS = 2**53, 1024
Count = Annotated[int, Field(ge=0, le=MOST)]
Place = Annotated[int, Field(ge=-MOST, le=MOST)]
Frame = Annotated[float, Field(ge=-float(MOST), le=float(MOST), allow_inf_nan=False)]
Tempo = Annotated[float, Field(ge=1.0, le=1000.0, allow_inf_nan=False)]


class SongState(NamedTuple):
    """What a plan is continued from. values: JSON. codes: of its sections, one after the other, int64."""

    values: dict[str, Any]
    codes: NDArray[np.int64]


class _Values(BaseModel):
    """Those of a SongState, as `packed` makes them; tokens are checked against the model's."""

    songs: list[tuple[list[int], list[int], Tempo, int, Frame]]
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
