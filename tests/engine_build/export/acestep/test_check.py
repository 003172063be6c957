"""A check of ACE-Step: tiny checkpoints in both layouts pass, other weights do not, and the report tells no names."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.tiny_acestep import SAMPLE_RATE_HZ, save_own_checkpoint

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from engine_build.export.acestep.check import AceStepCheck  # noqa: E402
from engine_build.export.acestep.sources import AceStepCheckpoint  # noqa: E402
from engine_build.export.parity import MANY_STEPS, NEAR_SHARE, CheckOptions, calibrated, compare  # noqa: E402

SECONDS = 2.4


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("check") / "Out of Jane"
    folder.mkdir()
    return CheckOptions(folder, SECONDS)


@pytest.fixture(scope="module")
def checked(base: Path, options: Any) -> Any:
    """The report of a checkpoint in ACE-Step's own layout, XL's in that its condition encoder is narrower."""
    own = save_own_checkpoint(base, options.out / "Weights of Jane")
    return AceStepCheck(AceStepCheckpoint(own), options, str).report()


def test_every_check_passes_on_the_checkpoint_s_own_bundle(checked: Any) -> None:
    assert {check.name: check.result for check in checked.checks} == {
        "the decoder's graph equals its module": "pass",
        "latents equal diffusers' pipeline": "pass",
        "a generation is the same beside another": "pass",
        "audio in windows equals the whole in torch": "pass",
        "there is sound": "pass",
    }
    figures = {check.name: check.figure for check in checked.checks}
    assert figures["latents equal diffusers' pipeline"] < 1e-4
    assert checked.model["checkpoint"] == "in ACE-Step's own layout"
    assert checked.model["decoder"].endswith("M parameters, 3 layers of 32")
    times = {figure.name: figure.figure for figure in checked.figures if figure.unit == "s"}
    assert len(times) == 6
    assert all(value > 0.0 for value in times.values())


def test_what_diffusers_leaves_out_of_xl_is_measured(checked: Any) -> None:
    (figure,) = (each for each in checked.figures if each.name.startswith("XL: "))
    assert figure.figure > 0.1


def test_steps_that_can_be_left_out_are_found_and_named(checked: Any, options: Any) -> None:
    steps = load_bundle(options.out / "bundle").sampler.steps
    (figure,) = calibrated(options, ["piano"])
    sampler = load_bundle(options.out / "bundle").sampler
    assert steps == sampler.steps >= MANY_STEPS
    assert figure.figure > 1.0
    kept = sampler.kept[steps]
    assert kept[0] == 0
    assert len(kept) < NEAR_SHARE * steps
    turbo = replace(options, out=options.out / "turbo")
    shutil.copytree(options.out / "bundle", turbo.out / "bundle")
    path = turbo.out / "bundle/bundle.toml"
    path.write_text(path.read_text().replace(f"steps = {steps}", "steps = 8"))
    shutil.copy(options.deployment, turbo.deployment)
    assert calibrated(turbo) == []


def test_the_sound_is_a_file_of_its_own(checked: Any, options: Any) -> None:
    pcm, rate_hz = soundfile.read(options.out / "sound.wav")
    assert (rate_hz, pcm.shape) == (SAMPLE_RATE_HZ, (round(SECONDS * SAMPLE_RATE_HZ), 2))
    assert np.abs(pcm).max() > 0.01


def test_the_report_tells_no_names_and_no_paths(checked: Any, options: Any) -> None:
    text = checked.markdown() + json.dumps(checked.as_json())
    for name in ("Jane", "/tmp", str(options.out), str(Path.home()), "acestep-v15-base"):
        assert name not in text


def test_other_weights_fail(checked: Any, base: Path, options: Any) -> None:
    """diffusers' pipeline with one matrix changed, against the same bundle."""

    class Changed(AceStepCheckpoint):
        def load(self, part: str) -> Any:
            found = super().load(part)
            if part == "transformer":
                found.layers[1].mlp.down_proj.weight.data.mul_(1.1)
            return found

    latents = load_bundle(options.out / "bundle").latents
    sizes = {"canvas_frames": latents.canvas_frames, "channels": latents.channels}
    facts: Any = SimpleNamespace(**sizes, frame_rate_hz=latents.frame_rate_hz, is_turbo=False)
    check = AceStepCheck(Changed(base), options)
    reference, asked = check.reference(facts), check.asked(facts)
    checks, _ = compare(options.deployment.read_text(), options, asked, reference, str)
    results = {check.name: check.result for check in checks}
    assert results["latents equal diffusers' pipeline"] == "fail"
    assert results["audio in windows equals the whole in torch"] == "pass"
    silent = replace(reference, audio=np.zeros_like(reference.audio))
    checks, _ = compare(options.deployment.read_text(), options, asked, silent, str)
    assert next(each for each in checks if each.name.startswith("audio in windows")).result == "fail"


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("condition_encoder", r"has no condition_encoder, which a check needs"),
        ("tokenizer", r"has no tokenizer, which a check needs"),
    ],
)
def test_an_incomplete_checkpoint_is_named(base: Path, tmp_path: Path, options: Any, part: str, says: str) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "c"))
    shutil.rmtree(folder / part)
    with pytest.raises(ConfigError, match=says):
        AceStepCheck(AceStepCheckpoint(folder), replace(options, out=tmp_path / "out"), str).report()
