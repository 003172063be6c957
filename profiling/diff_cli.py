"""tickrt-profile diff: two saved profiles side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.reports.diff import Change, Saved, compare, read_saved, slower_than, unlike
from runtime.errors import ConfigError

EXIT_SLOWER = 1
EXIT_CONFIG = 2

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A profile: tickrt-profile --json, or trtexec --exportProfile.")],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    top: Annotated[int, typer.Option(min=1, help="Modules and layers to show, those that moved most.")] = 15,
    median: Annotated[
        bool, typer.Option("--median", help="By the layers' medians, which hiccups of a busy machine do not move.")
    ] = False,
    fail_over: Annotated[
        float | None, typer.Option(min=0, metavar="PCT", help="Exit 1 where something is slower by more percent.")
    ] = None,
) -> None:
    """What moved from one profile to another: as a whole, by kind, by module, by layer.

    --fail-over counts what is slower by more than PCT percent of itself and by 1 % or more of the whole. Exit status:
    0 within the limit, 1 past it, 2 a file is not a profile.
    """
    console = Console()
    try:
        first, second = (read_saved(path, median=median) for path in (before, after))
    except ConfigError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_CONFIG) from None
    for saved, word in ((first, "before"), (second, "after")):
        console.print(f"{word}: {_about(saved)}", markup=False, highlight=False)
    changes = compare(first, second)
    for words in unlike(first, second):
        console.print(f"the two differ in {words}", style="yellow", markup=False)
    _show(changes, top, console)
    slower = slower_than(changes, fail_over) if fail_over is not None else []
    for change in slower:
        console.print(f"slower by {change.percent:.1f} %: {change.scope} {change.name}", style="red", markup=False)
    if slower:
        raise typer.Exit(EXIT_SLOWER)


def _about(saved: Saved) -> str:
    """Which engine of which revision a profile is of."""
    if not saved.about:
        return "a profile of trtexec's"
    engine, commit = str(saved.about.get("engine_sha256", ""))[:12], saved.about.get("commit")
    return f"{saved.about.get('engine')} {engine}" + (f", commit {commit}" if commit else "")


def _show(changes: list[Change], top: int, console: Console) -> None:
    for scope in dict.fromkeys(change.scope for change in changes):
        rows = [change for change in changes if change.scope == scope]
        table = Table(title=_title(scope, rows, top), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column(scope, overflow="fold")
        for column in ("before ms", "after ms", "change ms", "change"):
            table.add_column(column, justify="right", no_wrap=True)
        for change in rows if scope == "kind" else rows[:top]:
            table.add_row(*map(Text, _cells(change)))
        console.print(table)


def _title(scope: str, rows: list[Change], top: int) -> str:
    """What the table has, and what it hides."""
    if scope in ("whole", "kind"):
        return "the whole" if scope == "whole" else "by kind"
    new = sum(change.before_ms == 0 < change.after_ms for change in rows)
    gone = sum(change.after_ms == 0 < change.before_ms for change in rows)
    return f"by {scope}: {min(top, len(rows))} of {len(rows)}, {new} new, {gone} gone"


def _cells(change: Change) -> tuple[str, ...]:
    percent = "new" if change.before_ms == 0 else f"{change.percent:+.1f} %"
    return change.name, f"{change.before_ms:.3f}", f"{change.after_ms:.3f}", f"{change.delta_ms:+.3f}", percent
