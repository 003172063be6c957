"""TensorRT-RTX's real builder builds the family that engine_build/README.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.family_walk import Walk
from real_builder.judge import decisions_of, judge, need_builder

pytestmark = [pytest.mark.builder, pytest.mark.export]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_builder(with_torch=True)
    return Walk(tmp_path_factory.mktemp("walk")).export()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_shown_family_builds(deployment: Path, precision: str) -> None:
    request, decisions = decisions_of(deployment, precision)
    decoders = [item for item in decisions if item.spec.name == "decoder"]
    assert decoders
    for decision in decoders:
        judge(request, decision)
