"""READMEs and the pages of the site: commands run, paths exist, error texts are in the source.

READMEs run in `make test-shipped`, pages in `make test-docs`.
"""

from __future__ import annotations

import doctest
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import pairwise, takewhile
from pathlib import Path
from types import CodeType
from typing import Any

import httpx
import pytest
import typer
from conftest import Built
from helpers.paths import ROOT
from helpers.sound import judged_file
from typer.core import TyperGroup
from typer.testing import CliRunner

from runtime.audio.formats import AUDIO_FORMATS
from runtime.audio.metadata import read_metadata
from runtime.base.errors import RequestError
from runtime.commands.startup import COMMANDS
from runtime.config.deployment import Deployment, load_deployment
from runtime.pipeline.building import open_built_pipeline
from runtime.pipeline.pipeline import Pipeline

PACKAGES = ("engine_build", "profiling", "runtime", "server")
READMES = ("README.md", *(f"{package}/README.md" for package in (*PACKAGES, "configs/demo", "server/clients")))
PAGES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "configs/docs/pages").glob("*.md")))
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in (*READMES, *PAGES) if (ROOT / name).is_file()}
RUN = [pytest.param(name, marks=pytest.mark.docs if name in PAGES else pytest.mark.shipped) for name in TEXTS]
TROUBLE = TEXTS["configs/docs/pages/trouble.md"]
ROOMS = ("configs", *PACKAGES, "tests")
ADDRESS = "localhost:8000"
DEMO_CONFIG = "configs/demo.toml"
SHORTER = {
    "tickrt-bench": ["--ticks", "2", "--steps", "2", "--frames", "64"],
    "tickrt-profile": ["--runs", "1", "--frames", "64"],
}
MOST_SECONDS = 12  # more than a canvas
# Of commands of these.
OF_THEIR_OWN = {"diff": [], "skip": [], "live": ["--minutes", "0.02"], "peers": ["--ticks", "2", "--frames", "32"]}
STEPS = 8  # half the demo's steps; what they sound like is close enough to be judged
# Music of the demo is in its key to 0.8 and more, by its latents after a decode and an encode; noise to about 0.6.
LEAST_RMS, MOST_CLIPPED, LEAST_IN_KEY = 0.01, 1e-3, 0.7


def shown_commands(document: str) -> list[list[str]]:
    """Every command of a document's shell blocks, split; comments and continued lines as the shell has them."""
    blocks = re.findall(r"^```bash\n(.*?)^```", TEXTS[document], re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def new_commands(document: str) -> list[list[str]]:
    """The shown commands that no document before this one shows."""
    before = [words for earlier in takewhile(lambda name: name != document, TEXTS) for words in shown_commands(earlier)]
    return [words for words in shown_commands(document) if words not in before]


def commands_of(document: str, *names: str) -> list[list[str]]:
    """The shown commands that start with one of these."""
    return [words for words in shown_commands(document) if words[0] in names]


def is_runnable(words: list[str]) -> bool:
    """Whether it needs no GPU, no checkpoint, no player and no package that is not installed."""
    if words[:2] == ["tickrt-bench", "peers"] and importlib.util.find_spec("openvino") is None:
        return False
    needs_checkpoint = any(family in " ".join(words) for family in ("acestep", "stable-audio"))
    return "--target" not in words and "--play" not in words and not needs_checkpoint


def is_covered(words: list[str]) -> bool:
    """Whether another shown measurement has all of its flags and more; results that are compared are needed."""

    def flags(of: list[str]) -> set[str]:
        return {word for word in of if word.startswith("--")}

    others = [flags(other) for document in TEXTS for other in commands_of(document, words[0]) if is_runnable(other)]
    is_needed = words[0] not in SHORTER or "--json" in words or not flags(words)
    return not is_needed and any(flags(words) < other for other in others)


def everywhere(pattern: str) -> list[tuple[str, str]]:
    """(document, match) of every different match in the documents."""
    return sorted({(document, match) for document, text in TEXTS.items() for match in re.findall(pattern, text)})


def sentence(words: list[str]) -> str:
    return " ".join(words)[:80]


def command_line(words: list[str]) -> tuple[typer.Typer, list[str]]:
    """The command line that takes these words, and its arguments."""
    app: typer.Typer = import_module(COMMANDS[words[0]]).app
    return app, words[1:]


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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the repository's configs, where commands leave files; the working directory.

    One thread per engine: threads that wait for each other use the cores of other tests.
    """
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").mkdir()
    demo = (ROOT / "configs" / "demo.toml").read_text(encoding="utf-8")
    (folder / "configs" / "demo.toml").write_text(demo.replace("[runtime]\n", "[runtime]\nthreads = 1\n"))
    (folder / "configs" / "demo").symlink_to(ROOT / "configs" / "demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def playground(folder: Path, built_demo: Deployment) -> Iterator[Path]:
    """The folder with the demo's engines."""
    shutil.copytree(built_demo.engines, folder / "configs" / ".engines" / "demo")
    yield folder
    if judge.cache_info().currsize:
        judge().close()
        judge.cache_clear()


Server = Callable[[], tuple[str, str]]


@pytest.mark.parametrize("document", RUN)
def test_the_shown_commands_work_one_after_another(
    document: str, playground: Path, server: Server, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = built(max_rows=16).path
    for words in filter(is_runnable, new_commands(document)):
        if is_covered(words):
            continue
        if words[0] == "curl":
            request(words, server()[0], playground, monkeypatch)
        elif words[0] in COMMANDS and words[0] not in ("tickrt", "tickrt-serve", "tickrt-cluster", "tickrt-mcp"):
            invoke(words, playground, small)


def invoke(words: list[str], playground: Path, small: Path) -> None:
    """Run a command, shorter where that says as much, and look at the file that it writes.

    Measurements say the same of a `small` deployment. Generations share the engines that the first one has opened.
    """
    app, arguments = command_line(words)
    shorter = OF_THEIR_OWN.get(words[1], SHORTER.get(words[0], []))
    if words[0] == "tickrt-generate" and not {"--seed", "--like"} & set(words):
        shorter = ["--seed", "1"]
    if words[0] == "tickrt-generate" and not {"--steps", "--timesteps", "--like"} & set(words):
        shorter = [*shorter, "--steps", str(STEPS)]
    if "--seconds" in words and float(words[words.index("--seconds") + 1]) > MOST_SECONDS:
        shorter = [*shorter, "--seconds", str(MOST_SECONDS)]
    if words[0] in SHORTER:
        arguments = [str(small) if word == DEMO_CONFIG else word for word in arguments]
    with pytest.MonkeyPatch.context() as patch:
        if judge.cache_info().currsize:  # an earlier command has opened the demo
            patch.setattr("runtime.commands.generate.open_pipeline", lambda *_, **__: nullcontext(judge()))
        result = CliRunner().invoke(app, [*arguments, *shorter])
    assert result.exit_code == 0, f"{sentence(words)}\n{result.output}"
    assert "not understood" not in result.output
    if "--out" in words:
        look_at(playground / words[words.index("--out") + 1])


def look_at(file: Path) -> None:
    """What an example wrote: audio is not silent, not clipped and in its prompt's key; other files are not empty."""
    assert file.stat().st_size > 0
    if file.suffix.lstrip(".") not in AUDIO_FORMATS:
        return
    sound = judged_file(judge(), file, prompt_of(file))
    assert sound.median_rms > LEAST_RMS, file
    assert sound.clipped_share < MOST_CLIPPED, file
    assert sound.in_key > LEAST_IN_KEY, file


@cache
def judge() -> Pipeline:
    """What listens to files; the playground closes it."""
    pipeline = open_built_pipeline(load_deployment(Path(DEMO_CONFIG)), quiet=True)
    pipeline.start()
    return pipeline


def prompt_of(file: Path) -> str:
    """All texts of the prompts that a file was made from; none where it does not say, as recordings of sessions."""
    try:
        prompt = read_metadata(file).options.get("prompt", "")
    except RequestError:
        return ""
    return prompt if isinstance(prompt, str) else ", ".join(item["text"] for item in prompt)


@pytest.mark.parametrize("document", RUN)
def test_the_shown_programs_work(document: str, playground: Path, server: Server) -> None:
    for program in shown_programs(document):
        run(program.replace(ADDRESS, server()[0]) if ADDRESS in program else program, playground)


@pytest.mark.docs
@pytest.mark.parametrize("document", PAGES)
def test_the_shown_sessions_of_python_work(document: str, playground: Path) -> None:
    """Those with the package alone; what needs an open pipeline, the tests of its module run."""
    blocks = re.findall(r"^```python\n(>>>.*?)^```", TEXTS[document], re.MULTILINE | re.DOTALL)
    code = "".join(block for block in blocks if "tickrt.open" in block)
    code = code.replace('tickrt.open("demo"', f'tickrt.open("{DEMO_CONFIG}"')
    example = doctest.DocTestParser().get_doctest(code, {}, document, None, 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def shown_programs(document: str) -> list[str]:
    """The programs of a document; a block that begins with >>> is a doctest."""
    return re.findall(r"^```python\n(?!>>>)(.*?)^```", TEXTS[document], re.MULTILINE | re.DOTALL)


def run(program: str, playground: Path) -> None:
    """Run a shown program, with shorter music, and look at the files that it writes."""
    program = re.sub(
        r"\bseconds=(\d+)", lambda found: f"steps={STEPS}, seconds={min(int(found[1]), MOST_SECONDS)}", program
    )
    # Of the playground, where an engine has one thread.
    program = program.replace('tickrt.open("demo")', f'tickrt.open("{DEMO_CONFIG}")')
    program = program.replace('mode="extend"', f'mode="extend", steps={STEPS}')
    exec(compile(program, "a README.md", "exec"), {})
    for saved in re.findall(r'(?:\.save|wave\.open)\("([^"]+)"', program):
        look_at(playground / saved)


@pytest.fixture(scope="module")
def server(playground: Path) -> Iterator[Server]:
    """The `tickrt-serve` of README.md, on a free port, started at the first call: host and port, and what it prints."""
    with ExitStack() as stack:
        started: list[tuple[str, str]] = []

        def start() -> tuple[str, str]:
            if not started:
                started.append(stack.enter_context(running_server()))
            return started[0]

        yield start


@contextmanager
def running_server() -> Iterator[tuple[str, str]]:
    (words,) = filter(is_runnable, commands_of("README.md", "tickrt-serve"))
    words[words.index("--port") + 1] = "0"
    command = [sys.executable, "-c", "from server.cli import main; main()", *words[1:]]
    assert CliRunner().invoke(*command_line(["tickrt-build", words[1]])).exit_code == 0
    environment = {**os.environ, "TICKRT_ADMIN_KEY": "for a test"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "curl" in line:
            break
    (ready,) = re.findall(r"ready on http://(\S+:\d+)", said)
    yield ready, said
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    process.stdout.close()


@pytest.mark.shipped
def test_the_request_that_the_server_prints_works(
    server: Server, playground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, said = server()
    (printed,) = (shlex.split(line.replace(ready, ADDRESS)) for line in said.splitlines() if "curl" in line)
    request(printed, ready, playground, monkeypatch)


def request(words: list[str], host: str, playground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a shown request and look at its answer; $ID is that of out.flac, $TICKRT_ADMIN_KEY the server's."""
    monkeypatch.setenv("TICKRT_ADMIN_KEY", "for a test")
    if (playground / "out.flac").exists():
        monkeypatch.setenv("ID", hashlib.sha256((playground / "out.flac").read_bytes()).hexdigest())
    answer = send(words, host)
    assert answer.is_success, f"{sentence(words)}\n{answer.text}"
    assert "x-prompt-unknown" not in answer.headers
    if "-o" in words:
        file = playground / words[words.index("-o") + 1]
        file.write_bytes(answer.content)
        look_at(file)


def seeded(value: str) -> str:
    """A request's JSON with a seed, so that its sound is the same in every run, and with fewer steps."""
    return value if "seed" in value else value.replace('{"prompt"', f'{{"seed": 1, "steps": {STEPS}, "prompt"')


def send(words: list[str], host: str) -> httpx.Response:
    """Send what a curl command line would."""
    (address,) = (word for word in words if ADDRESS in word)
    values = [(flag, seeded(value)) for flag, value in pairwise(words) if flag in ("-H", "-d", "-F")]
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
    shown = (commands_of(document, *COMMANDS) for document in ("README.md", "configs/docs/pages/tour.md"))
    assert {words[0] for commands in shown for words in commands} == set(COMMANDS)


@pytest.mark.parametrize("document", TEXTS)
def test_every_shown_command_has_known_options(document: str, folder: Path) -> None:
    for words in commands_of(document, *COMMANDS):
        parse(words)


def test_the_dry_run_for_a_gpu_needs_none(folder: Path) -> None:
    shutil.copy(ROOT / "configs" / "acestep-v15-turbo.toml", folder / "configs")
    (words,) = (words for words in commands_of("engine_build/README.md", "tickrt-build") if "--dry-run" in words)
    result = CliRunner().invoke(*command_line(words))
    assert result.exit_code == 0, result.output
    assert "frames 6000..6000..6000" in result.output


def test_an_unknown_flag_would_be_found() -> None:
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["tickrt-bench", "configs/demo.toml", "--deepness", "3"])
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["tickrt-profile", "configs/demo.toml", "--deepness", "3"])


@pytest.mark.parametrize(("document", "target"), everywhere(r"(?m)(?:`|^)make (?:\w+=\S+ )?([a-z-]+)"))
def test_a_shown_make_target_exists(document: str, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


@pytest.mark.parametrize(("document", "module"), everywhere(r"python -m ([\w.]+)"))
def test_a_shown_module_exists(document: str, module: str) -> None:
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(("document", "link"), everywhere(r"\]\((?!https?:)([^)#]+)"))
def test_a_link_leads_somewhere(document: str, link: str) -> None:
    assert ((ROOT / document).parent / link).exists(), link


@pytest.mark.parametrize(("document", "path"), everywhere(rf"(?<![\w./-])((?:{'|'.join(ROOMS)})/[\w./-]*\w)"))
def test_a_named_path_exists(document: str, path: str) -> None:
    made = {word for words in shown_commands(document) for flag, word in pairwise(words) if flag == "--out"}
    beside = (ROOT / document).parent / path
    assert (ROOT / path).exists() or beside.exists() or path in made, path


def test_the_demo_models_figures_are_the_bundles() -> None:
    bundle = tomllib.loads((ROOT / "configs" / "demo" / "bundle.toml").read_text(encoding="utf-8"))
    section = TEXTS["configs/demo/README.md"].partition("##")[0]
    cells = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    rows = [numbers for cell in cells if (numbers := re.findall(r"-?\d+(?:\.\d+)?", cell))]
    names = (
        ("in_key",), ("present_worst_layer", "absent_worst_layer"), ("tempo",), ("drums_in_pads_db",),
        ("continued_layers_kept",), ("cover_1_chroma", "cover_1_onsets"), ("cover_0_chroma", "cover_0_onsets"),
        ("instruments",), ("loudness_min_lufs", "loudness_max_lufs", "true_peak_dbtp", "clicks"),
    )  # fmt: skip
    for row, group in zip(rows, names, strict=True):
        for text, name in zip(row, group, strict=True):
            digits = len(text.partition(".")[2])
            assert text == f"{round(bundle['evaluation'][name], digits) + 0.0:.{digits}f}", name
    assert f"A {bundle['training']['parameters'] / 1e6:.1f} M parameter" in section


def test_the_demo_planners_figures_are_the_bundles() -> None:
    bundle = tomllib.loads((ROOT / "configs" / "demo" / "bundle.toml").read_text(encoding="utf-8"))
    section = TEXTS["configs/demo/README.md"].partition("## A planner for the demo")[2].partition("##")[0]
    rows = [line.split("|")[2:7] for line in section.splitlines() if re.match(r"\| \w", line)]
    names = (
        ("layers",),
        ("layers_sounding",),
        ("worst_layer_sounding",),
        ("returns_nearer",),
        ("return_similarity", "other_similarity"),
        ("tempo",),
        ("in_key",),
    )
    for row, group in zip(rows, names, strict=True):
        for cell, prefix in zip(row, ("generated_", "unplanned_", "", "ceiling_", "shuffled_"), strict=True):
            figures = [f"{bundle['evaluation'][f'plan_{prefix}{name}']:.2f}" for name in group]
            assert cell.strip() in ("", ", ".join(figures))


@pytest.mark.parametrize("key", re.findall(r"^\| `([^`]+)` \|", TROUBLE, re.MULTILINE))
def test_a_troubleshooting_key_is_a_real_error_text(key: str) -> None:
    parts = [part.strip(" ,") for part in key.split("…")]
    assert [part for part in parts if not any(part in text for text in source_texts())] == []


@cache
def source_texts() -> list[str]:
    """Every string in the source, f-strings by their constant parts, and the Makefile."""
    files = [file for room in ROOMS[1:5] for file in (ROOT / room).rglob("*.py")]
    # Python's own cache of bytecode spares parsing.
    found: list[Any] = [SourceFileLoader("", str(file)).get_code("") for file in files]
    strings = [(ROOT / "Makefile").read_text(encoding="utf-8")]
    while found:
        constant = found.pop()
        if isinstance(constant, str):
            strings.append(constant)
        elif isinstance(constant, CodeType):
            found += constant.co_consts
        elif isinstance(constant, tuple | frozenset):
            found += constant
    return strings
