"""[structure]: what a bundle says of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_bundle
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle


def test_a_bundle_names_graphs_tensors_and_codes(tmp_path: Path) -> None:
    structure = load_bundle(tiny_bundle(tmp_path, structure=True)).structure
    assert structure is not None
    assert (structure.frames_per_code, structure.num_codes) == (FRAMES_PER_CODE, NUM_CODES)
    assert (structure.encode.inputs.latents, structure.decode.outputs.hints) == ("latents", "hints")
    assert [structure.num_codes_of(frames) for frames in (1, 3, 4)] == [1, 1, 2]
    assert [structure.codes_per_piece(frames) for frames in (1, 3, 32)] == [1, 1, 10]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("frames_per_code = 3", "frames_per_code = 0", "structure.frames_per_code: expected at least 1"),
        ('outputs = { codes = "codes" }', "outputs = {}", "structure.encode.outputs.codes"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tiny_bundle(tmp_path, structure=True) / "bundle.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_bundle(tmp_path)


def test_structure_needs_a_context(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[structure\] needs \[context\]"):
        load_bundle(tiny_bundle(tmp_path, structure=True, context=False))
