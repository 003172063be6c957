"""librosa compiles functions and keeps them on disk; processes that write there at once break them (numba crashes)."""

import atexit
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from conftest import made_once

CACHE = TemporaryDirectory(prefix="numba-")
atexit.register(CACHE.cleanup)
os.environ["NUMBA_CACHE_DIR"] = CACHE.name  # read when numba is imported, which is later


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One process compiles, which takes longer than these tests; each of the others copies that."""
    pytest.importorskip("librosa")
    from configs.demo.recipe.evaluation import listening

    def make(folder: Path) -> None:
        clicks = np.zeros((listening.SAMPLE_RATE_HZ * 6, 2), np.float32)
        clicks[:: listening.SAMPLE_RATE_HZ // 2] = 1.0
        for heard in (listening.tempo_bpm, listening.onset_times_s, listening.heard_layers, listening.key_of):
            heard(clicks)
        shutil.copytree(CACHE.name, folder, dirs_exist_ok=True)

    shutil.copytree(made_once(tmp_path_factory, "numba", make), CACHE.name, dirs_exist_ok=True)
