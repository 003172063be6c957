"""TensorRT-RTX's real builder builds what is exported from ACE-Step: every part, and the published sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.tiny_exports import TinyExports, export_bundle
from real_builder.judge import decisions_of, judge, need_builder

from engine_build.config import EIGHT_BITS

pytestmark = [pytest.mark.builder, pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

PARTS = (
    "decoder", "decoder.adapters", "codec_decode", "codec_encode", "text_encoder", "lyric_encoder", "timbre_encoder",
    "structure_encode", "structure_decode", "planner", "planner_draft", "sampler",
)  # fmt: skip
TINY = """[deployment]
bundle = "{}"
[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = 2, opt = 60, max = 60 }}
tokens = {{ min = 1, opt = 64, max = 320 }}
[runtime]
depth = 4
adapter_rank = 8
[build]
step_variants = ["plain", "guidance"]
"""
PUBLISHED = ROOT / "configs" / "acestep-v15-turbo.toml"
XL = ROOT / "configs" / "acestep-v15-xl-turbo.toml"


@pytest.fixture(scope="module", autouse=True)
def _builder() -> None:
    need_builder(with_torch=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deployment of a tiny bundle with every part."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.toml"
    path.write_text(TINY.format(TinyExports.of_this_code().acestep_planned()), encoding="utf-8")
    return path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "fp8", "int8"])
def test_every_part_builds(tiny: Path, precision: str) -> None:
    request, decisions = decisions_of(tiny, precision)
    assert precision != "fp32" or {item.spec.name for item in decisions} >= set(PARTS)
    assert len(decisions) >= (2 if precision in EIGHT_BITS else 9)
    for decision in decisions:
        judge(request, decision)


def published_deployment(path: Path, folder: Path, sizes: Mapping[str, Any]) -> Path:
    """A published deployment with two layers of these sizes: what fails at them fails with any number of layers."""
    from engine_build.export.acestep.sources import RandomAceStep

    source = RandomAceStep(transformer_changes={**sizes, "num_hidden_layers": 2})
    export_bundle(source, folder / path.stem, name="acestep", canvas_s=240.0)
    (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return folder / path.name


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published deployment, with two of 24 layers."""
    return published_deployment(PUBLISHED, tmp_path_factory.mktemp("published"), {})


def test_the_published_sizes_build_with_all_shape_ranges(published: Path) -> None:
    request, decisions = decisions_of(published)
    assert {"decoder", "codec_decode", "codec_encode"} <= {item.spec.name for item in decisions}
    for decision in decisions:
        judge(request, decision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_published_decoder_builds_in_its_other_precisions(published: Path, precision: str) -> None:
    request, decisions = decisions_of(published, precision)
    judge(request, next(item for item in decisions if item.spec.name == "decoder"))


@pytest.fixture(scope="module")
def xl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """XL's deployment, with two of 32 layers. Its codec is the same."""
    from engine_build.export.acestep.sources import XL_CONFIG

    return published_deployment(XL, tmp_path_factory.mktemp("xl"), XL_CONFIG)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_xl_s_decoder_builds_with_all_shape_ranges(xl: Path, precision: str) -> None:
    request, decisions = decisions_of(xl, precision)
    judge(request, next(item for item in decisions if item.spec.name == "decoder"))
