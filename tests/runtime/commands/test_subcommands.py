"""tickrt: every other console script is a subcommand, imported when it is called."""

import subprocess
import sys
import tomllib

import pytest
from helpers.paths import ROOT
from typer.testing import CliRunner, Result

from runtime.commands.subcommands import INSTALL, SUBCOMMANDS, app

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, prog_name="tickrt")


def test_every_console_script_is_a_subcommand_and_so_are_demo_and_pull() -> None:
    assert {f"tickrt-{name}" for name in SUBCOMMANDS} == {*SCRIPTS, "tickrt-demo", "tickrt-pull"} - {"tickrt"}
    text = invoke("--help").output
    assert all(f"\n  {name} " in text for name in SUBCOMMANDS)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_subcommand_is_the_script_of_its_name(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert f"Usage: tickrt {name} [OPTIONS]" in result.stdout
    assert invoke(name, "none.toml", *(["--prompt", "a", "-o", "a.wav"] if name == "generate" else [])).exit_code == 2


def test_a_misspelled_subcommand_or_option_is_answered_with_the_right_one() -> None:
    assert "Did you mean 'serve'?" in invoke("serv").stderr
    assert (
        "did you mean --dry-run?\n  fix: see tickrt build build --help" in invoke("build", "demo", "--dry-ran").stderr
    )
    assert (invoke("serv").exit_code, invoke("build", "--dry-ran").exit_code, invoke().exit_code) == (2, 2, 2)


def test_subcommands_and_their_options_are_completed() -> None:
    def complete(line: str) -> list[str]:
        environment = {"_TICKRT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return CliRunner().invoke(app, [], prog_name="tickrt", env=environment).output.split()

    assert complete("tickrt b") == ["build", "bench"]
    assert complete("tickrt generate demo --step") == ["--steps"]


def test_help_imports_no_subcommand() -> None:
    program = """import sys
from runtime.commands.subcommands import main
try:
    main()
finally:
    assert not {"numpy", "onnx", "fastapi", "av"} & {*sys.modules}, "imported for the help"
"""
    done = subprocess.run([sys.executable, "-c", program, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: tickrt " in done.stdout


@pytest.mark.shipped
def test_the_package_is_the_same_command() -> None:
    program = "import runpy; runpy.run_module('tickrt', run_name='__main__')"
    path = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'runtime/api')!r}]; sys.argv = ['tickrt', '--version']"
    )
    done = subprocess.run([sys.executable, "-c", f"{path}; {program}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tickrt ")


def test_without_arguments_it_says_what_to_do_next(monkeypatch: pytest.MonkeyPatch) -> None:
    said = invoke().stderr
    shown = [line.removeprefix("  tickrt ").split() for line in said.splitlines() if line.startswith("  tickrt ")]
    assert [words[0] for words in shown] == ["demo", "generate", "serve"]
    assert "pip install" not in said
    monkeypatch.setattr("runtime.commands.subcommands.find_spec", lambda name: None)
    assert invoke().stderr == f"{INSTALL}\n{said}"
    assert "pip install 'tickrt[cpu]'" in INSTALL
