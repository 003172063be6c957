"""The wheel, built from the source distribution, in an environment and a folder that have nothing of the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
from helpers.paths import ROOT

from runtime.config.deployment import Deployment

pytestmark = pytest.mark.shipped

SOURCES = ("configs", "engine_build", "profiling", "runtime", "server", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder, a cache folder and a home folder for its programs."""

    environment: Path
    work: Path
    cache: Path
    home: Path

    @property
    def variables(self) -> dict[str, str]:
        """Of a user without any setting. ONNX Runtime keeps its telemetry in the home folder unless it is disabled."""
        path = os.pathsep.join((str(self.environment / "bin"), os.environ["PATH"]))
        folders = {"HOME": str(self.home), "TICKRT_CACHE": str(self.cache)}
        return {"PATH": path, **folders, "ORT_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}

    def run(self, *command: str) -> str:
        return run(*command, cwd=self.work, env=self.variables)


def run(*command: str, **options: Any) -> str:
    """The standard output of a command that succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns(".engines"))
        else:
            shutil.copy(ROOT / name, folder / "source" / name)
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=folder / "source")
    (sdist,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", build.replace("sdist", "wheel"), cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    python = ("--python", str(environment / "bin" / "python"))
    run(*PIP, *python, "install", "--no-deps", "--no-index", "--no-compile", "--ignore-installed", str(wheel))
    folders = [folder / name for name in ("work", "cache", "home")]
    for path in folders:
        path.mkdir()
    return Installed(environment, *folders)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def url(installed: Installed, built_demo: Deployment) -> Iterator[str]:
    """A server of the demo model, ready. Of the engines, it finds all but the decoder's."""
    engines = installed.cache / "engines" / metadata.version("tickrt") / "demo"
    shutil.copytree(built_demo.engines, engines)
    for file in (engines / "cpu").glob("decoder.*"):
        file.unlink()
    command = [str(installed.environment / "bin" / "tickrt"), "demo", "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=installed.work, env=installed.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    yield next(word for line in lines if line.startswith("ready") for word in line.split() if word.startswith("http"))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def test_the_server_takes_the_name_and_builds_what_is_missing(url: str, installed: Installed) -> None:
    assert [name for name in files(installed.cache) if name.endswith("/demo/cpu/decoder.onnx")]
    assert httpx.get(f"{url}/health/ready").status_code == 200
    body = {"prompt": "warm synth", "seconds": 1, "steps": 2, "stream": False}
    response = httpx.post(f"{url}/v1/audio/generations", json=body, timeout=60)
    assert response.status_code == 200
    assert len(response.content) > 48_000 * 2 * 2


def test_the_page_is_in_the_wheel(url: str) -> None:
    assert "<title>TickRT" in httpx.get(url).text
    for path in (ROOT / "server/live/page").rglob("*.js"):
        name = path.relative_to(ROOT / "server/live/page").as_posix()
        assert httpx.get(f"{url}/page/{name}").status_code == 200, name


PROGRAM = """
import json, runtime, tickrt
with tickrt.open("demo") as model:
    audio = model.generate("calm piano in D minor", seconds=2, steps=4, seed=1)
    audio.save("piano.flac")
print(json.dumps([runtime.__file__, tickrt.__file__, audio.pcm.shape]))
"""


def test_the_demo_model_plays_and_its_engines_are_in_the_cache_folder(installed: Installed) -> None:
    (configs,) = installed.environment.glob("lib/python*/site-packages/tickrt/configs")
    before = files(configs)
    runtime, tickrt, shape = json.loads(installed.run("python", "-c", PROGRAM))
    assert all(Path(file).is_relative_to(installed.environment) for file in (runtime, tickrt))
    assert all(Path(file).with_name("py.typed").is_file() for file in (runtime, tickrt))
    assert shape == [96_000, 2]
    assert files(installed.work) == {"piano.flac"}
    assert soundfile.info(installed.work / "piano.flac").frames == 96_000
    assert any(name.endswith("demo/cpu/decoder.manifest.json") for name in files(installed.cache))
    assert files(installed.home) == set()
    assert files(configs) == before == {
        "demo.toml", *(f"demo/{name}" for name in files(ROOT / "configs" / "demo") if Path(name).suffix in SHIPPED)
    }  # fmt: skip


SHIPPED = (".toml", ".onnx", ".json", ".safetensors")


def test_the_commands_take_the_name(installed: Installed) -> None:
    installed.run("tickrt-generate", "demo", "--prompt", "dark bass", "--seconds", "1", "--steps", "2", "-o", "a.wav")
    assert soundfile.info(installed.work / "a.wav").frames == 48_000
    assert "up to date" in installed.run("tickrt-build", "demo", "--dry-run")


def test_what_only_a_checkout_measures_is_said(installed: Installed) -> None:
    command = ["tickrt-bench", "peers", "demo"]
    done = subprocess.run(command, cwd=installed.work, env=installed.variables, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: tickrt-bench peers is measured from a checkout of the repository")


TYPED = """
import numpy as np
import tickrt

with tickrt.open("demo") as model:
    audio = model.generate("calm piano", seconds=30, seed=1, guidance=np.linspace(1, 3, 8), solver="sde")
    audio.save("piano.flac")
    loudest: float = float(np.abs(audio.pcm).max())
    options: tickrt.Options = {"seconds": 2.0, "dcw": {"mode": "pix", "low": 0.1}}
    covers: list[tickrt.Audio] = model.generate_many(["a", {"prompt": "b", "source": audio}], **options)
    for chunk in model.stream("dark bass", seconds=60):
        reveal_type(chunk)
    try:
        model.generate("x", secconds=1)
    except tickrt.RequestError as error:
        reveal_type(error.field)
    model.generate("x", solver="euler")
"""


@pytest.mark.slow
def test_type_checkers_know_the_options(installed: Installed) -> None:
    (installed.work / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "--python-executable"]
    done = subprocess.run(
        [*command, str(installed.environment / "bin" / "python"), "typed.py"],
        cwd=installed.work, env=installed.variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.findall(r"^typed\.py:(\d+): (error|note: Revealed)(.*)", done.stdout, re.MULTILINE)
    assert [(int(line), kind) for line, kind, _ in found] == [
        (12, "note: Revealed"), (14, "error"), (16, "note: Revealed"), (17, "error")
    ], done.stdout  # fmt: skip
    assert "float" in found[0][2]
    assert 'Unexpected keyword argument "secconds"' in found[1][2]
    assert "str" in found[2][2]
