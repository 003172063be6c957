"""A plan as plain values, and back."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from helpers.songs import GRID, SPEC, items, sections

from runtime.pipeline.form.edits import following
from runtime.pipeline.form.sections import Song
from runtime.pipeline.form.state import packed, unpacked


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
