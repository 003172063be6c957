"""tickrt-serve: serve a deployment over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from runtime.base.errors import TickError
from runtime.commands.command_line import CommandLine, Config, Version
from runtime.commands.progress import OPENING, waiting
from runtime.commands.terminal import log_to_stderr, print_line
from runtime.config.bundle import Bundle
from runtime.config.deployment import Target, load_deployment
from runtime.pipeline.building import open_built_pipeline, open_tried_pipeline
from runtime.pipeline.pipeline import Pipeline
from server.app import create_app
from server.config import ServerSettings, load_settings, setting_help
from server.process import ignore_reload_signal, open_socket, serve, url_of

LogLevel = Literal["debug", "info", "warning", "error"]
app = CommandLine()


@app.command()
def tickrt_serve(
    config: Config,
    host: Annotated[str | None, typer.Option(help=setting_help("host"))] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help=setting_help("port"))] = None,
    target: Annotated[
        Target | None, typer.Option(metavar="|".join(get_args(Target)), help="Overrides the deployment's target.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help=setting_help("insecure"))] = False,
    log_level: Annotated[LogLevel, typer.Option(help="The least severe messages to log.")] = "info",
    version: Version = False,
) -> None:
    """Serve a deployment over HTTP until SIGTERM or Ctrl-C. SIGHUP replaces the engines by the current builds.

    The API key comes from TICKRT_API_KEY or the file's [server] table; every setting has a TICKRT_ variable.
    """
    ignore_reload_signal()
    log_to_stderr(log_level)
    raise typer.Exit(serve_deployment(config, host=host, port=port, insecure=insecure or None, target=target))


def serve_deployment(
    config: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    insecure: bool | None = None,
    target: Target | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve `config`; returns the exit code. `on_ready` is called with the server's address once it is ready.

    Raises ConfigError, and the error if the engines cannot be opened.
    """
    deployment = load_deployment(config)
    table = deployment.tables.get("server", {})
    settings = load_settings(table, deployment.path.parent, host=host, port=port, insecure=insecure)

    def open_and_start() -> Pipeline:
        with waiting(OPENING):
            pipeline = built or open_tried_pipeline(deployment, target=target)
            pipeline.start()
        return pipeline

    def ready() -> None:
        print_ready(url, settings, deployment.loaded_bundle)
        if on_ready is not None:
            on_ready(url)

    with open_socket(settings.host, settings.port, settings.send_buffer_bytes) as listener:
        url = url_of(listener, settings.scheme)
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        asgi_app = create_app(open_and_start, settings)
        print_line(f"{deployment.path.name}: opening engines for {url}")
        # Engines of a deployment that is given by its name are built where they are missing: here, in the main thread,
        # where Ctrl-C and SIGTERM end the build.
        built = None if config.is_file() else open_built_pipeline(deployment, target=target)
        code = serve(asgi_app, settings, listener, on_ready=ready)
    failure: TickError | None = asgi_app.state.service.failure
    if failure is not None:
        raise failure
    return code


def print_ready(url: str, settings: ServerSettings, bundle: Bundle) -> None:
    """Print the page's URL, and a curl command that generates a file with this model."""
    body = '{"prompt": "bright synth arpeggio", "stream": false}' if bundle.text_encoder else '{"seed": 1}'
    data, out = f"-H 'content-type: application/json' -d '{body}'", "out.wav" if bundle.codec else "out.safetensors"
    if bundle.text_encoder is None and bundle.decoder.inputs.condition and bundle.decoder.null_condition is None:
        data = f"-F request='{body};type=application/json' -F condition=@condition.safetensors"
    key = "" if settings.api_key is None else ' -H "authorization: Bearer $TICKRT_API_KEY"'
    with suppress(OSError):  # a server goes on where the reader of its standard output has left
        typer.echo(f"ready on {url} (open it in a browser to play; API documentation: {url}/docs)")
        typer.echo(f"  curl {url}/v1/audio/generations{key} {data} -o {out}")


def main() -> None:
    """Entry point of tickrt-serve."""
    app(prog_name="tickrt-serve")
