"""What threads share is only touched with its lock held: classes that check that while other tests use them."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedLock:
    """A lock that knows whether the calling thread holds it."""

    def __init__(self) -> None:
        self._lock, self._owner = threading.Lock(), 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        assert not (blocking and self.is_mine()), "a thread takes a lock that it holds"
        is_taken = self._lock.acquire(blocking, timeout)
        if is_taken:
            self._owner = threading.get_ident()
        return is_taken

    def release(self) -> None:
        self._owner = 0
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()


def lock_checked(kind: type[T], *names: str, lock: str = "_lock") -> type[T]:
    """A class whose instances raise AssertionError where these attributes are touched without `lock`.

    `lock` is the name of a lock, or of a condition with a lock of its own.
    """

    class Checked(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            values, owned = vars(self), OwnedLock()
            for name, value in list(values.items()):
                if isinstance(value, threading.Condition) and value._lock is values[lock]:  # type: ignore[attr-defined]
                    values[name] = threading.Condition(owned)  # type: ignore[arg-type]
            values[lock] = threading.Condition(owned) if isinstance(values[lock], threading.Condition) else owned  # type: ignore[arg-type]

        def __getattribute__(self, name: str) -> Any:
            if name in names:
                self._check_lock(name)
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in names:
                self._check_lock(name)
            super().__setattr__(name, value)

        def _check_lock(self, name: str) -> None:
            held = vars(self).get(lock)
            owned = held._lock if isinstance(held, threading.Condition) else held  # type: ignore[attr-defined]
            assert not isinstance(owned, OwnedLock) or owned.is_mine(), f"{kind.__name__}.{name} without {lock}"

    return Checked
