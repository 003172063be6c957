"""Drafts from what followed the last tokens before, bounded memory, and when looking up is given up."""

from __future__ import annotations

import numpy as np

from runtime.tick.language.sequence import LEAST_TRUST, History, Trust


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
    assert len(history._after) <= 2 * len(kept)
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
