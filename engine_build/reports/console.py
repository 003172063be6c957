"""What a build tells its user: one line per engine, a spinner where there is a terminal, a summary."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from engine_build.build.rebuild_check import Decision, total_memory_bytes
from runtime.engines.manifest import Manifest


class ConsoleReport:
    """Prints to a console. On a terminal the engine in work has a spinner, its elapsed time and its last known time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts = {"built": 0, "reused": 0, "removed": 0}
        self._size_bytes = 0
        self._notes: set[str] = set()

    @contextlib.contextmanager
    def building(self, decision: Decision) -> Iterator[None]:
        """A spinner while one engine is built; nothing where the output is a file."""
        if not self._console.is_terminal:
            yield
            return
        last = f"last time {decision.last.build_s:.1f} s" if decision.last else "first time"
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TextColumn(f"({last})"))
        with Progress(*columns, console=self._console, transient=True) as progress:
            progress.add_task(f"building {decision.job.name}")
            yield

    def built(self, decision: Decision, manifest: Manifest) -> None:
        """One line: time, size, error, name, and why it was built."""
        figures = f"{manifest.build_s:.1f} s", size(manifest.size_bytes), f"{manifest.error['max_rel']:.1e}"
        self._line("built", figures, f"{decision.job.name}  ({decision.reason})", manifest.size_bytes)

    def reused(self, decision: Decision) -> None:
        """One line: size and name."""
        self._line("reused", ("", size(decision.size_bytes), ""), decision.job.name, decision.size_bytes)

    def removed(self, name: str) -> None:
        """One line: the deployment no longer has this engine."""
        self._line("removed", ("", "", ""), f"{name}  (the deployment no longer has it)", 0)

    def note(self, text: str) -> None:
        """One line of what the builder wants known, below the engine's own; once per build, not once per engine."""
        if text not in self._notes:
            self._notes.add(text)
            self._print(f"{'':7}  note: {text}")

    def summary(self, where: str, elapsed_s: float) -> None:
        """The last line: how many, how large, how long, and where they lie."""
        counts = ", ".join(f"{count} {what}" for what, count in self._counts.items() if count)
        self._print(f"{counts}: {size(self._size_bytes)} in {where}, {elapsed_s:.1f} s")

    def _line(self, what: str, figures: tuple[str, str, str], text: str, size_bytes: int) -> None:
        if not any(self._counts.values()):
            self._print(f"{'':7}  {'time':>8}  {'file':>10}  {'error':>7}  engine")
        self._counts[what] += 1
        self._size_bytes += size_bytes
        self._print(f"{what:<7}  {figures[0]:>8}  {figures[1]:>10}  {figures[2]:>7}  {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_decisions(console: Console, decisions: Sequence[Decision], where: str) -> None:
    """The table of a dry run: what would be done, why, how large, and how much memory the engines will hold."""
    rows = [_row(decision) for decision in decisions]
    files = sum(decision.size_bytes for decision in decisions)
    rows.append(("total", "", size(files), size(total_memory_bytes(decisions)), where))
    heads = ("engine", "action", "file", "memory", "why")
    if console.is_terminal:
        console.print(_table(heads, rows))
    else:
        for line in aligned([heads, *rows]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(
        "file: as built, else the graph's size. memory: weights, inputs and outputs at the largest shape "
        "(variants of one graph share theirs in the total).",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def size(count: int) -> str:
    """Bytes for people: 812 B, 4.2 KiB, 71.3 MiB."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _row(decision: Decision) -> tuple[str, ...]:
    sizes = (size(decision.size_bytes), size(decision.memory_bytes))
    return (decision.job.name, decision.action, *sizes, decision.reason)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*heads, header_style="bold")
    for row in rows[:-1]:
        table.add_row(*row)
    table.add_section()
    table.add_row(*rows[-1])
    return table


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a plain table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
