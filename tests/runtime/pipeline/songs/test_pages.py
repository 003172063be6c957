"""Sequences of plans and of codes: those that the demo's planner was trained on, and what fits into a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.songs import GRID, PLANNER, SONG, SPEC, items, kinds, sections
from helpers.tiny_planner import END_TOKEN, KEYED_PLAN, planner_spec
from helpers.tiny_structure import codes_of, hints_of
from numpy.typing import NDArray

from configs.demo.recipe.latents import latents_from_levels, levels_from_latents
from configs.demo.recipe.planner.pages import StructureCodes, draw_piece, recalled_codes, section_page
from configs.demo.recipe.planner.tokens import header, planner_tables, rhythm_of, song_tokens
from runtime.base.errors import RequestError
from runtime.config.planner import PlannerSpec
from runtime.music.sections import CodedSection, Song
from runtime.pipeline.songs.edits import with_items
from runtime.pipeline.songs.pages import (
    FIRST_SECTIONS,
    NEW_SECTIONS,
    PAGE_SECTIONS,
    codes_page,
    layers_of_codes,
    sections_page,
)
from runtime.pipeline.songs.planner import plan_seed
from runtime.pipeline.songs.prompt import SongPrompt
from runtime.pipeline.structure import StructureCodec
from runtime.tick.language.constraints import Constraint

PROMPT = SongPrompt((28, 200), (29,), 120, ())


class TinyStructure:
    """The tiny bundle's structure, in numpy."""

    def hints_of_codes(self, codes: Sequence[int]) -> NDArray[np.float32]:
        """Hints `[N, C]`."""
        return hints_of(np.array(codes), 8)

    def codes(self, latents: NDArray[np.float32]) -> NDArray[np.int64]:
        """Codes `[Q]`."""
        return codes_of(latents)


class DemoStructure(StructureCodes):
    """The demo's structure graphs as the runtime calls them."""

    def hints_of_codes(self, codes: Sequence[int]) -> NDArray[np.float32]:
        """Hints `[N, C]`."""
        return latents_from_levels(self.decode(np.array(codes)))

    def codes(self, latents: NDArray[np.float32]) -> NDArray[np.int64]:
        """Codes `[Q]`."""
        return self.encode(levels_from_latents(latents))


TINY = cast(StructureCodec, TinyStructure())


def sections_constraint(
    *given: int, planner: PlannerSpec = PLANNER, prompt: SongPrompt = PROMPT, has_end: bool = True
) -> Constraint:
    """Of a plan's first page, behind tokens that are given."""
    constraint = sections_page(planner, prompt, None, [], number=0, seed=3, has_end=has_end).order.constraint
    for token in given:
        constraint.advance(token)
    return constraint


def codes_constraint(
    planner: PlannerSpec, section: CodedSection, others: Sequence[CodedSection] = (), most_codes: int | None = None
) -> Constraint:
    return codes_page(planner, TINY, section, others or [section], seed=1, most_codes=most_codes).order.constraint


def allowed(constraint: Constraint) -> list[int]:
    """The tokens that may come next."""
    found = np.zeros(PLANNER.vocabulary, bool)
    constraint.write_allowed(found)
    return [int(token) for token in np.flatnonzero(found)]


def test_a_page_is_the_one_that_the_planner_was_trained_on() -> None:
    """Song, last bar before, header, and before every code its bar, what it recalls and where it lies."""
    structure = DemoStructure(ROOT / "configs" / "demo")
    piece = draw_piece(structure, 5, 0)
    planner = planner_spec(thinking=None, capacity=4096, **planner_tables())
    assert planner.plan is not None
    song, arrangement = piece.arrangement.song, piece.arrangement
    tokens = song_tokens(song, piece.moods)
    rhythm = rhythm_of(song.bpm, song.meter)
    places = [(a, b, c) for a, b, c in map(header, arrangement.sections)]
    found = with_items(planner.plan, Song(tuple(tokens[:5]), tuple(tokens[5:]), rhythm), places, [])
    for section in found:
        section.codes.extend(piece.codes[section.span.start : section.span.stop].tolist())
    returns = 0
    for index, section in enumerate(found):
        last = section.codes.pop()
        page = codes_page(planner, cast(StructureCodec, structure), section, found, seed=1, most_codes=None)
        expected = section_page(piece, index, recalled := recalled_codes(structure, piece, index))
        given = page.order.constraint.forced(page.order.max_tokens)
        assert [*page.order.prompts[0], *given] == expected[: -len(planner.codes.groups)]
        assert page.ends[-1] == len(given) + len(planner.codes.groups)
        assert page.read(given) == section.codes
        section.codes.append(last)
        returns += recalled is not None
    assert returns > 2


def test_layers_that_a_section_lacks_are_silent_in_its_codes() -> None:
    first, second = PLANNER.codes.groups
    silent = {"drums": first.first + 1, "bass": second.first + 2}
    planner = PLANNER.model_copy(update={"plan": SPEC.model_copy(update={"silent": silent})})
    for layers, group, token in (("drums", second, second.first + 2), ("bass", first, first.first + 1)):
        (section,) = sections(f"verse 4 {layers}", made=0)
        constraint, seen = codes_constraint(planner, section), set[int]()
        for _ in range(40):
            tokens = allowed(constraint)
            seen |= (found := {*tokens} & {*group.tokens})
            constraint.advance(tokens[0])
            assert found in (set(), {token})
        assert seen == {token}


@pytest.mark.parametrize(
    ("section", "codes", "expected"),
    [
        ("verse 4 bass", [1, 6, 11], ()),
        ("verse 4 bass", [1, 6, 2], ("drums",)),
        ("verse 4 drums", [10, 14], ()),
        ("verse 4 drums", [10, 5], ("bass",)),
        ("verse 4 drums bass", [0, 7], ()),
        ("verse 4 drums", [], ()),
    ],
)
def test_codes_tell_which_layers_sound_that_a_section_lacks(
    section: str, codes: list[int], expected: tuple[str, ...]
) -> None:
    (found,) = sections(section, made=0)
    found.codes.extend(codes)
    assert layers_of_codes(PLANNER, found) == expected


def test_a_layer_that_sounds_is_silent_for_a_bar_at_most() -> None:
    first = PLANNER.codes.groups[0].first
    planner = PLANNER.model_copy(update={"plan": SPEC.model_copy(update={"silent": {"drums": first + 1}})})
    for layers, expected in (("drums", {len(GRID.code_range(0, 1))}), ("bass", {32})):
        (section,) = sections(f"verse 4 {layers}", made=0)
        constraint, runs, count = codes_constraint(planner, section, most_codes=32), set[int](), 0
        while not constraint.is_done:
            tokens = allowed(constraint)
            token = first + 1 if first + 1 in tokens else tokens[0]
            if token in planner.codes.groups[0].tokens:
                count = count + 1 if token == first + 1 else 0
                runs.add(count)
            constraint.advance(token)
        assert max(runs) in expected


def keyed(**changes: Any) -> PlannerSpec:
    """The planner whose codes sound pitches, with other values in its plan."""
    return planner_spec(plan={**KEYED_PLAN, **changes}, thinking=None, capacity=1024)


def song_in(key: int, mode: int) -> Song:
    """The song in a key, counted from C, and a mode: 0 is major, 1 minor."""
    return replace(SONG, header=(*SONG.header, 100 + key, 120 + mode))


def choices(planner: PlannerSpec, section: CodedSection, others: Sequence[CodedSection]) -> list[set[int]]:
    """By group the tokens that may come in the next code of a section, counted from the group's first."""
    constraint, found = codes_constraint(planner, section, others), []
    for token in constraint.forced(999):
        constraint.advance(token)
    for group in planner.codes.groups:
        tokens = allowed(constraint)
        found.append({token - group.first for token in tokens})
        constraint.advance(tokens[0])
    return found


@pytest.mark.parametrize(
    ("key", "mode", "first", "second"),
    [
        (0, 0, {0, 1, 2}, {2, 3}),
        (0, 1, {0, 1, 3, 4}, {2, 3}),
        (4, 0, {1, 2}, {0, 1, 2, 3, 4}),
        (9, 1, {0, 1, 2}, {2, 3}),
    ],
)
def test_codes_that_sound_another_pitch_than_the_scales_never_come(
    key: int, mode: int, first: set[int], second: set[int]
) -> None:
    (section,) = sections("verse 4", made=0, song=song_in(key, mode))
    assert choices(keyed(), section, [section]) == [first, second]
    assert choices(keyed(scales=[], pitches=[]), section, [section]) == [{0, 1, 2, 3, 4}] * 2


def test_behind_a_change_of_key_codes_are_in_the_new_one() -> None:
    """Those that are there already stay, also outside the scale."""
    (before,) = sections("verse 4", made=0, song=song_in(0, 0))
    *_, behind = with_items(SPEC, song_in(4, 0), items("verse 2"), [before])
    for section, expected in ((before, {0, 1, 2}), (behind, {1, 2})):
        section.codes[:] = [4, 0, 24]
        assert choices(keyed(), section, [before, behind])[0] == expected
        page = codes_page(keyed(), TINY, section, [before, behind], seed=1, most_codes=None)
        assert page.read(page.order.constraint.forced(999)) == [4, 0, 24]


def test_codes_whose_notes_begin_beside_the_steps_of_the_song_never_come() -> None:
    """As tempo and meter of the section's song have it, code after code, also where codes are there already."""
    steps, onsets = {"4/4": [0.0, 0.5]}, [[], [0, 0b001, 0b010, 0b100, 0b111]]
    planner = keyed(scales=[], pitches=[], steps=steps, onsets=onsets)
    (section,) = sections("verse 4", made=0, song=song_in(0, 0))
    eighth, found, expected = 60 / section.song.rhythm.bpm * GRID.frame_rate_hz / 2, [], []
    for number in list(section.span)[:12]:
        found.append(choices(planner, section, [section])[1])
        begin = {math.ceil(eighth * step - 0.5) - number * GRID.frames_per_code for step in range(200)}
        expected.append({0, *(1 + frame for frame in range(3) if frame in begin)})
        section.codes.append(0)
    assert found == expected
    assert len({frozenset(each) for each in found}) > 2


def test_a_group_with_hardly_another_code_keeps_those_outside_the_scale() -> None:
    (section,) = sections("verse 4", made=0, song=song_in(0, 0))
    for outside, expected in ((3, {3, 4}), (4, {0, 1, 2, 3, 4}), (5, {0, 1, 2, 3, 4})):
        second = [1 << 11] * outside + [0] * (5 - outside)
        planner = keyed(pitches=[KEYED_PLAN["pitches"][0], second])
        assert choices(planner, section, [section]) == [{0, 1, 2}, expected]


def test_a_plan_page_gives_what_is_known() -> None:
    planner = PLANNER.model_copy(update={"plan": SPEC.model_copy(update={"beginning": "verse"})})
    page = sections_page(planner, PROMPT, None, [], number=0, seed=3, has_end=True)
    assert page.order.prompts == ((1, 28, 200, 2), (1, 29, 2))
    assert page.order.constraint.forced(9) == [9]
    assert page.order.seed == plan_seed(3, -1, 0)
    header_, found = page.read([9, 12, *items("verse 4")[0], *items("outro 1")[0], END_TOKEN])
    assert (header_, kinds(found)) == ((9, 12), ["verse 4", "outro 1"])


def test_layers_that_the_prompt_leaves_out_are_in_no_section() -> None:
    for absent, expected in (({"bass": 29}, [20]), ({"drums": 29}, [21]), ({"drums": 29, "bass": 28}, [20, 21, 22])):
        planner = PLANNER.model_copy(update={"plan": SPEC.model_copy(update={"absent": absent})})
        prompt = SongPrompt((28, 29), (), 120, ())
        assert allowed(sections_constraint(9, 12, 16, planner=planner, prompt=prompt)) == expected


def test_what_the_prompt_names_limits_the_tempo_unless_it_is_given() -> None:
    spec = SPEC.model_copy(update={"tempos": {"4/4": (SPEC.tempo(8), SPEC.tempo(8))}})
    planner = PLANNER.model_copy(update={"plan": spec})
    for bpm, expected in ((None, [8]), (SPEC.tempo(9), [9])):
        prompt = SongPrompt((12, 28), (), bpm, ())
        assert allowed(sections_constraint(planner=planner, prompt=prompt)) == expected


def test_tags_are_the_first_sections_and_all_of_a_plan_with_an_end() -> None:
    for has_end in (True, False):
        constraint = sections_constraint(prompt=SongPrompt((), (), None, (17, 19)), has_end=has_end)
        for token in (8, 12, 17, 20, 24, 19, 20, 24):
            assert allowed(constraint) == [token] if token in (17, 19) else token in allowed(constraint)
            constraint.advance(token)
        assert constraint.is_done == has_end


def test_a_further_page_begins_with_the_last_sections_and_neither_begins_nor_ends_the_song() -> None:
    earlier = items("break 1", *["verse 2", "chorus 1"] * 5)
    planner = PLANNER.model_copy(update={"plan": SPEC.model_copy(update={"beginning": "break"})})
    page = sections_page(planner, PROMPT, SONG, earlier, number=11, seed=3, has_end=False)
    constraint = page.order.constraint
    given = [*SONG.header, *[token for item in earlier[-PAGE_SECTIONS:] for token in item]]
    assert constraint.forced(99) == given
    for token in given:
        constraint.advance(token)
    for token in (16, 20, 24) * NEW_SECTIONS:
        tokens = allowed(constraint)
        assert token in tokens
        assert not {SPEC.kind.token("break"), SPEC.kind.token("outro"), END_TOKEN} & {*tokens}
        constraint.advance(token)
    assert constraint.is_done
    assert len(page.read([*given, *(16, 20, 24) * NEW_SECTIONS])[1]) == NEW_SECTIONS


def test_the_first_page_of_a_plan_without_end_is_shorter_than_a_song() -> None:
    planner = PLANNER.model_copy(update={"plan": SPEC.model_copy(update={"most_sections": 16})})
    constraint = sections_constraint(planner=planner, has_end=False)
    for place, token in enumerate([9, 12, *[16, 20, 24] * FIRST_SECTIONS]):
        assert not constraint.is_done, place
        constraint.advance(token)
    assert constraint.is_done


def test_the_layers_that_the_prompt_asks_for_are_in_the_main_sections() -> None:
    spec = SPEC.model_copy(update={"named": {"bass": 28, "drums": 29}, "main": ("verse",)})
    constraint = sections_constraint(9, 12, SPEC.kind.token("verse"), planner=PLANNER.model_copy(update={"plan": spec}))
    found = [SPEC.layers.value(token) for token in allowed(constraint)]
    assert found == [value for value in SPEC.layers.values if "bass" in value]


def test_codes_that_there_are_already_are_given() -> None:
    first, second = sections("verse 2", "chorus 1", made=40)
    page = codes_page(PLANNER, TINY, second, [first, second], seed=3, most_codes=None)
    forced = page.order.constraint.forced(999)
    assert page.read(forced) == second.codes == list(range(33 % 25, 40 % 25))
    assert forced[-1] == GRID.clock_marker(40)
    assert page.order.max_tokens == page.ends[-1] == 2 * 1 + len(second.span) * 3 - 1
    assert not page.order.is_guided
    shorter = codes_page(PLANNER, TINY, second, [first, second], seed=3, most_codes=45)
    assert len(shorter.ends) == 45 - 33


def test_a_section_beyond_the_cache_is_made_in_parts() -> None:
    small = PLANNER.model_copy(update={"capacity": 120})
    first, second = sections("verse 2", "verse 4", made=33)
    parts = []
    while len(second.codes) < len(second.span):
        page = codes_page(small, TINY, second, [first, second], seed=3, most_codes=None)
        prompt = page.order.prompts[0]
        assert len(prompt) + page.order.max_tokens + 8 <= 121
        begin = codes_page(PLANNER, TINY, second, [first, second], seed=3, most_codes=None).order.prompts[0]
        heard = prompt[len(begin) :]
        assert len(heard) <= (113 - len(begin)) // 2
        clocks = [place for place, token in enumerate(heard) if token in SPEC.clock_markers.tokens]
        codes = [small.codes.number(heard[place + 1 : place + 3]) for place in clocks]
        assert codes == second.codes[len(second.codes) - len(codes) :]
        assert bool(codes) == bool(second.codes)
        parts.append(page.first)
        second.codes.extend([7] * len(page.ends))
        again = codes_page(small, TINY, _with(second, page.first + 1), [first, second], seed=3, most_codes=None)
        assert (again.first, again.order.prompts, again.order.seed) == (page.first, page.order.prompts, page.order.seed)
    assert parts[0] == 0
    assert len(parts) > 5
    with pytest.raises(RequestError, match="the planner's cache has 64"):
        codes_page(
            PLANNER.model_copy(update={"capacity": 64}), TINY, _with(second, 0), [first], seed=3, most_codes=None
        )


def _with(section: Any, count: int) -> Any:
    return replace(section, codes=section.codes[:count])
