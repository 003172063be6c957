"""TensorRT-RTX builds tiny decoders with any names of axes, and the step graphs of every rule of guidance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from real_builder.judge import decisions_of, judge, need_builder

pytestmark = pytest.mark.builder


@pytest.mark.parametrize(
    "changes",
    [
        {"axes": ("", "", "")},
        {"axes": ("n", "n", "n")},
        {"axes": ("a", "b", "a")},
        {"axes": ("{}_n", "{}_t", "{}_l")},
        {"axes": ("adapter_rank", "rows", "slots")},
        {"jumps": True},
    ],
    ids=str,
)
def test_a_decoder_may_have_any_names_of_its_axes_and_may_jump(changes: dict[str, Any], tmp_path: Path) -> None:
    """To the builder, axes of one name are of one size."""
    need_builder()
    path = tiny_deployment(tmp_path, codec=False, text_encoder=False, adapters=True, **changes)
    path.write_text(path.read_text().replace("[runtime]", "[runtime]\nadapter_rank = 8"))
    request, decisions = decisions_of(path)
    decoders = [each for each in decisions if each.spec.kind == "decoder"]
    assert len(decoders) == 2
    for decision in decoders:
        assert judge(request, decision).engine_mb > 0


BUILD = '[build]\nstep_variants = ["plain", "guidance", "guidance+rescale", "guidance+rcfg"]\n'


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
