"""The steps fit into ten minutes and into the commands; their deployments are those of what was prepared."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from typer.main import get_command

from engine_build.request import read_options
from profiling.bench_cli import app as bench_app
from profiling.gpu_check.steps import (
    BENCH,
    BUNDLES,
    PLANS,
    PROFILE,
    check_steps,
    is_rtx_card,
    write_deployments,
)
from profiling.profile_cli import app as profile_app
from runtime.config.deployment import load_deployment
from runtime.devices.cuda_calls import Gpu

APPS = {BENCH: bench_app, PROFILE: profile_app}


def gpu(capability: str) -> Gpu:
    return Gpu("card", capability, 100, 1 << 34, "13.0", "13.0", "")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Every bundle, as if it had been prepared."""
    path = tiny_deployment(tmp_path / "source")
    for name in BUNDLES:
        (path.parent / f"{name}.toml").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return path.parent


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.3", "12.0"])
def test_the_steps_fit_into_ten_minutes_and_into_the_commands(tmp_path: Path, source: Path, capability: str) -> None:
    steps = check_steps(tmp_path, source, gpu(capability))
    names = [step.name for step in steps]
    assert 540 <= sum(step.limit_s for step in steps) <= 600
    assert len(set(names)) == len(names)
    assert all(names.index(need) < names.index(step.name) for step in steps for need in step.needs)
    assert not any(step.missing for step in steps)
    for step in steps:
        if step.words[0] in APPS:
            words = ["run", *step.words[1:]] if step.words[0] == PROFILE else list(step.words[1:])
            app = get_command(APPS[step.words[0]])
            context = app.make_context("command", words)
            if step.words[0] == PROFILE:
                app.commands["run"].make_context("run", words[1:], parent=context)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("cc", "is_rtx"), [("8.9", True), ("9.0", False), ("10.3", False), ("12.0", True)])
def test_engines_of_tensorrt_rtx_are_measured_on_rtx_cards(tmp_path: Path, source: Path, cc: str, is_rtx: bool) -> None:
    assert is_rtx_card(gpu(cc)) == is_rtx
    names = {step.name for step in check_steps(tmp_path, source, gpu(cc))}
    assert {"rtx-build", "second-build"} & names == ({"rtx-build"} if is_rtx else {"second-build"})


def test_fp8_is_measured_where_a_card_has_it(tmp_path: Path, source: Path) -> None:
    assert not is_rtx_card(None)
    found = {cc: {step.name for step in check_steps(tmp_path, source, gpu(cc))} for cc in ("8.6", "8.9")}
    assert found["8.9"] - found["8.6"] == {"fp8-build", "fp8-ticks"}


def test_what_is_not_prepared_is_left_out_with_the_command_that_prepares_it(tmp_path: Path) -> None:
    missing = {step.name: step.missing for step in check_steps(tmp_path, tmp_path, gpu("9.0"))}
    assert not any(missing[name] for name in ("card", "tiny-build", "tiny-captured"))  # it is shipped
    assert missing["full-build"] == "full is not prepared: python -m profiling.gpu_check prepare"
    assert sum(map(bool, missing.values())) == len(missing) - 3


def test_deployments_differ_in_what_their_steps_compare(tmp_path: Path, source: Path) -> None:
    write_deployments(tmp_path, source)
    found = {name: load_deployment(tmp_path / f"{name}.toml") for name in PLANS}
    canvas = found["full"].loaded_bundle.latents.canvas_frames
    for name, deployment in found.items():
        assert deployment.bundle == source / "tiny", name
        assert all(shape.frames.min == shape.frames.max == canvas for shape in deployment.shapes), name
        assert [shape.rows.max for shape in deployment.shapes] == ([8, 16] if name == "second" else [8])
        read_options(deployment).check_target(deployment.target)
    codec = {name: read_options(each).of("codec") for name, each in found.items() if name.startswith("codec-")}
    assert {(each.precision, each.optimization_level) for each in codec.values()} == {
        ("fp16", 1), ("fp16", 3), ("tf32", 3), ("fp32", 3),
    }  # fmt: skip
    assert found["full"].runtime.capture
    assert not found["full-plain"].runtime.capture
    assert found["full"].engines == found["full-plain"].engines
    assert len({each.engines for each in found.values()}) == len(found) - 1
