"""bundle.toml and the first deployment: what is written can be read. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_build.export.acestep.bundle_text import TRACKS, BundleFacts, bundle_text, deployment_text
from engine_build.request import check_ranges, read_options
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import load_deployment
from runtime.config.sampler import DcwSpec
from runtime.engines.engine import variant_name
from runtime.requests.request import Dcw

FACTS = BundleFacts(
    name="acestep",
    description='Says "something".\nOn two lines.',
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
    silence=tuple(float(value) for value in np.linspace(-1, 1, 64, dtype=np.float32)),
    has_null_condition=False,
)
TEXT = {"template": '# "Caption"\n{prompt}\t\\ {seconds}<|end|>\n', "max_tokens": 256, "prefix_tokens": 12}


def written(folder: Path, facts: BundleFacts) -> Bundle:
    (folder / "bundle.toml").write_text(bundle_text(facts), encoding="utf-8")
    return load_bundle(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    lyrics = {"template": "# Languages\n{language}\n\n# Lyric\n{lyrics}", "max_tokens": 2048}
    text = {**TEXT, "template": TEXT["template"] + "{instruction}", "instructions": {"extract": ["a {track}", "a"]}}
    facts = replace(FACTS, text_encoder=text, lyrics=lyrics, timbre={"frames": 750}, figures={"layers": 24})
    bundle = written(tmp_path, facts)
    assert bundle.description == FACTS.description
    assert bundle.text_encoder is not None
    assert bundle.text_encoder.template == text["template"]
    assert bundle.text_encoder.instructions == {"extract": ("a {track}", "a")}
    assert bundle.text_encoder.lyrics is not None
    assert bundle.text_encoder.lyrics.template == lyrics["template"]
    assert list(bundle.condition_graphs) == ["text_encoder", "lyric_encoder", "timbre_encoder"]
    assert np.array_equal(bundle.silence(1)[0], np.array(FACTS.silence, np.float32))
    assert bundle.training == {"layers": 24}
    assert (bundle.sampler.steps, bundle.sampler.shift, bundle.sampler.guidance) == (8, 3.0, 1.0)
    assert bundle.sampler.dcw == DcwSpec(mode="double", low=0.05, high=0.02)
    assert bundle.stems is None
    base = written(tmp_path, replace(facts, is_turbo=False, knows_tracks=True))
    assert (base.sampler.steps, base.sampler.shift, base.sampler.guidance) == (50, 1.0, 7.0)
    assert base.sampler.dcw == DcwSpec()
    assert base.stems is not None
    assert base.stems.tracks == TRACKS
    assert written(tmp_path, replace(facts, is_turbo=False)).stems is None
    assert written(tmp_path, replace(FACTS, is_turbo=False, knows_tracks=True)).stems is None


@pytest.mark.parametrize("is_turbo", [True, False])
def test_what_requests_without_options_need_has_step_graphs_of_its_own(tmp_path: Path, is_turbo: bool) -> None:
    facts = replace(FACTS, is_turbo=is_turbo)
    sampler = written(tmp_path, facts).sampler
    path = tmp_path / "deployment.toml"
    path.write_text(deployment_text(facts, tmp_path, path), encoding="utf-8")
    variants = read_options(load_deployment(path)).step_variants
    usual = {"dcw": not Dcw(**sampler.dcw.model_dump()).is_neutral, "guidance": sampler.guidance != 1.0}
    assert variant_name(frozenset(name for name, is_used in usual.items() if is_used)) in variants
    assert is_turbo == ("dcw" in variants)


def test_margins_and_windows_are_multiples(tmp_path: Path) -> None:
    codec = written(tmp_path, FACTS).codec
    assert codec is not None
    assert codec.encode is not None
    assert (codec.decode.margin_frames, codec.encode.margin_frames) == (10, 8)
    assert codec.decode.window_frames % 2 == codec.encode.window_frames % 2 == 0


@pytest.mark.parametrize(("canvas", "overlap"), [(6000, 250), (1500, 250), (100, 24), (2, 2)])
def test_the_overlap_fits_the_canvas(canvas: int, overlap: int) -> None:
    assert replace(FACTS, canvas_s=canvas / 25.0).overlap_frames == overlap


def test_arrays_are_named_where_there_are_files(tmp_path: Path) -> None:
    np.save(tmp_path / "silence.npy", np.ones((9, 64), np.float32))
    np.save(tmp_path / "null_condition.npy", np.ones((1, 5), np.float32))
    bundle = written(tmp_path, replace(FACTS, silence=None, has_null_condition=True))
    assert bundle.silence(20).shape == (20, 64)
    assert bundle.null_condition() is not None


@pytest.mark.parametrize("text_encoder", [None, TEXT])
def test_the_first_deployment_fits_its_bundle(tmp_path: Path, text_encoder: dict[str, object] | None) -> None:
    facts = replace(FACTS, canvas_s=60.0, text_encoder=text_encoder)
    folder = tmp_path / "models" / "acestep"
    folder.mkdir(parents=True)
    bundle = written(folder, facts)
    path = tmp_path / "deployments" / "try.toml"
    path.parent.mkdir()
    path.write_text(deployment_text(facts, folder, path))
    deployment = load_deployment(path)
    assert deployment.bundle == folder
    check_ranges(deployment, bundle)
    read_options(deployment)
    if bundle.text_encoder is not None:
        assert deployment.max_tokens >= bundle.text_encoder.max_tokens + bundle.text_encoder.prefix_tokens


def test_controls_without_metadata_are_said_in_the_caption(tmp_path: Path) -> None:
    assert not written(tmp_path, FACTS).controls.given
    said = written(tmp_path, replace(FACTS, text_encoder=TEXT)).controls
    assert "bpm" not in said.given
    with_bpm = {**TEXT, "template": "{prompt} {bpm} {key}"}
    values = {"bpm": 90, "scale": "C major", "mute_drums": True}
    controls = written(tmp_path, replace(FACTS, text_encoder=with_bpm)).controls
    assert controls.heard(values) == (["without drums"], {"bpm": 90, "key": "C major"})
