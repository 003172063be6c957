"""NVIDIA's builder takes a decoder whose axes have any names, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from real_builder.judge import decisions_of, judge, need_builder

pytestmark = pytest.mark.builder


@pytest.mark.parametrize(
    "axes",
    [("", "", ""), ("n", "n", "n"), ("a", "b", "a"), ("{}_n", "{}_t", "{}_l"), ("adapter_rank", "rows", "slots")],
    ids=str,
)
def test_a_decoder_may_have_any_names_of_its_axes(axes: tuple[str, str, str], tmp_path: Path) -> None:
    """To the builder, axes of one name are of one size."""
    need_builder()
    path = tiny_deployment(tmp_path, codec=False, text_encoder=False, adapters=True, axes=axes)
    path.write_text(path.read_text().replace("[runtime]", "[runtime]\nadapter_rank = 8"))
    request, decisions = decisions_of(path)
    decoders = [each for each in decisions if each.spec.kind == "decoder"]
    assert len(decoders) == 2
    for decision in decoders:
        assert judge(request, decision).engine_mb > 0
