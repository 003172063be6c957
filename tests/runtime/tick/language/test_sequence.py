"""A sequence: what is refused, its random numbers, its drafts, which drawn tokens count, and when it ends."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from helpers.counted_constraint import CountedConstraint
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.planner import PlannerSpec
from runtime.tick.language.sequence import (
    LEAST_TRUST,
    Draw,
    History,
    LiveSequence,
    PromptChunk,
    SequenceRequest,
    SequenceWork,
    Trust,
    uniform,
)
from runtime.tick.scheduling.slot import Slot

SPEC = PlannerSpec.model_validate(
    {
        "graph": "planner.onnx",
        "tokenizer": "tokenizer.json",
        "vocabulary": 50,
        "end_token": 1,
        "capacity": 64,
        "inputs": {"past": ["k", "v"]},
        "outputs": {"present": ["k2", "v2"]},
        "codes": {"prompt": "", "groups": [{"first": 10, "count": 5}]},
    }
)
GOOD = SequenceRequest("a", (1, 2, 3), 20)


def test_a_sequence_that_fits_is_taken_with_a_prompt_per_row() -> None:
    GOOD.check(SPEC)
    assert GOOD.prompts == ((1, 2, 3),)
    guided = replace(GOOD, guidance=2.0, negative=(4,))
    guided.check(SPEC)
    assert guided.prompts == ((1, 2, 3), (4,))
    assert SequenceWork(GOOD).steps == 20


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"prompt": ()}, "prompt has 0 tokens"),
        ({"prompt": (1, 50)}, "expected some of 0 to 49"),
        ({"guidance": 2.0}, "negative has 0 tokens"),
        ({"max_tokens": 0}, "max_tokens >= 1"),
        ({"temperature": -1.0}, "temperature 0 to 10"),
        ({"top_p": 0.0}, "top_p above 0"),
        ({"max_tokens": 55}, "has room for 54 behind"),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError, match=what):
        replace(GOOD, **changes).check(SPEC)


def test_a_ring_takes_sequences_without_an_end() -> None:
    ring = SPEC.model_copy(update={"window": 20})
    SequenceRequest("a", tuple([5] * 500)).check(ring)


def test_random_numbers_are_even_exact_in_float32_and_differ_by_seed_and_place() -> None:
    found = np.array([[uniform(seed, place) for place in range(2000)] for seed in (0, 1, 2**63)])
    assert (found == found.astype(np.float32)).all()
    assert found.min() >= 0
    assert found.max() < 1
    assert abs(found.mean() - 0.5) < 0.02
    assert len(np.unique(found)) > 5990
    counts = np.histogram(found[0], 10, (0, 1))[0]
    assert ((counts > 140) & (counts < 260)).all()
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.06
    assert uniform(7, 3) == uniform(7, 3) != uniform(7, 4)


def test_the_generator_is_splitmix64() -> None:
    """The first output of seed 1234567, 6457827717110365317 as published, is the seed of these."""
    found = [int(uniform(1234567, place) * 2**23) for place in range(5)]
    assert found == [4415376, 5918026, 8367420, 7830903, 3075266]


@dataclass
class Alternating(CountedConstraint):
    """Token 1, then any of 2 to 4, and so on; ends after `length` tokens."""

    @property
    def key(self) -> int:
        return self.count % 2

    def write_allowed(self, out: NDArray[Any]) -> None:
        out[:] = False
        out[1 if self.count % 2 == 0 else slice(2, 5)] = True

    def forced(self, limit: int) -> tuple[int, ...]:
        return (1,) if self.count % 2 == 0 and limit else ()


def live(*, speculates: bool = True, **changes: Any) -> LiveSequence:
    request = SequenceRequest(**{"id": "a", "prompt": (5, 6, 7, 8), "max_tokens": 10, **changes})
    slot = Slot(id="a", runner=None, work=SequenceWork(request), bucket=0, steps=10)
    return LiveSequence(slot, tuple(range(3, 3 + len(request.prompts))), 100, speculates=speculates)


def accept(found: LiveSequence, drawn: list[int], keys: list[Any] | None = None) -> list[int]:
    """Take tokens that were drawn from the tokens that may come at each, or from those of `keys`."""
    ahead = copy.copy(found.constraint)
    known = list[Any]()
    for token in drawn:
        known.append(None if ahead is None else ahead.key)
        if ahead is not None:
            ahead.advance(token)
    found.draws = [Draw((), key) for key in keys or known]
    return found.accept(drawn)


def test_prompts_are_prefilled_row_by_row_but_for_their_last_tokens() -> None:
    found = live(negative=(9, 10), guidance=2.0)
    assert [found.take_chunk(2) for _ in range(3)] == [
        PromptChunk(3, 0, (5, 6)),
        PromptChunk(3, 2, (7,)),
        PromptChunk(4, 0, (9,)),
    ]
    assert found.is_ready
    assert [(found.next_token(place), found.position(place)) for place in (0, 1)] == [(8, 3), (10, 1)]
    accept(found, [20])
    assert [(found.next_token(place), found.position(place)) for place in (0, 1)] == [(20, 4), (20, 2)]


def test_a_row_that_waits_stands_behind_what_is_prefilled() -> None:
    found = live()
    found.take_chunk(2)
    assert (found.is_ready, found.position(0)) == (False, 2)


def test_a_sequence_ends_with_its_count_its_end_token_or_its_constraint() -> None:
    assert accept(live(max_tokens=2), [1, 2, 3]) == [1, 2]
    assert accept(live(end_token=2), [1, 2, 3]) == [1, 2]
    constrained = live(constraint=Alternating(1))
    assert accept(constrained, [1, 3]) == [1]
    assert constrained.has_ended
    assert live(constraint=Alternating(0)).has_ended


def test_of_chained_tokens_those_count_that_were_drawn_from_the_right_ones() -> None:
    found = live(constraint=Alternating(9))
    assert accept(found, [1, 3, 1, 1], keys=[0, 1, 0, 0]) == [1, 3, 1]
    assert accept(found, [3, 3], keys=[1, 1]) == [3]
    assert (found.count, found.tokens) == (4, (1, 3, 1, 3))


def test_verified_tokens_count_up_to_the_first_that_is_not_the_draft() -> None:
    found = live(prompt=(1, 2, 3, 4, 1, 2, 3))
    found.draft(3)
    assert found.drafts == [4, 1, 2]
    assert found.accept_verified([4, 1, 9, 8]) == [4, 1, 9]
    assert found.tokens == (4, 1, 9)


def test_all_drafts_right_give_one_token_more() -> None:
    found = live(prompt=(1, 2, 3, 4, 1, 2, 3))
    found.draft(2)
    assert found.accept_verified([4, 1, 7, 8, 8]) == [4, 1, 7]


def test_forced_tokens_are_the_first_drafts() -> None:
    found = live(prompt=(1, 2, 1, 1, 2, 1), constraint=Alternating(9))
    found.draft(3)
    assert found.drafts[0] == 1
    without = live(constraint=Alternating(9), speculates=False)
    without.draft(3)
    assert without.drafts == []


def test_what_is_expected_of_drafts_is_all_that_is_forced_and_a_share_of_the_others() -> None:
    found = live(prompt=(1, 2, 3, 4, 1, 2, 3))
    found.trust.share = 0.5
    found.draft(3)
    assert found.num_expected == pytest.approx(1.5, abs=0.05)
    found.take_drafts([9])
    assert found.drafts == [4, 1, 2]
    forced = live(constraint=Alternating(9))
    forced.draft(4)
    assert (forced.drafts, forced.num_expected) == ([1], 1.0)
    found.drafts = []
    found.trust.share = 0.0
    found.draft(3)
    assert (found.drafts, found.wants_drafts) == ([], False)


def test_the_state_of_a_sequence_is_continued_without_touching_it() -> None:
    found = live(constraint=Alternating(9))
    accept(found, [1])
    state = found.state([((np.zeros(1),),)])
    accept(found, [3])
    slot = Slot(id="a", runner=None, work=SequenceWork(found.request, state), bucket=0, steps=10)
    other = LiveSequence(slot, (0,), 100, speculates=True)
    assert other.is_ready
    assert (other.tokens, other.position(0), other.next_token(0)) == ((1,), 4, 1)
    assert accept(other, [2]) == [2]
    assert found.tokens == (1, 3)


@pytest.mark.parametrize("count", [5, 150, 1000])
def test_a_long_sequence_keeps_its_last_tokens(count: int) -> None:
    found = live(max_tokens=5000)
    for token in range(count):
        accept(found, [token])
    kept = found.tokens
    assert kept == tuple(range(count))[-len(kept) :]
    assert len(kept) >= min(count, 100)


def test_a_sequence_is_ready_once_all_of_its_prompts_are_read() -> None:
    found, seen = live(negative=(8, 9), guidance=2.0), []
    for found.prefilled in ([0, 0], [3, 0], [2, 1], [3, 1]):
        seen.append(found.is_ready)
    assert seen == [False, False, False, True]


def test_a_draft_is_what_followed_the_last_tokens_the_time_before() -> None:
    history = History((1, 2, 3, 4, 5, 9, 2, 3), 100, is_indexed=True)
    assert history.draft((), 3) == [4, 5, 9]
    assert history.draft((4,), 2) == [5, 9]
    assert history.draft((7,), 2) == []


def test_the_longer_match_and_the_later_place_win() -> None:
    history = History((1, 2, 3, 7, 8, 2, 3, 4, 0, 1, 2, 3), 100, is_indexed=True)
    assert history.draft((), 1) == [7]
    assert History((2, 3, 4, 2, 3, 5, 2, 3), 100, is_indexed=True).draft((), 1) == [5]


def test_without_an_index_there_is_no_draft() -> None:
    assert History((1, 2, 1, 2), 100, is_indexed=False).draft((), 2) == []


def test_a_long_history_keeps_its_last_tokens_and_finds_what_they_hold() -> None:
    tokens = np.random.default_rng(0).integers(0, 6, 1000).tolist()
    history = History(tokens, 32, is_indexed=True)
    assert 32 <= len(history.tokens) <= 64
    assert history.tokens == tokens[-len(history.tokens) :]
    last, kept = tuple(tokens[-2:]), history.tokens
    places = [place for place in range(len(kept) - 2) if tuple(kept[place : place + 2]) == last]
    if places:
        assert history.draft((), 1)


def test_lookups_that_never_come_true_are_given_up_and_tried_again() -> None:
    trust, tries = Trust(), 0
    for _ in range(300):
        if trust.is_worth():
            tries += 1
            trust.note(0, 4)
    assert 5 < tries < 60
    while trust.share < 0.9:
        trust.note(4, 4)
    assert trust.is_worth()
    assert LEAST_TRUST < trust.share <= 1


@pytest.mark.parametrize(
    ("place", "start", "expected"),
    [(0, 0, [1, 2, 3, 10, 11]), (0, 2, [3, 10, 11, 12, 0]), (0, 5, [12, 0, 0, 0, 0]), (1, 0, [8, 9, 10, 11, 12])],
)
def test_known_tokens_of_a_row_follow_its_prompt(place: int, start: int, expected: list[int]) -> None:
    found = live(prompt=(1, 2, 3), negative=(8, 9), guidance=2.0)
    found.prefilled = [2, 1]
    accept(found, [10, 11, 12])
    assert found.known(place, start, 5) == expected


def test_the_last_tokens_are_known_of_a_long_sequence_too() -> None:
    found = live(max_tokens=1000)
    found.prefilled = [3]
    accept(found, list(range(500)))
    assert found.known(0, found.position(0) - 4, 5) == [495, 496, 497, 498, 499]
