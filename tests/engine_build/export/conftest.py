from __future__ import annotations

import pytest
from helpers.tiny_exports import TinyExports


@pytest.fixture(scope="session")
def tiny() -> TinyExports:
    """Tiny checkpoints and their bundles."""
    return TinyExports.of_this_code()
