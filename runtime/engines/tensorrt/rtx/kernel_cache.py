"""The kernels that TensorRT-RTX compiled here: in memory for all contexts, and in a file for the next start."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from runtime.base.errors import StoreUnavailableError
from runtime.base.files import read_stored, set_aside
from runtime.devices.cuda_calls import Gpu, probe
from runtime.engines.manifest import write_atomically
from runtime.engines.tensorrt.engine_file import KERNELS_SUFFIX
from runtime.engines.tensorrt.errors import check_trt
from runtime.engines.tensorrt.library import library, library_version

if TYPE_CHECKING:
    import tensorrt_rtx as trt

SEAL_BYTES = 32
LOCK_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class KernelCache:
    """The kernels that all contexts share, and their file, which belongs to one release and one model of card.

    In the file a SHA-256 comes first, of release, card and kernels. What another process has added to it
    stays. Any thread.
    """

    def __init__(self, folder: Path) -> None:
        self._made_for = f"{library_version()}-{sku(probe())}"
        # Beside the engines' folder, which holds nothing but engines.
        self.path = folder.with_name(f"{folder.name}.{self._made_for}{KERNELS_SUFFIX}")
        self._cache: trt.IRuntimeCache | None = None
        # What kernels of this process and of others are put together in: contexts do not use it.
        self._both: trt.IRuntimeCache | None = None
        # Seals of this process's kernels when they were last written or read, and of the file then.
        self._saved = self._seen = b""
        # Held while the file is read or written: a thread that makes a context meanwhile waits for that.
        self._lock = threading.Lock()

    def attach(self, settings: Any) -> None:
        """Let contexts with these IRuntimeConfig settings use the cache; the first time the file is read."""
        config: trt.IRuntimeConfig = settings
        with self._lock:
            if self._cache is None:
                self._cache, self._both = config.create_runtime_cache(), config.create_runtime_cache()
                self._read(self._cache)
            attached = config.set_runtime_cache(self._cache)
        check_trt(attached, "the cache of compiled kernels cannot be used", library().logger.take)

    def save(self) -> None:
        """Write the file where kernels were added. Where it cannot be written, that is logged."""
        with self._lock:
            if self._cache is None:
                return
            own = _serialized(self._cache)
            if own is None:
                log.warning("compiled kernels are not kept for the next start: %s", library().logger.take())
                return
            if self._seal(own) == self._saved:
                return
            try:
                with self._locked():
                    kernels = self._with_those_in_the_file(own)
                    write_atomically(self.path, self._seal(kernels) + kernels)
            except (OSError, StoreUnavailableError) as error:
                log.warning("compiled kernels are not kept for the next start: %s: %s", self.path, error)
                return
            self._saved, self._seen = self._seal(own), self._seal(kernels)
        log.info("compiled kernels are kept in %s (%d bytes)", self.path, len(kernels))

    def _read(self, cache: trt.IRuntimeCache) -> None:
        try:
            with self._locked():
                seal, kernels = self._content()
                if seal == self._seal(kernels) and cache.deserialize(kernels):
                    self._saved = self._seen = seal
                elif seal:
                    self._set_aside()
        except (OSError, StoreUnavailableError) as error:
            log.warning("the compiled kernels in %s cannot be read: %s", self.path, error)

    def _with_those_in_the_file(self, own: bytes) -> bytes:
        """These kernels and those that another process has written since. The caller holds the file's lock.

        Whether the library adds what it deserializes, or replaces what it has, is not documented: with the most bytes
        are the most kernels.
        """
        seal, others = self._content()
        if seal in (b"", self._seen) or self._both is None:
            return own
        is_sound = seal == self._seal(others) and self._both.reset() and self._both.deserialize(others)
        if not (is_sound and self._both.deserialize(own)):
            self._set_aside()
            return own
        return max(own, others, _serialized(self._both) or b"", key=len)

    def _content(self) -> tuple[bytes, bytes]:
        """The file's seal and kernels; nothing where there is no file. Raises StoreUnavailableError."""
        content = read_stored(self.path) or b""
        return content[:SEAL_BYTES], content[SEAL_BYTES:]

    def _set_aside(self) -> None:
        """Rename the file, which was read. The caller holds its lock. Raises OSError."""
        reason = library().logger.take() or "the file is damaged, or belongs to another machine or release"
        what = "the compiled kernels in %s are dropped, and compiled again: %s; they are kept as %s"
        log.warning(what, self.path, reason, set_aside(self.path).name)

    def _seal(self, kernels: bytes) -> bytes:
        return hashlib.sha256(self._made_for.encode() + b"\0" + kernels).digest()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Against other processes. The lock is a separate file, because the file itself is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f"{self.path.name}.lock"), timeout=LOCK_TIMEOUT_S):
            yield


def sku(gpu: Gpu) -> str:
    """What kernels are compiled for, for file names: compute capability, name and MiB of a card."""
    name = "-".join("".join(char if char.isascii() and char.isalnum() else " " for char in gpu.name.lower()).split())
    return f"sm{gpu.compute_capability.replace('.', '')}-{name}-{gpu.memory_bytes >> 20}"


def _serialized(cache: trt.IRuntimeCache) -> bytes | None:
    """A cache's kernels; None where the library gives none."""
    found = cache.serialize()
    return None if found is None else bytes(memoryview(found))
