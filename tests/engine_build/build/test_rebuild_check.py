"""The options that decide whether an engine is reused."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment

from engine_build.build import rebuild_check as decisions
from engine_build.build.engine_specs import EngineSpec, engine_specs
from engine_build.build.rebuild_check import build_options
from engine_build.config import load_request
from runtime.config.deployment import Target


@pytest.fixture
def options(tmp_path: Path) -> tuple[dict[str, EngineSpec], object]:
    request = load_request(tiny_deployment(tmp_path, more='[build]\nprecision = "bf16"\n'))
    return {spec.name: spec for spec in engine_specs(request)}, request.options


@pytest.mark.parametrize("target", ["cuda", "tensorrt"])
def test_a_new_recipe_version_makes_engines_stale(
    target: Target, options: tuple[dict[str, EngineSpec], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs, chosen = options
    before = {name: build_options(spec, target, chosen) for name, spec in specs.items()}  # type: ignore[arg-type]
    monkeypatch.setattr(decisions, "RECIPE_VERSION", 99)
    after = {name: build_options(spec, target, chosen) for name, spec in specs.items()}  # type: ignore[arg-type]
    changed = {name for name in specs if before[name] != after[name]}
    assert changed == {"decoder", "text_encoder"}
