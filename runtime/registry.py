"""Who is inside the loop: bounded places, one listener each, and an exact count of how they left."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runtime.batch import Event
from runtime.errors import QueueFullError, RequestError

Listener = Callable[[Event], None]
OUTCOMES = ("ok", "cancelled", "nonfinite", "engine_error", "drained")


class Registry:
    """Every generation that was let in leaves exactly once: `started` = inside + the sum of `outcomes`."""

    def __init__(self, slots: int, queue: int) -> None:
        self._slots, self._queue = slots, queue
        self._free = threading.Semaphore(slots + queue)
        self._listeners: dict[str, Listener] = {}
        self.outcomes = dict.fromkeys(OUTCOMES, 0)

    def __len__(self) -> int:
        return len(self._listeners)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._listeners

    def ids(self) -> list[str]:
        """Everybody who is inside."""
        return list(self._listeners)

    def enter(self, request_id: str, listener: Listener) -> None:
        """Take a place. Raises QueueFullError, RequestError where the id is inside already. Any thread."""
        if request_id in self._listeners:
            raise RequestError(f"a generation {request_id!r} is inside already", field="id")
        if not self._free.acquire(blocking=False):
            raise QueueFullError(f"all {self._slots} slots and {self._queue} waiting places are taken")
        self._listeners[request_id] = listener

    def tell(self, event: Event) -> None:
        """Pass on an event, if the generation is inside."""
        listener = self._listeners.get(event.request_id)
        if listener is not None:
            listener(event)

    def leave(self, event: Event, outcome: str) -> None:
        """Pass on the terminal event and free the place; nothing happens where the generation has left already."""
        listener = self._listeners.pop(event.request_id, None)
        if listener is not None:
            self.outcomes[outcome] += 1
            self._free.release()
            listener(event)
