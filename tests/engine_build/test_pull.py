"""tickrt pull: what it says, asks and refuses; with the extra export, a tiny model from a local hub to its engines."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.hub_server import Hub, Model, folder_files, hub_environment, hub_server, use_hub
from helpers.paths import ROOT
from typer.testing import CliRunner, Result

from engine_build import pull
from engine_build.compile.environment import BuildEnvironment
from engine_build.config import BuildConfig
from engine_build.export.hub import acestep_files, select
from runtime.base.errors import BuildError
from runtime.commands.subcommands import app
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment

HAS_TORCH = all(importlib.util.find_spec(name) is not None for name in ("torch", "diffusers", "onnxscript"))
REPOSITORY, DECODER = "ACE-Step/Ace-Step1.5", "acestep-v15-turbo"
ORIGIN = f"{REPOSITORY}/{DECODER}@{'c' * 40}"
FILES = {
    f"{DECODER}/config.json": b"{}",
    f"{DECODER}/model.safetensors": b"d" * 6_000_000,
    f"{DECODER}/silence_latent.pt": b"s" * 2000,
    "vae/config.json": b"{}",
    "vae/diffusion_pytorch_model.safetensors": b"v" * 4_000_000,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pull", *arguments], prog_name="tickrt")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """In a folder of its own; the model's files are no checkpoint."""
    monkeypatch.chdir(tmp_path)
    with hub_server() as server:
        use_hub(monkeypatch, server.url, tmp_path / "home")
        server.models[REPOSITORY] = Model(dict(FILES))
        yield server


def test_a_model_that_is_not_published_names_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("acesteb")
    assert result.exit_code == 2
    assert "there is no model 'acesteb'" in result.stderr
    assert "did you mean acestep" in result.stderr
    assert "stable-audio-3-medium" in run("none").stderr


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("acestep", "--yes")
    assert result.exit_code == 3
    assert "pip install 'tickrt[export]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_it_takes_is_said_first_and_without_a_terminal_nothing_begins(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "need_packages", lambda *names: None)
    result = run("acestep", "--target", "cpu")
    assert result.exit_code == 2
    said = result.stderr
    assert re.search(rf"{ORIGIN}: 5 files, 10\.0 MB; licence: mit\n", said)
    assert re.search(
        r"disk: up to 0\.1 GB \(0\.0 GB to download, .* for the bundle, .* for engines\); \S+ GB are free", said
    )
    assert "memory: up to 0.9 GB for the export" in said
    assert "to download at 100 Mbit/s" in said
    assert "fix: --yes" in said
    assert hub.downloads() == []
    assert not (tmp_path / "acestep").exists()


def test_the_figures_grow_with_the_model(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = select(f"{REPOSITORY}/{DECODER}", acestep_files)
    sizes = {name: size * 1000 for name, size in chosen.sizes.items()}  # 10 GB
    large = pull.cost_lines(
        type(chosen)(chosen.repository, DECODER, sizes, tuple(sizes)), tmp_path, "cpu", is_exported=False
    )
    assert (
        "disk: up to 50.0 GB (10.0 GB to download, up to 20.0 GB for the bundle, up to 20.0 GB for engines)" in large[0]
    )
    assert "memory: up to 12.3 GB" in large[1]  # 0.9 + 0.95 * 12
    assert "13 minutes to download at 100 Mbit/s, 8 minutes to export, 3 minutes to build" in large[2]
    exported = pull.cost_lines(
        type(chosen)(chosen.repository, DECODER, sizes, ()), tmp_path, "tensorrt", is_exported=True
    )
    assert "disk: up to 10.0 GB (up to 10.0 GB for engines)" in exported[0]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    assert "which may not be enough" in pull.cost_lines(chosen, tmp_path, "cpu", is_exported=False)[0]


def test_another_models_bundle_is_not_replaced(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "need_packages", lambda *names: None)
    shutil.copytree(ROOT / "configs/demo", tmp_path / "mine", ignore=shutil.ignore_patterns("recipe", "adapters"))
    result = run("acestep", "--yes", "--out", "mine")
    assert result.exit_code == 2
    assert "mine is another model's bundle: it is not replaced" in result.stderr
    assert hub.requests == []


def test_the_published_models_are_of_exporters_that_there_are() -> None:
    assert {model.family for model in pull.MODELS.values()} == set(pull.OWN)
    assert {"acestep", "stable-audio-3-small", "stable-audio-3-sfx", "stable-audio-3-medium"} <= set(pull.MODELS)


@pytest.mark.parametrize(
    ("working", "expected"),
    [({}, "cpu"), ({"tensorrt-rtx": ""}, "tensorrt-rtx"), ({"tensorrt-rtx": "no GPU", "cuda": ""}, "cuda")],
)
def test_the_target_is_what_builds_and_runs_here(
    working: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """working: target -> why its engines do not run here."""

    def probe(target: str, options: BuildConfig) -> BuildEnvironment:
        missing = None if target in working else BuildError("not installed")
        return BuildEnvironment(missing=missing, cannot_run=working.get(target, ""))

    monkeypatch.setattr(pull, "probe_environment", probe)
    assert pull.target_here() == expected


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a tiny checkpoint in ACE-Step's own layout, as its repository has them."""
    pytest.importorskip("transformers")
    from helpers.tiny_acestep import save_checkpoint, save_own_checkpoint

    folder = tmp_path_factory.mktemp("published")
    own = save_own_checkpoint(save_checkpoint(folder / "base", turbo=True), folder / "all")
    own.rename(own.with_name(DECODER))
    return {**folder_files(folder / "all"), "README.md": b"# ACE-Step", "acestep-5Hz-lm-1.7B/config.json": b"{}"}


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
def test_interrupted_between_and_inside_of_steps_it_goes_on_where_it_was(
    hub: Hub, published: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_build.export import __main__ as export

    def interrupted_at(module: object, name: str, text: str) -> str:
        """Run until something is said, and return what was said."""
        with monkeypatch.context() as patch:
            say = getattr(module, name)

            def stop(said: str) -> None:
                if said.startswith(text):
                    raise KeyboardInterrupt
                say(said)

            patch.setattr(module, name, stop)
            result = run("acestep", "--yes", "--target", "cpu")
        assert result.exit_code == 130, result.output
        assert "interrupted; the same command goes on" in result.stderr
        return result.stderr

    hub.models[REPOSITORY].files = published
    said = interrupted_at(pull, "_say", "2 of 3")
    assert "1 of 3, download\n" in said
    assert not {"README.md", "acestep-5Hz-lm-1.7B/config.json"} & {*hub.downloads()}
    hub.requests.clear()

    said = interrupted_at(export, "say", "codec ...")
    assert "1 of 3, download: complete since an earlier run" in said
    assert hub.downloads() == []

    said = interrupted_at(pull, "_say", "3 of 3")
    assert "decoder: complete since an earlier run" in said
    assert load_bundle(tmp_path / "acestep").description == f"ACE-Step, exported from {ORIGIN}."

    result = run("acestep", "--target", "cpu")  # exported: nothing is left to ask
    assert result.exit_code == 0, result.output
    assert "1 and 2 of 3, download and export: acestep is complete since an earlier run" in result.stderr
    assert result.stdout.splitlines()[-1] == "tickrt serve acestep.toml"
    assert load_deployment(tmp_path / "acestep.toml").target == "cpu"
    assert hub.downloads() == []

    hub.models[REPOSITORY].commit = "d" * 40
    result = run("acestep", "--target", "cpu")
    assert f"acestep is of another revision, {'c' * 40}: it is exported anew" in result.stderr
    assert result.exit_code == 2

    hub.models.clear()  # no hub, no cache: what is built stays
    shutil.rmtree(tmp_path / "home")
    result = run("acestep", "--target", "cpu")
    assert result.exit_code == 0, result.output
    assert f"{ORIGIN} is exported" in result.stderr


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
def test_the_command_makes_engines_that_play(published: dict[str, bytes], tmp_path: Path) -> None:
    """In processes of their own, with the hub's variables; the token is nowhere."""
    with hub_server() as hub:
        hub.models[REPOSITORY] = Model(published, is_gated=True)
        environment = {**os.environ, **hub_environment(hub.url, tmp_path / "home"), "HF_TOKEN": "hf_secret"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "runtime/api")])

        def tickrt(*arguments: str) -> subprocess.CompletedProcess[str]:
            program = "from runtime.commands.startup import tickrt; tickrt()"
            command = [sys.executable, "-c", program, *arguments]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            return done

        done = tickrt("pull", "acestep", "--yes", "--target", "cpu", "--out", "models/songs")
        assert "gated: it needs an account" in done.stderr
        assert done.stdout.splitlines()[-1] == "tickrt serve models/songs.toml"
    tickrt("generate", "models/songs.toml", "--prompt", "piano", "--seconds", "2", "--out", "a.wav")
    assert (tmp_path / "a.wav").stat().st_size > 10_000
    written = [file for file in (tmp_path / "models").rglob("*") if file.is_file()]
    assert not any(b"hf_secret" in file.read_bytes() for file in written)
    assert "hf_secret" not in done.stdout + done.stderr
