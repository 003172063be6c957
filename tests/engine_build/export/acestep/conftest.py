"""Tiny checkpoints and their bundles, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tiny_acestep import save_checkpoint


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with everything, that wants guidance."""
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    return save_checkpoint(tmp_path_factory.mktemp("base") / "Tiny_Base")


@pytest.fixture(scope="session")
def bundle(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, with a canvas of 2.4 s."""
    from engine_build.export.acestep.export import export_bundle
    from engine_build.export.acestep.sources import Checkpoint
    from engine_build.export.bundle_export import ExportOptions

    folder = tmp_path_factory.mktemp("bundle") / "base"
    source = Checkpoint(base)
    export_bundle(source, folder, ExportOptions("tiny-base", canvas_s=2.4), lambda text: None)
    return folder
