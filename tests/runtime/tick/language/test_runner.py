"""Sequences in the tick loop: tokens as the formulas say, neighbours that do not touch each other, every exit."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from conftest import Built, Loops
from helpers.backends import CPU, FEW_VARIANTS, SIMULATED, SIMULATED_RTX, Backend
from helpers.counted_constraint import CountedConstraint
from helpers.faulty_engine import Faults, FaultyEngine
from helpers.generations import GUIDED as GUIDED_LATENTS
from helpers.generations import Inbox, make, run_all
from helpers.paths import ROOT
from helpers.tiny_planner import VOCABULARY, reference_logits, tiny_weights
from numpy.typing import NDArray

from profiling.bench.allocation_probe import AllocationProbe
from runtime.base.errors import (
    CheckpointError,
    EngineError,
    NonFiniteError,
    QueueFullError,
    RequestError,
)
from runtime.config.bundle import load_bundle
from runtime.config.deployment import RuntimeConfig
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines, settle_kernels
from runtime.tick.language.constraints import CodesConstraint
from runtime.tick.language.sequence import ENDLESS, SequenceRequest, SequenceState
from runtime.tick.language.step import DECODE_WIDTHS, StepChoice
from runtime.tick.language.step_buffers import StepBuffers
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished, Progress
from runtime.tick.loop.tick_loop import TickLoop

WEIGHTS = tiny_weights()
CAPACITY = 96
TINY = {"capacity": CAPACITY, "thinking": False}
LINEAR, RING = 0, 40  # The window: the same graph serves both.
Planned = Callable[..., TickLoop]


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist())


GUIDED = {"negative": tokens_of(9, 5), "guidance": 2.0, "temperature": 0.7}
SONG = tokens_of(3, 6)


def sequence(name: str, length: int = 20, **changes: Any) -> SequenceRequest:
    """A sequence whose prompt and seed depend on its name."""
    number = sum(map(ord, name))
    values = {"prompt": tokens_of(number, length), "max_tokens": 24, "seed": number, **changes}
    return SequenceRequest(id=name, **values)


@dataclass
class Song(CountedConstraint):
    """SONG again and again, but for every fourth token, which is free; `length` tokens."""

    @property
    def key(self) -> object:
        return "free" if self.count % 4 == 3 else SONG[self.count % len(SONG)]

    def write_allowed(self, out: NDArray[Any]) -> None:
        out[:] = self.key == "free"
        if self.key != "free":
            out[self.key] = True

    def forced(self, limit: int) -> list[int]:
        places = range(self.count, min(self.count + limit, self.length))
        free = next((place for place in places if place % 4 == 3), places.stop)
        return [SONG[place % len(SONG)] for place in range(self.count, free)]


@pytest.fixture
def planned(built: Built) -> Iterator[Planned]:
    """`planned(RING, planner_steps=3)`: a loop on a tiny bundle with a planner, closed at the end of the test.

    With `draft` the planner is its own draft graph.
    """
    closing = ExitStack()

    def open_loop(
        window: int = LINEAR, on: Backend = CPU, *, draft: bool = False, build: str = "", **runtime: Any
    ) -> TickLoop:
        closing.enter_context(on.running())
        deployment = built(planner=TINY, more=FEW_VARIANTS + build, codec=False, text_encoder=False, backend=on)
        deployment = deployment.model_copy(update={"runtime": deployment.runtime.model_copy(update=runtime)})
        bundle, device = load_bundle(deployment.bundle), open_device(on.target)
        assert bundle.planner is not None
        planner = bundle.planner.model_copy(update={"window": window})
        planner = planner.model_copy(update={"draft": planner if draft else None})
        bundle = bundle.model_copy(update={"planner": planner})
        closing.callback(device.close)
        engines = open_engines(deployment, device)
        if draft:
            assert engines.planner is not None
            engines = replace(engines, planner=replace(engines.planner, draft=engines.planner.planner))
        loop = TickLoop(engines, bundle, deployment, device)
        closing.callback(loop.close)
        return loop

    with closing:
        yield open_loop


def run(loop: TickLoop, *requests: SequenceRequest) -> Inbox:
    inbox = Inbox()
    for request in requests:
        loop.submit_sequence(request, inbox)
    finish(loop)
    return inbox


def finish(loop: TickLoop) -> int:
    """Tick until nothing is live; returns the number of executes."""
    return sum(record.executes for record in iter(loop.tick, None))


def snapshot(loop: TickLoop, name: str) -> SequenceState | None:
    """As of now, which the next tick tells: it runs, too."""
    reply = loop.snapshot(name)
    loop.tick()
    found: SequenceState | None = reply.result(0)
    return found


def assert_identical(one: SequenceState | None, other: SequenceState | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.count, one.tokens) == (other.count, other.tokens)
        for row, same in zip(one.caches[0], other.caches[0], strict=True):
            for array, expected in zip(row, same, strict=True):
                np.testing.assert_array_equal(array.view(np.uint32), expected.view(np.uint32))


def greedy(request: SequenceRequest, window: int = 0) -> list[int]:
    """The likeliest tokens, from whole sequences in float64."""
    new: list[int] = []
    while len(new) < request.max_tokens:
        logits = [reference_logits(WEIGHTS, np.array([*prompt, *new]), window)[-1] for prompt in request.prompts]
        guided = logits[-1] + request.guidance * (logits[0] - logits[-1])
        new.append(int(np.argmax(guided)))
    return new


@pytest.mark.parametrize("changes", [{}, {"length": 1}, {"length": 17}, {"length": 33}, GUIDED], ids=str)
def test_greedy_tokens_are_those_of_the_whole_sequence(changes: dict[str, Any], planned: Planned) -> None:
    request = sequence("a", **{"max_tokens": 12, **changes, "temperature": 0})
    assert run(planned(), request).latents("a").tolist() == greedy(request)


def test_a_ring_sees_the_last_window(planned: Planned) -> None:
    request = sequence("a", 70, temperature=0, max_tokens=40)
    assert run(planned(RING), request).latents("a").tolist() == greedy(request, 40)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("window", [LINEAR, RING])
def test_neighbours_join_and_leave_without_touching_a_sequence(window: int, steps: int, planned: Planned) -> None:
    """Bit-identical: tokens, and every key and value of both rows."""
    alone, shared = planned(window, planner_steps=steps), planned(window, planner_steps=steps)
    inbox, request = Inbox(), sequence("a", max_tokens=60, **GUIDED)
    alone.submit_sequence(request, inbox)
    shared.submit_sequence(request, inbox)
    alone.tick()
    shared.tick()
    for tick in range(9):
        if tick == 2:
            shared.submit_sequence(sequence("long", 40), inbox)
        if tick == 4:
            shared.submit_sequence(sequence("guided", 3, **GUIDED), inbox)
        if tick == 7:
            shared.cancel("long")
        if tick == 8:
            shared.submit_sequence(sequence("late", 33), inbox)
        assert_identical(snapshot(alone, "a"), snapshot(shared, "a"))


@pytest.mark.parametrize(("window", "count"), [(LINEAR, 58), (RING, 110)])
def test_tokens_do_not_depend_on_speculation_or_on_how_many_a_tick_draws(
    window: int, count: int, planned: Planned
) -> None:
    """Drafts from a repeated prompt and from a constraint, at a temperature, with and without guidance."""
    requests = [
        sequence("repeats", max_tokens=count, prompt=SONG * 4, temperature=0.4),
        sequence("constrained", max_tokens=count, constraint=Song(50), **GUIDED),
        sequence("free", 30, max_tokens=count),
    ]
    plain = planned(window, speculation=False)
    expected = run(plain, *requests)
    executes = []
    for changes in ({"speculation": True}, {"speculation": False, "planner_steps": 4}, {"planner_steps": 3}):
        loop = planned(window, **changes)
        inbox = Inbox()
        for request in requests:
            loop.submit_sequence(request, inbox)
        executes.append(finish(loop))
        for request in requests:
            np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))
    constrained = expected.latents("constrained")
    assert len(constrained) == 50
    assert constrained[:3].tolist() == list(SONG[:3])


def test_a_tick_counts_the_rows_and_executes_of_prompts_and_of_steps(planned: Planned) -> None:
    loop, found = planned(speculation=False), []
    loop.submit_sequence(sequence("a", 4, max_tokens=50), Inbox())
    for tick in range(9):
        if tick == 4:
            loop.submit_sequence(sequence("b", 40, max_tokens=20, **GUIDED), Inbox())
        record = loop.tick()
        assert record is not None
        found.append((record.rows, record.executes, record.slots))
    # A chunk of a prompt is one row; a guided sequence has two, which take part before its prompts are read.
    assert found == [(2, 2, 1), *[(1, 1, 1)] * 3, *[(4, 2, 2)] * 4, (3, 1, 2)]


def test_drafts_that_are_always_right_save_executes(planned: Planned) -> None:
    request = sequence("a", 1, constraint=Song(40), max_tokens=60)
    counts = []
    for speculation in (False, True):
        loop = planned(speculation=speculation)
        loop.submit_sequence(request, Inbox())
        counts.append(finish(loop))
    assert counts == [40, 10]


@pytest.mark.parametrize(("window", "count"), [(LINEAR, 58), (RING, 150)])
def test_a_draft_graph_saves_executes_and_changes_no_token(window: int, count: int, planned: Planned) -> None:
    """A draft like the planner itself is always right; a guided or constrained sequence draws otherwise."""
    requests = [
        sequence("free", 1, max_tokens=count),
        sequence("long", 20, max_tokens=count),
        sequence("guided", max_tokens=count, **GUIDED),
        sequence("constrained", constraint=Song(30), max_tokens=count),
    ]
    expected = run(planned(window, speculation=False), *requests)
    for chosen in (requests[:1], requests):
        loop, inbox = planned(window, draft=True), Inbox()
        for request in chosen:
            loop.submit_sequence(request, inbox)
        ticks = sum(1 for _ in iter(loop.tick, None))
        for request in chosen:
            np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))
        assert ticks < (count * 0.5 if len(chosen) == 1 else count)


def test_codes_come_with_the_markers_that_the_plan_gives(planned: Planned) -> None:
    found = []
    for changes in ({"speculation": False}, {"speculation": True}, {"speculation": False, "planner_steps": 4}):
        loop, inbox = planned(**changes), Inbox()
        assert loop.bundle.planner is not None
        codes = CodesConstraint(loop.bundle.planner, 12, lambda code: (270, 271) if code % 4 == 0 else (272,))
        loop.submit_sequence(sequence("a", constraint=codes, max_tokens=58), inbox)
        found.append((sum(1 for _ in iter(loop.tick, None)), inbox.latents("a").tolist()))
    (plain, tokens), (speculated, again), (chained, too) = found
    assert tokens == again == too
    assert speculated < 0.75 * plain
    assert chained - 1 == -(-len(tokens) // 4)  # behind the first of two chunks of the prompt
    assert len(tokens) == 12 * 3 + 3
    assert tokens[:2] == [270, 271]
    assert [token for token in tokens if token >= 270] == [270, 271, 272, 272, 272] * 3


def test_all_markers_of_a_code_take_one_execute_with_its_first_token(planned: Planned) -> None:
    """As a section that recalls another one is written: 4 markers and 2 tokens a code are 2 executes, not 6."""
    loop, inbox = planned(speculation=True), Inbox()
    spec = loop.bundle.planner
    assert spec is not None
    assert spec.verify_tokens == 5
    codes = CodesConstraint(spec, 10, lambda code: (270, 261 + code % 4, 266 + code % 4, 271))
    loop.submit_sequence(sequence("a", constraint=codes, max_tokens=60), inbox)
    ticks = sum(1 for _ in iter(loop.tick, None))
    assert len(inbox.latents("a")) == 60
    assert ticks <= 2 * 10 + 4


def test_the_example_of_its_page(planned: Planned) -> None:
    loop = planned()
    assert loop.bundle.planner is not None
    page = (ROOT / "configs/docs/pages/tick.md").read_text(encoding="utf-8")
    section = page.partition("## The planner's sequences")[2]
    block = section.partition("```python\n")[2].partition("```")[0]
    names = {"loop": loop, "codes": CodesConstraint(loop.bundle.planner, 4)}
    example = doctest.DocTestParser().get_doctest(block, names, "tick.md", None, None)
    assert doctest.DocTestRunner().run(example) == (0, 6)


def test_a_snapshot_continues_in_another_row_beside_others_bit_identically(planned: Planned) -> None:
    for window, draft in ((LINEAR, True), (RING, False)):
        loop, inbox = planned(window, draft=draft), Inbox()
        request = sequence("a", constraint=Song(44), max_tokens=60, **GUIDED)
        loop.submit_sequence(request, inbox)
        for _ in range(9):
            loop.tick()
        state = snapshot(loop, "a")
        assert state is not None
        finish(loop)
        other = planned(window, draft=draft)
        run(other, sequence("old", 60, max_tokens=10))
        for name in ("b", "c"):
            other.submit_sequence(sequence(name, 30), inbox)
        other.tick()
        other.submit_sequence(replace(request, id="again"), inbox, state)
        other.tick()
        finish(other)
        np.testing.assert_array_equal(inbox.latents("again"), inbox.latents("a"))
        assert state.count < len(inbox.latents("a"))


def test_a_state_that_does_not_fit_is_refused(planned: Planned) -> None:
    loop, inbox = planned(), Inbox()
    request = sequence("a", constraint=Song(50), max_tokens=50)
    loop.submit_sequence(request, inbox)
    for _ in range(5):
        loop.tick()
    state = snapshot(loop, "a")
    assert state is not None
    small = ((tuple(array[:1] for array in state.caches[0][0]),),)
    for other, changed in [
        (replace(request, max_tokens=state.count), state),
        (replace(request, constraint=None), state),
        (replace(request, **GUIDED), state),
        (request, replace(state, caches=())),
        (request, replace(state, caches=small)),
        (replace(request, constraint=CodesConstraint(loop.bundle.planner, 9)), state),
        (replace(request, constraint=CodesConstraint(loop.bundle.planner, 9)), replace(state, constraint=(0, 0, 0))),
    ]:
        with pytest.raises(CheckpointError):
            loop.submit_sequence(replace(other, id="b"), inbox, changed)
    loop.submit_sequence(replace(request, id="b"), inbox, state)
    finish(loop)
    np.testing.assert_array_equal(inbox.latents("b"), inbox.latents("a"))


def test_before_its_prompts_are_read_a_sequence_has_no_state(planned: Planned) -> None:
    loop = planned()
    loop.submit_sequence(sequence("a", 60), Inbox())
    loop.tick()
    assert snapshot(loop, "a") is None
    with pytest.raises(RequestError, match="no generation b"):
        snapshot(loop, "b")


def test_a_cancel_counts_before_the_next_tick_and_its_rows_are_taken_again(planned: Planned) -> None:
    """The cancel comes from the tick itself, when the sequence's tokens arrive."""
    loop, inbox = planned(), Inbox()
    got: list[int] = []

    def stop(tokens: Any) -> None:
        got.extend(tokens)
        if len(got) == 3:
            loop.cancel("a")

    loop.submit_sequence(sequence("a", on_tokens=stop), inbox)
    loop.submit_sequence(sequence("b"), inbox)
    finish(loop)
    assert isinstance(inbox.terminal("a"), Cancelled)
    assert len(got) == 3
    again = run(loop, sequence("b"), sequence("a"))
    np.testing.assert_array_equal(again.latents("b"), inbox.latents("b"))
    assert again.latents("a")[:3].tolist() == got


def test_a_row_that_is_not_finite_is_quarantined_alone(planned: Planned) -> None:
    expected = run(planned(), sequence("good"), sequence("next", 1))
    loop, inbox = faulty(planned(), "planner", Faults(nan_at={10: (0,)})), Inbox()
    loop.submit_sequence(sequence("bad"), inbox)
    loop.submit_sequence(sequence("good"), inbox)
    finish(loop)
    failed = inbox.terminal("bad")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NonFiniteError)
    loop.submit_sequence(sequence("next", 1), inbox)
    finish(loop)
    for name in ("good", "next"):
        np.testing.assert_array_equal(inbox.latents(name), expected.latents(name))


def test_sequences_and_generations_share_ticks_and_take_no_slots_from_each_other(planned: Planned) -> None:
    loop, inbox = planned(depth=2, queue=8), Inbox()
    latents = run_all(planned(depth=2, queue=8), make("x", **GUIDED_LATENTS), make("y")).latents("x")
    tokens = run(planned(), sequence("s0")).latents("s0")
    for index in range(6):
        loop.submit_sequence(sequence(f"s{index}"), inbox)
    for name in "xyz":
        loop.submit(make(name, **(GUIDED_LATENTS if name == "x" else {})), inbox)
    first = loop.tick()
    assert first is not None
    assert (first.slots, first.queue_depth, loop.stats().slots_active) == (6, 3, 2)
    assert first.variants[0] == "prefill"
    finish(loop)
    np.testing.assert_array_equal(inbox.latents("x"), latents)
    np.testing.assert_array_equal(inbox.latents("s0"), tokens)
    assert loop.stats().outcomes["ok"] == 9
    assert {len(inbox.latents(f"s{index}")) for index in range(6)} == {24}


@pytest.mark.parametrize("speculation", [False, True])
def test_beside_an_urgent_generation_a_tick_draws_few_tokens_and_the_same(speculation: bool, planned: Planned) -> None:
    """It has a chunk of a prompt, or decodes that draw half of planner_steps tokens of all sequences together."""
    requests = [sequence("a", 4), sequence("b", 40, constraint=Song(24)), sequence("c", 4)]
    expected = run(planned(planner_steps=8), *requests)
    loop, inbox = planned(planner_steps=8, speculation=speculation), Inbox()
    loop.submit(make("live", is_urgent=True, steps=60), inbox)
    for request in requests[:2]:
        loop.submit_sequence(request, inbox)
    found = []
    for tick in range(9):
        record = loop.tick()
        assert record is not None
        found.append((record.variants[0], record.executes - 1))  # One is the generation's.
        if tick == 5:
            loop.submit_sequence(requests[2], inbox)
    chunks = 1 + -(-39 // loop.bundle.planner.prefill_tokens)
    assert found[:chunks] == [("prefill", 1)] * chunks, "those of `a` and of `b`, without decodes"
    assert found[chunks:] == [("decode", 2)] * (6 - chunks) + [("prefill", 1)] + [("decode", 1)] * 2
    loop.cancel("live")
    finish(loop)
    for request in requests:
        np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))


TICK_S, DECODE_S = 0.14, 0.012  # Of eight rows of ACE-Step on an RTX 4090; of a planner of 1.7 B parameters beside it.
CODES_PER_S = 5


def test_beside_ticks_of_140_ms_four_sessions_are_planned_no_slower_than_they_play(planned: Planned) -> None:
    """With the defaults of a GPU, from the first token of their prompts on; the tokens stay the same."""
    counts = dict.fromkeys("abcd", 0)

    def count(name: str) -> Callable[[Sequence[int]], None]:
        return lambda tokens: counts.update({name: counts[name] + len(tokens)})

    requests = [sequence(name, 40, max_tokens=49, on_tokens=count(name)) for name in "abcd"]
    expected = run(planned(), *requests)
    counts.update(dict.fromkeys("abcd", 0))
    loop, inbox = planned(on=SIMULATED[0], depth=8), Inbox()
    from simulated_machine import machine

    for index in range(4):
        loop.submit(make(f"live{index}", is_urgent=True, steps=60), inbox)
    for request in requests:
        loop.submit_sequence(request, inbox)
    seconds = 0.0
    while seconds < 3.0:
        record = loop.tick()
        assert record is not None
        chain_s = DECODE_S * (record.executes - 1)
        assert chain_s < TICK_S, "it would be left out of the next tick, which does not wait for it"
        machine().synchronize(loop.device.beside.handle)  # it has run while the rest of the tick does
        seconds += TICK_S
    assert min(counts.values()) / CODES_PER_S >= seconds
    for index in range(4):
        loop.cancel(f"live{index}")
    finish(loop)
    for request in requests:
        np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))


def test_no_tick_waits_for_sequences_that_are_still_decoded(planned: Planned) -> None:
    expected = run(planned(), sequence("a", 4)).latents("a")
    loop, inbox = planned(on=SIMULATED[0]), Inbox()
    loop.submit(make("x", steps=30), inbox)
    loop.submit_sequence(sequence("a", 4), inbox)
    variants = list[tuple[str, ...]]()
    for _ in range(12):
        record = loop.tick()
        assert record is not None
        variants.append(record.variants[:-1])
    assert () in variants, "a tick without them, whose chain still ran"
    assert ("decode",) in variants
    finish(loop)
    np.testing.assert_array_equal(inbox.latents("a"), expected)


def test_what_was_not_finite_is_told_also_where_its_tick_was_done_before(planned: Planned) -> None:
    base = planned(on=SIMULATED[0])
    loop, inbox = faulty(base, "planner", Faults(nan_at={3: (0,)})), Inbox()
    loop.submit(make("x", steps=40), inbox)
    loop.submit_sequence(sequence("bad", 4), inbox)
    finish(loop)
    failed = inbox.terminal("bad")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NonFiniteError)
    assert np.isfinite(inbox.latents("x")).all()


def test_tokens_that_nobody_waits_for_are_drawn_in_ticks_without_generations(planned: Planned) -> None:
    awaited: set[str] = set()
    requests = [sequence(name, 4, is_awaited=lambda name=name: name in awaited) for name in "ab"]
    expected = run(planned(), *requests)
    loop, inbox = planned(speculation=False), Inbox()
    for request in requests:
        loop.submit_sequence(request, inbox)
    loop.submit(make("x", steps=8), inbox)

    def variants(ticks: int) -> list[str]:
        records = [loop.tick() for _ in range(ticks)]
        return [record.variants[0] for record in records if record is not None]

    assert variants(4)[2:] == ["plain"] * 2, "prompts alone are read"
    awaited.add("b")
    assert variants(2) == ["decode"] * 2, "of both: they share executes"
    awaited.clear()
    assert variants(4) == ["plain"] * 2 + ["decode"] * 2, "the generation has 8 steps"
    finish(loop)
    for request in requests:
        np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))


def test_what_finds_no_place_is_refused(planned: Planned, loops: Loops) -> None:
    loop = planned(planner_sequences=1, queue=1)
    for name in "ab":
        loop.submit_sequence(sequence(name), Inbox())
    with pytest.raises(QueueFullError, match="all 1 slots"):
        loop.submit_sequence(sequence("c"), Inbox())
    loop.submit(make("latents"), Inbox())
    with pytest.raises(RequestError, match="prompt has 0 tokens"):
        loop.submit_sequence(sequence("d", 0), Inbox())
    with pytest.raises(RequestError, match="has no planner"):
        loops().submit_sequence(sequence("e"), Inbox())


@pytest.mark.parametrize("on", [CPU, SIMULATED[0]], ids=["cpu", "gpu"])
@pytest.mark.parametrize("window", [LINEAR, RING])
def test_forced_tokens_that_are_fed_along_leave_the_tokens_as_they_are(
    window: int, on: Backend, planned: Planned
) -> None:
    """Beside a sequence whose prompt is still read, guided and not, to the end of the cache."""
    requests = [
        sequence("guided", constraint=Song(60), max_tokens=60, **GUIDED),
        sequence("plain", 4, constraint=Song(50), max_tokens=60),
        sequence("late", 30, max_tokens=6),
    ]
    expected = run(planned(window, speculation=False, planner_steps=1), *requests)
    loop, inbox = planned(window, on=on, planner_steps=4), Inbox()
    for request in requests:
        loop.submit_sequence(request, inbox)
    finish(loop)
    for request in requests:
        np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))


class Forced:
    """What a runner asks a sequence whose next tokens are forced, so many behind each that is drawn."""

    def __init__(self, *runs: int) -> None:
        self._runs = list(runs)

    def forced_runs(self, steps: int, most: int, scratch: object) -> list[int]:
        return [min(run, most) for run in self._runs]


def test_a_wide_decode_is_for_more_tokens_on_a_cpu_than_on_a_gpu(planned: Planned) -> None:
    """One more token in each of 12 rows costs a CPU more than the one that is forced, and a GPU next to nothing."""
    ready: Any = [Forced(1), *[Forced(0)] * 11]
    planner, runtime = planned().bundle.planner, RuntimeConfig()
    assert planner is not None
    choices = [StepChoice(planner, runtime, CAPACITY, is_on_gpu=on, has_draft=False) for on in (False, True)]
    widths = [choice.best_width(ready, [0], DECODE_WIDTHS, 1)[0] for choice in choices]
    assert widths == [1, 2]


def test_progress_counts_tokens_and_tokens_arrive_as_they_are_drawn(planned: Planned) -> None:
    loop, inbox = planned(planner_steps=2), Inbox()
    arrived: list[list[int]] = []
    loop.submit_sequence(sequence("a", max_tokens=7, on_tokens=arrived.append), inbox)
    finish(loop)
    assert [event.step for event in inbox.of("a", Progress)] == [0, 2, 4, 6]
    assert [len(tokens) for tokens in arrived] == [2, 2, 2, 1]
    assert [token for tokens in arrived for token in tokens] == inbox.latents("a").tolist()
    (done,) = inbox.of("a", Finished)
    assert (done.steps, done.latents.dtype) == (7, np.int64)


def test_a_sequence_ends_with_its_end_token(planned: Planned) -> None:
    all_tokens = run(planned(), sequence("a")).latents("a").tolist()
    end = all_tokens[10]
    found = run(planned(planner_steps=4), sequence("a", end_token=end)).latents("a").tolist()
    assert found == all_tokens[: all_tokens.index(end) + 1]


def faulty(base: TickLoop, role: str, faults: Faults) -> TickLoop:
    """The same loop with faults in one engine of its planner."""
    engines = base.engines
    assert engines.planner is not None
    planner = replace(engines.planner, **{role: FaultyEngine(getattr(engines.planner, role), faults, base.device)})
    return TickLoop(replace(engines, planner=planner), base.bundle, base.deployment, base.device)


def test_a_prompt_that_fails_ends_its_sequence_alone(planned: Planned) -> None:
    """The prompts of a and b are fed in two chunks each, and the fourth fails."""
    base = planned()
    loop, inbox = faulty(base, "planner", Faults(fail_at=frozenset({3}))), Inbox()
    for name in "ab":
        loop.submit_sequence(sequence(name), inbox)
    loop.submit(make("latents"), inbox)
    finish(loop)
    assert type(inbox.terminal("b").error) is EngineError
    inbox.latents("latents")
    np.testing.assert_array_equal(inbox.latents("a"), run(base, sequence("a")).latents("a"))
    np.testing.assert_array_equal(run(loop, sequence("b")).latents("b"), run(base, sequence("b")).latents("b"))


@pytest.mark.parametrize("role", ["planner", "sampler", "draft"])
def test_an_execute_that_fails_for_one_shape_ends_the_sequences_and_the_next_are_served(
    role: str, planned: Planned
) -> None:
    """The shape is of four rows, which are those of two sequences with guidance."""
    base = planned(draft=role == "draft")
    loop, inbox = faulty(base, role, Faults(refuses=lambda shapes: shapes["logits"][0] == 4)), Inbox()
    for request in (sequence("a", **GUIDED), sequence("b", **GUIDED)):
        loop.submit_sequence(request, inbox)
    loop.submit(make("latents"), inbox)
    finish(loop)
    assert [type(inbox.terminal(name)) for name in ("a", "b", "latents")] == [Failed, Failed, Finished]
    assert type(inbox.terminal("a").error) is EngineError
    assert loop.stats().is_alive
    np.testing.assert_array_equal(run(loop, sequence("c")).latents("c"), run(base, sequence("c")).latents("c"))


def test_swapped_engines_continue_the_sequences(planned: Planned) -> None:
    expected = run(planned(), sequence("a")).latents("a")
    loop, inbox = planned(), Inbox()
    loop.submit_sequence(sequence("a"), inbox)
    for _ in range(5):
        loop.tick()
    reply = loop.swap(open_engines(loop.deployment, loop.device))
    finish(loop)
    reply.result(0)
    np.testing.assert_array_equal(inbox.latents("a"), expected)


def rehearse(loop: TickLoop) -> None:
    done = loop.rehearse()
    loop.tick()
    done.result(0)


def test_on_rtx_the_first_sequence_has_kernels_of_its_own_after_a_rehearsal(planned: Planned) -> None:
    loop = planned(LINEAR, on=SIMULATED_RTX, draft=True, planner_steps=2)
    from simulated_machine import machine

    here = machine()
    rehearse(loop)
    settle_kernels("tensorrt-rtx")
    compiled, fallback = len(here.compiled), here.counters["fallback_executes"]
    run(loop, sequence("a", 34, constraint=Song(48), max_tokens=48))
    run(loop, sequence("b", 40, max_tokens=30))
    assert (len(here.compiled), here.counters["fallback_executes"]) == (compiled, fallback)
    assert {thread.partition("_")[0] for _, thread in here.compiled} == {"kernels"}


def test_on_rtx_no_tick_of_the_planner_compiles(planned: Planned) -> None:
    loop = planned(LINEAR, on=SIMULATED_RTX)
    from simulated_machine import machine

    here = machine()
    before = here.counters["fallback_executes"]
    for _ in range(2):
        run(loop, *(sequence(name, 34, **GUIDED) for name in "abc"))
        settle_kernels("tensorrt-rtx")
    assert here.counters["fallback_executes"] > before, "what a rehearsal would have spared"
    assert {thread.partition("_")[0] for _, thread in here.compiled} == {"kernels"}
    assert here.counters["frozen_fallbacks"] == 0


def test_a_rehearsal_changes_no_token_and_waits_for_no_sequence(planned: Planned) -> None:
    expected = run(planned(RING), sequence("a", **GUIDED))
    loop, inbox = planned(RING), Inbox()
    rehearse(loop)
    loop.submit_sequence(sequence("a", **GUIDED), inbox)
    loop.tick()
    rehearse(loop)
    finish(loop)
    np.testing.assert_array_equal(inbox.latents("a"), expected.latents("a"))


def test_on_a_gpu_decodes_and_verifies_are_replayed_with_the_same_tokens(planned: Planned) -> None:
    requests = [
        sequence("guided", **GUIDED),
        sequence("constrained", constraint=Song(40), max_tokens=58),
        sequence("long", 40, max_tokens=50),
    ]
    expected = run(planned(RING), *requests)
    loop, inbox = planned(RING, on=SIMULATED[0], planner_steps=1), Inbox()
    for request in requests:
        loop.submit_sequence(request, inbox)
    replayed = {record.variants[-1] for record in iter(loop.tick, None) if record.replayed}
    assert replayed == {"decode", "verify"}
    assert loop.launch_counts.failed == 0
    for request in requests:
        np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))


def test_on_a_gpu_caches_in_bf16_are_half_as_large_and_continue_bit_identically(planned: Planned) -> None:
    request, inbox = sequence("a", constraint=Song(44), max_tokens=60, **GUIDED), Inbox()
    loop = planned(on=SIMULATED_RTX, build='precision = "bf16"\n')
    loop.submit_sequence(request, inbox)
    for _ in range(5):
        loop.tick()
    state = snapshot(loop, "a")
    assert state is not None
    finish(loop)
    loop.submit_sequence(sequence("b", 30), inbox)
    loop.tick()
    loop.submit_sequence(replace(request, id="again"), inbox, state)
    finish(loop)
    np.testing.assert_array_equal(inbox.latents("again"), inbox.latents("a"))
    arrays = [array for row in state.caches[0] for array in row]
    assert {(array.dtype.name, array.itemsize) for array in arrays} == {("bfloat16", 2)}
    assert all(np.abs(array.astype(np.float32)).max() > 0 for array in arrays)


@pytest.mark.parametrize("draft", [False, True])
def test_random_work_is_accounted_for_exactly_and_bit_identical(draft: bool, planned: Planned) -> None:
    """Sequences, generations, cancels and resumes in random order: one terminal event each, and the same tokens."""
    random, kinds = np.random.default_rng(5), ({}, GUIDED, {"constraint": Song(33)}, {"prompt": SONG * 3})
    requests = [sequence(f"r{index}", 1 + 9 * (index % 5), max_tokens=40, **kinds[index % 4]) for index in range(16)]
    expected = run(planned(RING, queue=64), *requests)
    loop, inbox, states = planned(RING, draft=draft, planner_steps=2, queue=64), Inbox(), dict[str, SequenceState]()
    waiting, live = list(requests), list[str]()
    while waiting or loop.tick() is not None:
        if waiting and random.random() < 0.4:
            request = waiting.pop()
            live.append(loop.submit_sequence(request, inbox))
        if random.random() < 0.1:
            loop.submit(make(f"latents{len(inbox.events)}"), inbox)
        if live and random.random() < 0.1:
            loop.cancel(str(random.choice(live)))
        name = str(random.choice(live)) if live else ""
        reply = loop.snapshot(name) if name and random.random() < 0.2 else None
        loop.tick()
        if reply is not None and reply.exception(0) is None and (state := reply.result(0)) is not None:
            states[name] = state
    for request in requests:
        if isinstance(inbox.terminal(request.id), Finished):
            np.testing.assert_array_equal(inbox.latents(request.id), expected.latents(request.id))
    assert sum(loop.stats().outcomes.values()) == sum(isinstance(event, Finished | Cancelled) for event in inbox.events)
    assert loop.stats().outcomes["cancelled"] > 0
    assert states
    by_id = {request.id: replace(request, id=f"{request.id} again") for request in requests}
    again = Inbox()
    for name, state in states.items():
        loop.submit_sequence(by_id[name], again, state)
    finish(loop)
    for name in states:
        np.testing.assert_array_equal(again.latents(f"{name} again"), expected.latents(name))


def drop(event: Event) -> None:
    """Nothing keeps the results."""


def steady(loop: TickLoop, ticks: int) -> tuple[AllocationProbe, int]:
    """Sequences that verify, decode and prefill in turns, beside the flow model; the last ticks are probed."""
    probe, allocations = AllocationProbe(trace=True), 0
    endless = {"max_tokens": ENDLESS, "temperature": 0.5}
    loop.submit_sequence(sequence("a", **{**GUIDED, **endless}), drop)
    loop.submit_sequence(sequence("b", constraint=Song(ENDLESS), **endless), drop)
    variants = set()
    for tick in range(ticks):
        if tick % 6 == 0:
            loop.submit_sequence(sequence(f"c{tick}", 34, max_tokens=1), drop)
        if tick % 4 == 0:
            loop.submit(make(f"latents{tick}"), drop)
        with probe if tick >= ticks // 2 else nullcontext():
            record = loop.tick()
        assert record is not None
        if tick >= ticks // 2:
            allocations += record.allocations
            variants |= set(record.variants)
    assert {"prefill", "decode", "verify"} <= variants
    return probe, allocations


def test_a_tick_in_steady_state_allocates_nothing(planned: Planned) -> None:
    probe, allocations = steady(planned(RING), 96)
    assert (probe.sites(), allocations) == ([], 0)


def test_the_probe_sees_a_runner_that_allocates(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    download = StepBuffers.download

    def wasteful(self: StepBuffers, stream: Any) -> None:
        np.zeros(2048, np.uint8)
        download(self, stream)

    monkeypatch.setattr(StepBuffers, "download", wasteful)
    assert steady(planned(RING), 40)[0].count == 20


def test_launches_are_found_again(planned: Planned) -> None:
    loop = planned(RING)
    steady(loop, 96)
    bound = loop.launch_counts.bound
    for _ in range(20):
        loop.tick()
    assert loop.launch_counts.bound == bound
