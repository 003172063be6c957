"""One exit status per error class, one way to print an error, one default command."""

import signal
from pathlib import Path

import pytest
import typer
from helpers.factories import tiny_deployment
from typer.testing import CliRunner

from engine_build.cli import app as build_app
from profiling.bench_cli import app as bench_app
from profiling.profile_cli import app as profile_app
from runtime import errors
from runtime.cli import app as generate_app
from runtime.terminal import (
    EXIT_INTERRUPTED,
    DefaultCommandGroup,
    exit_on_error,
    exit_status,
    print_line,
    shown_path,
    sigterm_as_interrupt,
)
from server.cli import cli as serve_app

COMMANDS = (build_app, serve_app, generate_app, profile_app, bench_app)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigError("a"), 2),
        (errors.RequestError("a", field="steps"), 2),
        (errors.ShapeError("a"), 2),
        (errors.EngineNotBuiltError("a"), 3),
        (errors.OutOfMemoryError("a"), 3),
        (errors.BuildError("a"), 3),
        (errors.NonFiniteError("a"), 4),
        (errors.TickError("a"), 4),
        (errors.FileError("a"), 5),
    ],
)
def test_exit_status_is_that_of_the_nearest_class(error: errors.TickError, status: int) -> None:
    assert exit_status(error) == status


def test_an_error_is_printed_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, exit_on_error():
        raise errors.EngineNotBuiltError("no engine [bold]decoder[/bold]", fix="tickrt-build a.toml")
    assert caught.value.exit_code == 3
    assert capsys.readouterr() == ("", "error: no engine [bold]decoder[/bold]\n  fix: tickrt-build a.toml\n")


def test_an_interrupt_has_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, exit_on_error("interrupted; nothing was written"):
        raise KeyboardInterrupt
    assert caught.value.exit_code == EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err == "error: interrupted; nothing was written\n"


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nowhere" / "a.json"
    with pytest.raises(typer.Exit) as caught, exit_on_error():
        path.write_text("{}")
    assert caught.value.exit_code == 5
    assert capsys.readouterr().err == f"error: {path}: No such file or directory\n"


def test_other_exceptions_pass_through() -> None:
    with pytest.raises(OSError, match="a bug"), exit_on_error():
        raise OSError("a bug")
    with pytest.raises(ZeroDivisionError), exit_on_error():
        raise ZeroDivisionError


def test_sigterm_interrupts_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_long_lines_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[a] " * 200
    print_line(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_paths_are_shown_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert shown_path(tmp_path / "a" / "b.toml") == "b.toml"
    assert shown_path(tmp_path / "b.toml") == str(tmp_path / "b.toml")


def test_the_first_command_is_the_default() -> None:
    app = typer.Typer(cls=DefaultCommandGroup)

    @app.command()
    def run(name: str) -> None:
        print(f"run {name}")

    @app.command()
    def diff() -> None:
        print("diff")

    outputs = [CliRunner().invoke(app, words).output for words in (["x"], ["run", "y"], ["diff"])]
    assert outputs == ["run x\n", "run y\n", "diff\n"]
    assert CliRunner().invoke(app, []).exit_code == 2


@pytest.mark.parametrize("app", COMMANDS)
def test_every_command_documents_its_exit_statuses(app: typer.Typer) -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "Exit status: 0 success" in text
    assert "130 interrupted" in text


@pytest.mark.parametrize("app", COMMANDS)
def test_a_missing_configuration_has_the_same_status_in_every_command(app: typer.Typer, tmp_path: Path) -> None:
    arguments = ["-o", "a.wav", "--prompt", "a"] if app is generate_app else []
    result = CliRunner().invoke(app, [str(tmp_path / "none.toml"), *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no configuration at")
    assert result.stdout == ""


@pytest.mark.parametrize("app", [serve_app, generate_app, profile_app, bench_app])
def test_missing_engines_have_the_same_status_in_every_command(app: typer.Typer, tmp_path: Path) -> None:
    more = {generate_app: ["-o", str(tmp_path / "a.wav"), "--prompt", "a"], serve_app: ["--port", "0"]}
    result = CliRunner().invoke(app, [str(tiny_deployment(tmp_path)), *more.get(app, [])])
    assert result.exit_code == 3
    assert "is not built" in result.stderr
    assert "fix: tickrt-build" in result.stderr
