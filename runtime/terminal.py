"""Messages and exit statuses, the same for every command.

An error's exit status is that of its nearest class in EXIT_STATUS_BY_ERROR.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from runtime.errors import BuildError, ConfigError, EngineError, FileError, RequestError, ShapeError, TickError

EXIT_OVER_LIMIT = 1
EXIT_INVALID = 2
EXIT_ENGINE = 3
EXIT_FAILED = 4
EXIT_FILE = 5
EXIT_INTERRUPTED = 130
EXIT_STATUS_BY_ERROR: dict[type[TickError], int] = {
    ConfigError: EXIT_INVALID,
    RequestError: EXIT_INVALID,
    ShapeError: EXIT_INVALID,
    EngineError: EXIT_ENGINE,
    BuildError: EXIT_ENGINE,
    FileError: EXIT_FILE,
    TickError: EXIT_FAILED,
}
EXIT_STATUS_HELP = (
    "Exit status: 0 success; 1 a result exceeds the limit that an option sets; 2 the configuration, the bundle or an"
    " option is invalid; 3 an engine is missing, cannot be built or fails; 4 another failure; 5 a file cannot be read"
    " or written; 130 interrupted."
)


def exit_status(error: TickError) -> int:
    """The exit status of an error."""
    return next(status for kind in type(error).__mro__ if (status := EXIT_STATUS_BY_ERROR.get(kind)) is not None)


def print_line(text: str, console: Console | None = None) -> None:
    """Print `text` without markup, colour or line wrapping; to standard output by default."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def print_error(text: str) -> None:
    """Print an error to standard error."""
    print_line(f"error: {text}", Console(stderr=True))


class DefaultCommandGroup(TyperGroup):
    """Commands of which the first one runs where the arguments begin with no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command's name before arguments without one."""
        has_command = not args or args[0] in self.commands or args[0] == "--help"
        return list(super().parse_args(ctx, args if has_command else [next(iter(self.commands)), *args]))


@contextmanager
def exit_on_error(interrupted: str = "interrupted") -> Iterator[None]:
    """Turn errors into a message and an exit status, without a traceback.

    These are TickErrors, OSErrors about a file, and Ctrl-C, whose message is `interrupted`.
    """
    try:
        yield
    except TickError as error:
        print_error(str(error))
        raise typer.Exit(exit_status(error)) from None
    except OSError as error:
        if error.filename is None:
            raise
        print_error(f"{error.filename}: {error.strerror}")
        raise typer.Exit(EXIT_FILE) from None
    except KeyboardInterrupt:
        print_error(interrupted)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM as on Ctrl-C. Does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def shown_path(path: Path) -> str:
    """A path relative to the working directory, or as it is where it lies outside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
