"""Errors of one call or one unit of work that are no more than that, however native code raises them.

Rust's panics arrive as a BaseException that is no Exception: in a thread that serves many, each would end all.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runtime.errors import EngineDeadError, InternalError, RequestError, TickError

# What ends a thread, a task or a generator on purpose.
ENDINGS = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
logger = logging.getLogger("tickrt")


@contextmanager
def native_call(
    what: str, *, field: str | None = None, fix: str = "", kind: type[TickError] = RequestError
) -> Iterator[None]:
    """Around native code that reads what a client has sent: all that it raises is an error of `kind`, and says `what`.

    field: of a RequestError. TickRT's own errors pass.
    """
    try:
        yield
    except (TickError, *ENDINGS):
        raise
    except BaseException as error:
        if not isinstance(error, Exception):
            logger.error("native code has panicked, %s: %s", what, error)
        place = {} if field is None else {"field": field}
        raise kind(f"{what} ({error})", fix=fix, **place) from error


def failure_of(error: BaseException, what: str) -> TickError:
    """The error of a unit of work that has failed: TickRT's own, or an InternalError for any other, which is logged.

    Raises those that end a thread on purpose.
    """
    if isinstance(error, TickError):
        return error
    if isinstance(error, ENDINGS):
        raise error
    logger.error("%s has failed", what, exc_info=error)
    return InternalError(f"{what} has failed")


class UnitOfWork:
    """Around one unit of work of many: where it fails, `failed` is given the error (see failure_of), and others go on.

    EngineDeadError passes: with the device, all of them have failed.
    """

    __slots__ = ("_failed", "_what")

    def __init__(self, what: str, failed: Callable[[TickError], None]) -> None:
        self._what, self._failed = what, failed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or isinstance(error, EngineDeadError):
            return False
        self._failed(failure_of(error, self._what))
        return True
