"""The bounded registry of the generations in the tick loop, their sessions and their listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.base.errors import (
    GenerationCancelledError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    TickError,
    failure_of,
)
from runtime.engines.adapters import Adapter, total_rank
from runtime.requests.request import GenerationRequest
from runtime.tick.denoise.prepared import PreparedGeneration
from runtime.tick.language.sequence import SequenceRequest
from runtime.tick.loop.events import Event

Listener = Callable[[Event], None]
Request = GenerationRequest | SequenceRequest
OUTCOMES = ("ok", "cancelled", "replaced", "nonfinite", "engine_error", "drained")


@dataclass(slots=True, eq=False)
class Entry:
    """A generation in the loop. `work` is None while it is being prepared; adapters: those that it may use."""

    listener: Listener
    request: Request
    adapters: frozenset[Adapter] = frozenset()
    work: PreparedGeneration | None = None


@dataclass(slots=True)
class _Session:
    """A session's generations in the loop, and the step parameters that it overrides."""

    members: dict[str, Entry] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)


class Registry:
    """Every generation that enters leaves exactly once: entered = in the loop + the sum of `outcomes`.

    Any thread. A session is forgotten, with its step parameters, when its last generation leaves.
    """

    def __init__(self, slots: int, queue: int, adapter_rank: int = 0, sequences: int = 0) -> None:
        self._num_slots, self._num_queue, self._adapter_rank = slots, queue, adapter_rank
        self._num_sequences = sequences
        # Held for a few assignments, by any thread. Callers that wait for a place wait for `_freed`, without it.
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._end: TickError | None = None
        self._entries: dict[str, Entry] = {}
        self._sessions: dict[str, _Session] = {}
        self.outcomes = dict.fromkeys(OUTCOMES, 0)

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, request: Request) -> bool:
        """Whether this generation, not another one of the same id, is in the loop."""
        entry = self._entries.get(request.id)
        return entry is not None and entry.request is request

    def ids(self) -> list[str]:
        """Every generation in the loop."""
        return list(self._entries)

    def enter(
        self,
        request: Request,
        listener: Listener,
        *,
        adapters: frozenset[Adapter] = frozenset(),
        wait: bool = False,
        timeout_s: float | None = None,
        has_left: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take a place; `wait` until one is free, for at most `timeout_s`, or until who waits `has_left`: see wake.

        Raises QueueFullError, also where the adapters of all generations have too high a rank, QueueTimeoutError and
        GenerationCancelledError where it waited in vain, RequestError where the id is in use, and what `close` was
        given.
        """
        with self._freed:
            if wait and not request.is_urgent:
                self._wait(request, timeout_s, has_left)
            if self._end is not None:
                raise self._end
            if request.id in self._entries:
                raise RequestError(f"a generation {request.id!r} is running already", field="id")
            if self._is_full(request) and not request.is_urgent:
                raise QueueFullError(f"all {self._slots(request)} slots and {self._num_queue} waiting places are taken")
            self._check_rank(adapters)
            entry = self._entries[request.id] = Entry(listener, request, adapters)
            if request.session:
                self._sessions.setdefault(request.session, _Session()).members[request.id] = entry

    def _wait(self, request: Request, timeout_s: float | None, has_left: Callable[[], bool]) -> None:
        """Until there is a place, or the loop has ended."""

        def is_over() -> bool:
            return self._end is not None or has_left() or not self._is_full(request)

        # Until a generation leaves, `wake` or `close` is called, or the time is over.
        in_time = self._freed.wait_for(is_over, timeout_s)
        if has_left():
            raise GenerationCancelledError(f"generation {request.id} was cancelled")
        if not in_time:
            raise QueueTimeoutError(f"none of {self._slots(request)} slots became free within {timeout_s:g} s")

    def _slots(self, request: Request) -> int:
        return self._num_sequences if isinstance(request, SequenceRequest) else self._num_slots

    def _is_full(self, request: Request) -> bool:
        """Generations and sequences have slots and waiting places of their own."""
        alike = [entry.request for entry in self._entries.values() if type(entry.request) is type(request)]
        return sum(not other.is_urgent for other in alike) >= self._slots(request) + self._num_queue

    def wake(self) -> None:
        """Callers that wait for a place check again whether they still should."""
        with self._freed:
            self._freed.notify_all()

    def close(self, error: TickError) -> None:
        """The loop has ended: who waits for a place, or asks for one, gets this error."""
        with self._freed:
            self._end = self._end or error
            self._freed.notify_all()

    def overrides(self, session: str) -> Mapping[str, Any]:
        """The step parameters that a session overrides."""
        with self._lock:
            found = self._sessions.get(session)
            return {} if found is None else found.overrides

    def _check_rank(self, adapters: frozenset[Adapter]) -> None:
        rank = total_rank(adapters.union(*[entry.adapters for entry in self._entries.values()])) if adapters else 0
        if rank > self._adapter_rank:
            raise QueueFullError(
                f"with the adapters of other generations, ranks are {rank} in sum, at most {self._adapter_rank} fit"
            )

    def members(self, session: str) -> list[Entry]:
        """A session's generations."""
        with self._lock:
            found = self._sessions.get(session)
            return [] if found is None else list(found.members.values())

    def override(self, session: str, overrides: Mapping[str, Any], adapters: frozenset[Adapter] = frozenset()) -> None:
        """Set a session's step parameters, as long as it has generations, which may use `adapters` then.

        Raises QueueFullError.
        """
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                return
            self._check_rank(adapters)
            found.overrides = overrides
            for entry in found.members.values():
                entry.adapters |= adapters

    def set_work(self, request_id: str, work: PreparedGeneration) -> None:
        """Note what was prepared for a generation."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.work = work

    def publish(self, event: Event) -> None:
        """Pass on an event, if the generation is in the loop."""
        entry = self._entries.get(event.request_id)
        if entry is not None:
            _tell(entry, event)

    def leave(self, event: Event, outcome: str) -> None:
        """Pass on the terminal event and free the place; nothing happens where the generation has left already."""
        entry = self._remove(event.request_id)
        if entry is not None:
            self.outcomes[outcome] += 1
            _tell(entry, event)

    def withdraw(self, request_id: str) -> None:
        """Free the place of a generation that could not be submitted."""
        self._remove(request_id)

    def _remove(self, request_id: str) -> Entry | None:
        with self._lock:
            entry = self._entries.pop(request_id, None)
            self._freed.notify_all()
            if entry is not None and entry.request.session:
                session = self._sessions[entry.request.session]
                del session.members[request_id]
                if not session.members:
                    del self._sessions[entry.request.session]
            return entry


def _tell(entry: Entry, event: Event) -> None:
    """Call a generation's listener: where that fails, other generations go on."""
    try:
        entry.listener(event)
    except BaseException as error:
        failure_of(error, f"the listener of generation {event.request_id}")
