"""Bundles: what a good one gives, and what a bad one is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from factories import tiny_bundle

from runtime.errors import ConfigError
from runtime.spec import load_bundle


def spoiled(folder: Path, old: str, new: str) -> Path:
    tiny_bundle(folder)
    path = folder / "bundle.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return folder


def test_a_bundle_says_its_layout(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path, channels=8))
    assert bundle.context_channels == 16
    assert bundle.silence().shape == (8,)
    assert bundle.latents.round_up(31) == 32
    assert bundle.graph_path(bundle.decoder.graph).is_file()


def test_without_context_silence_is_zero(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path, context=False))
    assert bundle.context_channels == 0
    assert not np.any(bundle.silence())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version.*found 2"),
        ('family = "flow"', 'family = "gan"', "family"),
        ("channels = 8", "channels = 0", "latents.channels"),
        ("channels = 8", "channels = 7", "context.silence has 8 values, latents.channels is 7"),
        ("frame_multiple", "frame_multiples", "frame_multiples.*not permitted"),
        ("hop_samples = 320", "hop_samples = 300", "sample_rate_hz is 8000, expected hop_samples 300 times"),
        ("[codec]", "[codec", "is not TOML"),
        ('velocity = "velocity"', "", "decoder.outputs.velocity: Field required"),
    ],
)
def test_a_bad_bundle_names_file_key_and_expectation(old: str, new: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"bundle\.toml.*{says}"):
        load_bundle(spoiled(tmp_path, old, new))


def test_context_needs_its_input_and_the_other_way_round(tmp_path: Path) -> None:
    tiny_bundle(tmp_path)
    path = tmp_path / "bundle.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("context = ")]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="go together"):
        load_bundle(tmp_path)


def test_a_folder_without_a_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a bundle: it has no bundle\.toml"):
        load_bundle(tmp_path)
