"""tickrt-build init: from ONNX graphs to a deployment that builds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers.factories import TinySpec, tiny_codec_decode, tiny_decoder
from typer.testing import CliRunner

from engine_build.cli import app
from engine_build.new_bundle import init as module
from engine_build.new_bundle.init import ask_for_tensor, parse_roles
from engine_build.request import load_request
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import ConfigError
from runtime.commands.terminal import EXIT_FILE, EXIT_INVALID
from runtime.config.bundle import load_bundle
from runtime.engines.manifest import TensorInfo


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(tiny_decoder(TinySpec()), tmp_path / "model.onnx")
    onnx.save(tiny_codec_decode(TinySpec()), tmp_path / "codec.onnx")
    return tmp_path / "model.onnx"


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["init", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def test_it_says_what_it_guessed_and_writes_what_builds(model: Path) -> None:
    said = run(model, "--codec", model.parent / "codec.onnx", "--sample-rate", 8000)
    assert "latents: hidden_states float32[rows, frames, 8] (the only one of this shape)" in said
    assert "measured: 2 channels, 320 samples per frame, a frame of latents changes 1 frames on each side" in said
    assert "velocity = noise - data" in said
    assert f"next: tickrt-build {model.parent / 'deployment.toml'}" in said
    assert f"tickrt-generate {model.parent / 'deployment.toml'} --condition TOKENS.npy --out out.wav" in said
    specs = engine_specs(load_request(model.parent / "deployment.toml"))
    assert {spec.kind for spec in specs} == {"decoder", "rows", "step", "codec_decode"}
    codec = load_bundle(model.parent).codec
    assert codec is not None
    assert (codec.sample_rate_hz, codec.channels, codec.hop_samples) == (8000, 2, 320)
    assert codec.decode.margin_frames == 1


def test_a_codec_in_groups_makes_generations_of_whole_groups(model: Path) -> None:
    onnx.save(tiny_codec_decode(TinySpec(group_frames=2)), model.parent / "codec.onnx")
    said = run(model, "--codec", model.parent / "codec.onnx", "--sample-rate", 8000)
    assert "it works in groups of 2 frames, so that windows begin at multiples of it" in said
    bundle = load_bundle(model.parent)
    assert bundle.codec is not None
    assert (bundle.codec.decode.margin_frames, bundle.codec.decode.align_frames) == (2, 2)
    assert bundle.latents.frame_multiple == 2
    (codec,) = (spec for spec in engine_specs(load_request(model.parent / "deployment.toml")) if "codec" in spec.name)
    assert codec.ranges[0]["T"][0] == 2


def test_existing_files_are_kept_unless_forced(model: Path) -> None:
    run(model)
    before = (model.parent / "bundle.toml").read_text()
    assert "exists and is not replaced" in run(model, "--frame-rate", 50, status=EXIT_FILE)
    assert (model.parent / "bundle.toml").read_text() == before
    run(model, "--frame-rate", 50, "--force")
    assert load_bundle(model.parent).latents.frame_rate_hz == 50.0
    assert "written: " in run(model, "--out", model.parent / "other")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--role", "latents"), "expected ROLE=NAME"),
        (("--role", "time=timestep", "--role", "time=timestep"), "once per role"),
        (("--role", "tiem=timestep"), "did you mean time?"),
        (("--codec", "{model}"), "has tensors that no role fits: timestep"),
    ],
)
def test_wrong_arguments_are_refused(model: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in run(model, *(item.replace("{model}", str(model)) for item in arguments), status=EXIT_INVALID)
    assert not (model.parent / "bundle.toml").exists()


def test_without_a_terminal_the_flag_is_named_and_with_one_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [TensorInfo(name=name, dtype="float32", shape=("n", "l", 4)) for name in ("a", "b")]
    for streams in ((False, False), (True, False), (False, True), (True, True)):
        for stream, is_terminal in zip((module.sys.stdin, module.sys.stdout), streams, strict=True):
            monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        if not all(streams):
            with pytest.raises(ConfigError, match=r"several tensors may be the latents.*\n  fix: --role latents=a"):
                ask_for_tensor("latents", both)
    for answer, expected in (("b", both[1]), ("", None)):
        monkeypatch.setattr(module.typer, "prompt", lambda *_, answer=answer, **__: answer)
        assert ask_for_tensor("latents", both) is expected
    monkeypatch.setattr(module.typer, "prompt", lambda *_, **__: "c")
    with pytest.raises(ConfigError, match="expected one of a, b"):
        ask_for_tensor("latents", both)


def test_roles_are_parsed() -> None:
    assert parse_roles(["latents=x", "time=t=0"]) == {"latents": "x", "time": "t=0"}
