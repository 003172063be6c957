import pytest
from helpers.http_harness import serve, served, tiny

__all__ = ["serve", "served", "tiny"]


@pytest.fixture
def anyio_backend() -> str:
    """Tests that are coroutines (pytest.mark.anyio) run on asyncio."""
    return "asyncio"
