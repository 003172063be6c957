"""python -m engine_build.export: invalid options are refused with a fix. Needs no torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

HAS_TORCH = all(importlib.util.find_spec(name) is not None for name in ("torch", "diffusers", "onnxscript"))


def export(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine_build.export", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_help_says_what_there_is(tmp_path: Path) -> None:
    assert "acestep" in export("--help", cwd=tmp_path).stdout
    text = export("acestep", "--help", cwd=tmp_path).stdout
    for option in (
        "--checkpoint",
        "--random",
        "--out",
        "--layers",
        "--canvas-seconds",
        "--deployment",
        "--planner",
        "--draft",
    ):
        assert option in text


def test_help_of_the_second_family(tmp_path: Path) -> None:
    assert "stable_audio_3" in export("--help", cwd=tmp_path).stdout
    text = export("stable_audio_3", "--help", cwd=tmp_path).stdout
    for option in ("--checkpoint", "--random", "small|medium", "--text-encoder", "--layers", "Stability AI Community"):
        assert option in text


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
def test_without_torch_the_error_has_the_install_command(tmp_path: Path) -> None:
    result = export("acestep", "--random", "--out", "x", cwd=tmp_path)
    assert result.returncode == 3
    assert "needs torch" in result.stderr
    assert "pip install 'tickrt[export]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "either --checkpoint FOLDER or --random"),
        (["--random", "--checkpoint", "."], "either --checkpoint FOLDER or --random"),
        (["--checkpoint", "none"], "there is no folder none"),
        (["--checkpoint", ".", "--layers", "2"], "sizes belong to --random"),
        (["--checkpoint", "."], "is not a checkpoint of ACE-Step"),
        (["--random", "--planner", "8b"], "a language model of 8b with --random: expected 0.6b, 1.7b, 4b"),
        (["--random", "--draft", "0.6b"], "--draft drafts for a planner"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    result = export("acestep", "--out", "x", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "either --checkpoint FOLDER or --random SIZE"),
        (["--random", "small", "--checkpoint", "."], "either --checkpoint FOLDER or --random SIZE"),
        (["--checkpoint", ".", "--layers", "2"], "sizes belong to --random"),
        (["--random", "small", "--text-encoder", "."], "--text-encoder belongs to --checkpoint"),
        (["--checkpoint", "."], "is not a checkpoint of Stable Audio 3"),
    ],
)
def test_options_of_the_second_family_that_cannot_be_are_refused(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    result = export("stable_audio_3", "--out", "x", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
def test_a_checkpoint_becomes_a_bundle_with_a_deployment(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from helpers.tiny_acestep import save_checkpoint

    from runtime.config.bundle import load_bundle
    from runtime.config.deployment import load_deployment

    save_checkpoint(tmp_path / "Tiny ckpt", text=False)
    arguments = ("acestep", "--checkpoint", "Tiny ckpt", "--out", "out/b", "--canvas-seconds", "2")
    result = export(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["tickrt-build out/b.toml", "tickrt-bench out/b.toml"]
    assert "null condition only" in result.stdout
    assert load_bundle(tmp_path / "out" / "b").name == "tiny-ckpt"
    assert load_deployment(tmp_path / "out" / "b.toml").bundle == tmp_path / "out" / "b"
    (tmp_path / "out" / "b.toml").write_text("# mine")
    assert export(*arguments, "--name", "second", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "b.toml").read_text() == "# mine"
    assert load_bundle(tmp_path / "out" / "b").name == "second"
