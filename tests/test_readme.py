"""The README says only what is true: its commands parse, its paths exist, its error texts are in the source."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from runtime.options import parse_options

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
ROOMS = ("configs", "engine_build", "profiling", "runtime", "server", "tests")


def shown_commands() -> list[list[str]]:
    """Every command of the README's shell blocks, split; comments and continued lines as the shell has them."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def commands_of(*names: str) -> list[list[str]]:
    """The shown commands that start with one of these."""
    return [words for words in shown_commands() if words[0] in names]


def sentence(words: list[str]) -> str:
    return " ".join(words)[:80]


def command_line(script: str) -> Any:
    """The command line of a console script."""
    return typer.main.get_command(import_module(SCRIPTS[script].partition(":")[0]).app)


@pytest.mark.parametrize("words", commands_of(*SCRIPTS), ids=sentence)
def test_a_shown_command_parses(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    context = command_line(words[0]).make_context(words[0], words[1:])
    assert context.params
    for path in re.findall(r"\S+\.toml", " ".join(words)):
        assert (ROOT / path).is_file(), path


def test_an_unknown_flag_would_be_found() -> None:
    with pytest.raises(Exception, match="[Nn]o such option"):
        command_line("tickrt-bench").make_context("tickrt-bench", ["configs/demo.toml", "--deepness", "3"])


def test_every_command_is_shown() -> None:
    assert {words[0] for words in commands_of(*SCRIPTS)} == set(SCRIPTS)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake (?:\w+=\S+ )?([a-z-]+)`?", README))))
def test_a_shown_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


@pytest.mark.parametrize("words", commands_of("curl"), ids=sentence)
def test_a_shown_request_is_valid(words: list[str]) -> None:
    (address,) = [word for word in words if word.startswith("localhost:8000/")]
    path = "/" + address.partition("/")[2]
    assert path in routes(), path
    if path == "/v1/audio/generations" and "-d" in words:
        body = json.loads(words[words.index("-d") + 1])
        parse_options({key: value for key, value in body.items() if key not in ("response_format", "stream_format")})


def routes() -> set[str]:
    """Paths that the server answers."""
    return set()


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", README))))
def test_a_shown_module_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_a_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists(), link


@pytest.mark.parametrize("path", sorted(set(re.findall(rf"(?<![\w./-])((?:{'|'.join(ROOMS)})/[\w./-]*\w)", README))))
def test_a_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists(), path


@pytest.mark.parametrize("key", re.findall(r"^\| `([^`]+)` \|", README.partition("## When something")[2], re.MULTILINE))
def test_a_troubleshooting_key_is_a_real_error_text(key: str) -> None:
    for part in key.split("…"):
        assert any(part.strip() in text for text in source_texts()), part


def source_texts() -> Iterator[str]:
    """Every string in the source, f-strings by their constant parts, and the Makefile."""
    yield (ROOT / "Makefile").read_text(encoding="utf-8")
    for room in ROOMS[1:5]:
        for file in (ROOT / room).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            yield from (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
