"""The ACE-Step deployment: it loads, and its ranges take what its bundle makes. Needs no bundle, no GPU."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

from engine_build.export.acestep.bundle_text import AceStepFacts
from engine_build.request import check_ranges, read_options
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options


@dataclass(frozen=True)
class Size:
    """A published deployment: attention heads, and the most rows of an execute by frames; more go into another."""

    name: str
    heads: int
    rows: dict[int, int]

    @property
    def config(self) -> Path:
        return ROOT / "configs" / f"{self.name}.toml"


SIZES = (
    Size("acestep-v15-turbo", 16, {1500: 16, 3000: 16, 6000: 8}),
    Size("acestep-v15-xl-turbo", 32, {1500: 16, 3000: 16, 6000: 4}),
)
PATCH_FRAMES = 2


@pytest.fixture(scope="module", params=SIZES, ids=[size.name for size in SIZES])
def size(request: pytest.FixtureRequest) -> Size:
    found: Size = request.param
    return found


@pytest.fixture(scope="module")
def deployment(size: Size) -> Deployment:
    return load_deployment(size.config)


@pytest.fixture(scope="module")
def bundle(size: Size, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """bundle.toml as the export writes it for the published checkpoint."""
    facts = AceStepFacts(
        name=size.name,
        description="",
        channels=64,
        frame_rate_hz=25.0,
        frame_multiple=2,
        canvas_s=240.0,
        is_turbo=True,
        sample_rate_hz=48_000,
        audio_channels=2,
        hop_samples=1920,
        decode_margin_frames=9,
        encode_margin_frames=7,
        silence=(0.0,) * 64,
        has_null_condition=False,
        text_encoder={"template": "{prompt}", "max_tokens": 256, "prefix_tokens": 13},
        lyrics={"template": "{lyrics}", "max_tokens": 2048},
    )
    folder = tmp_path_factory.mktemp("acestep")
    (folder / "bundle.toml").write_text(facts.bundle_text())
    return load_bundle(folder)


def pipeline_of(deployment: Deployment, bundle: Bundle) -> Pipeline:
    """Only what sizes depend on."""
    parts: dict[str, Any] = dict.fromkeys(part.name for part in fields(Pipeline))
    return Pipeline(**{**parts, "deployment": deployment, "bundle": bundle})


def test_the_ranges_take_what_the_bundle_makes(size: Size, deployment: Deployment, bundle: Bundle) -> None:
    check_ranges(deployment, bundle)
    assert read_options(deployment).precision == "bf16"
    assert deployment.target == "tensorrt"
    assert deployment.bundle == size.config.with_suffix("")


@pytest.mark.parametrize("seconds", [60, 120, 240])
def test_every_canvas_has_an_exact_range_for_every_tick(
    size: Size, deployment: Deployment, bundle: Bundle, seconds: int
) -> None:
    frames = seconds * 25
    assert bundle.text_encoder is not None
    assert bundle.text_encoder.lyrics is not None
    most = bundle.text_encoder.max_tokens + 1 + bundle.text_encoder.lyrics.max_tokens
    assert most == deployment.shapes[0].tokens.max
    for rows in range(1, size.rows[frames] + 1):
        for tokens in (1, 128, most):
            found = next(shape for shape in deployment.shapes if shape.holds(rows, frames, tokens))
            assert found.frames.min == found.frames.max == frames
            assert (found.rows.max == 16) == (rows > 8)


def test_ranges_do_not_overlap(size: Size, deployment: Deployment) -> None:
    for frames, most in size.rows.items():
        for rows in range(1, most + 1):
            assert sum(shape.holds(rows, frames, 100) for shape in deployment.shapes) == 1


@pytest.mark.parametrize("frames", [1500, 3000, 6000])
def test_a_full_pool_with_guidance_fills_its_executes(size: Size, deployment: Deployment, frames: int) -> None:
    limit = deployment.rows_limit(frames, 2305)
    assert limit == size.rows[frames]
    assert 2 * deployment.runtime.depth % limit == 0


def test_attention_scores_have_less_than_two_to_the_31_elements(size: Size, deployment: Deployment) -> None:
    """More, in any range, and there is no decoder at all: a plan holds all ranges."""
    for shape in deployment.shapes:
        patches = shape.frames.max // PATCH_FRAMES
        assert shape.rows.max * size.heads * max(patches, shape.tokens.max) * patches < 1 << 31


@pytest.mark.parametrize(
    ("seconds", "frames"), [(10.0, 1500), (60.0, 1500), (61.0, 3000), (121.0, 6000), (300.0, 6000), (None, 6000)]
)
def test_a_request_gets_the_shortest_canvas_that_holds_it(
    deployment: Deployment, bundle: Bundle, seconds: float | None, frames: int
) -> None:
    pipeline = pipeline_of(deployment, bundle)
    assert pipeline.lengths.generations == (1500, 3000, 6000)
    segment = pipeline.lengths.next_segment(
        0, pipeline.lengths.total_frames(parse_options({"prompt": "", "seconds": seconds}))
    )
    assert segment is not None
    assert segment.frames == frames
