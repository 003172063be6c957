"""librosa compiles functions and keeps them on disk; processes that write there at once break them (numba crashes)."""

import atexit
import os
from tempfile import TemporaryDirectory

CACHE = TemporaryDirectory(prefix="numba-")
atexit.register(CACHE.cleanup)
os.environ["NUMBA_CACHE_DIR"] = CACHE.name  # read when numba is imported, which is later
