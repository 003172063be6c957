"""What governs whether an engine may be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment

from engine_build.build import rebuild_check as decisions
from engine_build.build.engine_specs import Job, jobs_of
from engine_build.build.rebuild_check import build_options
from engine_build.config import load_request
from runtime.config.deployment import Target


@pytest.fixture
def options(tmp_path: Path) -> tuple[dict[str, Job], object]:
    request = load_request(tiny_deployment(tmp_path, more='[build]\nprecision = "bf16"\n'))
    return {job.name: job for job in jobs_of(request)}, request.options


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_a_new_recipe_makes_engines_of_the_old_one_stale(
    target: Target, options: tuple[dict[str, Job], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, chosen = options
    before = {name: build_options(job, target, chosen) for name, job in jobs.items()}  # type: ignore[arg-type]
    monkeypatch.setattr(decisions, "RECIPE_VERSION", 99)
    after = {name: build_options(job, target, chosen) for name, job in jobs.items()}  # type: ignore[arg-type]
    changed = {name for name in jobs if before[name] != after[name]}
    assert changed == {"decoder", "text_encoder"}
