"""Tokens: codes there and back, markers that follow the bars, headers of sections."""

import numpy as np
import pytest
from helpers.tiny_planner import planner_spec

from configs.demo.recipe.latents import NUM_CODES
from configs.demo.recipe.planner.arrangement import Section
from configs.demo.recipe.planner.tokens import (
    CLOCKS_PER_BEAT,
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_GROUPS,
    NUM_TOKENS,
    TOKEN_IDS,
    TOKENS,
    code_tokens,
    codes_of,
    header,
    marked_codes,
    planner_tables,
    rhythm_of,
    section_of,
)
from runtime.config.planner import PlannerSpec
from runtime.music.rhythm import Rhythm
from runtime.tick.language.constraints import CodesConstraint, Constraint, FormConstraint

RHYTHMS = [rhythm_of(bpm, meter) for bpm in (60, 97, 120, 131, 180) for meter in ("4/4", "3/4", "6/8")]


def test_a_code_is_one_token_of_each_group_the_lowest_digits_first() -> None:
    codes = np.random.default_rng(0).integers(0, NUM_CODES, 300)
    codes[:2] = 0, NUM_CODES - 1
    tokens = code_tokens(codes)
    firsts = FIRST_CODE_ID + GROUP_SIZE * np.arange(NUM_GROUPS)
    assert np.all((tokens >= firsts) & (tokens < firsts + GROUP_SIZE))
    assert tokens.max() == NUM_TOKENS - 1
    assert np.array_equal(codes_of(tokens), codes)
    digits = (tokens[7] - firsts).tolist()
    assert sum(digit * GROUP_SIZE**place for place, digit in enumerate(digits)) == codes[7]


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_markers_count_bars_and_tell_the_place_in_them(rhythm: Rhythm) -> None:
    for bar in range(8, 24):
        names = [[TOKENS[token] for token in rhythm.markers(code, 8)] for code in rhythm.code_range(bar, 1)]
        assert [len(listed) for listed in names] == [2] + [1] * (len(names) - 1)
        assert names[0][0] == f"bar:{bar - 8}"
        clocks = [int(listed[-1].removeprefix("clock:")) for listed in names]
        assert clocks == sorted(set(clocks))
        assert clocks[-1] < rhythm.beats * CLOCKS_PER_BEAT
        per_code = rhythm.bpm / 60.0 * CLOCKS_PER_BEAT / 5.0
        assert np.allclose(np.diff(clocks), per_code, atol=1.0)


def test_marked_codes_are_markers_and_groups() -> None:
    rhythm, codes = rhythm_of(120, "4/4"), np.arange(20)
    tokens = marked_codes(rhythm, codes, 4, 40)
    first = [TOKEN_IDS["bar:0"], TOKEN_IDS["clock:7"], *code_tokens(codes[:1])[0].tolist()]
    assert tokens[: len(first)] == first, "the last frame of the first code is 0.16 s, 7.68 of 24 parts of a beat, in"
    assert np.array_equal(codes_of(np.array([t for t in tokens if t >= FIRST_CODE_ID]).reshape(-1, NUM_GROUPS)), codes)
    assert sum(TOKENS[token].startswith("bar:") for token in tokens if token < FIRST_CODE_ID) == 2


def test_a_header_is_its_section() -> None:
    section = Section("break", 12, frozenset({"drums", "pad"}))
    assert [TOKENS[token] for token in header(section)] == ["section:break", "layers:pad+drums", "bars:12"]
    assert section_of(header(section)) == section
    with pytest.raises(ValueError, match="no section"):
        section_of(header(section)[::-1])


@pytest.fixture
def spec() -> PlannerSpec:
    return planner_spec(thinking=None, **planner_tables())


def take(constraint: Constraint, tokens: list[int]) -> list[int]:
    """The tokens that the constraint left to choose; all are allowed."""
    chosen = []
    for token in tokens:
        allowed = np.zeros(NUM_TOKENS, bool)
        constraint.write_allowed(allowed)
        assert allowed[token]
        chosen += [token] if not constraint.forced(1) else []
        constraint.advance(token)
    return chosen


def test_the_runtime_reads_a_sections_codes_and_gives_their_markers(spec: PlannerSpec) -> None:
    rhythm, codes = rhythm_of(97, "3/4"), np.random.default_rng(1).integers(0, NUM_CODES, 300)
    span = rhythm.code_range(8, 8)
    constraint = CodesConstraint(spec, len(span), lambda index: rhythm.markers(span.start + index, 8))
    tokens = marked_codes(rhythm, codes[span.start : span.stop], 8, span.start)
    chosen = take(constraint, tokens)
    assert constraint.is_done
    assert chosen == code_tokens(codes[span.start : span.stop]).ravel().tolist()
    assert spec.codes.numbers(tokens) == codes[span.start : span.stop].tolist()
    assert spec.plan is not None
    markers = [*spec.plan.bar_markers.tokens, *spec.plan.clock_markers.tokens]
    assert {token for token in tokens if token not in chosen} <= set(markers)


def test_the_runtime_reads_a_plan(spec: PlannerSpec) -> None:
    song = [TOKEN_IDS[name] for name in ("genre:jazz", "bpm:100", "meter:3/4", "key:d", "mode:dorian")]
    sections = [Section("intro", 4, frozenset({"pad"})), Section("chorus", 16, frozenset({"pad", "bass"}))]
    constraint = FormConstraint(spec, given=dict(enumerate(song)))
    tokens = [token for section in sections for token in header(section)] + [TOKEN_IDS["end"]]
    assert take(constraint, song + tokens) == tokens
    assert constraint.is_done


def test_the_runtimes_table_says_what_the_tokens_are(spec: PlannerSpec) -> None:
    plan = spec.plan
    assert plan is not None
    for field in (*plan.header, *plan.item):
        prefix = "section" if field.name == "kind" else field.name
        assert [TOKENS[token] for token in field.tokens] == [f"{prefix}:{value}" for value in field.values]
    assert plan.beats == (4, 3, 2)
    assert plan.materials[plan.kind.values.index("build")] == plan.materials[plan.kind.values.index("chorus")]
    assert TOKENS[plan.bar_markers.first] == "bar:0"
    assert TOKENS[plan.clock_markers.end - 1] == f"clock:{4 * CLOCKS_PER_BEAT - 1}"
    assert plan.style is not None
    assert all(TOKENS[token].startswith("mood:") for token in plan.style.tokens)
