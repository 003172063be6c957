"""What errors name as their fix is applied here, and the error is gone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec, tiny_codec_decode, tiny_decoder, tiny_deployment
from typer.testing import CliRunner

from engine_build.cli import app as build
from engine_build.graphs.step_graph import step_graph
from engine_build.request import load_request
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import TickError
from runtime.config.deployment import load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engines
from runtime.pipeline.pipeline import open_pipeline

BARE = {"condition": "", "mask": False, "context": False, "text_encoder": False, "codec": False, "guidance": 1.0}


@dataclass(frozen=True)
class Edit:
    """A mistake in a file, `old` -> `new`; what the fix says; the edit that follows it, with the fix's groups."""

    file: str
    old: str
    new: str
    fix: str
    wrong: str
    right: str


EDITS = {
    "a length that is no multiple": Edit(
        "tiny.toml", "min = 2, opt = 32", "min = 3, opt = 32", r"^min = (\d+)$", "min = 3", r"min = \1"
    ),
    "no range for the canvas": Edit(
        "tiny.toml",
        "frames = { min = 2, opt = 32, max = 64 }",
        "frames = { min = 2, opt = 8, max = 16 }",
        r"let a frames range include (\d+)",
        "max = 16",
        r"max = \1",
    ),
    "too few tokens": Edit(
        "tiny.toml", "opt = 8, max = 32", "opt = 8, max = 16", r"tokens = { (max = \d+) } or more", "max = 16", r"\1"
    ),
    "a tensor that is not there": Edit(
        "tiny/bundle.toml",
        'latents = "hidden_states"',
        'latents = "hidden"',
        r"set decoder.inputs.latents in bundle.toml to one of them",
        'latents = "hidden"',
        'latents = "hidden_states"',
    ),
    "an input without a role": Edit(
        "tiny/bundle.toml",
        'condition_mask = "condition_mask"\ncontext',
        "context",
        r"give them roles in bundle.toml",
        "[decoder.inputs]\n",
        '[decoder.inputs]\ncondition_mask = "condition_mask"\n',
    ),
    "a graph that is not there": Edit(
        "tiny/bundle.toml",
        "decoder.onnx",
        "decode.onnx",
        r"correct its name in bundle.toml",
        "decode.onnx",
        "decoder.onnx",
    ),
    "a tokenizer that is not there": Edit(
        "tiny/bundle.toml",
        "tokenizer.json",
        "tokens.json",
        r"set text_encoder.tokenizer in bundle.toml to a (tokenizer.json)",
        "tokens.json",
        r"\1",
    ),
}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def fix_of(attempt: Callable[[], object]) -> str:
    with pytest.raises(TickError) as caught:
        attempt()
    return caught.value.fix


@pytest.mark.parametrize("name", EDITS)
def test_the_fix_of_a_file(name: str, tmp_path: Path) -> None:
    path, case = tiny_deployment(tmp_path), EDITS[name]

    def attempt() -> None:
        engine_specs(load_request(path))

    edit(tmp_path / case.file, case.old, case.new)
    match = re.search(case.fix, fix_of(attempt))
    assert match is not None
    edit(tmp_path / case.file, case.wrong, match.expand(case.right))
    attempt()


def test_tokens_are_removed_where_the_decoder_has_none(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, **BARE)  # type: ignore[arg-type]
    edit(path, "[runtime]", "tokens = { min = 1, opt = 2, max = 2 }\n[runtime]")
    assert fix_of(lambda: engine_specs(load_request(path))) == "remove tokens from [[shapes]]"
    edit(path, "tokens = { min = 1, opt = 2, max = 2 }\n", "")
    engine_specs(load_request(path))


def run(command: str) -> None:
    """A command line that a fix names."""
    program, *arguments = shlex.split(command)
    assert program == "tickrt-build"
    result = CliRunner().invoke(build, arguments)
    assert result.exit_code == 0, result.output


def test_the_build_command_of_a_missing_and_of_a_damaged_engine(tmp_path: Path) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path, more=FEW_VARIANTS, **BARE))  # type: ignore[arg-type]

    def attempt() -> None:
        open_engines(deployment, HostDevice()).close()

    run(fix_of(attempt))
    attempt()
    engine = next(deployment.engine_folder().glob("decoder*.onnx"))
    engine.write_bytes(engine.read_bytes() + b"\0")
    run(fix_of(attempt))
    attempt()


REQUESTS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a part of the way without a source": ({"denoise": 0.5}, "give a source or denoise 1", {"denoise": 1.0}),
    "guidance without a condition": (
        {"guidance": 2.0},
        'leave it out, or guidance_mode "self"',
        {"guidance": 2.0, "guidance_mode": "self"},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_fix_of_a_request(name: str, built: Built) -> None:
    wrong, fix, right = REQUESTS[name]
    with open_pipeline(built(more=FEW_VARIANTS, **BARE)) as pipeline:
        assert fix_of(lambda: pipeline.request("", **wrong)) == fix
        pipeline.request("", **right)
        assert fix_of(lambda: pipeline.request("piano")) == "leave the text empty"


def test_the_number_of_tokens_to_shorten_a_text_by(built: Built) -> None:
    with open_pipeline(built()) as pipeline:
        text = "a" * 50
        (number,) = re.findall(r"shorten it by (\d+) tokens", fix_of(lambda: pipeline.request(text)))
        pipeline.request(text[: -int(number)])
        assert "shorten it by 1 " in fix_of(lambda: pipeline.request(text[: 1 - int(number)]))


def test_a_step_variant_that_another_needs() -> None:
    (fix,) = re.findall(r"build (\S+)", fix_of(lambda: step_graph(8, frozenset({"rcfg"}))))
    step_graph(8, frozenset(fix.split("+")))


def test_the_flags_of_init(tmp_path: Path) -> None:
    onnx.save(tiny_decoder(TinySpec()), tmp_path / "model.onnx")
    onnx.save(tiny_codec_decode(TinySpec()), tmp_path / "codec.onnx")
    run(f"tickrt-build init {tmp_path / 'model.onnx'}")
    result = CliRunner().invoke(build, ["init", str(tmp_path / "model.onnx")])
    assert "--out FOLDER for another place, or --force" in result.output
    run(f"tickrt-build init {tmp_path / 'model.onnx'} --force")
    run(f"tickrt-build init {tmp_path / 'model.onnx'} --out {tmp_path / 'other'}")
