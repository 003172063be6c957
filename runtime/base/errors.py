"""The errors that TickRT raises: each says what happened, what was expected, and how to fix it.

Rust's panics arrive as a BaseException that is no Exception: `native_call`, `failure_of` and `UnitOfWork` make one of
these errors of it, since in a thread that serves many it would end all.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Self

# A longer name is compared by its beginning: the comparison takes quadratic time.
MAX_NAME_CHARACTERS = 100
# What ends a thread, a task or a generator on purpose.
ENDINGS = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
logger = logging.getLogger("tickrt")


class TickError(Exception):
    """Base class of TickRT's errors.

    `what`: what happened and what was expected. `fix`: the command or change that solves it, may be empty. `code`: a
    stable machine-readable name, used in problem documents and exit messages. `status`: the HTTP status of the problem.
    """

    code = "tick_error"
    status = 500

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what if not fix else f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes: as it is, without a call of the constructor."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[TickError], arguments: tuple[Any, ...], members: dict[str, Any]) -> TickError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(members)
    return error


class ConfigError(TickError):
    """A configuration file or a bundle is invalid."""

    code = "config_error"


class AdapterError(TickError):
    """A LoRA adapter cannot be read, or does not fit the bundle's decoder."""

    code = "adapter_error"


class RequestError(TickError):
    """A generation request is invalid; `field` is the JSON-like path of the invalid value ("guidance.scale")."""

    code = "invalid_request"
    status = 422

    def __init__(self, what: str, *, field: str = "", fix: str = "") -> None:
        super().__init__(f"{field}: {what}" if field else what, fix=fix)
        self.field = field

    def renamed(self, field: str, *, fix: str = "") -> Self:
        """The same error of another field; fix: where it has none of its own."""
        return type(self)(self.what.removeprefix(f"{self.field}: "), field=field, fix=self.fix or fix)


@contextmanager
def source_as(field: str) -> Iterator[None]:
    """Name `field` in errors of a file that is read as a source."""
    try:
        yield
    except RequestError as error:
        if error.field != "source":
            raise
        raise error.renamed(field) from None


class StaleSeqError(RequestError):
    """A message's `seq` is not larger than that of a message before."""

    code = "stale_seq"
    status = 409


class NoNotesError(RequestError):
    """A request for notes, or with notes, of a bundle that has none."""

    code = "no_notes"


class NotAudioError(RequestError):
    """A file has no audio that can be decoded."""

    code = "unsupported_media_type"
    status = 415


class SourceNotFoundError(RequestError):
    """There is no uploaded source with this id."""

    code = "source_not_found"
    status = 404


class FileError(TickError):
    """A file named on the command line cannot be read or written."""

    code = "file_error"


class ShapeError(TickError):
    """A tensor has the wrong dtype or rank, or its shape lies outside every shape range of the engine."""

    code = "shape_out_of_range"
    status = 422


class EngineError(TickError):
    """An engine cannot be opened or failed to execute; recoverable, except for EngineDeadError."""

    code = "engine_error"


class EngineNotBuiltError(EngineError):
    """There is no engine for this graph and target; `fix` is the build command."""

    code = "engine_not_built"
    status = 503


class EngineMismatchError(EngineError):
    """An engine file differs from its manifest, or was built for another machine, version or model."""

    code = "engine_mismatch"


class EngineDeadError(EngineError):
    """The device context is lost: every generation in flight fails, and the process must restart."""

    code = "engine_dead"
    status = 503


class OutOfMemoryError(EngineError):
    """The device has too little free memory; engines and generations that exist already keep running."""

    code = "out_of_memory"

    def __init__(self, what: str, *, fix: str = "lower rows, frames or depth, or close other programs") -> None:
        super().__init__(what, fix=fix)


class ForkedError(EngineError):
    """A model is used in a process that was forked after it was opened: its threads are in the other one."""

    code = "forked"

    def __init__(self) -> None:
        super().__init__(
            "the model was opened before this process was forked, and its threads and its device are in the other one",
            fix='open it in each process: multiprocessing.get_context("spawn"); gunicorn without --preload',
        )


class CaptureError(EngineError):
    """Work cannot be part of a captured graph; it can still be launched without one."""

    code = "capture_failed"


class BuildError(TickError):
    """A graph could not be compiled."""

    code = "build_error"


class QueueFullError(TickError):
    """All slots and queue places are taken; retry after `retry_after_s`."""

    code = "queue_full"
    status = 503

    def __init__(self, what: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class QueueTimeoutError(TickError):
    """A generation waited too long for a slot; retry after `retry_after_s`."""

    code = "queue_timeout"
    status = 504
    retry_after_s = 1.0


class GenerationCancelledError(TickError):
    """A generation, or its plan, was cancelled before it was finished."""

    code = "cancelled"
    status = 409


class SessionsFullError(TickError):
    """No live session can be added: too many (is_of_client: of one client), or refreshes would take too long."""

    code = "sessions_full"
    status = 503

    def __init__(self, what: str, *, retry_after_s: float = 1.0, is_of_client: bool = False) -> None:
        super().__init__(what)
        self.retry_after_s, self.is_of_client = retry_after_s, is_of_client


class UnknownSessionError(TickError):
    """There is no live session with this id and resume token."""

    code = "unknown_session"
    status = 404


class DrainingError(TickError):
    """The loop is shutting down and accepts no new requests."""

    code = "draining"
    status = 503


class InternalError(TickError):
    """A defect of the server has ended one unit of work; its log has the traceback."""

    code = "internal_error"

    def __init__(self, what: str) -> None:
        super().__init__(what, fix="the server's log has the cause")


class NonFiniteError(TickError):
    """A generation's latents became NaN or infinite; only that generation fails."""

    code = "nonfinite"


class CheckpointError(TickError):
    """A sequence's state does not fit what it is continued on."""

    code = "checkpoint_error"
    status = 409


class StoreError(TickError):
    """Session snapshots or sources cannot be written or read, or one of them is damaged."""

    code = "store_error"


class StoreUnavailableError(StoreError):
    """What is stored cannot be read or written now; retry after `retry_after_s`."""

    code = "store_unavailable"
    status = 503
    retry_after_s = 5.0


class EntryUnavailableError(StoreUnavailableError):
    """One entry of a store cannot be read or written; the others can."""

    code = "entry_unavailable"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The question "did you mean NAME?" with the most similar of `names`; "" where none is similar."""
    similar = get_close_matches(name[:MAX_NAME_CHARACTERS], list(names), n=1)
    return f"did you mean {similar[0]}?" if similar else ""


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
