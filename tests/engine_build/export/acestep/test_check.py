"""A check of ACE-Step: tiny checkpoints in both layouts pass, other weights do not, and the report tells no names."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.export_command import export
from helpers.tiny_acestep import SAMPLE_RATE_HZ, save_checkpoint, save_own_checkpoint

from runtime.base.errors import ConfigError

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

SECONDS = 2.4


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from engine_build.export.parity import CheckOptions

    folder = tmp_path_factory.mktemp("check") / "Out of Jane"
    folder.mkdir()
    return CheckOptions(folder, SECONDS)


@pytest.fixture(scope="module")
def checked(base: Path, options: Any) -> Any:
    """The report of a checkpoint in ACE-Step's own layout, XL's in that its condition encoder is narrower."""
    from engine_build.export.acestep.check import check_checkpoint
    from engine_build.export.acestep.sources import Checkpoint

    own = save_own_checkpoint(base, options.out / "Weights of Jane")
    return check_checkpoint(Checkpoint(own), options, lambda text: None)


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
    from engine_build.export.acestep import check as module
    from engine_build.export.acestep.sources import Checkpoint
    from engine_build.export.parity import Asked, compare
    from runtime.config.bundle import load_bundle

    class Changed(Checkpoint):
        def load(self, part: str) -> Any:
            found = super().load(part)
            if part == "transformer":
                found.layers[1].mlp.down_proj.weight.data.mul_(1.1)
            return found

    bundle = load_bundle(options.out / "bundle")

    class Facts:
        canvas_frames, channels = bundle.latents.canvas_frames, bundle.latents.channels
        frame_rate_hz = bundle.latents.frame_rate_hz

    reference = module._reference(Changed(base), Facts, 7.0)  # type: ignore[arg-type]
    asked = Asked(module.PROMPT, module.TEXT, {"steps": module.STEPS, "shift": module.SHIFT, "guidance": 7.0})
    checks, _ = compare(options.deployment.read_text(), options, asked, reference, lambda text: None)
    results = {check.name: check.result for check in checks}
    assert results["latents equal diffusers' pipeline"] == "fail"
    assert results["audio in windows equals the whole in torch"] == "pass"
    silent = replace(reference, audio=np.zeros_like(reference.audio))
    checks, _ = compare(options.deployment.read_text(), options, asked, silent, lambda text: None)
    assert next(each for each in checks if each.name.startswith("audio in windows")).result == "fail"


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("condition_encoder", r"has no condition_encoder, which a check needs"),
        ("tokenizer", r"has no tokenizer, which a check needs"),
        ("vae", r"vae.*config\.json is missing"),
    ],
)
def test_an_incomplete_checkpoint_is_named(base: Path, tmp_path: Path, options: Any, part: str, says: str) -> None:
    from engine_build.export.acestep.check import check_checkpoint
    from engine_build.export.acestep.sources import Checkpoint

    folder = Path(shutil.copytree(base, tmp_path / "c"))
    shutil.rmtree(folder / part)
    with pytest.raises(ConfigError, match=says):
        check_checkpoint(Checkpoint(folder), replace(options, out=tmp_path / "out"), lambda text: None)


def test_the_command_prints_json_and_writes_the_report(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "Tiny", turbo=True)
    done = export(
        "acestep", "check", "--checkpoint", "Tiny", "--out", "found", "--seconds", "1", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (content["family"], content["counts"]["fail"]) == ("ACE-Step v1.5", 0)
    assert content["model"]["kind"] == "turbo, without guidance"
    assert json.loads((tmp_path / "found" / "report.json").read_text()) == content
    assert (tmp_path / "found" / "report.md").read_text().startswith("# TickRT: a check of ACE-Step v1.5")
    assert soundfile.info(tmp_path / "found" / "sound.wav").frames == SAMPLE_RATE_HZ
    assert "Tiny" not in done.stdout
