"""One exit status per error class, one way to print an error, and tables in which every name stays text."""

from __future__ import annotations

import ast
import errno
import io
import logging
import re
import signal
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from runtime.base import errors
from runtime.base.untrusted import printable
from runtime.commands.terminal import (
    EXIT_INTERRUPTED,
    MARKDOWN_WIDTH,
    OneLineFormatter,
    Terminal,
    cells,
    cut_middle,
    exit_on_error,
    exit_status,
    markdown_table,
    markdown_text,
    print_line,
    print_table,
    shown_path,
    sigterm_as_interrupt,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [(errors.RequestError("a", field="steps"), 2), (errors.ShapeError("a"), 2), (errors.OutOfMemoryError("a"), 3)],
)
def test_exit_status_is_that_of_the_nearest_class(error: errors.TickError, status: int) -> None:
    assert exit_status(error) == status


def test_an_error_is_printed_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, exit_on_error():
        raise errors.EngineNotBuiltError("no engine [bold]decoder[/bold]", fix="tickrt-build a.toml")
    assert caught.value.code == 3
    assert capsys.readouterr() == ("", "error: no engine [bold]decoder[/bold]\n  fix: tickrt-build a.toml\n")


def test_an_interrupt_has_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, exit_on_error("interrupted; nothing was written"):
        raise KeyboardInterrupt
    assert caught.value.code == EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err == "error: interrupted; nothing was written\n"


def test_a_closed_standard_output_has_a_status_and_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    class ClosedPipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(SystemExit) as caught, exit_on_error():
        print_line("a", QuietConsole(file=ClosedPipe()))
    assert caught.value.code == 5
    assert capsys.readouterr() == ("", "")


class QuietConsole(Console):
    """A console that does not redirect the standard output of the test process."""

    def on_broken_pipe(self) -> None:
        raise SystemExit(1)


def test_other_exceptions_pass_through() -> None:
    with pytest.raises(OSError, match="a bug"), exit_on_error():
        raise OSError("a bug")
    with pytest.raises(ZeroDivisionError), exit_on_error():
        raise ZeroDivisionError


def test_sigterm_interrupts_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_long_lines_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[a] " * 200
    print_line(text)
    assert capsys.readouterr().out == f"{text}\n"


# It clears a terminal, changes colours, reverses text, rings, and forges a message.
HOSTILE = "a\x1b[2J\x9b31m\u202e\x07\x7f[red]\ud800\nerror: forged"
SHOWN = r"a\x1b[2J\x9b31m\u202e\x07\x7f[red]\ud800\nerror: forged"


def test_what_is_printed_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(HOSTILE)
    with pytest.raises(SystemExit), exit_on_error():
        raise errors.RequestError(HOSTILE, field=HOSTILE, fix=HOSTILE)
    with pytest.raises(SystemExit), exit_on_error():
        raise PermissionError(errno.EACCES, "Permission denied", HOSTILE)
    error = f"error: {SHOWN}: {SHOWN}\n  fix: {SHOWN}\nerror: {SHOWN}: Permission denied\n"
    assert capsys.readouterr() == (f"{SHOWN}\n", error)


def test_a_log_line_is_one_line_and_bounded() -> None:
    record = logging.LogRecord(
        "tickrt", logging.INFO, "", 1, "%s said %s", ("a", "b\nERROR forged\x1b[2J" + "x" * 9000), None
    )
    line = OneLineFormatter("%(levelname)s: %(message)s").format(record)
    assert line.startswith(r"INFO: a said b\nERROR forged\x1b[2Jxxx")
    assert len(line) < 2200
    try:
        raise ValueError("\x1b[2J\x9b31m of a client")
    except ValueError:
        record.exc_info = sys.exc_info()
    traceback = OneLineFormatter("%(message)s").format(record).split("\n")
    assert traceback[1].startswith("Traceback")
    assert traceback[-1] == r"ValueError: \x1b[2J\x9b31m of a client"


def test_tables_show_names_without_their_control_characters() -> None:
    file = io.StringIO()
    table = Table("\x1b]0;head\x07", title="\x9b31mtitle")
    table.add_row(*cells(HOSTILE))
    table.add_row(Text("\x1b[31mtext"))
    terminal = Terminal(file=file, width=200)
    terminal.print(table, "\x1b[32mtext [red]", "two\nlines", sep="\n")
    text = file.getvalue()
    assert all(line.isprintable() for line in text.split("\n"))
    for found in (SHOWN, r"\x1b]0;head", r"\x9b31mtitle", r"\x1b[31mtext", r"\x1b[32mtext [red]", "two\nlines\n"):
        assert found in text


def test_every_command_prints_through_a_terminal() -> None:
    packages = ("engine_build", "profiling", "runtime", "server")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert [path for path in files if re.search(r"\bConsole\(", path.read_text())] == []
    assert [path.name for path in files if "basicConfig(" in path.read_text()] == ["terminal.py"]


def test_a_bar_still_moves_on_a_terminal() -> None:
    file = io.StringIO()
    with Progress(console=Terminal(file=file, force_terminal=True, width=80), transient=True) as progress:
        progress.add_task("\x1b[2J", total=1.0)
    assert r"\x1" in file.getvalue()  # cut at the width that the text had
    assert "\x1b[2J" not in file.getvalue()
    assert "\x1b[?25l" in file.getvalue()  # the cursor is hidden
    assert file.getvalue().count("\x1b[2K") > 0  # a line is cleared


def test_paths_are_shown_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert shown_path(tmp_path / "a" / "b.toml") == "b.toml"
    assert shown_path(tmp_path / "b.toml") == str(tmp_path / "b.toml")


NAME = "decoder.layers.3.attention.q_proj"
PIECES = ["|", "\\", "`", "``", "*", "_", "__init__", "[a](b)", "![x](y)", "<b>", "</td>", "<!--", "&amp;", "&#124;"]
PIECES += ["~~", "\n", "\r\n", "\x1b[31m", "\u202e", "\u2028", "http://a.b", "#", "- ", "1. ", "> ", "---", "$x$", " "]
PIECES += ["ünï", "層", "a" * 300, "class", "None", "{}", "'", '"', ":", "\ud800", "\0", "a_b", "a__b", "_", "0"]
NAMES = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=6).map("".join)
ROWS = st.lists(st.tuples(NAMES, NAMES, st.just("1.5")), min_size=1, max_size=4)


def lines(width: int, *rows: tuple[str | Text, ...]) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(console, "a title", ("layer", "kind", "ms"), rows, num_text=2)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("width", "cut"), [(40, NAME), (33, NAME), (16, "decoder.….q_proj"), (15, "decoder….q_proj"), (2, "d…"), (1, "…")]
)
def test_names_are_cut_in_the_middle(width: int, cut: str) -> None:
    assert cut_middle(NAME, width) == cut


def test_the_first_column_takes_the_width_that_is_left() -> None:
    found = lines(40, (NAME, "gemm", "123.456"), ("[b]", "norm", Text("1.000", "red")))
    assert max(map(len, found)) <= 40
    assert any(line.startswith("decoder.la") and line.rstrip().endswith("gemm  123.456") for line in found)
    assert any("[b]" in line and "1.000" in line for line in found)
    assert any(NAME in line for line in lines(80, (NAME, "gemm", "123.456")))


@given(NAMES)
@settings(max_examples=60, deadline=None)
def test_a_row_in_the_terminal_is_a_line_with_its_numbers(name: str) -> None:
    found = lines(60, (name, "gemm", "123.456"))
    assert len(found) == 4
    assert found[3].endswith("gemm  123.456")
    assert max(map(cell_len, found)) <= 60


def texts(token: Token) -> str:
    """What a reader sees of a line; markup in it is a failure."""
    assert token.children is not None
    assert {child.type for child in token.children} <= {"text", "text_special"}, token.content
    return "".join(child.content for child in token.children)


@given(ROWS)
@settings(max_examples=60, deadline=None)
def test_markdown_shows_every_name_literally_in_its_cell(rows: list[tuple[str, ...]]) -> None:
    text = "\n".join(markdown_table(("name|", "_b_", "ms"), rows, 2))
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    assert (tokens[0].type, tokens[-1].type) == ("table_open", "table_close")
    cells = [texts(token) for token in tokens if token.type == "inline"]
    shown = [(cut_middle(printable(first), MARKDOWN_WIDTH), *map(printable, rest)) for first, *rest in rows]
    expected = [cell.strip() for row in (("name|", "_b_", "ms"), *shown) for cell in row]
    assert [cell.strip() for cell in cells] == expected


@given(NAMES)
@settings(max_examples=60, deadline=None)
def test_a_heading_of_markdown_has_the_name(name: str) -> None:
    opened, line, closed = MarkdownIt().parse(f"# a {markdown_text(name)}")
    assert (opened.type, closed.type) == ("heading_open", "heading_close")
    assert texts(line).strip() == f"a {printable(name)}".strip()


def _rows_of_markdown(tree: ast.Module) -> list[int]:
    """Lines that join cells, or begin one, by themselves."""
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.lineno for node in constants if node.value.startswith(("| ", "|--")) or node.value == " | "]


def test_one_module_writes_tables_of_markdown() -> None:
    # The track classes of a prompt are no table; cells of the documentation are Markdown already.
    others = {"runtime/config/conditions.py", "configs/docs/reference.py"}
    files = [file for package in ("runtime", "server", "engine_build", "profiling", "configs") for file in
             sorted((ROOT / package).rglob("*.py"))]  # fmt: skip
    sources = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
    marks = tuple(f"{quote}{begin}" for quote in "\"'" for begin in ("| ", "|--", " | "))
    found = {
        name
        for name, source in sources.items()
        if any(mark in source for mark in marks) and _rows_of_markdown(ast.parse(source))
    }
    assert found - others == {"runtime/commands/terminal.py"}
