"""How often files are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.config import bundle


def bundle_reads(patch: pytest.MonkeyPatch) -> list[Path]:
    """The bundle.toml files that are read from now on, in order."""
    reads: list[Path] = []
    read_toml = bundle.read_toml

    def read(path: Path) -> dict[str, Any]:
        reads.append(path)
        return read_toml(path)

    patch.setattr(bundle, "read_toml", read)
    return reads
