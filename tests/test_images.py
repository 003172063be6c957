"""Dockerfile and compose file, without Docker: stages, users, what is copied, settings, commands, the edge."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer
from helpers.paths import ROOT

from runtime.commands.subcommands import MODULES
from server.cluster.edge import main as edge
from server.cluster.local_cluster import HAPROXY_CONFIG
from server.config import PREFIX, ServerSettings

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
IMAGES = ROOT / "configs" / "images"
COMPOSE = yaml.safe_load((IMAGES / "compose.yaml").read_text("utf-8"))
README = (IMAGES / "README.md").read_text("utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TARGETS = ("cpu", "rtx", "gpu", "cluster")
REPLICAS = ("replica-1", "replica-2")
KNOWN = {f"{PREFIX}{name.upper()}" for name in ServerSettings.model_fields} | {"TICKRT_CACHE"}


@dataclass
class Stage:
    """A stage of the Dockerfile: what it is built on, and its instructions, (name, text) each."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def texts(self, instruction: str) -> list[str]:
        """What these instructions say, in the stages that it is built on first."""
        before = STAGES[self.base].texts(instruction) if self.base in STAGES else []
        return before + [text for name, text in self.steps if name == instruction]

    @property
    def variables(self) -> dict[str, str]:
        return dict(word.split("=", 1) for text in self.texts("ENV") for word in shlex.split(text))


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """(name, text) of every instruction, continued lines put together, without comments."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


@cache
def dockerfile() -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments with their defaults, and the stages by name, in their order."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for name, text in instructions((IMAGES / "Dockerfile").read_text("utf-8")):
        if name == "FROM":
            base, _, stage = text.partition(" AS ")
            stages[stage] = Stage(stage, base)
        elif name == "ARG":
            arguments |= [text.split("=", 1)]
        else:
            next(reversed(stages.values())).steps.append((name, text))
    return arguments, stages


ARGUMENTS, STAGES = dockerfile()


def copies(stage: Stage) -> list[list[str]]:
    """The words of the stage's own COPY instructions."""
    return [text.split() for name, text in stage.steps if name == "COPY"]


def test_the_targets_are_stages_on_a_base_with_a_tag() -> None:
    assert set(TARGETS) <= STAGES.keys()
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", ARGUMENTS["BASE"])
    named = ["${BASE}"]
    for stage in STAGES.values():
        assert stage.base in named
        named.append(stage.name)
        origins = [word.removeprefix("--from=") for words in copies(stage) for word in words if "--from" in word]
        assert set(origins) <= set(named)
    classifiers = PYPROJECT["project"]["classifiers"]
    version = ARGUMENTS["BASE"].removeprefix("python:").partition("-")[0]
    assert f"Programming Language :: Python :: {version}" in classifiers


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_user_without_rights_and_says_whether_it_works(target: str) -> None:
    stage = STAGES[target]
    assert stage.texts("USER")[-1] == "10001:10001"
    assert json.loads(stage.texts("ENTRYPOINT")[-1]) == ["tickrt"]
    variables = stage.variables
    assert set(json.loads(stage.texts("VOLUME")[-1])) == {variables["TICKRT_STATE"], variables["TICKRT_CACHE"]}
    assert stage.texts("EXPOSE") == [variables["TICKRT_PORT"]]
    (check,) = stage.texts("HEALTHCHECK")
    program = json.loads(check.partition(" CMD ")[2])
    assert program[:3] == ["python", "-I", "-c"]
    assert "'/health/live'" in program[3]
    compile(program[3], "HEALTHCHECK", "exec")


@pytest.mark.parametrize("target", TARGETS)
def test_its_variables_are_settings_that_the_server_takes(target: str) -> None:
    ours = {name: value for name, value in STAGES[target].variables.items() if name.startswith(PREFIX)}
    assert ours.keys() <= KNOWN
    settings = {name.removeprefix(PREFIX).lower(): value for name, value in ours.items() if name != "TICKRT_CACHE"}
    assert ServerSettings(**settings).host == "0.0.0.0"


@pytest.mark.parametrize("target", TARGETS)
def test_its_command_is_one(target: str) -> None:
    parse(json.loads(STAGES[target].texts("CMD")[-1]))


def parse(words: list[str]) -> None:
    """Raises where a subcommand of tickrt does not take its arguments."""
    command = typer.main.get_command(import_module(MODULES[words[0]]).app)
    command.make_context(words[0], words[1:])


def test_an_unknown_option_would_be_found() -> None:
    with pytest.raises(Exception, match="no-such"):
        parse(["serve", "demo", "--no-such"])


def test_what_is_copied_is_there_and_is_all_that_a_wheel_is_built_from() -> None:
    from_source = [words[:-1] for stage in STAGES.values() for words in copies(stage) if "--from" not in words[0]]
    copied = {word for words in from_source for word in words}
    folders = {file.split(".")[0] for file in PYPROJECT["tool"]["setuptools"]["packages"]}
    lies_in = PYPROJECT["tool"]["setuptools"]["package-dir"]
    needed = {lies_in.get(name, name).partition("/")[0] for name in {*folders, *lies_in}}
    project = PYPROJECT["project"]
    assert copied == needed | {"pyproject.toml", project["readme"], *project["license-files"]}
    assert all((ROOT / name).exists() for name in copied)


def is_sent(path: str) -> bool:
    """Whether the builder gets a file, by Dockerfile.dockerignore: the last pattern that fits decides."""
    sent = True
    parts = [path, *(parent.as_posix() for parent in Path(path).parents)]
    for line in (IMAGES / "Dockerfile.dockerignore").read_text("utf-8").splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        fits = [part for part in parts if fnmatch(part if "**" not in line else part.rpartition("/")[2], pattern)]
        if fits and (pattern != "*" or not line.startswith("!")):
            sent = line.startswith("!")
    return sent


def test_the_builder_gets_what_the_wheel_contains_and_no_more() -> None:
    data = PYPROJECT["tool"]["setuptools"]["package-data"]["tickrt.configs.demo"]
    demo = ROOT / "configs" / "demo"
    shipped = {file.relative_to(ROOT).as_posix() for pattern in data for file in demo.glob(pattern)}
    assert len(shipped) > 10
    assert all(
        map(
            is_sent,
            [*shipped, "configs/demo.toml", "server/live/page/main.js", "LICENSE", "runtime/commands/generate.py"],
        )
    )
    for path in (".git/config", ".venv/bin/python", "configs/.engines/demo/cpu/decoder.onnx", "tests/conftest.py",
                 "configs/demo/recipe/train.py", "configs/demo/page.png", "runtime/__pycache__/cli.pyc"):  # fmt: skip
        assert not is_sent(path), path


def test_extras_are_the_projects() -> None:
    installs = [text for stage in STAGES.values() for text in stage.texts("RUN") if "pip --python" in text]
    extras = {extra for text in installs for group in re.findall(r"\[([\w,-]+)\]", text) for extra in group.split(",")}
    assert extras == {"cpu", "redis", "scale", "tensorrt-rtx", "tensorrt"}
    assert extras <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_the_demo_of_the_image_runs_on_every_processor() -> None:
    """Its deployment is the shipped one with another precision: the line that is replaced is there, once."""
    (replaced,) = [text for text in STAGES["cpu-files"].texts("RUN") if "sed" in text]
    found = re.search(r"sed 's/\^(.+)\$/(.+)/'", replaced)
    assert found is not None
    assert (ROOT / "configs" / "demo.toml").read_text("utf-8").splitlines().count(found[1]) == 1
    assert found[2] == 'precision = "fp32"'


def test_the_compose_file_is_two_replicas_behind_the_edge_with_their_redis() -> None:
    services = COMPOSE["services"]
    assert set(services) == {*REPLICAS, "edge", "slots", "redis"}
    for name, service in services.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert set(service.get("depends_on", {})) <= services.keys()
        assert re.fullmatch(r"[a-z]+:[\w.-]+", service["image"])
        if "build" in service:
            target = service["build"]["target"]
            assert (service["image"], target in TARGETS) == (f"tickrt:{target}", True)
            assert (IMAGES / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        mounted = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert all(name in COMPOSE["volumes"] or (IMAGES / name).exists() for name in mounted)


@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_has_settings_that_its_server_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = COMPOSE["services"][name]
    variables = STAGES["cpu"].variables | {key: value for key, value in service["environment"].items() if value}
    ours = {key: value for key, value in variables.items() if key.startswith(PREFIX)}
    assert {*ours, *service["environment"]} <= KNOWN
    for key, value in ours.items():
        monkeypatch.setenv(key, value)
    settings = ServerSettings()
    assert (settings.replica, settings.replica_address) == (name, f"{name}:{settings.port}")
    assert (settings.insecure, settings.client_sessions, settings.client_in_flight) == (True, 0, 0)
    assert settings.redis is not None
    assert settings.redis.get_secret_value().startswith("redis://redis:")
    assert float(service["stop_grace_period"].removesuffix("s")) > settings.drain_s
    assert {"/tmp", variables["TICKRT_STATE"], variables["TICKRT_CACHE"]} == set(service["tmpfs"])


def test_the_edge_is_the_one_that_the_clusters_tests_run() -> None:
    services = COMPOSE["services"]
    edge_service, slots = services["edge"], services["slots"]
    (config, *_), (shared, folder) = (volume.split(":") for volume in edge_service["volumes"])
    assert (IMAGES / config).resolve() == HAPROXY_CONFIG
    assert all(f"${{{name}}}" in HAPROXY_CONFIG.read_text("utf-8") for name in edge_service["environment"])
    socket = edge_service["environment"]["EDGE_SOCKET"]
    assert Path(socket).parent == Path(folder)
    assert slots["volumes"] == [f"{shared}:{folder}"]
    assert slots["user"] == edge_service["user"]
    assert slots["entrypoint"] == ["python", "-m", edge.__module__]
    assert slots["command"] == [COMPOSE["services"]["replica-1"]["environment"]["TICKRT_REDIS"], socket]
    published, _, inside = edge_service["ports"][0].rpartition(":")
    assert edge_service["environment"]["EDGE_BIND"] == f":{inside}"
    assert published.startswith("127.0.0.1:")


def test_kubernetes_runs_the_same_images() -> None:
    text = (ROOT / "server" / "cluster" / "kuberay.yaml").read_text("utf-8")
    images = set(re.findall(r"^ +image: (\S+)$", text, re.MULTILINE))
    services = COMPOSE["services"]
    assert images == {"tickrt:cluster", services["edge"]["image"], services["redis"]["image"]}
    assert "--target cluster -t tickrt:cluster" in text
    assert "config: /srv/tickrt/demo.toml" in text


def test_the_readme_shows_targets_and_variables_that_there_are() -> None:
    texts = README + (ROOT / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(TARGETS)
    assert set(re.findall(r"--target (\w+) -t|tickrt:(\w+)", texts)) - {("cpu", ""), ("", "cpu"), ("", "rtx")} == set()
    assert set(re.findall(r"TICKRT_\w+", README)) <= KNOWN
    folders = STAGES["cpu"].variables
    assert all(f"`{folders[name]}` (`{name}`)" in README for name in ("TICKRT_STATE", "TICKRT_CACHE"))
