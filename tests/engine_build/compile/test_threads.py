"""How many threads the decoder takes: decided by times that the tests give, and measured of a real engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from helpers.building import build_engine
from helpers.factories import tiny_deployment

from engine_build.compile import verify as threads
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.compile.verify import ThreadTime, choose_threads
from engine_build.request import load_request
from runtime.devices.machine import num_cores, num_physical_cores
from runtime.engines.manifest import THREADS, Manifest


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({2: ThreadTime(0.010, 0.020), 4: ThreadTime(0.010, 0.040)}, 2),
        ({2: ThreadTime(0.010, 0.020), 4: ThreadTime(0.0095, 0.036)}, 2),
        ({2: ThreadTime(0.010, 0.020), 4: ThreadTime(0.006, 0.024)}, 4),
        ({4: ThreadTime(0.010, 0.020), 2: ThreadTime(0.011, 0.020)}, 2),
    ],
)
def test_threads_beside_others_on_a_core_are_used_where_they_save_a_tenth(
    times: dict[int, ThreadTime], chosen: int
) -> None:
    facts = choose_threads(tuple(times), times.__getitem__)
    assert facts[THREADS] == chosen
    assert facts["thread_times_ms"][str(chosen)] == pytest.approx([1e3 * seconds for seconds in times[chosen]])


def test_a_busy_machine_slows_all_numbers_and_the_best_round_of_each_counts() -> None:
    asked = Counter[int]()

    def time_execute(count: int) -> ThreadTime:
        asked[count] += 1
        wall_s = 0.006 if count == 4 else 0.010
        return ThreadTime(wall_s if asked[count] == 3 else 0.2 + wall_s * count, 0.02)

    facts = choose_threads((2, 4), time_execute)
    assert facts[THREADS] == 4
    assert asked[2] == asked[4] >= 3


def built(path: Path) -> Manifest:
    """The manifest of a deployment's decoder for the CPU, built now."""
    request, environment = load_request(path), build_environment("cpu", load_request(path).options)
    folder = request.deployment.engine_folder("cpu")
    with locked(folder):
        decisions = {item.spec.name: item for item in check_rebuilds(request, "cpu", environment=environment)}
        return build_engine(decisions["decoder"], request, folder, environment)


def test_a_decoder_is_measured_where_two_virtual_cores_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_deployment(tmp_path, more='[build]\nstep_variants = ["plain"]\n')
    assert THREADS not in built(path).facts or num_physical_cores() < num_cores()
    monkeypatch.setattr(threads, "num_physical_cores", lambda: 1)
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    facts = built(path).facts
    assert facts[THREADS] in (1, 2)
    assert sorted(facts["thread_times_ms"]) == ["1", "2"]
    assert all(milliseconds > 0 for times in facts["thread_times_ms"].values() for milliseconds in times)
