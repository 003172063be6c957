"""What bundles of published checkpoints say, against what their authors recommend, and against our documentation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

from engine_build.export.acestep import bundle_text as acestep
from engine_build.export.stable_audio_3 import bundle_text as stable_audio_3
from runtime.config.bundle import Bundle, load_bundle

DOCUMENT = ROOT / "configs/docs/pages/model.md"
SIZES: dict[str, Any] = {
    "description": "",
    "frame_rate_hz": 25.0,
    "frame_multiple": 2,
    "canvas_s": 60.0,
    "sample_rate_hz": 48_000,
    "audio_channels": 2,
    "hop_samples": 1920,
    "decode_margin_frames": 10,
    "encode_margin_frames": 8,
    "has_null_condition": False,
}


@dataclass(frozen=True)
class Authors:
    """What the authors of a checkpoint write.

    ACE-Step-1.5: README.md, the model zoo (steps, guidance, tasks); docs/en/INFERENCE.md (guidance 7, shift 3 for
    turbo, 1 for others, method ode); acestep/handler.py (256 and 2048 tokens); pull request 1273 (DCW of turbo alone).
    stable-audio-3: docs/workflows/inference.md (steps 8 and 50, guidance 1 and 7); stable_audio_3/inference/sampling.py
    (ping-pong of distilled checkpoints, else Euler); stable_audio_3/inference/distribution_shift.py (log-SNR, -6.2 to
    2); optimized/tensorRT/scripts/sa3_trt_core.py (256 tokens).
    """

    steps: int
    solver: str
    shift: float | None
    guidance: float
    has_dcw: bool
    tokens: tuple[int, ...]
    has_tracks: bool

    def row(self) -> list[str]:
        """The cells of the documentation."""
        shift = "log-SNR" if self.shift is None else f"{self.shift:g}"
        tokens = ", ".join(map(str, self.tokens))
        said = {True: "yes", False: "no"}
        dcw, tracks = said[self.has_dcw], said[self.has_tracks]
        return [str(self.steps), self.solver, shift, f"{self.guidance:g}", dcw, tokens, tracks]


TURBO = Authors(8, "ode", 3.0, 1.0, True, (256, 2048), False)
BASE = Authors(50, "ode", 1.0, 7.0, False, (256, 2048), True)
SFT = Authors(50, "ode", 1.0, 7.0, False, (256, 2048), False)
DISTILLED = Authors(8, "sde", None, 1.0, False, (256,), False)
UNDISTILLED = Authors(50, "ode", None, 7.0, False, (256,), False)
ACESTEP = {
    "acestep-v15-turbo": TURBO,
    "acestep-v15-xl-turbo": TURBO,
    "acestep-v15-base": BASE,
    "acestep-v15-xl-base": BASE,
    "acestep-v15-sft": SFT,
    "acestep-v15-xl-sft": SFT,
    "acestep-v15-base-sft-fix-inst": SFT,
}
ROWS = {
    "ACE-Step v1.5 turbo, XL turbo": TURBO,
    "ACE-Step v1.5 base, XL base": BASE,
    "ACE-Step v1.5 sft, XL sft": SFT,
    "Stable Audio 3 small-music, small-sfx, medium": DISTILLED,
    "Stable Audio 3 small-music-base, small-sfx-base, medium-base": UNDISTILLED,
}


def facts_of(bundle: Bundle) -> Authors:
    """What requests have that name nothing."""
    sampler, text = bundle.sampler, bundle.text_encoder
    assert text is not None
    return Authors(
        sampler.steps,
        sampler.solver,
        sampler.shift if sampler.schedule is None else None,
        sampler.guidance,
        sampler.dcw.mode is not None and bool(sampler.dcw.low or sampler.dcw.high),
        (text.max_tokens, *([] if text.lyrics is None else [text.lyrics.max_tokens])),
        bundle.stems is not None,
    )


@pytest.mark.parametrize("name", ACESTEP)
def test_an_acestep_has_its_authors_defaults(tmp_path: Path, name: str) -> None:
    config = {"is_turbo": "turbo" in name}
    text = {"template": "{prompt}{instruction}", "prefix_tokens": 0, "instructions": {"extract": ["a {track}", "a"]}}
    facts = acestep.BundleFacts(
        name=name,
        channels=64,
        silence=(0.0,) * 64,
        is_turbo=config["is_turbo"],
        knows_tracks=acestep.knows_tracks(config, name),
        text_encoder={**text, "max_tokens": acestep.MAX_TEXT_TOKENS},
        lyrics={"template": "{lyrics}", "max_tokens": acestep.MAX_LYRIC_TOKENS},
        **SIZES,
    )
    (tmp_path / "bundle.toml").write_text(acestep.bundle_text(facts))
    assert facts_of(load_bundle(tmp_path)) == ACESTEP[name]


@pytest.mark.parametrize("is_distilled", [True, False])
def test_a_stable_audio_3_has_its_authors_defaults(tmp_path: Path, is_distilled: bool) -> None:
    facts = stable_audio_3.BundleFacts(
        name="small-music",
        channels=256,
        tokens=(1, 257),
        is_distilled=is_distilled,
        logsnr=(-6.2, 2.0),
        text_encoder={"max_tokens": stable_audio_3.MAX_TOKENS},
        **SIZES,
    )
    np.save(tmp_path / "silence.npy", np.zeros((1, 256), np.float32))
    (tmp_path / "bundle.toml").write_text(stable_audio_3.bundle_text(facts))
    bundle = load_bundle(tmp_path)
    assert facts_of(bundle) == (DISTILLED if is_distilled else UNDISTILLED)
    schedule = bundle.sampler.schedule
    assert schedule is not None
    assert (schedule.kind, schedule.start, schedule.end) == ("logsnr", -6.2, 2.0)


def test_the_documentation_says_the_same() -> None:
    lines = [line.strip("| \n").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    table = {cells[0]: cells[1:] for cells in lines}
    assert {name: table[name] for name in ROWS} == {name: facts.row() for name, facts in ROWS.items()}
