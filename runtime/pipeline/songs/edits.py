"""Edits of a plan: other sections, other codes, or another song from some frame on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runtime.base.errors import RequestError
from runtime.config.plan_spec import PlanSpec
from runtime.music.sections import CodedSection, Item, Song
from runtime.pipeline.songs.fitting import bars_of

# So many sections are kept whose end is long past.
KEPT_SECTIONS = 8


def with_items(
    spec: PlanSpec,
    song: Song,
    items: Sequence[Item],
    known: Sequence[CodedSection],
    bars: Sequence[int] | None = None,
) -> list[CodedSection]:
    """Sections behind those that are known, with these. bars: theirs, where they are not as planned."""
    found = list(known)
    planned = [bars_of(spec, item) for item in items] if bars is None else bars
    for item, num_bars in zip(items, planned, strict=True):
        last = found[-1] if found else None
        first_bar = last.next_bar if last is not None and last.song is song else 0
        index = 0 if last is None else last.index + 1
        found.append(CodedSection(index, song, item, first_bar, num_bars))
    return found


def continued(section: CodedSection, known: Sequence[CodedSection]) -> Song:
    """A section's song; where the section before it is not known any more, one that begins where it does."""
    last, rhythm = known[-1] if known else None, section.song.rhythm
    if section.first_bar == (last.next_bar if last is not None and last.song is section.song else 0):
        return section.song
    return replace(section.song, rhythm=replace(rhythm, first_frame=rhythm.exact_frame(section.first_bar)))


def section_at(sections: Sequence[CodedSection], from_frame: int) -> CodedSection:
    """The section that begins at a frame. Raises RequestError."""
    found = next((section for section in sections if section.start_frame == from_frame), None)
    if found is None:
        starts = ", ".join(str(section.start_frame) for section in sections) or "none is planned yet"
        raise RequestError(f"no section begins at frame {from_frame}, expected one of {starts}", field="sections")
    return found


def before(sections: Sequence[CodedSection], section: CodedSection) -> list[CodedSection]:
    """Those before a section, or what it is made of."""
    return [each for each in sections if each.index < section.index]


def frontier(sections: Sequence[CodedSection]) -> CodedSection:
    """The first section whose codes are not complete, else the last one."""
    return next((each for each in sections if len(each.codes) < len(each.span)), sections[-1])


def kept(sections: Sequence[CodedSection], newest: CodedSection, oldest_frame: int) -> list[CodedSection]:
    """The sections of a plan without end that end behind a frame, the last ones, and those that may be recalled."""

    def is_kept(section: CodedSection) -> bool:
        if section.end_frame > oldest_frame or section.index > newest.index - KEPT_SECTIONS:
            return True
        alike = [each for each in sections if each.song is section.song and each.item[0] == section.item[0]]
        return section.song is newest.song and alike[0] is section

    return [section for section in sections if is_kept(section)]


def num_made(sections: Sequence[CodedSection]) -> int:
    """How many codes there are, all told, from the plan's first on, up to where the first is missing."""
    if not sections:
        return 0
    first = frontier(sections)
    return first.span.start + len(first.codes)


def code_at(sections: Sequence[CodedSection], from_frame: int, frames_per_code: int) -> int:
    """The number of the code that begins at a frame, in the first section or behind. Raises RequestError."""
    number, rest = divmod(from_frame, frames_per_code)
    first = sections[0].span.start if sections else 0
    if rest or number < first:
        raise RequestError(
            f"codes begin at frame {from_frame}, expected a multiple of {frames_per_code} from "
            f"{first * frames_per_code} on",
            field="codes",
        )
    return number


def with_codes(
    sections: Sequence[CodedSection], first: int, codes: Sequence[int], *, made: int, num_codes: int
) -> list[CodedSection]:
    """Sections with other codes from number `first` on, and none behind them.

    made: how many codes there are. num_codes: how many different ones. Raises RequestError.
    """
    wrong = next((code for code in codes if not 0 <= code < num_codes), None)
    if wrong is not None:
        raise RequestError(f"code {wrong} is unknown, the model has 0 to {num_codes - 1}", field="codes")
    last = sections[-1].span.stop if sections else 0
    if first > made or first + len(codes) > last:
        raise RequestError(
            f"got codes {first} to {first + len(codes) - 1}, expected them to begin at {made} or before and to end in "
            f"a planned section, before {last}",
            field="codes",
        )
    return [
        section if section.span.stop <= first else replace(section, codes=_codes(section, first, codes))
        for section in sections
    ]


def cut(section: CodedSection, from_frame: int) -> CodedSection:
    """A section up to the first bar that begins at a frame or behind it."""
    bars = range(section.first_bar, section.next_bar)
    bar = next((bar for bar in bars if section.song.rhythm.frame(bar) >= from_frame), section.next_bar)
    shorter = replace(section, bars=bar - section.first_bar)
    return replace(shorter, codes=section.codes[: len(shorter.span)])


def _codes(section: CodedSection, first: int, codes: Sequence[int]) -> list[int]:
    start, stop = section.span.start, section.span.stop
    return [*section.codes[: max(0, first - start)], *codes[max(0, start - first) : max(0, stop - first)]]
