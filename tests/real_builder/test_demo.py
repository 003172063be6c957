"""TensorRT-RTX's real builder builds the demo's engines. Those that are tried on every run are planner and decoder."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import DEMO
from real_builder.judge import build_once, decisions_of, judge, need_builder

from engine_build.build.worker import BuildLog, OnLog, PlanRequest, Task, Worker
from runtime.errors import BuildError

ENGINES = 31
PRECISIONS = ("fp32", "fp16", "bf16")


@pytest.mark.parametrize("name", ["planner", "decoder"])
def test_planner_and_decoder_build(name: str) -> None:
    need_builder()
    request, decisions = decisions_of(DEMO, "fp32")
    verdict = judge(request, next(item for item in decisions if item.spec.name == name))
    assert verdict.engine_mb > 1.0


@pytest.mark.builder
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_engine_builds(precision: str) -> None:
    need_builder()
    request, decisions = decisions_of(DEMO, precision)
    assert len(decisions) == ENGINES if precision == "fp32" else len(decisions) >= 8
    for decision in decisions:
        assert not [line for line in judge(request, decision).warnings if "changes nothing" in line]


def build_attention_as_it_is(request: PlanRequest, cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Task: as tasks.build_plan, but attention may not be decomposed."""
    from engine_build.build.tasks import build_plan
    from runtime.engines.tensorrt.binding import bind

    bind(request.target)
    from engine_build.build import tensorrt_compiler

    tensorrt_compiler._let_attention_decompose = lambda network: None
    return build_plan(request, cancelled, on_log)


class Unchanged(Worker):
    """A worker that builds attention as the parser leaves it."""

    def run(self, task: Task, request: Any, log: BuildLog) -> Any:
        return super().run(build_attention_as_it_is, request, log)


@pytest.mark.builder
def test_attention_in_float32_is_refused_where_it_may_not_be_decomposed(tmp_path: Path) -> None:
    """The negative control: what the compiler sets on attention is what lets the planner build."""
    need_builder()
    request, decisions = decisions_of(DEMO, "fp32")
    planner = next(item for item in decisions if item.spec.name == "planner")
    with Unchanged() as worker, pytest.raises(BuildError, match="could not build") as caught:
        build_once(request, planner, planner.spec.graph, tmp_path / "plan", worker, BuildLog())
    assert "is_decomposable" in caught.value.what
    assert "driver" not in caught.value.what
