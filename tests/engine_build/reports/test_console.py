"""Console output: plain lines in files, a spinner on terminals, readable sizes."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from rich.console import Console

from engine_build.compile.builder import build
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.reports.console import UNMEASURED, ConsoleReport, print_decisions, print_inspection, size
from engine_build.request import load_request
from runtime.commands import task_progress


def console(*, terminal: bool, width: int = 200) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=width, color_system=None), file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, more='[build]\nstep_variants = ["plain"]\n')


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (74_800_000, "71.3 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_a_file_gets_plain_lines_one_per_engine(path: Path) -> None:
    out, file = console(terminal=False, width=40)
    report = ConsoleReport(out)
    build(load_request(path), report=report)
    report.summary("here", 1.25)
    lines = file.getvalue().splitlines()
    assert "\x1b" not in file.getvalue()
    assert len(lines) == 1 + 10 + 1
    assert lines[1].startswith("built ")
    assert lines[1].endswith("decoder  (not built yet)")
    assert lines[-1].startswith("10 built: ")
    assert lines[-1].endswith("in here, 1.2 s")


def test_reused_and_removed_engines_are_printed(path: Path) -> None:
    build(load_request(path))
    path.write_text(path.read_text().replace('["plain"]', "[]"))
    out, file = console(terminal=False)
    report = ConsoleReport(out)
    build(load_request(path), report=report)
    report.summary("here", 0.0)
    assert file.getvalue().count("\nreused ") == 9
    assert "step.plain  (the deployment no longer has it)" in file.getvalue()
    assert "9 reused, 1 removed" in file.getvalue()


def test_a_terminal_gets_a_spinner_with_the_last_known_time(path: Path) -> None:
    for force, last in ((False, "first time"), (True, "last time")):
        out, file = console(terminal=True)
        build(load_request(path), force=force, report=ConsoleReport(out))
        assert "building decoder" in file.getvalue()
        assert last in file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_of_a_dry_run(path: Path, terminal: bool) -> None:
    out, file = console(terminal=terminal)
    print_decisions(out, check_rebuilds(load_request(path), "cpu"), "there")
    text = file.getvalue()
    for part in ("engine", "memory", "decoder", "not built yet", "codec_encode", "total", "there", "KiB"):
        assert part in text
    assert text.count("build ") >= 10


def inspected(error: dict[str, float], **more: Any) -> list[str]:
    """The lines of `inspect` for an engine with this error in its manifest."""
    manifest = {
        "name": "decoder", "target": "tensorrt-rtx", "device": {}, "tool_versions": {"tensorrt-rtx": "1.7"},
        "graph_sha256": "ab" * 32, "build": {"precision": "bf16"}, "inputs": (), "outputs": (), "error": error,
        "build_s": 2.25, "built_on": "a CPU", "facts": {},
    }  # fmt: skip
    out, file = console(terminal=False)
    print_inspection(out, {"file": "decoder.plan", "size_bytes": 2048, "manifest": manifest, **more})
    return file.getvalue().splitlines()


def test_an_inspection_says_where_the_error_was_measured_or_that_it_was_not() -> None:
    own, elsewhere, nowhere = (
        inspected({"max_rel": 0.0125}),
        inspected({}, measured={"error": {"max_rel": 0.5}, "measured_on": "a card"}),
        inspected({}),
    )
    assert [line for line in own if line.startswith(("error", "measured", "facts"))] == ["error     max_rel 1.25e-02"]
    assert [line for line in elsewhere if line.startswith(("error", "measured"))] == [
        "measured  max_rel 5.00e-01, on a card"
    ]
    assert [line for line in nowhere if line.startswith(("error", "measured"))] == [f"measured  {UNMEASURED}"]
    assert nowhere[0] == "file      decoder.plan, 2.0 KiB"
    assert "built     in 2.2 s on a CPU" in nowhere


def test_a_note_is_printed_once_a_build() -> None:
    out, file = console(terminal=False)
    report = ConsoleReport(out)
    for text in ("one", "two", "one"):
        report.note(text)
    assert [line.split() for line in file.getvalue().splitlines()] == [["note:", "one"], ["note:", "two"]]


def test_what_a_build_does_for_long_is_told_unless_a_spinner_shows_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task_progress, "SILENT_S", 0.001)
    (decision, *_) = check_rebuilds(load_request(path), "cpu")

    def is_told(part: str) -> bool:
        """Within a time that no load exceeds."""
        end_s = time.monotonic() + 60.0
        while time.monotonic() < end_s:
            if part in capsys.readouterr().err:
                return True
        return False

    for terminal in (False, True):
        out, file = console(terminal=terminal)
        report = ConsoleReport(out)
        with report.telling():
            assert is_told("checking graphs and engines: 0 s so far")
            with report.building(decision):
                assert terminal or is_told("building decoder (first time): 0 s so far")
            assert is_told("checking graphs and engines: 0 s so far")
        assert ("building decoder" in file.getvalue()) == terminal
