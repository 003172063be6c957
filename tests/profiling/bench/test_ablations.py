"""The matrix: every technique off alone, timed between ticks that have it, with the same latents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Built, resized
from helpers.backends import CPU, SIMULATED, Backend
from rich.console import Console

from profiling.bench import ablations as matrix
from profiling.bench.ablations import (
    EVERYTHING,
    ON,
    TECHNIQUES,
    Samples,
    Worth,
    measure_worth,
    print_worth,
    report_worth,
    time_in_turns,
)
from profiling.bench.session import Rig, opened
from profiling.bench.steady_stream import SteadyStream
from profiling.bench.workload import Workload
from runtime.config.deployment import RuntimeConfig
from runtime.errors import EngineError

LOAD = Workload(depth=2, frames=32, steps=4, guidance=3.0)


@pytest.fixture(params=[CPU, *SIMULATED[:1]], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted


@pytest.fixture
def rig(built: Built, backend: Backend, machine: object) -> Iterator[Rig]:
    with opened(resized(built(max_rows=16, backend=backend), 4, 8)) as found:
        yield found


def test_every_switch_of_the_runtime_is_in_it() -> None:
    config = RuntimeConfig()
    assert {name: getattr(config, name) for name in ON} == ON
    assert EVERYTHING.off.keys() == ON.keys() == {name for each in TECHNIQUES for name in each.off}
    assert all(len(each.off) == 1 and each.off.items() - ON.items() for each in TECHNIQUES)
    switches = {name for name, field in RuntimeConfig.model_fields.items() if field.annotation is bool}
    assert switches <= ON.keys()


def test_the_whole_matrix(rig: Rig, backend: Backend) -> None:
    found = measure_worth(rig, LOAD, ticks=3)
    assert [worth.technique for worth in found] == [*TECHNIQUES, EVERYTHING]
    assert all(worth.difference <= 2e-5 for worth in found)
    assert all(min(worth.samples.without_ms) > 0.0 for worth in found)
    card = report_worth(found, rig, LOAD)
    assert card["kind"] == "matrix"
    assert card["techniques"] == dict(ON)
    idle = {name for name, entry in card["techniques_off"].items() if entry["idle_because"]}
    assert idle == ({"event wait", "captured graph", "2 ticks in flight"} if backend.target == "cpu" else set())
    text = shown(card, 80)
    assert "…" not in text
    assert all(worth.technique.name in text and worth.technique.instead in text for worth in found)
    assert ("the CPU runs every launch to its end" in shown(card, 200)) == (backend.target == "cpu")


def shown(card: dict[str, Any], width: int) -> str:
    console = Console(width=width, record=True)
    print_worth(console, card)
    return console.export_text()


def test_nothing_to_fuse_and_nothing_to_batch_are_said() -> None:
    reasons = [each.is_idle_because("tensorrt", Workload(1, 32, 4), captures=False) for each in TECHNIQUES]
    assert [reason.split()[0] if reason else "" for reason in reasons] == ["nothing", "", "no", "one", "", ""]
    guided = [each.is_idle_because("tensorrt", LOAD, captures=True) for each in (*TECHNIQUES, EVERYTHING)]
    assert set(guided) == {""}


class Scripted:
    """A stream whose ticks take what the script says."""

    def __init__(self, times_ms: list[float], log: list[str], name: str) -> None:
        self.times_ms, self.log, self.name = iter(times_ms), log, name

    def time_ticks(self, records: list[object], block: int) -> float:
        self.log.append(f"{self.name} {block}")
        return next(self.times_ms)


def test_each_sample_is_between_two_of_the_base() -> None:
    log: list[str] = []
    base: SteadyStream = Scripted([1, 2, 3], log, "base")  # type: ignore[assignment]
    other: SteadyStream = Scripted([10, 11], log, "other")  # type: ignore[assignment]
    found = time_in_turns(base, other, ticks=7, block=4)
    assert log == ["base 4", "other 4", "base 4", "other 4", "base 4"]
    assert (found.before_ms, found.without_ms, found.after_ms) == ([1, 2], [10, 11], [2, 3])


def test_what_a_technique_saves_survives_a_machine_that_slows_down() -> None:
    speed = np.linspace(1.0, 5.0, 21)
    samples = Samples(list(10.0 * speed[1::2]), list(8.0 * speed[:-1:2]), list(8.0 * speed[2::2]))
    assert samples.ratio.median == pytest.approx(1.25, rel=0.02)
    assert samples.saved_ms == pytest.approx(2.0 * 3.0, rel=0.1)


def test_other_latents_are_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    play = SteadyStream.play

    def spoiled(stream: SteadyStream, *arguments: object) -> list[np.ndarray]:
        found = play(stream)
        return [latents + (0.0 if stream.deployment.runtime.batched_step else 0.1) for latents in found]

    monkeypatch.setattr(SteadyStream, "play", spoiled)
    with pytest.raises(EngineError, match=r"differs by 1.00e-01 from the same one with batched step"):
        measure_worth(rig, LOAD, ticks=1)


def test_the_worth_is_a_value() -> None:
    entry = matrix._entry(Worth(TECHNIQUES[0], Samples([2.0], [1.0], [1.5]), 0.0, "one slot"))
    assert (entry["saved_ms"], entry["idle_because"]) == (0.75, "one slot")
