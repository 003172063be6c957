"""The heap of the C library, from which arrays, encoders and ONNX Runtime have their memory."""

from __future__ import annotations

import asyncio
import ctypes
import os

from starlette.concurrency import run_in_threadpool

# A parameter of glibc's mallopt.
M_ARENA_MAX = -8
ARENAS = 2
TRIM_S = 10.0


async def keep_heap_small() -> None:
    """Give what is freed back to the system, until cancelled. Does nothing where the C library is not glibc.

    By default glibc makes an arena for each thread, up to eight for a core, and each keeps the most that was ever used.
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(M_ARENA_MAX, ARENAS)
    while True:
        await asyncio.sleep(TRIM_S)
        await run_in_threadpool(library.malloc_trim, 0)  # milliseconds, in which Python's threads run
