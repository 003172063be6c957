"""What every command prints: messages, exit statuses, and tables in the terminal and as Markdown.

An error's exit status is that of its nearest class in EXIT_STATUS_BY_ERROR. Names, tags, prompts and what servers say
come from elsewhere: what is printed has its control characters escaped, and a message or a row of a table is one line.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from runtime.base.errors import BuildError, ConfigError, EngineError, FileError, RequestError, ShapeError, TickError
from runtime.base.untrusted import one_line, printable

MAX_LOG_CHARACTERS = 2000
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
    " option is invalid; 3 an engine is missing, cannot be built or fails; 4 another failure; 5 a file or standard"
    " output cannot be read or written; 130 interrupted (Ctrl-C, SIGTERM)."
)


def exit_status(error: TickError) -> int:
    """The exit status of an error."""
    return next(status for kind in type(error).__mro__ if (status := EXIT_STATUS_BY_ERROR.get(kind)) is not None)


class Terminal(Console):
    """Where a command prints: text as it is, without markup, its control characters escaped.

    A line end stays one; tables of names of unknown origin take cells() of them. settings: those of rich's Console.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What a renderable consists of; the codes of colours and progress bars are no text."""
        for segment in super().render(renderable, options):
            if not segment.control and not segment.text.isprintable():
                segment = segment._replace(text="\n".join(map(printable, segment.text.split("\n"))))
            yield segment


def cells(*texts: str) -> Iterator[str]:
    """The cells of a table's row, each of one line."""
    return map(printable, texts)


def print_line(text: str, console: Console | None = None) -> None:
    """Print `text` as one line without markup, colour or wrapping; to standard output by default."""
    (console or Terminal()).print(printable(text), markup=False, highlight=False, soft_wrap=True)


def print_error(what: str, fix: str = "") -> None:
    """Print an error to standard error, and its fix on a line of its own."""
    for line in (f"error: {what}", f"  fix: {fix}")[: 1 + bool(fix)]:
        print_line(line, Terminal(stderr=True))


class OneLineFormatter(logging.Formatter):
    """Messages on one line each, bounded, and tracebacks without control characters: some repeat what clients sent."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, and its traceback."""
        return "\n".join(map(printable, super().format(record).split("\n")))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line of a record, without its traceback."""
        record.message = one_line(record.message, MAX_LOG_CHARACTERS)
        return super().formatMessage(record)


def log_to_stderr(level: str) -> None:
    """Log to standard error, one line each. level: the least severe messages, such as info."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


@contextmanager
def exit_on_error(interrupted: str = "interrupted") -> Iterator[None]:
    """Turn errors into a message and an exit status, without a traceback.

    These are TickErrors, arguments that a command does not take, OSErrors of the system, and Ctrl-C, whose message is
    `interrupted`. There is no message where the reader of standard output has closed it. Raises SystemExit.
    """
    try:
        yield
    except TickError as error:
        _exit(exit_status(error), error.what, error.fix)
    except typer.TyperException as error:
        _exit(EXIT_INVALID, *_usage_error(error))
    except OSError as error:
        if error.strerror is None:
            raise
        _exit(EXIT_FILE, f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    except (KeyboardInterrupt, typer.Abort):
        _exit(EXIT_INTERRUPTED, interrupted)
    except SystemExit as end:
        # Rich and Typer answer a closed standard output with SystemExit(1).
        if isinstance(end.__context__, BrokenPipeError):
            _exit(EXIT_FILE)
        raise


def flush_output() -> None:
    """Write what standard output buffers. Raises OSError, and SystemExit where its reader has closed it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _exit(EXIT_FILE)


def _exit(status: int, message: str = "", fix: str = "") -> NoReturn:
    """Print the message and end the process. What standard output does not take is dropped."""
    if message:
        print_error(message, fix)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(status) from None


def _usage_error(error: typer.TyperException) -> tuple[str, str]:
    """The message of a wrong argument, with the most similar option; the command that lists all of them."""
    similar, context = getattr(error, "possibilities", None), getattr(error, "ctx", None)
    text = f"{error.message}, did you mean {similar[0]}?" if similar else error.format_message()
    return text, "" if context is None else f"see {context.command_path} --help"


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
    """A path relative to the working directory, or as it is where it lies outside; printable."""
    relative = os.path.relpath(path)
    return printable(str(path) if relative.startswith("..") else relative)


LEAST_WIDTH = 8
# Columns between two cells: padding and the box's divider.
GAP = 2
# Columns of a name in Markdown: viewers show it whole.
MARKDOWN_WIDTH = 160
# What begins markup inside a line of Markdown; an underscore within a word does not.
_MARKUP = re.compile(r"[\\`*\[\]<>&~|$#]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
Cell = str | Text


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], num_text: int = 1
) -> None:
    """Print rows of cells; the first `num_text` columns are text, the others numbers.

    Rows fit the terminal: the first column is cut in the middle, numbers never.
    """
    cells = [[cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row] for row in (columns, *rows)]
    others = sum(max(row[index].cell_len for row in cells) + GAP for index in range(1, len(columns)))
    width = max(console.width - others, LEAST_WIDTH)
    console.print(printable(title), style="table.title", markup=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < num_text else "right", no_wrap=True)
    for first, *rest in cells[1:]:
        table.add_row(Text(cut_middle(first.plain, width), first.style), *rest)
    console.print(table)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1) -> Iterator[str]:
    """The lines of a table in GitHub's dialect; the first `num_text` columns are text, the others numbers.

    The first column is cut in the middle to MARKDOWN_WIDTH.
    """
    yield _markdown_row(columns)
    yield f"| {' | '.join('---' if index < num_text else '---:' for index in range(len(columns)))} |"
    yield from map(_markdown_row, rows)


def markdown_text(text: str) -> str:
    """A text that Markdown shows literally, on one line."""
    return _MARKUP.sub(r"\\\g<0>", printable(text))


def _markdown_row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f"| {' | '.join(map(markdown_text, (cut_middle(printable(first), MARKDOWN_WIDTH), *rest)))} |"


def cut_middle(text: str, width: int) -> str:
    """At most `width` columns of a terminal, with … in place of the middle: "layers.3…q_proj"."""
    if cell_len(text) <= width:
        return text
    head = width // 2
    return f"{set_cell_size(text, head)}…{set_cell_size(text[::-1], width - 1 - head)[::-1]}"
