"""Every technique can be switched off alone: the work that it saves is done again, and the latents are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import Built, Loops, resized
from helpers.backends import CPU, REAL, SIMULATED, Backend
from helpers.generations import FEATURES, GUIDED, Inbox, make, run_all
from simulator.fixture import Machine

from profiling.bench.slow_parts import (
    BATCHED_STEP,
    EVENT_WAIT,
    FROZEN_CONDITIONS,
    TECHNIQUES,
    ExecutionSequence,
    parts_without,
)
from profiling.bench.workload import with_runtime
from runtime.devices.device import Stream, Tensor
from runtime.engines.launch_cache import LaunchCache
from runtime.tick.denoise.bucket import FASTEST, DenoiseParts
from runtime.tick.denoise.row_buffers import RowBuffers
from runtime.tick.denoise.slot_state import SlotState
from runtime.tick.denoise.step_binding import StepBinding
from runtime.tick.loop.tick_loop import TickLoop

OFF: dict[str, Any] = {
    "fused_guidance": False, EVENT_WAIT: False, "capture": False, BATCHED_STEP: False, FROZEN_CONDITIONS: False,
    "ticks_in_flight": 1,
}  # fmt: skip
CAPTURED, PLAIN = SIMULATED[:2]
# Lines of 16 frames are no multiple of 256 bytes in any field but the latents.
NAMES = ("plain", "guided_all", "rcfg_initialize", "two_conditions", "two_negatives", "everything", "dcw_double", "sde")


@pytest.fixture(params=[CPU, CAPTURED, *REAL], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


@pytest.fixture
def made(loops: Loops, built: Built, backend: Backend) -> Callable[..., TickLoop]:
    """`made(batched_step=False)`: a loop of this backend without that technique."""

    def open_loop(**changes: Any) -> TickLoop:
        deployment = resized(built(max_rows=16, backend=backend), 8, 16)
        without = changes.keys() & set(TECHNIQUES)
        switched = {name: value for name, value in changes.items() if name not in without}
        return loops(with_runtime(deployment, **switched), parts=parts_without(without))

    return open_loop


def requests() -> list[Any]:
    """Eight generations of all kinds, long enough for their ticks to be captured."""
    return [make(name, **{"steps": 9 + index, **FEATURES[name]}) for index, name in enumerate(NAMES)]


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, Any]]:
    """By backend the latents with every technique."""
    return {}


@pytest.fixture
def expected(known: dict[str, dict[str, Any]], made: Callable[..., TickLoop], backend: Backend) -> dict[str, Any]:
    """By name the latents with every technique, made once for all switches; copied, as they outlive the device."""
    if str(backend) not in known:
        inbox = run_all(made(), *requests())
        known[str(backend)] = {name: inbox.latents(name).copy() for name in NAMES}
    return known[str(backend)]


@pytest.mark.parametrize("switch", OFF)
def test_latents_are_the_same_without_it(switch: str, made: Callable[..., TickLoop], expected: dict[str, Any]) -> None:
    found = run_all(made(**{switch: OFF[switch]}), *requests())
    for name in NAMES:
        np.testing.assert_allclose(found.latents(name), expected[name], atol=2e-5, err_msg=name)


def test_latents_are_the_same_without_any(made: Callable[..., TickLoop], expected: dict[str, Any]) -> None:
    found = run_all(made(**OFF), *requests())
    for name in NAMES:
        np.testing.assert_allclose(found.latents(name), expected[name], atol=2e-5, err_msg=name)


def steady(loop: TickLoop, depth: int = 4) -> None:
    """Guided generations in every slot, after enough ticks that launches are captured."""
    for index in range(depth):
        loop.submit(make(f"{index}", steps=60, **GUIDED), Inbox())
    for _ in range(10):
        assert loop.tick() is not None


def counted(loop: TickLoop, machine: Machine, ticks: int = 4) -> dict[str, float]:
    """What the simulated GPU did per tick."""
    before, enqueues = machine.counters.copy(), machine.struck["enqueue_false_at"]
    for _ in range(ticks):
        loop.tick()
    done = machine.counters - before
    per_tick = {name: done[name] / ticks for name in ("host_waits", "graph_launches")}
    return {**per_tick, "enqueues": (machine.struck["enqueue_false_at"] - enqueues) / ticks}


@pytest.mark.parametrize("backend", [PLAIN], ids=str, indirect=True)
def test_without_batched_step_there_is_an_execute_per_slot(made: Callable[..., TickLoop], machine: Machine) -> None:
    batched, apart = made(), made(batched_step=False)
    for loop in (batched, apart):
        steady(loop)
    assert counted(apart, machine)["enqueues"] - counted(batched, machine)["enqueues"] == 8 - 1


@pytest.mark.parametrize("backend", [PLAIN], ids=str, indirect=True)
def test_without_event_wait_the_host_waits_after_each_execute(made: Callable[..., TickLoop], machine: Machine) -> None:
    loop = made(event_wait=False)
    steady(loop)
    found = counted(loop, machine)
    assert found["host_waits"] >= found["enqueues"] == 3
    assert counted_waits(made(), machine) == 1


@pytest.mark.parametrize("backend", [CAPTURED], ids=str, indirect=True)
def test_without_event_wait_the_host_waits_after_each_graph(made: Callable[..., TickLoop], machine: Machine) -> None:
    loop = made(event_wait=False)
    steady(loop)
    found = counted(loop, machine)
    assert (found["graph_launches"], found["enqueues"], found["host_waits"]) == (1, 0, 1)
    assert counted_waits(made(), machine) == 1


def counted_waits(loop: TickLoop, machine: Machine) -> float:
    steady(loop)
    return counted(loop, machine)["host_waits"]


@pytest.mark.parametrize("backend", [CAPTURED, PLAIN], ids=str, indirect=True)
def test_without_frozen_conditions_they_are_uploaded_at_every_tick(
    made: Callable[..., TickLoop], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, rewritten = made(), made(frozen_conditions=False)
    for loop in (frozen, rewritten):
        steady(loop)
    assert uploaded(frozen, monkeypatch)["condition"] == 0
    assert uploaded(rewritten, monkeypatch)["condition"] == 2 * 8  # the tokens and the padding of each row


def uploaded(loop: TickLoop, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Uploads in one tick into the rows' conditions, and of all kinds."""
    ((_, bucket),) = loop._ticks._denoise._buckets.items()
    memory = bucket._rows.condition.owner
    seen = {"condition": 0, "all": 0}
    upload = loop.device.upload

    def count(target: Tensor, source: Any, stream: Stream) -> None:
        seen["all"] += 1
        seen["condition"] += target.owner is memory
        upload(target, source, stream)

    with monkeypatch.context() as patched:
        patched.setattr(loop.device, "upload", count)
        loop.tick()
    assert seen["all"] > 0
    return seen


def test_with_every_technique_the_parts_are_the_plain_classes() -> None:
    assert parts_without(()) == FASTEST == DenoiseParts(LaunchCache, SlotState, RowBuffers, StepBinding)


@pytest.mark.parametrize(
    ("technique", "names"),
    [(BATCHED_STEP, {"state", "step"}), (FROZEN_CONDITIONS, {"rows"}), (EVENT_WAIT, {"launches"})],
)
def test_without_a_technique_there_are_other_parts(technique: str, names: set[str]) -> None:
    slow = parts_without({technique})
    other = {each.name for each in fields(slow) if getattr(slow, each.name) is not getattr(FASTEST, each.name)}
    assert other == names
    assert all(issubclass(getattr(slow, name), getattr(FASTEST, name)) for name in names)


def test_executes_that_count_as_one_are_ready_once_all_are_and_none_is_left_out() -> None:
    done: list[tuple[str, int]] = []

    def execution(number: int, ready: bool) -> Any:
        note = lambda name: lambda *stream: (done.append((name, number)), ready)[1]  # noqa: E731
        return SimpleNamespace(**{name: note(name) for name in ("prepare", "launch", "warm_up", "release")})

    stream = cast(Stream, None)
    for ready in (False, True):
        sequence = ExecutionSequence([execution(0, True), execution(1, ready), execution(2, True)])
        assert sequence.prepare(stream) is ready
    assert done == [("prepare", number) for number in (0, 1, 2)] * 2, "each prepares, also behind one that is not ready"
    done.clear()
    sequence.warm_up(stream)
    sequence.launch(stream)
    sequence.release()
    assert done == [(name, number) for name in ("warm_up", "launch", "release") for number in (0, 1, 2)]
