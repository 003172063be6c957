"""Bundles of tiny checkpoints, made once: small in stable-audio-tools' layout, medium in diffusers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_stable_audio_3 import SIZES, save_checkpoint, save_own_checkpoint, tiny_parts

CANVAS_S = 9.0


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By size; a canvas of 9 s."""
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    from engine_build.export.bundle_export import ExportOptions
    from engine_build.export.stable_audio_3.export import export_bundle
    from engine_build.export.stable_audio_3.sources import Checkpoint

    folder = tmp_path_factory.mktemp("stable_audio_3")
    checkpoints = {
        "small": save_own_checkpoint(folder / "Tiny_Small", "small"),
        "medium": save_checkpoint(folder / "Tiny_Medium", "medium", distilled=False),
    }
    for size, checkpoint in checkpoints.items():
        options = ExportOptions(f"tiny-{size}", canvas_s=CANVAS_S)
        export_bundle(Checkpoint(checkpoint), folder / size, options, lambda text: None)
    return {size: folder / size for size in SIZES}


@pytest.fixture(scope="session", params=["small", "medium"])
def size(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def bundle(bundles: dict[str, Path], size: str) -> Path:
    return bundles[size]


@pytest.fixture(scope="session")
def parts(size: str) -> dict[str, Any]:
    """The modules of the checkpoint that the bundle is of, with its features of time and length.

    Small's are with the norms of the authors' code.
    """
    from engine_build.export.stable_audio_3.decoder import reduce_angles

    found = tiny_parts(size)
    reduce_angles(found["transformer"], found["duration_embedder"])
    if size == "small":
        for name, module in found["transformer"].named_modules():
            if name.rpartition(".")[2] in ("pre_norm", "cross_attend_norm", "ff_norm"):
                module.eps = 1e-5
    return found
