"""The C library's heap: what is freed goes back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import os
from contextlib import suppress

import psutil
import pytest

from server.service import service
from server.service.service import keep_heap_small

MIB = 2**20
GLIBC = os.name == "posix" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def rss_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_what_is_freed_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TRIM_S", 0.0)
    blocks = [b"x" * 100_000 for _ in range(1000)]
    last = blocks[-1]  # above all others: without a trim they stay
    del blocks[:]
    before = rss_mib()

    async def trim() -> None:
        task = asyncio.create_task(keep_heap_small())
        for _ in range(200):
            await asyncio.sleep(0.005)
            if before - rss_mib() > 50:
                break
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(trim())
    assert before - rss_mib() > 50
    assert len(last) == 100_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    asyncio.run(asyncio.wait_for(keep_heap_small(), 1.0))
