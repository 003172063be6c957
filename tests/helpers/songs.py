"""Sections of songs in the tokens of the tiny planner's plan."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.tiny_planner import PLAN, planner_spec

from runtime.config.plan_spec import PlanSpec
from runtime.music.rhythm import Rhythm
from runtime.music.sections import CodedSection, Item, SectionRequest, Song, item_of
from runtime.pipeline.songs.edits import with_items

PLANNER = planner_spec(plan=PLAN, thinking=None, capacity=1024)
assert PLANNER.plan is not None
SPEC: PlanSpec = PLANNER.plan
GRID = Rhythm(120, 4, 25.0, 3, 4, 32, 40)
SONG = Song((9, 12), (28,), GRID)


def items(*wanted: str) -> list[Item]:
    """Sections such as "verse 4" or "break 1 drums"; by default of drums and bass."""
    found = []
    for text in wanted:
        kind, bars, *layers = text.split()
        found.append(item_of(SPEC, SectionRequest(kind, tuple(layers or ("bass", "drums")), int(bars))))
    return found


def sections(*wanted: str, made: int = 1 << 30, song: Song = SONG) -> list[CodedSection]:
    """Sections of one song, the first codes of which, up to number `made`, are made: code number n is n % 25."""
    found = with_items(SPEC, song, items(*wanted), [])
    for section in found:
        section.codes.extend(number % 25 for number in section.span if number < made)
    return found


def kinds(found: Sequence[Item]) -> list[str]:
    """Kind and bars of sections."""
    return [f"{SPEC.kind.value(kind)} {SPEC.bars.value(bars)}" for kind, _, bars in found]
