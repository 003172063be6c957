"""tickrt-build as a command: output, exit status, files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from typer.testing import CliRunner, Result

from engine_build.cli import app
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import file_sha256

FEW = '[build]\nstep_variants = ["plain"]\n'


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path, more=FEW)


def test_build_and_build_again(path: Path) -> None:
    first, second = invoke(path), invoke(path, "--target", "cpu", "--threads", 1)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout.splitlines()[-1].startswith("12 built")
    assert second.stdout.splitlines()[-1].startswith("12 reused")
    # Lines of an engine that takes long are no message.
    assert not [line for line in (first.stderr + second.stderr).splitlines() if not line.startswith("building ")]


def test_a_dry_run_writes_nothing(path: Path) -> None:
    before = everything(path.parent)
    result = invoke(path, "--dry-run")
    assert result.exit_code == 0
    assert "decoder" in result.stdout
    assert everything(path.parent) == before
    assert not (path.parent / ".engines").exists()
    invoke(path)
    built = everything(path.parent)
    assert " reuse " in invoke(path, "--dry-run").stdout
    assert "--force" in invoke(path, "--dry-run", "--force").stdout
    assert everything(path.parent) == built


@pytest.mark.parametrize(
    ("old", "new", "status", "says"),
    [
        ("opt = 32, max = 64", "opt = 65, max = 64", 2, "min <= opt <= max"),
        ("[runtime]", "[runtime", 2, "is not TOML"),
        ('bundle = "tiny"', 'bundle = "huge"', 2, "no bundle at"),
        ('step_variants = ["plain"]', 'step_variants = ["rcfg"]', 2, "guidance+rcfg"),
        ('target = "cpu"', 'target = "tensorrt"', 3, "needs the package tensorrt"),
    ],
)
def test_errors_have_a_message_and_a_fix(path: Path, old: str, new: str, status: int, says: str) -> None:
    path.write_text(path.read_text().replace(old, new))
    result = invoke(path)
    assert result.exit_code == status
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert result.stdout == ""


def test_a_damaged_graph_is_a_build_error(path: Path) -> None:
    decoder = load_deployment(path).bundle / "decoder.onnx"
    decoder.write_bytes(decoder.read_bytes()[:1000])
    for more in ((), ("--dry-run",)):
        result = invoke(path, *more)
        assert result.exit_code == 3
        assert "truncated" in result.stderr
        assert "fix: " in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--target", "toaster"), ("--threads", "-1")])
def test_wrong_usage_is_status_two(path: Path, arguments: tuple[str, ...]) -> None:
    assert invoke(*((path, *arguments) if arguments else ())).exit_code == 2


def test_a_missing_file_is_status_two(tmp_path: Path) -> None:
    for wrong, says in ((tmp_path / "none.toml", "no configuration at"), (tmp_path, "is a folder")):
        result = invoke(wrong)
        assert result.exit_code == 2
        assert says in result.stderr


@pytest.mark.shipped
def test_ctrl_c_stops_at_once_and_keeps_complete_engines_only(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    command = [sys.executable, "-m", "engine_build.cli", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("decoder" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in stderr
    names = {file.name for file in load_deployment(path).engine_folder().iterdir()}
    assert {name.removesuffix(".onnx") for name in names if name.endswith(".onnx")} == {
        name.removesuffix(".manifest.json") for name in names if name.endswith(".manifest.json")
    }
    assert not [name for name in names if name.endswith(".partial")]
    again = invoke(path)
    assert again.exit_code == 0
    assert not again.stdout.splitlines()[-1].startswith("25 built")
    assert "reused" in again.stdout


@pytest.mark.shipped
def test_another_process_builds_the_same_bytes(path: Path) -> None:
    engines = load_deployment(path).engine_folder()
    invoke(path)
    before = {file.name: file_sha256(file) for file in engines.glob("*.onnx")}
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([sys.executable, "-m", "engine_build.cli", str(path), "--force"], check=True, env=environment)
    assert {file.name: file_sha256(file) for file in engines.glob("*.onnx")} == before
