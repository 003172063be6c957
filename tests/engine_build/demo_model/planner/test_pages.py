"""Pages: what stands in them, what a section is played after, how long they are."""

import numpy as np
import pytest
from helpers.paths import ROOT

from engine_build.demo_model.latents import FRAMES_PER_CODE
from engine_build.demo_model.planner.arrangement import Section, render_arrangement
from engine_build.demo_model.planner.pages import (
    MAX_PAGE_TOKENS,
    Piece,
    StructureCodes,
    draw_piece,
    plan_page,
    recalled_section,
    section_page,
    section_prompt,
)
from engine_build.demo_model.planner.tokens import (
    FIRST_CODE_ID,
    NUM_GROUPS,
    TOKEN_IDS,
    TOKENS,
    codes_of,
    header,
    section_of,
)


@pytest.fixture(scope="module")
def structure() -> StructureCodes:
    return StructureCodes(ROOT / "configs/demo")


@pytest.fixture(scope="module")
def pieces(structure: StructureCodes) -> list[Piece]:
    return [draw_piece(structure, 5, index) for index in range(6)]


def codes_in(tokens: list[int]) -> list[int]:
    groups = np.array([token for token in tokens if token >= FIRST_CODE_ID]).reshape(-1, NUM_GROUPS)
    return codes_of(groups).tolist()


def test_codes_are_those_of_the_bundle_and_sound_like_the_song(structure: StructureCodes, pieces: list[Piece]) -> None:
    levels = render_arrangement(pieces[0].arrangement)
    assert len(pieces[0].codes) == len(levels) // FRAMES_PER_CODE
    hints = structure.decode(pieces[0].codes)[:, :55]
    written = levels[: len(hints), :55]
    assert np.corrcoef(hints.ravel(), written.ravel())[0, 1] > 0.7
    assert draw_piece(structure, 5, 0).moods == pieces[0].moods


def test_the_sections_pages_hold_all_codes_once(pieces: list[Piece]) -> None:
    for piece in pieces:
        sections = range(len(piece.arrangement.sections))
        pages = [section_page(piece, index)[len(section_prompt(piece, index)) :] for index in sections]
        assert [code for page in pages for code in codes_in(page)] == piece.codes.tolist()
        assert max(len(section_page(piece, index)) for index in sections) <= MAX_PAGE_TOKENS


def test_a_section_is_played_after_the_first_of_its_kind_or_else_of_its_material() -> None:
    sections = [
        Section(kind, 4, frozenset({"pad"})) for kind in ("intro", "verse", "chorus", "verse", "build", "verse")
    ]
    assert [recalled_section(sections, index) for index in range(6)] == [None, 0, None, 1, 2, 1]


def test_a_return_reads_the_codes_of_the_first_time_and_the_bar_before(pieces: list[Piece]) -> None:
    piece = pieces[0]
    sections, bars = piece.arrangement.sections, piece.arrangement.start_bars
    index = next(i for i in range(1, len(sections)) if recalled_section(sections, i) is not None)
    recalled = recalled_section(sections, index)
    assert recalled is not None
    prompt = section_prompt(piece, index)
    recall, before = prompt.index(TOKEN_IDS["recall"]), prompt.index(TOKEN_IDS["before"])
    first = piece.rhythm.code_range(bars[recalled], sections[recalled].bars)
    last = piece.rhythm.code_range(bars[index] - 1, 1)
    assert prompt[recall + 1 : recall + 4] == header(sections[recalled])
    assert codes_in(prompt[recall:before]) == piece.codes[first.start : first.stop].tolist()
    assert codes_in(prompt[before:]) == piece.codes[last.start : last.stop].tolist()
    assert prompt[-3:] == header(sections[index])


def test_a_plan_says_what_the_prompt_leaves_open_and_the_sections(pieces: list[Piece]) -> None:
    for piece in pieces:
        page = plan_page(piece, np.random.default_rng(3))
        at = page.index(TOKEN_IDS["plan"])
        assert TOKENS[page[0]] == "start"
        assert TOKENS[page[-1]] == "end"
        assert [TOKENS[token].split(":")[0] for token in page[at + 1 : at + 6]] == [
            "genre",
            "bpm",
            "meter",
            "key",
            "mode",
        ]
        plan = page[at + 6 : -1]
        assert tuple(section_of(plan[i : i + 3]) for i in range(0, len(plan), 3)) == piece.arrangement.sections
    shorter = [len(plan_page(pieces[0], np.random.default_rng(seed))) for seed in range(6)]
    assert len(set(shorter)) > 1, "prompts name more or less"
