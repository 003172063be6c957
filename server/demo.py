"""tickrt demo: the demo model served on this machine, and its page in the browser."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from runtime.commands.command_line import CommandLine, Version, need_packages
from runtime.commands.terminal import log_to_stderr, print_line
from server.cli import serve_deployment
from server.config import setting_help
from server.process import ignore_reload_signal

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
app = CommandLine()


@app.command()
def tickrt_demo(
    port: Annotated[int | None, typer.Option(min=0, max=65535, help=setting_help("port"))] = None,
    has_page: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, where this machine has a display.")
    ] = True,
    version: Version = False,
) -> None:
    """Play the demo in the browser. Engines that are missing are built first; Ctrl-C ends it."""
    need_packages("onnxruntime", extra="cpu")
    ignore_reload_signal()
    log_to_stderr("warning")

    def on_ready(url: str) -> None:
        print_line("Ctrl-C ends it.")
        if has_page and has_display(os.environ):
            # In a thread: some browsers keep their caller waiting for seconds.
            threading.Thread(target=webbrowser.open, args=(url,), name="browser", daemon=True).start()

    raise typer.Exit(serve_deployment(Path("demo"), host="127.0.0.1", port=port, on_ready=on_ready))


def has_display(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser that is opened is seen: not over SSH, and not where there is no screen."""
    if environment.get("BROWSER"):
        return True
    if platform in ("win32", "darwin"):
        return not environment.get("SSH_CONNECTION")
    return any(environment.get(name) for name in DISPLAYS)
