"""What tests of clusters need: programs that are installed, a folder with a short path."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.scale.cli import is_installed
from server.scale.ray_cluster import Applied

APPLIED = Applied("/configs/demo.toml", "demo", "http://127.0.0.1:8000", "127.0.0.1:6379", (2, 2), 0)


def needs_programs(*names: str) -> pytest.MarkDecorator:
    """Skips a test where one of these programs is not installed."""
    missing = [name for name in names if not is_installed(name)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} (apt-get install)")


@contextmanager
def short_folder() -> Iterator[Path]:
    """A temporary folder with a short path, for Unix sockets; deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
