"""The phases against ACE-Step 1.5's MetadataConstrainedLogitsProcessor: what it allowed at every token of exchanges."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.tiny_planner import (
    END_TOKEN,
    FIRST_GROUP,
    MARKERS,
    PLAN,
    SECOND_GROUP,
    VOCABULARY,
    byte_tokenizer,
    planner_spec,
)

from engine_build.export.acestep.bundle_text import FIELDS
from runtime.base.errors import RequestError
from runtime.tick.language.constraints import ENDLESS, CodesConstraint, Constraint, FormConstraint
from runtime.tick.language.thinking import ThinkingConstraint, ThinkingGrammar

RECORDED = json.loads((ROOT / "tests/data/acestep_thinking.json").read_text(encoding="utf-8"))
EXCHANGES = {item["name"]: item for item in RECORDED["exchanges"]}
TOKENIZER = byte_tokenizer()
# In the recorded exchanges ten tokens are codes.
PLANNER = planner_spec(
    thinking={"prompt": "", "fields": FIELDS}, codes={"prompt": "", "groups": [{"first": 260, "count": 10}]}
)
GRAMMAR = ThinkingGrammar(PLANNER, TOKENIZER)
SPECIAL = set(range(256, 260)) | set(range(270, VOCABULARY))


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def allowed_by(constraint: Constraint) -> set[int]:
    allowed = np.zeros(VOCABULARY, bool)
    constraint.write_allowed(allowed)
    return set(np.flatnonzero(allowed).tolist())


def steps_of(exchange: dict[str, Any]) -> list[tuple[int, set[int]]]:
    spans = (RECORDED["allowed"][place] for place in exchange["allowed"])
    sets = [{token for first, end in span for token in range(first, end)} for span in spans]
    return list(zip(exchange["tokens"], sets, strict=True))


def thinking(exchange: dict[str, Any]) -> ThinkingConstraint:
    return ThinkingConstraint(GRAMMAR, exchange["user"], exchange["skip"])


@pytest.mark.parametrize("name", [name for name, item in EXCHANGES.items() if item["phase"] == "cot"])
def test_the_thinking_allows_what_the_published_machine_allows(name: str) -> None:
    """In a caption it also leaves out the tokens that are no text; behind a line of it the next field must follow."""
    constraint, in_name = thinking(EXCHANGES[name]), 0
    *steps, (last, _) = steps_of(EXCHANGES[name])
    for token, published in steps:
        found = allowed_by(constraint)
        assert token in found
        if constraint.is_greedy:
            assert published == {token}
        elif len(published) > 200:
            is_inside = len(found) > 200
            assert found <= published
            assert not is_inside or published - found <= SPECIAL
            in_name += not is_inside
        else:
            assert found == published
        constraint.advance(token)
    assert constraint.is_done
    assert last == END_TOKEN
    assert in_name < 20


def test_codes_are_as_many_as_the_duration_has() -> None:
    exchange = EXCHANGES["codes of two seconds"]
    constraint = CodesConstraint(PLANNER, int(5 * exchange["duration"]))
    *steps, (last, published) = steps_of(exchange)
    for token, allowed in steps:
        assert allowed_by(constraint) == allowed
        constraint.advance(token)
    assert constraint.is_done
    assert (last, published) == (END_TOKEN, {END_TOKEN})


def test_without_a_duration_codes_go_on_until_the_end_token() -> None:
    constraint = CodesConstraint(PLANNER)
    for token, allowed in steps_of(EXCHANGES["codes until the end token"]):
        assert allowed_by(constraint) == allowed
        constraint.advance(token)
    assert not constraint.is_done
    constraint.advance(END_TOKEN)
    assert constraint.is_done


def test_a_code_of_two_tokens_behind_its_markers() -> None:
    markers = [(MARKERS[0], MARKERS[0] + 1), (MARKERS[0] + 2,)]
    constraint = CodesConstraint(planner_spec(), 2, markers.__getitem__)
    tokens = [270, 271, FIRST_GROUP[0] + 1, SECOND_GROUP[0] + 4, 272, FIRST_GROUP[0], SECOND_GROUP[0]]
    expected: list[set[int]] = [{270}, {271}, span(FIRST_GROUP), span(SECOND_GROUP), {272}, span(FIRST_GROUP)]
    assert constraint.forced(9) == [270, 271]
    assert constraint.forced(1) == [270]
    for token, allowed in zip(tokens, [*expected, span(SECOND_GROUP)], strict=True):
        assert allowed_by(constraint) == allowed
        constraint.advance(token)
    assert constraint.is_done
    assert constraint.forced(9) == []


def span(tokens: tuple[int, int]) -> set[int]:
    return set(range(tokens[0], sum(tokens)))


def test_endless_codes_have_no_end_token() -> None:
    constraint = CodesConstraint(planner_spec(), ENDLESS)
    for _ in range(3):
        assert allowed_by(constraint) == span(FIRST_GROUP)
        constraint.advance(FIRST_GROUP[0])
        constraint.advance(SECOND_GROUP[0])


PLANNED = planner_spec(plan=PLAN)
BPM, METER, KIND, LAYERS, BARS = ((8, 3), (12, 2), (16, 4), (20, 3), (24, 3))


def test_a_plan_is_a_header_and_sections_until_the_end_token() -> None:
    constraint = FormConstraint(PLANNED)
    expected = [*map(span, (BPM, METER, KIND, LAYERS, BARS)), {*span(KIND), END_TOKEN}, span(LAYERS)]
    for token, allowed in zip([9, 12, 17, 20, 26, 16, 22], expected, strict=True):
        assert allowed_by(constraint) == allowed
        constraint.advance(token)
    ended, longest = copy(constraint), copy(constraint)
    longest.advance(24)
    ended.advance(24)
    ended.advance(END_TOKEN)
    for token in (18, 21, 25) * 4:
        assert not longest.is_done
        longest.advance(token)
    assert (ended.is_done, longest.is_done, constraint.is_done) == (True, True, False)
    restored = FormConstraint(PLANNED)
    restored.restore(constraint.state())
    assert (restored.key, allowed_by(restored)) == (constraint.key, allowed_by(constraint))


def test_a_plans_given_tokens_are_forced_and_its_sections_counted() -> None:
    constraint = FormConstraint(PLANNED, {0: 10, 1: 12, 2: 18, 5: 17}, num_sections=2, without=(17, 20))
    assert constraint.forced(9) == [10, 12, 18]
    for token in (10, 12, 18, 21, 24, 17):
        assert token in allowed_by(constraint)
        assert not {20, END_TOKEN} & allowed_by(constraint)
        constraint.advance(token)
    assert (constraint.is_done, constraint.forced(9)) == (False, [])
    constraint.advance(22)
    constraint.advance(26)
    assert constraint.is_done
    with pytest.raises(RequestError, match="token 16 at place 0"):
        FormConstraint(PLANNED, {0: 16})


def planned(named: Collection[str] = (), given: Mapping[int, int] | None = None, **plan: Any) -> FormConstraint:
    """A constraint of PLAN with other values. Kinds are 16 to 19; layers: drums 20, bass 21, both 22; bars 24 to 26."""
    spec = planner_spec(plan=PLAN | {"most_sections": 3} | plan)
    return FormConstraint(spec, given, named=frozenset(named))


def layers_after(constraint: FormConstraint, kind: int) -> set[int]:
    after = copy(constraint)
    after.advance(kind)
    return allowed_by(after)


def test_main_sections_have_the_layers_that_are_asked_for() -> None:
    first, second, *_ = PLAN["kind"]["values"]
    constraint = planned(["bass"], main=[second, first])
    constraint.advance(9)
    constraint.advance(12)
    assert [layers_after(constraint, kind) for kind in (16, 17, 18)] == [{21, 22}, {21, 22}, {20, 21, 22}]
    both = planned(["bass", "drums"], main=[second])
    both.advance(9)
    both.advance(12)
    assert [layers_after(both, kind) for kind in (16, 17)] == [{20, 21, 22}, {22}]


def test_a_plan_does_not_end_before_all_layers_that_are_asked_for_came() -> None:
    constraint = planned(["bass", "drums"])
    for token in (9, 12, 18, 20, 24):
        constraint.advance(token)
    assert END_TOKEN not in allowed_by(constraint)
    ends = copy(constraint)
    for token in (18, 21, 24):
        ends.advance(token)
    assert END_TOKEN in allowed_by(ends)
    for token in (18, 20, 24):
        constraint.advance(token)
    assert layers_after(constraint, 18) == {21, 22}, "the last section there may be"


def test_sections_have_as_many_layers_as_there_are_voices() -> None:
    constraint = FormConstraint(planner_spec(plan=PLAN), fewest_layers=2)
    constraint.advance(9)
    constraint.advance(12)
    assert layers_after(constraint, 18) == {22}


def test_layers_that_are_asked_for_and_left_out_are_left_out() -> None:
    spec = planner_spec(plan=PLAN | {"main": PLAN["kind"]["values"]})
    constraint = FormConstraint(spec, without=(21, 22), named=frozenset(["bass"]))
    constraint.advance(9)
    constraint.advance(12)
    assert layers_after(constraint, 18) == {20}


def test_the_first_kind_comes_first_only_and_no_kind_too_often_in_a_row() -> None:
    first = PLAN["kind"]["values"][0]
    given = dict(enumerate((17, 20, 24) * 2, start=2))
    constraint = planned(beginning=first, most_in_a_row=2, given=given, most_sections=4)
    free = planned(beginning=first, most_in_a_row=2)
    for token in (9, 12):
        constraint.advance(token)
        free.advance(token)
    assert 16 in allowed_by(free)
    for token in (17, 20, 24) * 2:
        assert token in allowed_by(constraint)
        constraint.advance(token)
    assert allowed_by(constraint) == {18, 19, END_TOKEN}
    for token in (18, 20, 24):
        constraint.advance(token)
    assert allowed_by(constraint) == {17, 18, 19, END_TOKEN}
    assert constraint.key != copy(free).key
    restored = planned(beginning=first, most_in_a_row=2, given=given, most_sections=4)
    restored.restore(constraint.state())
    assert allowed_by(restored) == allowed_by(constraint)


def test_what_begins_a_song_has_as_many_bars_as_the_model_says() -> None:
    first, second, *_ = PLAN["kind"]["values"]
    for most, expected in ((0, {24, 25, 26}), (2, {24, 25})):
        constraint = planned(beginning=first, beginning_bars=most)
        for token in (9, 12, 16, 22):
            constraint.advance(token)
        assert allowed_by(constraint) == expected
    other = planned(beginning=second, beginning_bars=2)
    for token in (9, 12, 16, 22):
        other.advance(token)
    assert allowed_by(other) == {24, 25, 26}


def test_codes_that_are_known_are_given_with_their_markers() -> None:
    """As a section that is continued, or edited, begins; what comes behind them is chosen as ever."""
    constraint = CodesConstraint(PLANNED, 3, lambda code: (40 + code,), [7, 24])
    tokens = [40, *PLANNED.codes.tokens(7), 41, *PLANNED.codes.tokens(24), 42]
    assert constraint.forced(99) == tokens
    assert constraint.forced(4) == tokens[:4]
    for token in tokens[:4]:
        assert allowed_by(constraint) == {token}
        constraint.advance(token)
    restored = CodesConstraint(PLANNED, 3, lambda code: (40 + code,), [7, 24])
    restored.restore(constraint.state())
    assert restored.forced(99) == constraint.forced(99) == tokens[4:]
    for token in tokens[4:]:
        constraint.advance(token)
    assert allowed_by(constraint) == span(FIRST_GROUP)
    assert not constraint.is_done


def test_a_group_with_a_fixed_token_is_given_in_every_code_that_is_not_known() -> None:
    first, second = PLANNED.codes.groups
    fixed = CodesConstraint(PLANNED, 3, lambda code: (40 + code,), [7], (None, second.first + 1))
    known = [40, *PLANNED.codes.tokens(7)]
    assert fixed.forced(99) == [*known, 41]
    for token in [*known, 41]:
        fixed.advance(token)
    assert allowed_by(fixed) == span(FIRST_GROUP)
    fixed.advance(first.first + 2)
    assert fixed.forced(99) == [second.first + 1, 42]
    assert allowed_by(fixed) == {second.first + 1}
    for token in (second.first + 1, 42, first.first, second.first + 1):
        fixed.advance(token)
    assert fixed.is_done


def test_a_token_comes_so_often_in_a_row_until_another_came() -> None:
    first, second = PLANNED.codes.groups
    constraint, rest, found = CodesConstraint(PLANNED, 20, at_most={first.first + 2: 3}), first.first + 2, list[bool]()
    for _ in range(9):
        found.append(rest in allowed_by(constraint))
        assert constraint.key == (0, None if found[-1] else rest, None)
        for token in (rest if found[-1] else first.first, second.first):
            constraint.advance(token)
        restored = CodesConstraint(PLANNED, 20, at_most={rest: 3})
        restored.restore(json.loads(json.dumps(constraint.state())))
        constraint = restored
    assert found == [True, True, True, False, True, True, True, False, True]


def test_a_token_whose_notes_begin_elsewhere_than_they_may_does_not_come() -> None:
    """By code; a group without onsets is free, and one whose tokens all begin elsewhere keeps them."""
    assert PLANNED.plan is not None
    onsets = ((), (0b00001, 0b00100, 0b00101, 0b10100, 0b10000))
    spec = PLANNED.model_copy(update={"plan": PLANNED.plan.model_copy(update={"onsets": onsets})})
    frames, (first, second) = [0b00101, 0b10000, 0b00010, 0b11111], spec.codes.groups
    constraint, found, keys = CodesConstraint(spec, 4, without=[second.first + 4], onset_frames=frames), [], set()
    for _ in frames:
        assert allowed_by(constraint) == set(first.tokens)
        constraint.advance(first.first)
        keys.add(constraint.key)
        found.append({token - second.first for token in allowed_by(constraint)})
        constraint.advance(second.first)
    assert found == [{0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}]
    assert len(keys) == 4
    anywhere = CodesConstraint(spec, 4)
    anywhere.advance(first.first)
    assert allowed_by(anywhere) == set(second.tokens)


def test_tokens_that_may_not_come_still_come_where_they_are_given() -> None:
    """As a known code, as a group's fixed token, and nowhere else."""
    first, second = PLANNED.codes.groups
    without = (first.first, first.first + 3, second.first + 2)
    constraint = CodesConstraint(PLANNED, 3, None, [0], (None, second.first + 2), without=without)
    assert constraint.forced(99) == list(PLANNED.codes.tokens(0)) == [first.first, second.first]
    for token in constraint.forced(99):
        constraint.advance(token)
    for _ in range(2):
        assert allowed_by(constraint) == {first.first + 1, first.first + 2, first.first + 4}
        constraint.advance(first.first + 1)
        assert constraint.forced(1) == [second.first + 2]
        assert allowed_by(constraint) == {second.first + 2}
        constraint.advance(second.first + 2)
    assert constraint.is_done


def test_the_end_token_comes_between_codes_also_where_others_may_not() -> None:
    constraint = CodesConstraint(PLANNED, without=(FIRST_GROUP[0], SECOND_GROUP[0] + 4))
    assert allowed_by(constraint) == {*span(FIRST_GROUP), END_TOKEN} - {FIRST_GROUP[0]}
    constraint.advance(FIRST_GROUP[0] + 1)
    assert allowed_by(constraint) == span(SECOND_GROUP) - {SECOND_GROUP[0] + 4}


def test_what_is_forced_is_what_then_comes() -> None:
    """Names and the user's values; never a token too many."""
    exchange = EXCHANGES["the user's bpm, caption and key"]
    constraint = thinking(exchange)
    assert TOKENIZER.decode(constraint.forced(100), skip_special_tokens=False) == (
        "<think>\nbpm: 120\ncaption: A song: with a colon\nduration: "
    )
    assert len(constraint.forced(7)) == 7
    steps = steps_of(exchange)[:-1]
    forced = 0
    for place, (token, _) in enumerate(steps):
        ahead = constraint.forced(5)
        assert ahead == [item[0] for item in steps[place : place + len(ahead)]]
        assert (len(allowed_by(constraint)) == 1) == bool(ahead)
        forced += bool(ahead)
        constraint.advance(token)
    assert forced > 80


@pytest.mark.parametrize("name", [name for name, item in EXCHANGES.items() if item["phase"] == "cot"])
def test_a_copy_and_a_restored_one_go_on_by_themselves(name: str) -> None:
    constraint, steps = thinking(EXCHANGES[name]), steps_of(EXCHANGES[name])[:-1]
    for place, (token, _) in enumerate(steps):
        if place % 7 == 0:
            restored = thinking(EXCHANGES[name])
            restored.restore(json.loads(json.dumps(constraint.state())))
            for other in (copy(constraint), restored):
                assert (other.key, other.is_greedy) == (constraint.key, constraint.is_greedy)
                for later, _ in steps[place:]:
                    other.advance(later)
                assert other.is_done
        constraint.advance(token)


def test_codes_are_restored() -> None:
    constraint = CodesConstraint(planner_spec(), 5)
    for token in (FIRST_GROUP[0], SECOND_GROUP[0], FIRST_GROUP[0]):
        constraint.advance(token)
    other = CodesConstraint(planner_spec(), 5)
    other.restore(constraint.state())
    assert (other.key, other.state()) == (constraint.key, [1, 1, 0, FIRST_GROUP[0], 2, SECOND_GROUP[0], 1])
    assert allowed_by(other) == span(SECOND_GROUP)


def test_equal_keys_have_equal_masks() -> None:
    for name in ("as wanted", "long numbers", "without caption and language"):
        constraint, masks = thinking(EXCHANGES[name]), dict[Any, set[int]]()
        for token, _ in steps_of(EXCHANGES[name])[:-1]:
            assert masks.setdefault(constraint.key, allowed_by(constraint)) == allowed_by(constraint)
            constraint.advance(token)


@pytest.fixture
def captioned() -> ThinkingConstraint:
    """A caption of at most 4 tokens, and a tempo."""
    fields = [{"name": "caption", "kind": "text", "max_tokens": 4}, {"name": "bpm", "kind": "choice", "values": ["9"]}]
    return ThinkingConstraint(ThinkingGrammar(planner_spec(thinking={"prompt": "", "fields": fields}), TOKENIZER))


def test_a_caption_that_is_too_long_ends(captioned: ThinkingConstraint) -> None:
    for token in ids("<think>\ncaption: abc"):
        captioned.advance(token)
    assert captioned.forced(20) == ids("\nbpm: 9\n")
    for token in ids("\nbpm: 9\n"):
        captioned.advance(token)
    assert captioned.is_done


def test_a_caption_may_begin_as_the_next_field_does(captioned: ThinkingConstraint) -> None:
    for token in ids("<think>\ncaption:bad\nbpm: 9\n"):
        captioned.advance(token)
    assert captioned.is_done


@pytest.mark.parametrize("given", [{"bpm": "301"}, {"keyscale": "H major"}, {"timesignature": "4/4"}])
def test_a_value_that_a_field_cannot_have_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="expected"):
        ThinkingConstraint(GRAMMAR, given)
