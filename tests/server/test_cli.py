from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from helpers.http_harness import TIMEOUT_S, Served
from helpers.paths import DEMO_BUNDLE, ROOT
from helpers.reads import bundle_reads
from typer.testing import CliRunner

from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.live.storage.sqlite_store import open_sqlite_store
from runtime.pipeline.pipeline import Pipeline
from server.cli import app, print_ready
from server.config import ServerSettings
from server.process import open_socket


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "server", "words"),
    [
        ([], "prot = 1", ["prot"]),
        (["--host", "0.0.0.0"], "", ["TICKRT_API_KEY", "--insecure"]),
        (["--port", "PORT"], "", ["in use"]),
        (["--port", "0"], 'state = "state"', ["in use by another server"]),
    ],
)
def test_what_a_server_cannot_be_started_with_is_reported(
    built: Callable[..., Deployment], tmp_path: Path, arguments: list[str], server: str, words: list[str]
) -> None:
    (tmp_path / "tiny").symlink_to(built(max_rows=16).path.parent / "tiny")
    path = tmp_path / "tiny.toml"
    path.write_text(f"{built(max_rows=16).path.read_text()}\n[server]\n{server}\n")
    with open_socket("127.0.0.1", 0, 65536) as taken, open_sqlite_store(tmp_path / "state"):
        port = str(taken.getsockname()[1])
        code, text = run(path, *(word.replace("PORT", port) for word in arguments))
    assert (code, [word for word in words if word not in text]) == (2, [])
    assert run(tmp_path / "none.toml")[0] == 2


def test_a_server_reads_the_bundle_once(built: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch) -> None:
    app_with = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(failure=None)))

    def create(open_and_start: Callable[[], Pipeline], settings: ServerSettings) -> Any:
        app_with.open = open_and_start
        return app_with

    def serve(asgi_app: Any, settings: ServerSettings, listener: Any, on_ready: Callable[[], None]) -> int:
        asgi_app.open().close()
        on_ready()
        return 0

    monkeypatch.setattr("server.cli.create_app", create)
    monkeypatch.setattr("server.cli.serve", serve)
    config = built(max_rows=16).path
    reads = bundle_reads(monkeypatch)
    assert run(config, "--port", 0)[0] == 0
    assert len(reads) == 1


@pytest.mark.shipped
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_builds_its_engines(tmp_path: Path, number: signal.Signals) -> None:
    """Engines of a deployment that is given by name are built first."""
    engines = load_deployment(tiny_deployment(tmp_path)).engine_folder()
    program = (
        "from pathlib import Path; from runtime.config import deployment; from server.cli import main;"
        f" deployment.SHIPPED = Path({str(tmp_path)!r}); main()"
    )
    command = [sys.executable, "-c", program, "tiny", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "opening engines" in process.stdout.readline()
        while process.poll() is None and not list(engines.glob("*.manifest.json")):
            time.sleep(0.01)
        process.send_signal(number)
        _, messages = process.communicate()
    assert process.returncode == 130
    assert messages.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in messages
    assert not list(engines.glob("*.partial"))


def test_a_closed_standard_output_does_not_end_the_server(
    built: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("typer.echo", fail)
    print_ready("http://127.0.0.1:1", ServerSettings(), load_bundle(DEMO_BUNDLE))


def test_the_printed_command_writes_a_wav(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_ready(served.url, ServerSettings(), served.pipeline.bundle)
    address, line = capsys.readouterr().out.strip().splitlines()
    assert served.url in address
    done = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out.wav").read_bytes().startswith(b"RIFF")


def test_the_printed_command_names_the_keys_variable_and_not_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("http://127.0.0.1:1", ServerSettings(api_key="very-secret"), load_bundle(DEMO_BUNDLE))
    text = capsys.readouterr().out
    assert "$TICKRT_API_KEY" in text
    assert "very-secret" not in text


JSON = "-H 'content-type: application/json' -d"
FORM = """-F request='{"seed": 1};type=application/json'"""


@pytest.mark.parametrize(
    ("text", "condition", "null", "codec", "command"),
    [
        (True, "c", None, True, f"""{JSON} '{{"prompt": "bright synth arpeggio", "stream": false}}' -o out.wav"""),
        (False, "c", [0.0], True, f"""{JSON} '{{"seed": 1}}' -o out.wav"""),
        (False, None, None, False, f"""{JSON} '{{"seed": 1}}' -o out.safetensors"""),
        (False, "c", None, True, f"""{FORM} -F condition=@condition.safetensors -o out.wav"""),
    ],
    ids=["text", "a null condition", "no condition", "a condition of the client's"],
)
def test_the_printed_command_sends_what_the_model_takes(
    text: bool, condition: str | None, null: Any, codec: bool, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = SimpleNamespace(inputs=SimpleNamespace(condition=condition), null_condition=null)
    part = SimpleNamespace()
    bundle: Any = SimpleNamespace(text_encoder=part if text else None, codec=part if codec else None, decoder=decoder)
    print_ready("http://here", ServerSettings(), bundle)
    _, line = capsys.readouterr().out.strip().splitlines()
    assert line.strip() == f"curl http://here/v1/audio/generations {command}"
