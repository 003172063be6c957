"""A check of Stable Audio 3: its eight questions are answered by weights, and bundles equal diffusers' pipeline."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.export_command import export
from helpers.tiny_stable_audio_3 import CHANNELS, SAMPLE_RATE_HZ, save_checkpoint, save_own_checkpoint

from runtime.base.errors import ConfigError, RequestError

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from engine_build.export.parity import CheckOptions, music  # noqa: E402
from engine_build.export.stable_audio_3.check import (  # noqa: E402
    NAMES,
    StableAudioCheck,
    latents_of_the_schedule,
    length_shifted,
    local_condition,
    time_features,
)
from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint  # noqa: E402

SECONDS = 4.0
PARITY = (
    "the decoder's graph equals its module",
    "latents equal diffusers' pipeline",
    "a generation is the same beside another",
    "audio in windows equals the whole in torch",
    "there is sound",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("check")


@pytest.fixture(scope="module")
def small(folder: Path) -> Any:
    """The report of a small checkpoint as published, distilled."""
    source = StableAudioCheckpoint(save_own_checkpoint(folder / "Weights of Jane", "small"))
    (folder / "Out of Jane").mkdir()
    return StableAudioCheck(source, CheckOptions(folder / "Out of Jane", SECONDS), str).report()


def test_the_bundle_equals_diffusers_pipeline(small: Any) -> None:
    results = {check.name: check for check in small.checks}
    for name in PARITY:
        assert results[name].result == "pass", results[name]
    assert results["latents equal diffusers' pipeline"].figure < 1e-4


def test_all_eight_questions_have_a_figure_and_a_limit(small: Any) -> None:
    asked = small.checks[:8]
    assert [check.name for check in asked] == list(NAMES.values())
    assert [check.name[0] for check in asked] == list("12345678")
    for check in asked:
        assert check.figure is not None, check
        assert np.isfinite(check.figure)
        assert check.detail
        assert check.limit or check.name == NAMES["norms"]  # model_config.json says which


def test_other_tokens_than_gemma_s_fail(small: Any) -> None:
    """The tiny tokenizer has one token per byte."""
    (check,) = (each for each in small.checks if each.name.startswith("6"))
    assert (check.result, check.figure) == ("fail", 1.0)
    assert "of 3 texts; a text begins without bos, the empty text has 1 tokens" in check.detail


def test_the_report_tells_no_names_and_no_paths(small: Any, folder: Path) -> None:
    text = small.markdown() + json.dumps(small.as_json())
    for name in ("Jane", "/tmp", str(folder), str(Path.home())):
        assert name not in text
    pcm, rate_hz = soundfile.read(folder / "Out of Jane" / "sound.wav")
    assert (rate_hz, len(pcm)) == (SAMPLE_RATE_HZ, round(SECONDS * SAMPLE_RATE_HZ))


def test_a_medium_checkpoint_in_diffusers_layout_by_the_command(tmp_path: Path) -> None:
    """Before distillation, and with music of its own."""
    save_checkpoint(tmp_path / "Tiny", "medium", distilled=False)
    tones = np.sin(np.arange(30_000) * 0.1)[:, None].repeat(2, axis=1) * 0.3
    soundfile.write(tmp_path / "mine.wav", tones, 22_050)
    arguments = ("stable_audio_3", "check", "--checkpoint", "Tiny", "--seconds", "3", "--audio", "mine.wav")
    done = export(*arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr  # the tiny tokenizer's tokens are not Gemma's
    lines = done.stdout.splitlines()
    assert lines[0] == "# TickRT: a check of Stable Audio 3"
    for name in PARITY:
        (line,) = (line for line in lines if line.startswith(f"| {name} |"))
        assert "| pass |" in line, line
    assert any(line.startswith("| 4 eps of norms") and "this layout does not say which" in line for line in lines)
    assert "| attention of the codec | a sliding window |" in lines
    assert "| kind | before distillation (base) |" in lines
    out = tmp_path / "stable-audio-3-check"
    assert (out / "report.md").read_text() == done.stdout
    assert "Tiny" not in done.stdout
    assert "mine" not in done.stdout


class Knowing:
    """A transformer that finds the data, if it is given what it was trained with."""

    def __init__(self, latents: Any, *, local: bool) -> None:
        self.latents, self.local = latents, local

    def condition(self) -> Any:
        return torch.zeros(1, 1, 1)

    def velocity(self, x: Any, t: Any, condition: Any) -> Any:
        return (x - self.latents) / t if self.local else x

    def velocity_without_local(self, x: Any, t: Any, condition: Any) -> Any:
        return x if self.local else (x - self.latents) / t


@pytest.fixture
def latents() -> Any:
    return torch.randn(1, 20, CHANNELS, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("local", [True, False])
def test_a_transformer_tells_which_local_condition_it_was_trained_with(latents: Any, local: bool) -> None:
    found = local_condition(Knowing(latents, local=local), latents)  # type: ignore[arg-type]
    assert found.result == ("pass" if local else "fail")
    assert (found.figure or 0.0) < 1e-3 or not local


def test_a_transformer_tells_that_time_is_not_its_log_snr(latents: Any) -> None:
    class ByLogSnr(Knowing):
        def velocity(self, x: Any, t: Any, condition: Any) -> Any:
            return super().velocity(x, torch.sigmoid(17.0 * t - 5.0), condition)

    assert time_features(Knowing(latents, local=True), latents).result == "pass"  # type: ignore[arg-type]
    assert time_features(ByLogSnr(latents, local=True), latents).result == "fail"  # type: ignore[arg-type]


@pytest.mark.parametrize("frames", [1, 256, 1292, 5000])
def test_times_by_length_are_those_of_the_tensorrt_code(frames: int) -> None:
    times = length_shifted(8, frames)
    assert (times[0], times[-1], len(times)) == (1.0, 0.0, 9)
    assert all(after < before for before, after in pairwise(times))
    mu = -(0.5 + 0.65 * (min(max(frames, 256), 4096) - 256) / 3840)
    t = 0.5
    assert times[4] == pytest.approx(1 - np.exp(mu) / (np.exp(mu) + (1 / (1 - t) - 1)))


def test_a_schedule_that_the_bundle_does_not_have_fails() -> None:
    class Source:
        notes = ("its schedule {'type': 'flux'} depends on the length: [sampler] has -6.2 to 2.0",)

    class Sampling:
        def sample(self, *_: Any, **__: Any) -> Any:
            return torch.ones(1, 20, CHANNELS)

    found = latents_of_the_schedule(Sampling(), torch.ones(1, 20, CHANNELS), None, Source())  # type: ignore[arg-type]
    assert (found.result, found.figure) == ("fail", 1.0)
    assert "depends on the length" in found.detail
    Source.notes = ()
    assert latents_of_the_schedule(Sampling(), torch.ones(1, 20, CHANNELS), None, Source()).result == "pass"  # type: ignore[arg-type]
    assert latents_of_the_schedule(Sampling(), torch.zeros(1, 20, CHANNELS), None, Source()).result == "fail"  # type: ignore[arg-type]


def test_an_incomplete_checkpoint_is_named(tmp_path: Path) -> None:
    save_own_checkpoint(tmp_path / "c" / "model", "small")
    shutil.rmtree(tmp_path / "c" / "model" / "t5gemma")
    with pytest.raises(ConfigError, match=r"has no text_encoder, tokenizer, which a check needs") as caught:
        StableAudioCheck(StableAudioCheckpoint(tmp_path / "c" / "model"), CheckOptions(tmp_path / "out"), str).report()
    assert "--text-encoder" in caught.value.fix


def test_music_that_is_none_is_refused_before_the_export(tmp_path: Path) -> None:
    (tmp_path / "mine.wav").write_text("no music")
    source = StableAudioCheckpoint(save_own_checkpoint(tmp_path / "c", "small"))
    options = CheckOptions(tmp_path / "out", audio=tmp_path / "mine.wav")
    with pytest.raises(RequestError):
        StableAudioCheck(source, options, str).report()
    assert not (tmp_path / "out").exists()


def test_a_clip_of_our_own_sounds(tmp_path: Path) -> None:
    pcm = music(CheckOptions(tmp_path), 8000, 2, 16_000)
    assert (pcm.shape, pcm.dtype) == ((16_000, 2), np.float32)
    assert 0.02 < np.sqrt(np.mean(pcm**2)) < 0.5
    assert np.abs(pcm).max() <= 1.0
    assert np.abs(pcm[:, 0] - pcm[:, 1]).max() > 0.01
