"""Arrays that are lent out and come back by themselves: finished latents leave the tick without an allocation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Lease:
    """The base of a lent array and of every view of it; gives the memory back when the last of them is gone."""

    __slots__ = ("_home", "_memory")

    def __init__(self, memory: NDArray[np.float32], home: deque[NDArray[np.float32]]) -> None:
        self._memory = memory
        self._home = home

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._home.append(self._memory)


class ArrayPool:
    """Lends float32 arrays of one shape, made by `make`. `allocations` counts how often the pool had to grow."""

    def __init__(self, make: Callable[[], NDArray[np.float32]], count: int) -> None:
        self._make = make
        self._free: deque[NDArray[np.float32]] = deque(make() for _ in range(count))
        self.allocations = count

    def lend(self) -> NDArray[np.float32]:
        """An array whose content is undefined; it belongs to the receiver until nobody refers to it."""
        try:
            memory = self._free.popleft()
        except IndexError:
            self.allocations += 1
            memory = self._make()
        return np.asarray(_Lease(memory, self._free))
