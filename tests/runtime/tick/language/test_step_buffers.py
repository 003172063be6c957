"""What a step's tensors hold: positions in a ring, random numbers by place, allowed tokens written when they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.counted_constraint import CountedConstraint
from helpers.tiny_planner import VOCABULARY, planner_toml
from numpy.typing import NDArray
from onnx import helper

from engine_build.graphs.planner_graph import sampler_graph
from runtime.config.planner import PlannerSpec
from runtime.devices.device import HostDevice
from runtime.devices.memory import PackedVectors
from runtime.tick.language.sequence import Draw, LiveSequence, SequenceRequest, SequenceWork, uniform
from runtime.tick.language.step_buffers import (
    SAMPLER_INPUTS,
    SAMPLER_OUTPUTS,
    SequenceVectors,
    StepBuffers,
    _FeedDrawn,
    vectors_bytes,
)
from runtime.tick.scheduling.slot import Slot

SEQUENCES = 2


@dataclass
class Only:
    """One token at a time, `tokens` in order; counts how often its mask is written."""

    tokens: tuple[int, ...]
    place: int = 0
    is_greedy: bool = False
    written: list[int] = field(default_factory=list)

    @property
    def key(self) -> int:
        return self.tokens[self.place]

    @property
    def is_done(self) -> bool:
        return self.place == len(self.tokens)

    def state(self) -> list[int]:
        return [self.place]

    def restore(self, state: Sequence[int]) -> None:
        (self.place,) = state

    def write_allowed(self, out: NDArray[Any]) -> None:
        self.written.append(self.key)
        out[:] = False
        out[self.key] = True

    def advance(self, token: int) -> None:
        self.place += 1

    def forced(self, limit: int) -> tuple[int, ...]:
        return self.tokens[self.place : self.place + limit]


@dataclass
class Song(CountedConstraint):
    """Tokens that are forced, and None for those that are free, again and again."""

    length: int = 1000
    order: tuple[int | None, ...] = (20, None, 21, 22, None, None)

    @property
    def key(self) -> object:
        return ("place", self.count % len(self.order), self.order[self.count % len(self.order)])

    @property
    def is_done(self) -> bool:
        return len(self.order) < 6 and self.count == len(self.order)

    def write_allowed(self, out: NDArray[Any]) -> None:
        token = self.order[self.count % len(self.order)]
        out[:] = token is None
        if token is not None:
            out[token] = True

    def forced(self, limit: int) -> list[int]:
        found = list[int]()
        while len(found) < limit and (token := self.order[(self.count + len(found)) % len(self.order)]) is not None:
            found.append(token)
            if len(self.order) < 6 and self.count + len(found) == len(self.order):
                break
        return found


def spec_of() -> PlannerSpec:
    import tomllib

    return PlannerSpec.model_validate(tomllib.loads(planner_toml(64, 40, thinking=False, draft=False))["planner"])


class Made:
    """Buffers on the host."""

    def __init__(self, width: int, steps: int, draws: int = 1) -> None:
        self.device, self.spec, widths = HostDevice(), spec_of(), [(width, steps)]
        self.vectors = PackedVectors(self.device, vectors_bytes(2 * SEQUENCES, widths, self.spec.prefill_tokens))
        self.shared = SequenceVectors(self.vectors, self.spec, SEQUENCES)
        self.buffers = StepBuffers(
            self.device, self.vectors, self.shared, self.spec, SEQUENCES, width=width, steps=steps, draws=draws
        )

    def write(self, live: LiveSequence) -> None:
        self.shared.write(live)
        self.buffers.write(live, self.device.main)

    def planner(self, name: str, step: int = 0) -> list[Any]:
        tensor = self.buffers._planner_tensors(step, 4)[name]
        assert tensor.host is not None
        found: list[Any] = tensor.host.tolist()
        return found

    def sampler(self, name: str, step: int = 0) -> NDArray[Any]:
        host = self.buffers._sampler_tensors(step, 4, SEQUENCES)[name].host
        assert host is not None
        return host


def live(
    rows: tuple[int, ...] = (0,), index: int = 0, count: int = 0, *, speculates: bool = True, **changes: Any
) -> LiveSequence:
    request = SequenceRequest(**{"id": "a", "prompt": (5, 6, 7), "seed": 4, **changes})
    slot = Slot(id="a", runner=None, work=SequenceWork(request), bucket=0, steps=10, index=index)
    found = LiveSequence(slot, rows, 100, speculates=speculates)
    found.prefilled = [len(prompt) - 1 for prompt in found.prompts]
    for token in range(count):
        found.draws = [Draw((), None if found.constraint is None else found.constraint.key)]
        found.accept([token])
    return found


def test_each_decode_stands_one_position_behind_the_one_before_and_wraps() -> None:
    made = Made(1, 3)
    made.write(live((1, 2), count=60, guidance=2.0, negative=(8, 9)))
    assert [made.planner("position", step)[1:3] for step in range(3)] == [[62, 61], [63, 62], [64, 63]]
    assert [made.planner("write", step)[1:3] for step in range(3)] == [[62, 61], [63, 62], [0, 63]]
    assert made.planner("tokens")[1:3] == [[59], [59]]
    assert made.planner("window") == [40] * 4


def test_a_step_feeds_what_the_one_before_has_drawn() -> None:
    made = Made(1, 2)
    drawn, fed = made.sampler("row_tokens", 0), made.buffers._planner_tensors(1, 4)["tokens"]
    assert fed.address == drawn.ctypes.data


def test_a_verify_feeds_drafts_and_wants_logits_of_all() -> None:
    made, found = Made(5, 1, 5), live(prompt=(1, 2, 3, 4, 1, 2, 3))
    found.draft(3)
    made.write(found)
    assert made.planner("tokens")[0] == [3, 4, 1, 2, 0]
    assert [place for (place,) in made.planner("pick")[0]] == [0, 1, 2, 3, 4]
    expected = np.float32([uniform(4, place) for place in range(4)])
    assert (made.sampler("uniform")[0, :4] == expected).all()


@pytest.mark.parametrize(
    ("count", "start", "tokens"),
    [(1, 0, [5, 6, 7, 0, 0]), (20, 17, [14, 15, 16, 17, 18]), (65, 59, [56, 57, 58, 59, 60])],
)
def test_the_tokens_before_the_newest_are_fed_again_as_far_as_the_ring_goes(
    count: int, start: int, tokens: list[int]
) -> None:
    made = Made(5, 1, 5)
    made.buffers.write_known(live((1,), count=count))
    assert (made.planner("tokens")[1], made.planner("position")[1], made.planner("write")[1]) == (tokens, start, start)


def test_the_likeliest_token_needs_no_random_number() -> None:
    made = Made(1, 1)
    made.write(live(temperature=0.0, top_k=7))
    assert (made.sampler("uniform")[0, 0], made.sampler("top_k")[0], made.sampler("temperature")[0]) == (0, 1, 1)


def test_a_constraint_may_want_the_likeliest_token() -> None:
    made, found = Made(1, 1), live(constraint=Only((7, 8), is_greedy=True))
    made.write(found)
    assert made.sampler("uniform")[0, 0] == 0
    made.write(live(constraint=Only((7, 8))))
    assert made.sampler("uniform")[0, 0] == np.float32(uniform(4, 0))


def test_a_guided_sequence_draws_from_two_rows_and_both_take_its_tokens() -> None:
    made, found = Made(1, 1), live((1, 3), index=1, guidance=2.0, negative=(8, 9))
    made.write(found)
    names = ("positive_row", "negative_row", "row_sequence")
    assert [made.sampler(name).tolist() for name in names] == [[0, 1], [0, 3], [0, 1, 0, 1]]
    made.shared.rest(found)
    made.buffers.rest(found)
    assert [made.sampler(name).tolist() for name in names] == [[0, 0], [0, 0], [0, 0, 0, 0]]
    assert made.planner("position") == [0] * 4


def test_what_is_allowed_is_written_when_it_changes() -> None:
    made, constraint = Made(1, 1), Only((7, 7, 9))
    found = live(constraint=constraint)
    for _ in range(3):
        made.write(found)
    assert found.constraint is not None
    found.accept([7])
    made.write(found)
    assert constraint.written == [7]
    found.accept([7])
    made.write(found)
    assert constraint.written == [7, 9]
    assert np.flatnonzero(made.sampler("allowed")[0, 0]).tolist() == [9]
    made.buffers.forget(0)
    made.write(live())
    assert made.sampler("allowed")[0, 0].all()


def test_drafts_that_may_not_come_are_dropped() -> None:
    made, found = Made(5, 1, 5), live(constraint=Only((7, 8, 9)))
    found.drafts = [7, 8, 3, 3]
    made.write(found)
    assert found.drafts == [7, 8]
    assert [np.flatnonzero(row).tolist() for row in made.sampler("allowed")[0, :3]] == [[7], [8], [9]]
    found.drafts = [7, 8, 9, 1]
    made.write(found)
    assert found.drafts == [7, 8, 9]


def test_nothing_is_allowed_by_default_of_another_width() -> None:
    assert Made(1, 1).sampler("allowed").shape == (SEQUENCES, 1, VOCABULARY)
    assert Made(5, 1, 5).sampler("allowed").shape == (SEQUENCES, 5, VOCABULARY)


@pytest.mark.parametrize(("width", "steps"), [(1, 1), (1, 8), (5, 1), (5, 8)])
@pytest.mark.parametrize("is_verify", [False, True])
def test_the_vectors_fit(width: int, steps: int, is_verify: bool) -> None:
    made = Made(width, steps, width if is_verify else 1)
    assert made.vectors.used_bytes <= vectors_bytes(2 * SEQUENCES, [(width, steps)], made.spec.prefill_tokens)


def test_a_chain_feeds_what_is_forced_behind_what_it_draws() -> None:
    made, found = Made(3, 3), live((1, 2), guidance=2.0, negative=(8, 9), constraint=Song())
    made.write(found)
    assert [made.planner("tokens", step)[1][1:] for step in range(3)] == [[20, 0], [21, 22], [0, 0]]
    assert [made.planner("pick", step)[1] for step in range(3)] == [[[1]], [[2]], [[0]]]
    assert [made.planner("position", step)[1:3] for step in range(3)] == [[2, 1], [4, 3], [7, 6]]
    drawn_places = (1, 4, 5)
    numbers = [made.sampler("uniform", step)[0, 0] for step in range(3)]
    assert numbers == [np.float32(uniform(4, place)) for place in drawn_places]
    assert found.accept([3, 4, 5]) == [20, 3, 21, 22, 4, 5]
    assert (found.count, found.num_used) == (6, 3)


def test_a_chain_copies_what_it_has_drawn_to_every_row_s_next_token() -> None:
    made = Made(3, 2)
    made.write(live((1,), constraint=Song()))
    made.sampler("row_tokens")[:, 0] = [10, 11, 12, 13]
    feed = _FeedDrawn(made.device, made.buffers._row_tokens[0], made.buffers._tokens[1].tensor, 4, 3)
    feed.launch(made.device.main)
    assert made.planner("tokens", 1) == [[10, 0, 0], [11, 21, 22], [12, 0, 0], [13, 0, 0]]


def test_forced_tokens_that_do_not_come_end_a_chain() -> None:
    made, found = Made(3, 3), live(constraint=Song())
    made.write(found)
    assert isinstance(found.constraint, Song)
    found.constraint.order = (20, None, None, 22, 22, None)
    assert found.accept([3, 4, 5]) == [20, 3]
    assert (found.count, found.num_used) == (2, 1)


def test_the_last_token_of_all_is_drawn() -> None:
    made, found = Made(5, 2), live(constraint=Song(order=(None, 21, 22)))
    made.write(found)
    assert found.accept([3, 22]) == [3, 21, 22]
    assert found.has_ended


def test_without_speculation_every_token_is_drawn() -> None:
    made, found = Made(3, 2), live(constraint=Song(), speculates=False)
    made.write(found)
    assert [made.planner("pick", step)[0] for step in range(2)] == [[[0]], [[0]]]
    assert found.forced_runs(4, 8, np.zeros(VOCABULARY, np.bool_)) == [0, 0, 0, 0]


def test_how_many_tokens_are_forced_behind_each_draw() -> None:
    found, scratch = live(constraint=Song()), np.zeros(VOCABULARY, np.bool_)
    assert found.forced_runs(3, 8, scratch) == [1, 2, 0]
    assert found.forced_runs(3, 1, scratch) == [1, 1, 0]
    assert live().forced_runs(2, 8, scratch) == [0, 0]
    assert found.count == 0


def test_the_graph_has_these_tensors_and_no_others() -> None:
    graph = sampler_graph(50, 8).graph
    for declared, found in ((SAMPLER_INPUTS, graph.input), (SAMPLER_OUTPUTS, graph.output)):
        assert {value.name for value in found} == declared.keys()
        for value in found:
            kind, letters = value.type.tensor_type, declared[value.name].letters
            assert helper.tensor_dtype_to_np_dtype(kind.elem_type).name == declared[value.name].dtype
            expected = [50 if letter == "V" else letter for letter in letters]
            assert [dim.dim_param or dim.dim_value for dim in kind.shape.dim] == expected
    onnx.checker.check_model(sampler_graph(50, 8), full_check=True)
