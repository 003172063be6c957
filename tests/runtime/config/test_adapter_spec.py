"""[adapters] of bundle.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_bundle

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec


def test_features_of_all_matrices_and_names_of_other_trainers() -> None:
    spec = AdapterSpec(
        aliases={"o_proj": "to_out.0"},
        matrices={
            "layers.0.to_out.0": AdapterMatrix(weight="w", inputs=3, outputs=5),
            "layers.1.to_out.0": AdapterMatrix(weight="v", inputs=4, outputs=6),
        },
    )
    assert (spec.num_inputs, spec.num_outputs) == (7, 11)
    assert spec.path("layers.1.o_proj") == "layers.1.to_out.0"


def test_a_bundle_names_the_matrices_that_take_adapters(tmp_path: Path) -> None:
    folder = tiny_bundle(tmp_path / "tiny", adapters=True)
    spec = load_bundle(folder).adapters
    assert spec is not None
    assert spec.matrices["layers.0.in"] == AdapterMatrix(weight="w_in", inputs=8, outputs=16)
    (folder / "bundle.toml").write_text((folder / "bundle.toml").read_text().replace("inputs = 8,", "inputs = 0,"))
    with pytest.raises(ConfigError, match=r"adapters\.matrices"):
        load_bundle(folder)
