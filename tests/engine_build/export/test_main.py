"""python -m engine_build.export: invalid options are refused with a fix. Needs no torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from helpers.export_command import export

HAS_TORCH = all(importlib.util.find_spec(name) is not None for name in ("torch", "diffusers", "onnxscript"))


def test_help_says_what_there_is(tmp_path: Path) -> None:
    assert "acestep" in export("--help", cwd=tmp_path).stdout
    text = export("acestep", "export", "--help", cwd=tmp_path).stdout
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
    text = export("stable_audio_3", "export", "--help", cwd=tmp_path).stdout
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
    assert "No text encoder: requests bring their condition, float32 [L, D]; those without one get" in result.stdout
    assert load_bundle(tmp_path / "out" / "b").name == "tiny-ckpt"
    assert load_deployment(tmp_path / "out" / "b.toml").bundle == tmp_path / "out" / "b"
    (tmp_path / "out" / "b.toml").write_text("# mine")
    assert export(*arguments, "--name", "second", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "b.toml").read_text() == "# mine"
    assert load_bundle(tmp_path / "out" / "b").name == "second"


@pytest.mark.parametrize("family", ["acestep", "stable_audio_3"])
def test_help_of_a_check(tmp_path: Path, family: str) -> None:
    assert "check" in export(family, "--help", cwd=tmp_path).stdout
    text = export(family, "check", "--help", cwd=tmp_path).stdout
    for option in ("--checkpoint", "--out", "--seconds", "--target", "--json", "Nothing leaves this machine"):
        assert option in " ".join(text.split())
    assert ("--audio" in text) == (family == "stable_audio_3")


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed here")
@pytest.mark.parametrize("family", ["acestep", "stable_audio_3"])
def test_without_torch_a_check_has_the_install_command(tmp_path: Path, family: str) -> None:
    result = export(family, "check", "--checkpoint", ".", cwd=tmp_path)
    assert result.returncode == 3
    assert "this command needs torch, diffusers" in result.stderr
    assert "pip install 'tickrt[export]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
def test_a_checkpoint_of_the_other_family_names_its_command(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from helpers.tiny_acestep import save_checkpoint
    from helpers.tiny_stable_audio_3 import save_own_checkpoint

    save_checkpoint(tmp_path / "songs", text=False)
    save_own_checkpoint(tmp_path / "sounds", "small")
    for command in ("check", "export"):
        out = ("--out", "x")
        found = export("acestep", command, "--checkpoint", "sounds", *out, cwd=tmp_path)
        assert found.returncode == 2
        assert "fix: it is another family's: python -m engine_build.export stable_audio_3" in found.stderr
        found = export("stable_audio_3", command, "--checkpoint", "songs", *out, cwd=tmp_path)
        assert found.returncode == 2
        assert "expected StableAudio3DiTModel" in found.stderr
        assert "fix: it is another family's: python -m engine_build.export acestep" in found.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.export
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and diffusers")
def test_xl_is_a_size_of_random_weights(tmp_path: Path) -> None:
    result = export("acestep", "--out", "x", "--xl", "--checkpoint", ".", cwd=tmp_path)
    assert result.returncode == 2
    assert "sizes belong to --random" in result.stderr
