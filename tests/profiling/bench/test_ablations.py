"""Ablations: each optimization switched off alone, timed between ticks that have it, with the same latents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built, resized
from helpers.backends import CPU, FEW_VARIANTS, SIMULATED, Backend
from helpers.factories import tiny_deployment
from rich.console import Console

from engine_build.compile.builder import build_deployment
from profiling.bench.ablations import (
    ABLATIONS,
    ALL_OFF,
    ALL_ON,
    AblationResult,
    ablations_result,
    measure_ablations,
    measure_adapters,
    print_ablations,
    print_adapters,
)
from profiling.bench.session import BenchSession, open_bench
from profiling.bench.slow_parts import TECHNIQUES
from profiling.bench.steady_stream import Latents, SteadyStream
from profiling.bench.workload import Workload
from runtime.base.errors import ConfigError, EngineError
from runtime.config.deployment import RuntimeConfig, load_deployment
from runtime.requests.request import GenerationRequest
from runtime.tick.denoise.step_binding import StepBinding

LOAD = Workload(depth=2, frames=32, steps=4, guidance=3.0)


@pytest.fixture(params=[CPU, *SIMULATED[:1]], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted


@pytest.fixture
def session(built: Built, backend: Backend, machine: object) -> Iterator[BenchSession]:
    with open_bench(resized(built(max_rows=16, backend=backend), 4, 8)) as found:
        yield found


def test_every_switch_of_the_runtime_has_an_ablation() -> None:
    switches = {name for name, field in RuntimeConfig.model_fields.items() if field.annotation is bool}
    switches.remove("speculation")  # of the planner: tickrt-bench planner measures it
    assert switches < ALL_ON.keys()
    assert ALL_OFF.off.keys() == ALL_ON.keys() == {name for each in ABLATIONS for name in each.off}
    assert set(TECHNIQUES) == ALL_OFF.without == {name for each in ABLATIONS for name in each.without}
    assert all(len(each.off) + len(each.without) == 1 for each in ABLATIONS)
    assert not ALL_OFF.off.items() & ALL_ON.items()


def test_all_ablations_keep_the_latents_and_are_reported(session: BenchSession, backend: Backend) -> None:
    found = measure_ablations(session, LOAD, ticks=3)
    assert [each.ablation for each in found] == [*ABLATIONS, ALL_OFF]
    assert all(each.difference <= 2e-5 for each in found)
    assert all(min(each.without_ms) > 0.0 and len(each.with_ms) == len(each.without_ms) + 1 for each in found)
    result = ablations_result(found, session, LOAD)
    assert result["kind"] == "ablations"
    assert result["switches"] == ALL_ON
    idle = {name for name, entry in result["ablations"].items() if entry["no_effect_because"]}
    assert idle == ({"event wait", "captured graph", "2 ticks in flight"} if backend.target == "cpu" else set())
    text = printed(result, 80)
    assert "…" not in text
    assert all(each.ablation.name in text and each.ablation.instead in text for each in found)
    assert ("on a CPU every launch runs to its end" in printed(result)) == (backend.target == "cpu")


def printed(result: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, record=True)
    (print_adapters if "adapters" in result else print_ablations)(console, result)
    return console.export_text()


def test_ablations_without_effect_name_the_reason() -> None:
    reasons = [each.no_effect_because("tensorrt", Workload(1, 32, 4), captures=False) for each in ABLATIONS]
    assert [reason.split()[0] if reason else "" for reason in reasons] == ["guidance", "", "no", "there", "", ""]
    guided = [each.no_effect_because("tensorrt", LOAD, captures=True) for each in (*ABLATIONS, ALL_OFF)]
    assert set(guided) == {""}


def test_the_saving_is_unchanged_on_a_machine_that_slows_down() -> None:
    speed = np.linspace(1.0, 5.0, 21)
    found = AblationResult(ABLATIONS[0], list(10.0 * speed[1::2]), list(8.0 * speed[::2]), 0.0)
    assert found.ratio.median == pytest.approx(1.25, rel=0.02)
    assert found.saved_ms == pytest.approx(2.0 * 3.0, rel=0.1)


class ChangedWithoutBatchedStep(SteadyStream):
    """Its latents are others than those of the fast step."""

    def play(self, requests: list[GenerationRequest] | None = None) -> list[Latents]:
        found = super().play(requests)
        return found if self.parts.step is StepBinding else [latents + np.float32(0.1) for latents in found]


def test_other_latents_are_an_error(session: BenchSession) -> None:
    changed = replace(session, kind=ChangedWithoutBatchedStep)
    with pytest.raises(EngineError, match=r"differs by 1.00e-01 from the same one with batched step"):
        measure_ablations(changed, LOAD, ticks=1)


def test_adapters_are_timed_against_ticks_without_them(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, adapters=True, codec=False, text_encoder=False, more=FEW_VARIANTS)
    path.write_text(path.read_text().replace("queue = 8", "queue = 8\nadapter_rank = 8"))
    build_deployment(load_deployment(path))
    with open_bench(load_deployment(path)) as session:
        result = measure_adapters(session, LOAD, 2, 4)
        with pytest.raises(ConfigError, match="adapter_rank is 8"):
            measure_adapters(session, LOAD, 2, 5)
    assert list(result["adapters"]) == ["0", "1", "2"]
    assert all(entry["ratio"] > 0 for entry in result["adapters"].values())
    assert "2 adapters:" in printed(result)
    for noisy, is_told in ((("1",), True), ((), False)):
        entries = {count: {**entry, "is_noisy": count in noisy} for count, entry in result["adapters"].items()}
        assert ("machine was busy" in printed({**result, "adapters": entries})) is is_told


def test_the_largest_difference_of_all_ablations_is_printed() -> None:
    times_ms = {"instead": "it", "with_ms": {"p50": 1.0}, "without_ms": {"p50": 2.0}, "saved_ms": 1.0}
    ratio = {"ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1, "is_noisy": False, "no_effect_because": ""}
    entries = {
        name: {**times_ms, **ratio, "largest_difference": difference}
        for name, difference in (("first", 1e-7), ("second", 3e-6), ("third", 0.0))
    }
    about = {"depth": 2, "frames": 32, "variant": "v", "bundle": "b", "target": "cpu", "commit": None}
    text = printed({**about, "ablations": entries})
    assert "largest difference 3.0e-06; commit unknown" in text
    assert ("machine was busy" in text, "no effect here" in text) == (False, False)
    entries["second"] |= {"is_noisy": True, "no_effect_because": "there is one"}
    entries["third"] |= {"no_effect_because": "there is one"}
    text = printed({**about, "ablations": entries})
    assert "machine was busy" in text
    assert "second, third: no effect here, there is one." in text
