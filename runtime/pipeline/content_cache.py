"""A cache of results by the content that they are made from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class ContentCache(Generic[T]):
    """Keeps the `entries` results used last. Any thread may call it; one result is made at a time."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        # Held while a result is made: other callers wait until it is there, also for other keys.
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of a key; what `make` returns where there is none. What it raises is not kept."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
            made = self._found[key] = make()
            if len(self._found) > self._entries:
                self._found.popitem(last=False)
            return made
