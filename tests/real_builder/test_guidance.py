"""TensorRT-RTX's real builder builds the step graphs of every rule of guidance."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from real_builder.judge import decisions_of, judge, need_builder

BUILD = '[build]\nstep_variants = ["plain", "guidance", "guidance+rescale", "guidance+rcfg"]\n'


@pytest.mark.builder
@pytest.mark.parametrize(
    "rule", ['rule = "plain"', 'rule = "plain"\nnorms = "channel"', 'norms = "all"\nparallel = 0.5']
)
def test_guided_steps_build_by_every_rule(rule: str, tmp_path: Path) -> None:
    need_builder()
    request, decisions = decisions_of(tiny_deployment(tmp_path, rule=rule, more=BUILD))
    guided = [item for item in decisions if "guidance" in item.spec.name]
    assert len(guided) == 4
    for decision in guided:
        assert judge(request, decision).engine_mb > 0
