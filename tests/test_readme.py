"""The README says only what is true: its commands run, its paths exist, its error texts are in the source."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from helpers.paths import ROOT
from typer.core import TyperGroup
from typer.testing import CliRunner

README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
ROOMS = ("configs", "engine_build", "profiling", "runtime", "server", "tests")
ADDRESS = "localhost:8000"
SHORTER = {
    "tickrt-bench": ["--ticks", "2", "--steps", "2", "--frames", "64", "--minutes", "0.02"],
    "tickrt-profile": ["--runs", "1", "--frames", "64"],
}


def shown_commands() -> list[list[str]]:
    """Every command of the README's shell blocks, split; comments and continued lines as the shell has them."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def commands_of(*names: str) -> list[list[str]]:
    """The shown commands that start with one of these."""
    return [words for words in shown_commands() if words[0] in names]


def runnable(*names: str) -> list[list[str]]:
    """Those that need neither a GPU nor a checkpoint."""
    return [words for words in commands_of(*names) if "--target" not in words and "acestep" not in " ".join(words)]


def sentence(words: list[str]) -> str:
    return " ".join(words)[:80]


def command_line(words: list[str]) -> tuple[typer.Typer, list[str]]:
    """The command line that takes these words, and its arguments."""
    module, arguments = SCRIPTS[words[0]].partition(":")[0], words[1:]
    (app,) = (value for value in vars(import_module(module)).values() if isinstance(value, typer.Typer))
    return app, arguments


def parse(words: list[str]) -> Any:
    """What the command makes of its words; raises on a flag or value that it does not take."""
    app, arguments = command_line(words)
    command = typer.main.get_command(app)
    if isinstance(command, TyperGroup):
        default = next(iter(command.commands))
        name, *arguments = arguments if arguments[0] in command.commands else [default, *arguments]
        return command.commands[name].make_context(name, arguments)
    return command.make_context(words[0], arguments)


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the repository's configs, in which commands may leave files; the working directory."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").mkdir()
    shutil.copy(ROOT / "configs" / "demo.toml", folder / "configs")
    (folder / "configs" / "demo").symlink_to(ROOT / "configs" / "demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def test_the_shown_commands_work_one_after_another(playground: Path) -> None:
    for words in runnable("tickrt-build", "tickrt-generate", "tickrt-bench", "tickrt-profile"):
        app, arguments = command_line(words)
        shorter = [] if words[1] == "diff" else SHORTER.get(words[0], [])
        result = CliRunner().invoke(app, [*arguments, *shorter])
        assert result.exit_code == 0, f"{sentence(words)}\n{result.output}"
        if "--out" in words:
            assert (playground / words[words.index("--out") + 1]).stat().st_size > 10_000


def test_the_shown_programs_work(playground: Path) -> None:
    programs = [program for program in shown_programs() if ADDRESS not in program]
    assert programs
    for program in programs:
        run(program, playground)


def shown_programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(program: str, playground: Path) -> None:
    """Run a shown program and look at the files that it writes."""
    exec(compile(program, "README.md", "exec"), {})
    for saved in re.findall(r'(?:\.save|wave\.open)\("([^"]+)"', program):
        assert (playground / saved).stat().st_size > 10_000


@pytest.fixture
def server(playground: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The shown `tickrt-serve`, on a free port: its output up to the line that says how to call it."""
    monkeypatch.setenv("TICKRT_ADMIN_KEY", "for a test")
    (words,) = runnable("tickrt-serve")
    words[words.index("--port") + 1] = "0"
    program = "from server.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", program, *words[1:]], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "curl" in line:
            break
    yield said
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    process.stdout.close()


def test_the_shown_requests_work(server: str, playground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one line that the server itself prints."""
    (ready,) = re.findall(r"ready on http://(\S+:\d+)", server)
    (printed,) = (shlex.split(line.replace(ready, ADDRESS)) for line in server.splitlines() if "curl" in line)
    for words in [*commands_of("curl"), printed]:
        if (playground / "out.flac").exists():
            monkeypatch.setenv("ID", hashlib.sha256((playground / "out.flac").read_bytes()).hexdigest())
        answer = send(words, ready)
        assert answer.is_success, f"{sentence(words)}\n{answer.text}"
        if "-o" in words:
            (playground / words[words.index("-o") + 1]).write_bytes(answer.content)
            assert len(answer.content) > (10_000 if "audio" in " ".join(words) else 0)


def test_the_shown_clients_work(server: str, playground: Path) -> None:
    (ready,) = re.findall(r"ready on http://(\S+:\d+)", server)
    clients = [program for program in shown_programs() if ADDRESS in program]
    assert clients
    for program in clients:
        run(program.replace(ADDRESS, ready), playground)


def send(words: list[str], host: str) -> httpx.Response:
    """Send what a curl command line would."""
    (address,) = (word for word in words if ADDRESS in word)
    values = [(flag, value) for flag, value in pairwise(words) if flag in ("-H", "-d", "-F")]
    headers = dict(os.path.expandvars(value).split(": ", 1) for flag, value in values if flag == "-H")
    body = os.path.expandvars("".join(value for flag, value in values if flag == "-d"))
    form = dict(form_part(value) for flag, value in values if flag == "-F")
    url = f"http://{host}{address.partition(ADDRESS)[2]}"
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if body or form else "GET"
    return httpx.request(method, url, headers=headers, content=body or None, files=form or None, timeout=60)


def form_part(text: str) -> tuple[str, tuple[str | None, bytes, str]]:
    """curl's -F: name=value;type=TYPE or name=@file."""
    name, _, value = text.partition("=")
    if value.startswith("@"):
        return name, (value[1:], Path(value[1:]).read_bytes(), "application/octet-stream")
    content, _, kind = value.partition(";type=")
    return name, (None, content.encode(), kind)


def test_every_command_is_shown() -> None:
    assert {words[0] for words in commands_of(*SCRIPTS)} == set(SCRIPTS)
    for words in commands_of(*SCRIPTS):
        parse(words)


def test_the_dry_run_for_a_gpu_needs_none(playground: Path) -> None:
    shutil.copy(ROOT / "configs" / "acestep-v15-turbo.toml", playground / "configs")
    (words,) = (words for words in commands_of("tickrt-build") if "--dry-run" in words)
    result = CliRunner().invoke(*command_line(words))
    assert result.exit_code == 0, result.output
    assert "frames 6000..6000..6000" in result.output


def test_an_unknown_flag_would_be_found() -> None:
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["tickrt-bench", "configs/demo.toml", "--deepness", "3"])
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["tickrt-profile", "configs/demo.toml", "--deepness", "3"])


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake (?:\w+=\S+ )?([a-z-]+)`?", README))))
def test_a_shown_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", README))))
def test_a_shown_module_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_a_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists(), link


@pytest.mark.parametrize("path", sorted(set(re.findall(rf"(?<![\w./-])((?:{'|'.join(ROOMS)})/[\w./-]*\w)", README))))
def test_a_named_path_exists(path: str) -> None:
    made = {word for words in shown_commands() for flag, word in pairwise(words) if flag == "--out"}
    assert (ROOT / path).exists() or path in made, path


def test_the_demo_models_figures_are_the_bundles() -> None:
    bundle = tomllib.loads((ROOT / "configs" / "demo" / "bundle.toml").read_text(encoding="utf-8"))
    section = README.partition("## The demo model")[2].partition("##")[0]
    measured = bundle["evaluation"]
    names = ("in_key", "layers_present", "layers_absent", "tempo", "live_in_key")
    assert re.findall(r"([\d.]+) %", section) == [f"{100 * measured[name]:.1f}" for name in names]
    assert f"On {measured['prompts']} prompts" in section
    assert f"A {bundle['training']['parameters'] / 1e6:.1f} M parameter" in section


@pytest.mark.parametrize("key", re.findall(r"^\| `([^`]+)` \|", README.partition("## When something")[2], re.MULTILINE))
def test_a_troubleshooting_key_is_a_real_error_text(key: str) -> None:
    parts = [part.strip(" ,") for part in key.split("…")]
    assert [part for part in parts if not any(part in text for text in source_texts())] == []


def source_texts() -> Iterator[str]:
    """Every string in the source, f-strings by their constant parts, and the Makefile."""
    yield (ROOT / "Makefile").read_text(encoding="utf-8")
    for room in ROOMS[1:5]:
        for file in (ROOT / room).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            yield from (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
