"""Tables fit the terminal: names are cut in the middle, numbers stay whole. In Markdown every name stays text."""

from __future__ import annotations

import ast
import io

import pytest
from helpers.paths import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runtime.base.untrusted import printable
from runtime.commands.tables import MARKDOWN_WIDTH, cut_middle, markdown_table, markdown_text, print_table

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
    assert found - others == {"runtime/commands/tables.py"}
