"""All commands: the same exit status for the same error, suggestions, completion, sections, --version."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from typer.testing import CliRunner, Result

from configs.demo.recipe import __main__ as recipe
from engine_build import cli as build
from engine_build.export import __main__ as export
from engine_build.reports import precision_cost
from profiling import bench_cli as bench
from profiling import bench_options
from profiling import profile_cli as profile
from runtime.base.errors import BuildError, ConfigError, EngineNotBuiltError, FileError, NonFiniteError, TickError
from runtime.commands import generate as generate
from runtime.commands.command_line import CommandLine, DefaultCommandGroup, complete_deployment
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import manifest_path
from server import cli as serve

COMMANDS = (build, serve, generate, profile, bench)
# Module -> arguments of a call that opens the deployment, or checks the installed packages.
CALLS: dict[Any, list[str]] = {
    **{module: ["demo"] for module in COMMANDS},
    generate: ["demo", "--prompt", "a", "--out", "a.wav"],
    precision_cost: ["demo"],
    export: ["acestep", "--out", "a"],
    recipe: ["train"],
}


def first_call(module: Any) -> tuple[Any, str]:
    """What a command calls first: the module, and the function's name in it."""
    name = "load_deployment" if CALLS[module][0] == "demo" else "need_packages"
    return bench_options if module is bench else module, name


def invoke(module: Any, *arguments: object) -> Result:
    return CliRunner().invoke(module.app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("wrong", fix="do it"), 2, "error: wrong\n  fix: do it\n"),
        (EngineNotBuiltError("wrong"), 3, "error: wrong\n"),
        (BuildError("wrong"), 3, "error: wrong\n"),
        (NonFiniteError("wrong"), 4, "error: wrong\n"),
        (TickError("wrong"), 4, "error: wrong\n"),
        (FileError("wrong"), 5, "error: wrong\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 5, "error: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "a.toml"), 5, "error: a.toml: Permission denied\n"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (typer.Abort(), 130, "error: interrupted"),
    ],
)
@pytest.mark.parametrize("module", CALLS)
def test_every_command_has_one_status_per_kind_of_error(
    module: Any, error: BaseException, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(*first_call(module), fail)
    result = invoke(module, *CALLS[module])
    assert result.exit_code == status
    assert result.stderr.startswith(message)
    assert result.stderr.count("error:") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("module", CALLS)
def test_sigterm_is_an_interrupt_in_every_command(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminate(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(*first_call(module), terminate)
    result = invoke(module, *CALLS[module])
    assert result.exit_code == 130
    assert result.stderr.startswith("error: interrupted")


@pytest.mark.parametrize("module", CALLS)
def test_a_misspelled_option_is_answered_with_the_right_one_in_every_command(module: Any) -> None:
    result = invoke(module, *CALLS[module][:1], "--hepl")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: No such option: --hepl, did you mean --help?\n  fix: see ")
    assert result.stderr.endswith(" --help\n")
    assert result.stdout == ""


@pytest.mark.parametrize("module", COMMANDS)
def test_a_missing_configuration_has_the_same_status_in_every_command(module: Any, tmp_path: Path) -> None:
    result = invoke(module, tmp_path / "none.toml", *CALLS[module][1:])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no configuration at")
    assert result.stdout == ""


# It clears a terminal, changes colours, reverses text and forges a message.
HOSTILE = "a\x1b[2J\x9b31m\u202e\nerror: forged"


def check_printed(result: Result) -> None:
    """What a command prints has no character that a terminal takes for more than text, and no line of another's."""
    lines = f"{result.stdout}\n{result.stderr}".split("\n")
    assert r"\x1b[2J" in result.output
    assert all(line.isprintable() for line in lines)
    assert not any(line.lstrip().startswith("error: forged") for line in lines)
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("module", CALLS)
def test_every_command_prints_what_it_is_given_as_plain_text(module: Any, tmp_path: Path) -> None:
    check_printed(invoke(module, *CALLS[module][:1], f"--{HOSTILE}"))
    if CALLS[module][0] == "demo":
        (tmp_path / "a.toml").write_text('"a\\u001b[2J\\u202e\\nerror: forged" = 1\n', encoding="utf-8")
        check_printed(invoke(module, tmp_path / HOSTILE, *CALLS[module][1:]))
        check_printed(invoke(module, tmp_path / "a.toml", *CALLS[module][1:]))


def test_names_in_files_are_printed_as_plain_text(tmp_path: Path) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path))
    folder = deployment.engine_folder("cpu")
    folder.mkdir(parents=True)
    manifest_path(folder, HOSTILE).write_text("{}")
    (folder / f"{HOSTILE}.onnx").touch()
    check_printed(invoke(build, "list", deployment.path))
    check_printed(invoke(build, "inspect", folder / f"{HOSTILE}.onnx"))
    check_printed(invoke(build, "init", tmp_path / HOSTILE))
    row = {"name": HOSTILE, "averageMs": 1.0, "timeMs": 1.0, "percentage": 100.0}
    (tmp_path / "a.json").write_text(json.dumps([{"count": 1}, row]))
    check_printed(invoke(profile, "diff", tmp_path / "a.json", tmp_path / "a.json"))
    check_printed(invoke(generate, "demo", "--prompt", "a", "--out", "a.wav", "--format", HOSTILE))
    check_printed(invoke(generate, "demo", "--like", tmp_path / HOSTILE, "--out", "a.wav"))


def test_warnings_are_printed_as_plain_text() -> None:
    invoke(build, "--version")  # any command
    record = logging.LogRecord("tickrt", logging.WARNING, "", 1, HOSTILE, None, None)
    assert logging.lastResort is not None
    assert logging.lastResort.format(record) == r"a\x1b[2J\x9b31m\u202e\nerror: forged"


@pytest.mark.parametrize("module", [serve, generate, profile, bench])
def test_missing_engines_have_the_same_status_in_every_command(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(
        module, tiny_deployment(tmp_path), *CALLS[module][1:], *(["--port", "0"] if module is serve else [])
    )
    assert result.exit_code == 3
    assert "is not built" in result.stderr
    assert "fix: tickrt-build" in result.stderr


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_documents_its_exit_statuses_and_its_version(module: Any) -> None:
    text = " ".join(invoke(module, "--help").output.split())
    assert "Exit status: 0 success" in text
    assert "130 interrupted" in text
    versions = invoke(module, "--version").output.splitlines()
    assert [line.split()[0] for line in versions[:3]] == ["tickrt", "Python", "onnxruntime"]


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("name", "arguments", "is_closed", "message"),
    [
        ("engine_build.cli", ["list", "demo", "--json"], False, "error: No space left on device\n"),
        ("engine_build.cli", ["list", "demo"], True, ""),
        ("runtime.commands.generate", ["--help"], True, ""),
        ("runtime.commands.generate", ["--help"], False, "error: No space left on device\n"),
        ("server", ["--version"], True, ""),
    ],
)
def test_standard_output_that_takes_nothing_is_no_traceback(
    name: str, arguments: list[str], is_closed: bool, message: str
) -> None:
    """As in `command | true` and `command > /dev/full`."""
    receiver, sender = os.pipe()
    os.close(receiver)
    full = os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", name, *arguments]
    output = sender if is_closed else full
    done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True)
    os.close(sender)
    os.close(full)
    assert (done.stderr, done.returncode) == (message, 5)


def sample_app(**settings: Any) -> CommandLine:
    app = CommandLine(**settings)

    @app.command()
    def run(
        name: str,
        size: Annotated[int, typer.Option(rich_help_panel="Sizes", min=1, max=9, help="How large.")] = 3,
    ) -> None:
        print(f"run {name}")

    @app.command()
    def diff() -> None:
        print("diff")

    return app


def test_the_first_command_is_the_default() -> None:
    app = sample_app(cls=DefaultCommandGroup)
    outputs = [CliRunner().invoke(app, words).output for words in (["x"], ["run", "y"], ["diff"])]
    assert outputs == ["run x\n", "run y\n", "diff\n"]
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage:")


@pytest.mark.parametrize("cls", [DefaultCommandGroup, None])
def test_a_misspelled_command_is_answered_with_the_right_one(cls: Any, tmp_path: Path) -> None:
    app = sample_app(**({"cls": cls} if cls else {}))
    result = CliRunner().invoke(app, ["dif"])
    assert result.exit_code == 2
    assert "id you mean" in result.stderr
    assert "diff" in result.stderr


def test_a_file_with_the_name_of_a_command_but_one_letter_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dif").write_text("")
    assert CliRunner().invoke(sample_app(cls=DefaultCommandGroup), ["dif"]).output == "run dif\n"


def test_options_are_in_sections_with_range_and_default() -> None:
    text = CliRunner().invoke(sample_app(), ["run", "--help"]).output
    section = text[text.index("Sizes:") :]
    assert text.index("Arguments:") < text.index("Sizes:")
    assert "How large." in section
    assert "default: 3" in section
    assert "1<=x<=9" in section


Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Completions of a command line, as bash asks for them, in a folder with `mine.toml` and `configs/other.toml`."""
    (tmp_path / "configs").mkdir()
    for name in ("mine.toml", "configs/other.toml", "notes.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)

    def ask(line: str) -> list[str]:
        name, *words = line.split(" ")
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        environment = {variable: "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        module = next(item for item in COMMANDS if item.__name__.partition(".")[0] == OWNERS[name])
        return CliRunner().invoke(module.app, [], prog_name=name, env=environment).output.split()

    return ask


OWNERS = {"tickrt-build": "engine_build", "tickrt-generate": "runtime", "tickrt-serve": "server"}


def test_deployments_options_and_choices_are_completed(complete: Complete) -> None:
    assert complete("tickrt-generate d") == ["demo"]
    assert complete("tickrt-serve m") == ["mine.toml"]
    assert complete("tickrt-build con") == ["configs/other.toml"]
    assert {"demo", "mine.toml", "list", "clean"} <= set(complete("tickrt-build "))
    assert "notes.txt" not in complete("tickrt-build ")
    assert complete("tickrt-build list de") == ["demo"]
    assert complete("tickrt-generate demo --step") == ["--steps"]
    assert complete("tickrt-build demo --dr") == ["--dry-run"]
    assert complete("tickrt-build demo --target c") == ["cpu", "cuda"]


def test_complete_deployment_takes_special_characters_as_they_are(complete: Complete) -> None:
    assert complete_deployment("[") == []


@pytest.mark.parametrize("module", COMMANDS)
def test_the_completion_script_can_be_printed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = invoke(module, "--show-completion", "bash")
    assert result.exit_code == 0
    assert "complete -o default" in result.output
