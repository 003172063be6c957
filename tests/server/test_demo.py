"""tickrt demo: what it serves, and when it opens the page. tests/integration/test_wheel.py runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from server import demo

URL = "http://127.0.0.1:8000"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was served; a server of these tests is ready at once and ends."""
    found: list[dict[str, Any]] = []

    def run(config: Path, *, on_ready: Callable[[str], None], **settings: Any) -> int:
        found.append({"config": str(config), **settings})
        on_ready(URL)
        return 0

    monkeypatch.setattr(demo, "serve_deployment", run)
    monkeypatch.setenv("DISPLAY", ":0")
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """The pages that were opened."""
    pages: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr("webbrowser.open", pages.put)
    return pages


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(demo.app, arguments)


def test_the_demo_is_served_on_this_machine_and_its_page_opened(
    started: list[dict[str, Any]], opened: SimpleQueue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKRT_HOST", "0.0.0.0")
    result = invoke("--port", "8001")
    assert (result.exit_code, result.stdout) == (0, "Ctrl-C ends it.\n")
    assert started == [{"config": "demo", "host": "127.0.0.1", "port": 8001}]
    assert opened.get(timeout=30) == URL


@pytest.mark.parametrize(("arguments", "display"), [(["--no-browser"], ":0"), ([], "")])
def test_no_page_is_opened_where_none_is_wanted_or_seen(
    arguments: list[str],
    display: str,
    started: list[dict[str, Any]],
    opened: SimpleQueue[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(demo, "has_display", lambda environment: asked.append(True) or bool(display))
    assert invoke(*arguments).exit_code == 0
    assert len(started) == 1
    assert opened.empty()
    assert len(asked) == (not arguments)


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ""}, "linux", False),
        ({}, "linux", False),
        ({"BROWSER": "firefox"}, "linux", True),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "darwin", False),
        ({}, "win32", True),
    ],
)
def test_a_display_is_there(environment: dict[str, str], platform: str, expected: bool) -> None:
    assert demo.has_display(environment, platform) is expected


def test_without_the_extra_it_says_what_to_install(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = invoke()
    assert result.exit_code == 3
    assert result.stderr == (
        "error: this command needs onnxruntime, not installed here\n  fix: pip install 'tickrt[cpu]'\n"
    )
    assert started == []
