"""Tiny checkpoints and their bundles: small in stable-audio-tools' layout, medium in diffusers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_exports import TinyExports
from helpers.tiny_stable_audio_3 import SIZES, bundled_parts


@pytest.fixture(scope="session", params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def bundle(tiny: TinyExports, size: str) -> Path:
    return tiny.stable_audio_bundle(size)


@pytest.fixture(scope="session")
def parts(size: str) -> dict[str, Any]:
    """The modules of the checkpoint that the bundle is of, with its features of time and length.

    Small's are with the norms of the authors' code.
    """
    from engine_build.export.stable_audio_3.decoder import reduce_angles

    found = bundled_parts(size)
    reduce_angles(found["transformer"], found["duration_embedder"])
    return found
