"""The target tensorrt-rtx: what the real builder is asked for, and engines that it builds without a GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from real_builder.judge import TARGET, need_builder

from engine_build.build.worker import BuildLog, OnLog, PlanRequest, Worker
from engine_build.config import RTX_CAPABILITIES, RTX_OPTIONS, BuildConfig
from runtime.engines.tensorrt.binding import bind

pytestmark = pytest.mark.builder


def configuration(options: dict[str, Any], cancelled: threading.Event, on_log: OnLog) -> dict[str, Any]:
    """Task: what the compiler sets in the builder's configuration."""
    bind(TARGET)

    from engine_build.build import tensorrt_compiler as compiler

    request = PlanRequest(TARGET, "graph", Path("graph"), Path("plan"), options, [])
    config = compiler._configured(compiler.trt.Builder(compiler.Log(on_log)), request)
    found = [config.get_compute_capability(index).name for index in range(config.num_compute_capabilities)]
    return {"capabilities": found, "flags": compiler._flag_names(config)}


@pytest.mark.parametrize("capabilities", [(), ("SM89",), RTX_CAPABILITIES])
def test_the_builder_is_asked_for_these_cards(capabilities: tuple[str, ...]) -> None:
    need_builder()
    options = BuildConfig(capabilities=capabilities).model_dump(include=set(RTX_OPTIONS))
    with Worker() as worker:
        found = worker.run(configuration, {**options, "strict_nans": False}, BuildLog())
    assert found == {"capabilities": list(capabilities), "flags": ["REQUIRE_USER_ALLOCATION"]}
