"""Console output about engines: the progress of a build, the decisions of a dry run, the inventory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from engine_build.compile.rebuild_check import RebuildDecision, total_memory_bytes
from engine_build.reports.inventory import InventoryEntry
from runtime.commands.progress import at_intervals, duration_text
from runtime.commands.terminal import Terminal, cells, print_line
from runtime.engines.manifest import Manifest

CHECKING = "checking graphs and engines"
UNMEASURED = "error -: not measured yet; tickrt-build measures it"


class ConsoleReport:
    """The progress of a build. On a terminal the current engine has a spinner, its elapsed and its last known time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts = {"built": 0, "reused": 0, "measured": 0, "removed": 0}
        self._size_bytes = 0
        self._notes: set[str] = set()
        self._now, self._since_s = CHECKING, time.monotonic()
        self._spinner: Progress | None = None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Say on standard error what takes long, unless a spinner shows it: hashes of large files, trial executes."""
        with at_intervals(lambda _: self._say()):
            yield

    @contextlib.contextmanager
    def building(self, decision: RebuildDecision) -> Iterator[None]:
        """Show a spinner while one engine is built; nothing where the output is not a terminal."""
        last = f"last time {decision.last.build_s:.1f} s" if decision.last else "first time"
        self._now, self._since_s = f"building {decision.spec.name} ({last})", time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        is_shown = self._console.is_terminal
        try:
            with Progress(*columns, console=self._console, transient=True, disable=not is_shown) as self._spinner:
                self._spinner.add_task(self._now)
                yield
        finally:
            self._now, self._since_s, self._spinner = CHECKING, time.monotonic(), None

    def built(self, decision: RebuildDecision, manifest: Manifest) -> None:
        """One line: time, size, error, name, and why it was built."""
        figures = f"{manifest.build_s:.1f} s", size(manifest.size_bytes), _error(manifest.error)
        self._line("built", figures, f"{decision.spec.name}  ({decision.reason})", manifest.size_bytes)

    def reused(self, decision: RebuildDecision) -> None:
        """One line: size and name."""
        self._line("reused", ("", size(decision.size_bytes), ""), decision.spec.name, decision.size_bytes)

    def measured(self, decision: RebuildDecision, error: Mapping[str, float]) -> None:
        """One line: error and name."""
        self._line("measured", ("", "", _error(error)), decision.spec.name, 0)

    def removed(self, name: str) -> None:
        """One line: the deployment no longer has this engine."""
        self._line("removed", ("", "", ""), f"{name}  (the deployment no longer has it)", 0)

    def note(self, text: str) -> None:
        """One line below the engine's own; equal notes are printed once per build."""
        if text not in self._notes:
            self._notes.add(text)
            print_line(f"{'':7}  note: {text}", self._console)

    def summary(self, where: str, elapsed_s: float) -> None:
        """The last line: counts, size, time and folder."""
        counts = ", ".join(f"{count} {what}" for what, count in self._counts.items() if count)
        print_line(f"{counts}: {size(self._size_bytes)} in {where}, {elapsed_s:.1f} s", self._console)

    def _say(self) -> None:
        if self._spinner is None or self._spinner.disable:
            so_far = duration_text(time.monotonic() - self._since_s)
            print_line(f"{self._now}: {so_far} so far", Terminal(stderr=True))

    def _line(self, what: str, figures: tuple[str, str, str], text: str, size_bytes: int) -> None:
        if not any(self._counts.values()):
            print_line(f"{'':7}  {'time':>8}  {'file':>10}  {'error':>7}  engine", self._console)
        self._counts[what] += 1
        self._size_bytes += size_bytes
        print_line(f"{what:<7}  {figures[0]:>8}  {figures[1]:>10}  {figures[2]:>7}  {text}", self._console)


def print_decisions(console: Console, decisions: Sequence[RebuildDecision], where: str) -> None:
    """The table of a dry run: action, file size, memory and reason per engine."""
    rows = [_decision_row(decision) for decision in decisions]
    files = sum(decision.size_bytes for decision in decisions)
    rows.append(("total", "", size(files), size(total_memory_bytes(decisions)), where))
    heads = ("engine", "action", "file", "memory", "why")
    for line in _aligned([heads, *rows]):
        print_line(line, console)
    print_line(
        "file: as built, else the graph's size. memory: weights, inputs and outputs at the largest shape "
        "(variants of one graph share theirs in the total).",
        console,
    )


def size(count: int) -> str:
    """Bytes as text: 812 B, 4.2 KiB, 71.3 MiB."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _decision_row(decision: RebuildDecision) -> tuple[str, ...]:
    sizes = (size(decision.size_bytes), size(decision.memory_bytes))
    return (decision.spec.name, decision.action, *sizes, decision.reason)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a plain table."""
    rows = [list(cells(*row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def print_entries(console: Console, entries: Sequence[InventoryEntry], where: str) -> None:
    """The table of `list`: one line per engine, and a total."""
    if not entries:
        print_line(f"nothing is built in {where}", console)
        return
    heads = ("engine", "target", "built for", "file", "error", "build", "runs here")
    reasons = list(dict.fromkeys(entry.unusable_reason for entry in entries if entry.unusable_reason))
    for line in _aligned([heads, *(_entry_row(entry, reasons) for entry in entries)]):
        print_line(line, console)
    for number, reason in enumerate(reasons, 1):
        print_line(f"({number}) {reason}", console)
    if any(entry.manifest and "max_rel" not in entry.error for entry in entries):
        print_line(f"{UNMEASURED}, on the first machine that runs the engines", console)
    total = sum(entry.manifest.size_bytes for entry in entries if entry.manifest)
    fit = sum(not entry.unusable_reason for entry in entries)
    print_line(f"{len(entries)} engines, {size(total)} in {where}; {fit} of them run here", console)


def print_inspection(console: Console, about: Mapping[str, Any]) -> None:
    """The output of `inspect`: an engine file and its manifest."""
    print_line(f"file      {about['file']}, {size(about['size_bytes'])}", console)
    if "plan_version" in about:
        print_line(f"plan      made by {about['plan_library']} {about['plan_version']}", console)
    manifest = about["manifest"]
    if manifest is None:
        print_line("manifest  none beside the file: nothing else is known without loading it", console)
        return
    for line in _lines(manifest):
        print_line(line, console)
    if "measured" in about:
        found = about["measured"]
        print_line(f"measured  {_pairs(found['error'])}, on {found['measured_on']}", console)
    elif "max_rel" not in manifest["error"]:
        print_line(f"measured  {UNMEASURED}", console)


def _entry_row(entry: InventoryEntry, reasons: Sequence[str]) -> tuple[str, ...]:
    fits = f"no ({reasons.index(entry.unusable_reason) + 1})" if entry.unusable_reason else "yes"
    if entry.manifest is None:
        return (entry.name, entry.target, "", "", "", "", fits)
    manifest = entry.manifest
    built_for = ", ".join([*manifest.device.values(), *(f"{k} {v}" for k, v in manifest.tool_versions.items())])
    figures = (size(manifest.size_bytes), _error(entry.error), f"{manifest.build_s:.1f} s")
    return (entry.name, entry.target, built_for, *figures, fits)


def _error(error: Mapping[str, float]) -> str:
    """The error against the graph; a dash where no machine that runs the engine has measured it."""
    return f"{error['max_rel']:.1e}" if "max_rel" in error else "-"


def _lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    yield f"engine    {manifest['name']}, target {manifest['target']}, SHA-256 of the files verified"
    yield f"for       {_pairs({**manifest['device'], **manifest['tool_versions']})}"
    yield f"graph     SHA-256 {manifest['graph_sha256'][:12]}…"
    options = {name: value for name, value in manifest["build"].items() if name != "profiles"}
    yield f"options   {_pairs(options)}"
    for tensor in manifest["inputs"]:
        yield f"input     {_tensor(tensor)}"
    for tensor in manifest["outputs"]:
        yield f"output    {_tensor(tensor)}"
    for index, profile in enumerate(manifest["build"].get("profiles", ())):
        for name, shapes in profile.items():
            yield f"range {index}   {name}: {shapes.replace(' ', ' .. ')}"
    if manifest["error"]:
        yield f"error     {_pairs(manifest['error'])}"
    yield f"built     in {manifest['build_s']:.1f} s on {manifest['built_on']}"
    if manifest["facts"]:
        yield f"facts     {_pairs(manifest['facts'])}"


def _tensor(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']} {tensor['dtype']}[{', '.join(str(size) for size in tensor['shape'])}]"


def _pairs(values: Mapping[str, Any]) -> str:
    shown = {name: f"{value:.2e}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
