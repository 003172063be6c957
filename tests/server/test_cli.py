from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.http_harness import Served
from typer.testing import CliRunner

from runtime.config.deployment import Deployment
from runtime.sessions.sqlite_store import open_sqlite_store
from server.cli import app, print_ready
from server.config import ServerSettings
from server.process import open_socket


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_help_names_every_option() -> None:
    code, text = run("--help")
    assert code == 0
    for word in ("--host", "--port", "--insecure", "TICKRT_API_KEY"):
        assert word in text


def test_a_missing_deployment_file_is_reported(tmp_path: Path) -> None:
    code, text = run(tmp_path / "none.toml")
    assert code == 2
    assert "no configuration at" in text


def test_an_unknown_setting_is_reported(built: Callable[..., Deployment], tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(built(max_rows=16).path.read_text() + "\n[server]\nprot = 1\n")
    code, text = run(path)
    assert code == 2
    assert "prot" in text


def test_a_public_address_without_a_key_is_refused(built: Callable[..., Deployment]) -> None:
    code, text = run(built(max_rows=16).path, "--host", "0.0.0.0")
    assert code == 2
    assert "TICKRT_API_KEY" in text
    assert "--insecure" in text


def test_a_port_in_use_is_reported(built: Callable[..., Deployment]) -> None:
    with open_socket("127.0.0.1", 0, 65536) as taken:
        taken.listen()
        code, text = run(built(max_rows=16).path, "--port", taken.getsockname()[1])
    assert code == 2
    assert "in use" in text


def test_a_state_folder_in_use_is_reported(
    built: Callable[..., Deployment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKRT_STATE", str(tmp_path))
    with open_sqlite_store(tmp_path):
        code, text = run(built(max_rows=16).path, "--port", 0)
    assert code == 2
    assert "in use by another server" in text


def test_the_printed_command_writes_a_wav(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_ready(served.url, ServerSettings())
    address, line = capsys.readouterr().out.strip().splitlines()
    assert served.url in address
    done = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, timeout=20, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out.wav").read_bytes().startswith(b"RIFF")


def test_the_printed_command_names_the_keys_variable_and_not_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("http://127.0.0.1:1", ServerSettings(api_key="very-secret"))
    text = capsys.readouterr().out
    assert "$TICKRT_API_KEY" in text
    assert "very-secret" not in text
