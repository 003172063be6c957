"""A real server in a process of its own, and a headless Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.cluster import cluster
from helpers.paths import ROOT

__all__ = ["browser", "cluster", "open_page", "serve", "server"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = "install one (apt-get install chromium) or name it: TICKRT_BROWSER=/path/to/chrome make test-page"
FLAGS = [
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    *(["--no-sandbox"] if os.getuid() == 0 else []),
]
# Generous: a loaded machine is slow, not wrong.
TIMEOUT_S = 60.0


@dataclass
class ServerProcess:
    """`tickrt-serve CONFIG` on one port, with its sessions in `state`."""

    state: Path
    environment: dict[str, str] = field(default_factory=dict)
    config: Path = ROOT / "configs/demo.toml"
    port: int = field(init=False)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "server", str(self.config), "--port", str(self.port)]
        # Pages of earlier tests may still have sessions: no limit on these.
        limits = {"TICKRT_CLIENT_SESSIONS": "0", "TICKRT_MAX_REFRESH_S": "3600"}
        environment = {**os.environ, **limits, "TICKRT_STATE": str(self.state), **self.environment}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready"):
                return
        pytest.fail(f"the server ended with exit code {self.process.wait()}")

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Serve = Callable[..., ServerProcess]
OpenPage = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(TICKRT_API_KEY="k")`: a server for this test; `config=PATH`: of another deployment than the demo."""
    with ExitStack() as closing:

        def start(config: Path = ServerProcess.config, **environment: str) -> ServerProcess:
            server = ServerProcess(tmp_path / "state", environment, config)
            closing.callback(server.kill)
            return server

        yield start


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that leave it running."""
    server = ServerProcess(tmp_path_factory.mktemp("state"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's browser, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra page (make test-page)")
    path = os.environ.get("TICKRT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(f"no browser was found: {INSTALL}")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """`open_page(url, script="...", **context)`: a page in a context of its own, connected to its server.

    At the end of the test no page has logged an error, but for those that contain one of `allowed`.
    """
    with ExitStack() as closing:
        errors: list[str] = []
        ignored: list[str] = []

        def open_one(
            url: str, *, script: str = "", allowed: tuple[str, ...] = (), status: str = "live", **options: Any
        ) -> Any:
            context = browser.new_context(permissions=["microphone"], accept_downloads=True, **options)
            closing.callback(context.close)
            context.set_default_timeout(TIMEOUT_S * 1000)
            if script:
                context.add_init_script(script)
            page = context.new_page()
            closing.callback(page.goto, "about:blank")
            ignored.extend(allowed)
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(url)
            page.wait_for_selector(f"#status[data-status={status}]")
            return page

        yield open_one
        assert [text for text in errors if not any(part in text for part in ignored)] == []
