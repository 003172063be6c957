"""A plan as plain values, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.songs import GRID, SONG, SPEC, items, sections

from runtime.base.errors import RequestError
from runtime.music.plan_state import SongState, check_state, packed, unpacked
from runtime.music.sections import Song
from runtime.pipeline.songs.edits import following


def test_sections_and_songs_come_back_as_they_were() -> None:
    first = sections("verse 2", "chorus 1", made=40)
    song = Song((8, 13), (29,), replace(GRID.at(96.5, 3), first_frame=12.25))
    plan = following(SPEC, song, items("break 2"), first)
    state = packed(plan, song, more=[1])
    assert state.values["more"] == [1]
    assert state.codes.dtype == np.int64
    found, newest = unpacked(state._replace(values=json.loads(json.dumps(state.values))), GRID)
    assert [replace(each, codes=[]).planned(SPEC, None) for each in found] == [
        replace(each, codes=[]).planned(SPEC, None) for each in plan
    ]
    assert [each.codes for each in found] == [each.codes for each in plan]
    assert newest is found[2].song
    assert newest == song
    assert found[0].song is found[1].song
    assert unpacked(packed([], None), GRID) == ([], None)


def state() -> SongState:
    return packed(sections("verse 2", "chorus 1", made=40), SONG, kinds=[], first_frame=0.0, asked_frame=0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("songs",), [[1]]),
        (("songs", 0, 0, 0), 10**6),
        (("songs", 0, 0), [9]),
        (("songs", 0, 1), [0]),
        (("songs", 0, 2), 0.0),
        (("songs", 0, 3), 13),
        (("song",), 1),
        (("sections", 0), [0]),
        (("sections", 0, 1), 7),
        (("sections", 0, 2, 0), 0),
        (("sections", 1, 5), 1),
        (("sections", 1, 4), 1025),
        (("sections", 1, 4), -1),
        (("sections", 1, 3), 2**53 + 1),
        (("songs", 0, 2), 1000.5),
        (("first_frame",), 2.0**54),
        (("kinds",), [0]),
        (("first_frame",), "a"),
        (("asked_frame",), None),
    ],
)
def test_what_no_plan_goes_on_from_is_refused(place: tuple[Any, ...], value: Any) -> None:
    check_state(state(), SPEC, 25)
    longest = state().values | {
        "sections": [[*section[:4], 1024, section[5]] for section in state().values["sections"]]
    }
    check_state(state()._replace(values=longest), SPEC, 25)
    values = json.loads(json.dumps(state().values))
    parent = values
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    with pytest.raises(RequestError, match="the plan's state"):
        check_state(state()._replace(values=values), SPEC, 25)


def test_codes_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(RequestError, match="codes"):
        check_state(state(), SPEC, 24)
