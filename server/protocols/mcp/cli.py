"""tickrt-mcp: an assistant on this machine makes, covers and plays music, over stdio."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Annotated, get_args

import typer
from platformdirs import user_music_path

from runtime.base.errors import ConfigError, TickError
from runtime.base.files import user_folder
from runtime.commands.command_line import CommandLine, Config, Version, need_packages
from runtime.commands.terminal import log_to_stderr
from runtime.config.deployment import Target, load_deployment
from runtime.pipeline.building import open_built_pipeline, open_tried_pipeline
from runtime.pipeline.pipeline import Pipeline
from server.config import load_settings
from server.service.service import SWITCH_INTERVAL_S, Service

app = CommandLine()


@app.command()
def tickrt_mcp(
    config: Config,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files that are made. [default: TickRT in your music folder]")
    ] = None,
    target: Annotated[
        Target | None, typer.Option(metavar="|".join(get_args(Target)), help="Overrides the deployment's target.")
    ] = None,
    version: Version = False,
) -> None:
    """Speak MCP over standard input and output: an assistant starts this, and makes music with its tools.

    The model is opened in this process. An assistant that is to use a running server connects to its /mcp.
    """
    log_to_stderr("warning")
    need_packages("mcp", extra="mcp")
    from server.protocols.mcp.protocol import serve_stdio

    deployment, opener = load_deployment(config), open_tried_pipeline if config.is_file() else open_built_pipeline

    def open_and_start() -> Pipeline:
        pipeline = opener(deployment, target=target)
        pipeline.start()
        return pipeline

    # All of this process is one client's.
    service = Service(open_and_start, load_settings({}, client_in_flight=0, client_sessions=0))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    folder = _made(out or user_folder(user_music_path, "--out FOLDER") / "TickRT")
    asyncio.run(serve_stdio(service, folder, metadata.version("tickrt")))
    failure: TickError | None = service.failure
    if failure is not None:
        raise failure


def _made(folder: Path) -> Path:
    """The folder, which is made where it is not there. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.resolve()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}", fix="--out FOLDER") from None


def main() -> None:
    """Entry point of tickrt-mcp."""
    app(prog_name="tickrt-mcp")
