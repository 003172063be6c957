"""The lines that server/protocols/README.md shows for ACE-Step's API, on the demo: what is asked for is heard."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.compat_readme import shown
from helpers.http_harness import Served, serving
from helpers.paths import DEMO

from configs.demo.recipe.evaluation.measure import in_key_energy, is_tempo
from configs.demo.recipe.latents import levels_from_latents
from runtime.audio.decoding import read_audio
from runtime.config.deployment import load_deployment

pytestmark = [pytest.mark.clients, pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The demo, without a key."""
    with serving(load_deployment(DEMO)) as server:
        yield server


def test_the_shown_lines_play_at_the_tempo_and_in_the_key(served: Served, tmp_path: Path) -> None:
    (lines,) = shown("ACE-Step 1.5", "bash")
    written = lines.replace("localhost:8000", served.url.removeprefix("http://"))
    subprocess.run(["bash", "-ec", written], cwd=tmp_path, timeout=120, check=True)
    codec = served.pipeline.codec
    assert codec is not None
    pcm = read_audio(tmp_path / "techno.wav", codec.sample_rate_hz, codec.channels, 10.0)
    levels = levels_from_latents(codec.encode(pcm))
    assert is_tempo(levels, 120, "4/4")
    assert in_key_energy(levels, 0, "major") > 0.9
