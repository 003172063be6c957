from __future__ import annotations

import pytest
from helpers.tiny_exports import TinyExports


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyExports:
    """Tiny checkpoints and their bundles."""
    return TinyExports.of(tmp_path_factory)
