"""A plan as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.pipeline.form.rhythm import Rhythm
from runtime.pipeline.form.sections import Song, SongSection


class PlanState(NamedTuple):
    """What a plan is continued from. values: JSON. codes: of its sections, one after the other, int64."""

    values: dict[str, Any]
    codes: NDArray[np.int64]


def packed(sections: Sequence[SongSection], song: Song | None, **others: Any) -> PlanState:
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
    return PlanState(values, np.array([code for section in sections for code in section.codes], np.int64))


def unpacked(state: PlanState, grid: Rhythm) -> tuple[list[SongSection], Song | None]:
    """Sections and the newest song."""
    songs = [
        Song(tuple(header), tuple(style), replace(grid, bpm=bpm, beats=beats, first_frame=first_frame))
        for header, style, bpm, beats, first_frame in state.values["songs"]
    ]
    sections, place = list[SongSection](), 0
    for index, song, (kind, layers, bars_token), first_bar, bars, num_codes in state.values["sections"]:
        codes = state.codes[place : place + num_codes].tolist()
        sections.append(SongSection(index, songs[song], (kind, layers, bars_token), first_bar, bars, codes))
        place += num_codes
    newest = state.values["song"]
    return sections, None if newest is None else songs[newest]
