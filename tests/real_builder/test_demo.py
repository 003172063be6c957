"""TensorRT-RTX's real builder builds the demo's engines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.building import build_engine
from helpers.paths import DEMO
from real_builder.judge import build_once, decisions_of, judge, need_builder

from engine_build.compile.environment import build_environment
from engine_build.compile.worker import BuildLog, CompileRequest, OnLog, Task, Worker
from runtime.base.errors import BuildError

ENGINES = 31
PRECISIONS = ("fp32", "fp16", "bf16", "fp8")


@pytest.mark.builder
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_engine_builds(precision: str) -> None:
    """The decoder for adapters in float32 alone: that of tiny models is built in all precisions; int8 is below."""
    need_builder()
    request, decisions = decisions_of(DEMO, precision)
    assert len(decisions) >= {"fp32": ENGINES, "fp8": 2}.get(precision, 8)
    for decision in decisions:
        if decision.spec.name == "decoder.adapters" and precision != "fp32":
            continue
        assert not [line for line in judge(request, decision).warnings if "changes nothing" in line]


@pytest.mark.builder
def test_a_portable_decoder_in_int8_has_its_error_and_what_is_not_in_8_bits_in_its_manifest(tmp_path: Path) -> None:
    need_builder()
    request, decisions = decisions_of(DEMO, "int8")
    environment = build_environment("tensorrt-rtx", request.options)
    manifest = build_engine(decisions[0], request, tmp_path, environment)
    assert (manifest.name, manifest.target, manifest.build["precision"]) == ("decoder", "tensorrt-rtx", "int8")
    assert 0.005 < manifest.error["recipe_rms_rel"] < 0.08
    assert 0.6 < manifest.error["recipe_low_work"] < 0.95
    kept = manifest.facts["not_in_8_bits"]
    assert "node_convolution" in kept, "the last projection"
    assert all(error > 0 for error in kept.values())
    assert len(kept) < 20


def build_attention_as_it_is(request: CompileRequest, cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Task: as tasks.compile_engine, but attention may not be decomposed."""
    from engine_build.compile.tasks import compile_engine
    from runtime.engines.tensorrt.binding import bind

    bind(request.target)
    from engine_build.compile import tensorrt_compiler

    tensorrt_compiler._let_attention_decompose = lambda network: None
    return compile_engine(request, cancelled, on_log)


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
