"""The planner's graph against Qwen3 in float64, with caches that grow in place; the sampler against numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.planner_session import PlannerSession, off, open_session
from helpers.tiny_planner import CONFIG, VOCABULARY, reference_logits, tiny_weights
from numpy.typing import NDArray

from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names, planner_graph, sampler_graph
from runtime.config.planner import NO_WINDOW

LAYERS, HEADS, WIDTH = CONFIG["num_hidden_layers"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]
WEIGHTS = tiny_weights()
LIMIT = 1e-4
Tokens = NDArray[np.int64]


class Planner(PlannerSession):
    """The tiny planner."""

    def __init__(self, capacity: int, rows: int, window: int = 0) -> None:
        model = planner_graph(Qwen3Sizes.of(CONFIG), capacity, WEIGHTS.__getitem__)
        super().__init__(model, rows, window)


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return np.random.default_rng(3).integers(0, VOCABULARY, (4, 100))


@pytest.mark.parametrize("chunk", [60, 20, 1])
def test_a_sequence_in_chunks_of_any_size_gives_the_logits_of_qwen3(tokens: Tokens, chunk: int) -> None:
    planner = Planner(capacity=64, rows=2)
    expected = np.stack([reference_logits(WEIGHTS, row[:60]) for row in tokens[:2]])
    for start in range(0, 60, chunk):
        found = planner.run(tokens[:2, start : start + chunk], start, slots=min(64, start + chunk + 3))
        assert off(found, expected[:, start : start + chunk]) < LIMIT


def test_rows_join_with_padded_chunks_and_go_on_together_at_their_own_positions(tokens: Tokens) -> None:
    planner, lengths = Planner(capacity=64, rows=4), [37, 16, 5, 48]
    expected = [reference_logits(WEIGHTS, row) for row in tokens]
    for row, length in enumerate(lengths):
        for start in range(0, length, 16):
            count = min(16, length - start)
            chunk = np.zeros((1, 16), np.int64)
            chunk[0, :count] = tokens[row, start : start + count]
            logits = planner.run(chunk, start, slice(row, row + 1), pick=[[count - 1]])
        assert off(logits[0, 0], expected[row][length - 1]) < LIMIT
    positions = np.array(lengths)
    for _ in range(15):
        logits = planner.run(tokens[np.arange(4), positions][:, None], positions)
        assert max(off(logits[row, 0], expected[row][position]) for row, position in enumerate(positions)) < LIMIT
        positions += 1


def test_a_row_changes_only_the_slots_that_it_writes_and_no_other_row(tokens: Tokens) -> None:
    together, alone = Planner(capacity=64, rows=4), Planner(capacity=64, rows=4)
    for planner in (together, alone):
        planner.run(tokens[:, :16], 0)
    before = {name: cache.copy() for name, cache in together.caches.items()}
    logits = together.run(tokens[:, 16:17], 16)
    for name, cache in together.caches.items():
        assert np.flatnonzero((cache != before[name]).any(axis=(0, 1, 3))).tolist() == [16]
    for row in range(4):
        own = alone.run(tokens[row : row + 1, 16:17], 16, slice(row, row + 1))
        np.testing.assert_array_equal(own[0], logits[row])
    for name, cache in alone.caches.items():
        np.testing.assert_array_equal(cache, together.caches[name])


def test_a_ring_gives_the_logits_of_a_sliding_window_also_after_drafts_are_refused(tokens: Tokens) -> None:
    window, capacity, drafts = 20, 48, 5
    planner = Planner(capacity, rows=1, window=window)
    expected = reference_logits(WEIGHTS, tokens[0], window)
    for start in range(0, 64, 16):
        logits = planner.run(tokens[:1, start : start + 16], start)
        assert off(logits[0], expected[start : start + 16]) < LIMIT
    position = 64
    while position < 90:
        if position % capacity + drafts > capacity:
            logits = planner.run(tokens[:1, position : position + 1], position)
            assert off(logits[0, 0], expected[position]) < LIMIT
            position += 1
            continue
        guess = tokens[:1, position : position + drafts].copy()
        guess[0, 3:] = 7  # two wrong ones, which the next execute overwrites
        logits = planner.run(guess, position)
        assert off(logits[0, :3], expected[position : position + 3]) < LIMIT
        position += 3


def test_a_ring_has_positions_for_months(tokens: Tokens) -> None:
    start, planner = 16_000_000, Planner(capacity=48, rows=1, window=20)
    first = start + -start % 48  # slots that were never written are outside of the window of what is compared
    expected = reference_logits(WEIGHTS, tokens[0, :96], 20, first)
    found = np.concatenate([planner.run(tokens[:1, at : at + 16], first + at)[0] for at in range(0, 96, 16)])
    assert off(found[60:], expected[60:]) < LIMIT


def test_an_untied_head_is_a_matrix_of_its_own(tokens: Tokens) -> None:
    config = {**CONFIG, "tie_word_embeddings": False}
    weights = tiny_weights(5, config)
    session = open_session(planner_graph(Qwen3Sizes.of(config), 16, weights.__getitem__))
    empty = np.zeros((1, HEADS, 16, WIDTH), np.float32)
    feeds: dict[str, Any] = {
        "tokens": tokens[:1, :9],
        "position": np.zeros(1, np.int64),
        "write": np.zeros(1, np.int64),
        "window": np.full(1, NO_WINDOW),
        "slots": np.arange(9),
        "pick": np.array([[[8]]]),
        **dict.fromkeys(cache_names(LAYERS).past, empty),
    }
    assert off(session.run(["logits"], feeds)[0][0, 0], reference_logits(weights, tokens[0, :9])[8]) < LIMIT


def test_the_graphs_pass_the_checker_with_every_shape_inferred() -> None:
    for model in (
        planner_graph(Qwen3Sizes.of(CONFIG), 64, WEIGHTS.__getitem__),
        sampler_graph(VOCABULARY, 64),
    ):
        onnx.checker.check_model(model, full_check=True)


def sampled(feeds: Mapping[str, NDArray[Any]], slot: int, place: int) -> int:
    """One token of one sequence, in float64."""
    positive, negative = (feeds["logits"][feeds[f"{sign}_row"][slot], place] for sign in ("positive", "negative"))
    scores = negative.astype(np.float64) + feeds["guidance"][slot] * (positive.astype(np.float64) - negative)
    scores[~feeds["allowed"][slot, place]] = -np.inf
    order = np.argsort(-scores, kind="stable")
    if feeds["top_k"][slot]:
        scores[order[feeds["top_k"][slot] :]] = -np.inf
    chances = np.exp(scores[order] - scores[order[0]])
    before = np.cumsum(chances) - chances
    is_kept = (before <= feeds["top_p"][slot] * chances.sum()) & (chances > 0)
    weights = np.where(is_kept, chances ** (1 / feeds["temperature"][slot]), 0.0)
    rank = int((np.cumsum(weights) <= feeds["uniform"][slot, place] * weights.sum()).sum())
    return int(order[min(rank, is_kept.sum() - 1)])


def sampler_feeds(random: np.random.Generator, vocabulary: int) -> dict[str, NDArray[Any]]:
    """Four sequences, of which two are guided, on six rows with three logits each."""
    return {
        "logits": (3 * random.standard_normal((6, 3, vocabulary))).astype(np.float32),
        "positive_row": np.array([0, 2, 3, 5]),
        "negative_row": np.array([1, 2, 4, 5]),
        "row_sequence": np.array([0, 0, 1, 2, 2, 3]),
        "guidance": np.array([2.0, 1.0, 3.5, 1.0], np.float32),
        "temperature": np.array([0.85, 1.0, 1.3, 0.3], np.float32),
        "top_k": np.array([0, 1, 20, 0]),
        "top_p": np.array([0.9, 1.0, 0.7, 1.0], np.float32),
        "uniform": random.random((4, 3)).astype(np.float32),
        "allowed": random.random((4, 3, vocabulary)) < 0.6,
    }


def test_the_sampler_is_its_formula_in_float64() -> None:
    random, session = np.random.default_rng(11), open_session(sampler_graph(100, 100))
    for _ in range(60):
        feeds = sampler_feeds(random, 100)
        tokens, row_tokens, finite = session.run(["tokens", "row_tokens", "finite"], feeds)
        expected = [[sampled(feeds, slot, place) for place in range(3)] for slot in range(4)]
        assert tokens.tolist() == expected
        np.testing.assert_array_equal(row_tokens, tokens[feeds["row_sequence"]])
        assert finite.all()


def test_a_token_does_not_depend_on_how_many_are_sampled_beside_it() -> None:
    random, session = np.random.default_rng(12), open_session(sampler_graph(100, 100))
    feeds = sampler_feeds(random, 100)
    together = session.run(["tokens"], feeds)[0]
    for slot in range(4):
        one = {
            **feeds,
            **{name: feeds[name][slot : slot + 1] for name in ("positive_row", "negative_row", "guidance")},
            **{name: feeds[name][slot : slot + 1] for name in ("temperature", "top_k", "top_p")},
            **{name: feeds[name][slot : slot + 1, 1:2] for name in ("uniform", "allowed")},
            "logits": feeds["logits"][:, 1:2],
            "row_sequence": np.zeros(6, np.int64),
        }
        assert session.run(["tokens"], one)[0].item() == together[slot, 1]


def test_a_sequence_whose_logits_are_not_numbers_is_told_apart() -> None:
    session = open_session(sampler_graph(100, 100))
    for wrong in (np.nan, np.inf):
        feeds = sampler_feeds(np.random.default_rng(13), 100)
        expected = session.run(["tokens"], feeds)[0]
        feeds["logits"][4, 2, 50] = wrong
        tokens, finite = session.run(["tokens", "finite"], feeds)
        assert finite.tolist() == [True, True, False, True]
        np.testing.assert_array_equal(tokens[[0, 1, 3]], expected[[0, 1, 3]])


def test_the_order_is_filter_before_temperature() -> None:
    """At top_p 0.5 of [0.6, 0.4] one token is left however high the temperature is."""
    session = open_session(sampler_graph(4, 4))
    feeds: dict[str, NDArray[Any]] = {
        "logits": np.log(np.array([[[0.6, 0.4, 1e-9, 1e-9]]], np.float32)),
        "positive_row": np.zeros(1, np.int64),
        "negative_row": np.zeros(1, np.int64),
        "row_sequence": np.zeros(1, np.int64),
        "guidance": np.ones(1, np.float32),
        "temperature": np.full(1, 10, np.float32),
        "top_k": np.zeros(1, np.int64),
        "top_p": np.full(1, 0.5, np.float32),
        "uniform": np.full((1, 1), 0.999, np.float32),
        "allowed": np.ones((1, 1, 4), bool),
    }
    assert session.run(["tokens"], feeds)[0].item() == 0
    feeds["top_p"][:] = 0.7
    assert session.run(["tokens"], feeds)[0].item() == 1
