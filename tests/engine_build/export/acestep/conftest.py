"""The tiny checkpoint and its bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tiny_exports import TinyExports


@pytest.fixture(scope="session")
def base(tiny: TinyExports) -> Path:
    return tiny.acestep()


@pytest.fixture(scope="session")
def bundle(tiny: TinyExports) -> Path:
    return tiny.acestep_bundle()
