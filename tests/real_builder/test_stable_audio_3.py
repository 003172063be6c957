"""TensorRT-RTX's real builder builds what is exported from Stable Audio 3: every part, and the published widths."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.tiny_exports import TinyExports, export_bundle
from helpers.tiny_stable_audio_3 import SIZES
from real_builder.judge import decisions_of, judge, need_builder

pytestmark = [pytest.mark.builder, pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

PARTS = ("decoder", "decoder.adapters", "codec_decode", "codec_encode", "text_encoder")
TINY = """[deployment]
bundle = "{}"
[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = 2, opt = 26, max = 98 }}
tokens = {{ min = 1, opt = 32, max = 257 }}
[runtime]
depth = 4
adapter_rank = 8
[build]
step_variants = ["sde"]
"""


@pytest.fixture(scope="module", autouse=True)
def _builder() -> None:
    need_builder(with_torch=True)


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def tiny(size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deployment of a tiny bundle with every part."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.toml"
    path.write_text(TINY.format(TinyExports.of_this_code().stable_audio_bundle(size)), encoding="utf-8")
    return path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_part_builds(tiny: Path, precision: str) -> None:
    request, decisions = decisions_of(tiny, precision)
    assert precision != "fp32" or {item.spec.name for item in decisions} >= set(PARTS)
    for decision in decisions:
        judge(request, decision)


@pytest.fixture(scope="module")
def published(size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published deployment, with two layers: what fails at these widths fails with any number of them."""
    from engine_build.export.stable_audio_3.sources import RandomStableAudio

    folder = tmp_path_factory.mktemp("published")
    deployment = ROOT / "configs" / f"stable-audio-3-{size}.toml"
    source = RandomStableAudio.of_layers(size, 0, layers=2)
    export_bundle(source, folder / deployment.stem, name="sa", canvas_s=120.0)
    path = folder / deployment.name
    path.write_text(deployment.read_text(encoding="utf-8"), encoding="utf-8")
    return path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_published_widths_build_with_all_shape_ranges(published: Path, precision: str) -> None:
    request, decisions = decisions_of(published, precision)
    assert precision != "fp32" or {"decoder", "codec_decode", "codec_encode"} <= {item.spec.name for item in decisions}
    for decision in decisions:
        judge(request, decision)


@pytest.fixture(scope="module")
def published_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment whose text encoder has the published size; its decoder and codec have two layers."""
    from engine_build.export.stable_audio_3.sources import RandomStableAudio

    folder = tmp_path_factory.mktemp("text")
    source = RandomStableAudio.of_layers("small", 0, layers=2, text_changes={})
    export_bundle(source, folder / "bundle", name="sa", canvas_s=2.4)
    (folder / "text.toml").write_text(TINY.format("bundle").replace("adapter_rank = 8\n", ""), encoding="utf-8")
    return folder / "text.toml"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_text_encoder_builds_at_its_published_size(published_text: Path, precision: str) -> None:
    request, decisions = decisions_of(published_text, precision)
    (decision,) = (item for item in decisions if item.spec.name == "text_encoder")
    verdict = judge(request, decision)
    assert verdict.graph_mb > 281e6 * (4 if precision == "fp32" else 2) / 1e6
