"""Engines that are missing are built in a process of their own; errors of the build are raised."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.backends import FEW_VARIANTS
from helpers.factories import tiny_deployment
from helpers.http_harness import eventually
from helpers.paths import ROOT
from helpers.processes import is_running

from runtime.base.errors import BuildError, EngineError, EngineNotBuiltError
from runtime.config.deployment import load_deployment
from runtime.engines.tensorrt import trials
from runtime.pipeline import building
from runtime.pipeline.building import build_engines, open_built_pipeline, open_tried_pipeline


@pytest.mark.parametrize(("target", "built"), [(None, "cpu"), ("cuda", "cuda")])
def test_what_is_missing_is_built_for_the_target_that_is_opened(
    target: Any, built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path, codec=False, text_encoder=False))
    calls: list[Any] = []

    def opened(opening: Any, *, target: Any) -> Any:
        calls.append(target)
        if len(calls) == 1:
            raise EngineNotBuiltError("no decoder")
        return opening

    monkeypatch.setattr(building, "open_pipeline", opened)
    monkeypatch.setattr(building, "build_engines", lambda *what, quiet: calls.append((*what, quiet)))
    assert open_built_pipeline(deployment, target=target, quiet=True) is deployment
    assert calls == [target, (deployment.path, built, True), target]


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_plan_that_ends_its_process_is_built_again_before_the_pipeline_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_mended: bool
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path, codec=False, text_encoder=False))
    crashes, calls = [{"codec_decode": "signal SIGSEGV"}] * (1 if is_mended else 2) + [{}], list[Any]()
    monkeypatch.setattr(trials, "first_executes", lambda folder, target: crashes.pop(0))
    monkeypatch.setattr(building, "build_engines", lambda *what, quiet: calls.append(what))
    monkeypatch.setattr(building, "open_pipeline", lambda opening, *, target: calls.append(target))
    if is_mended:
        open_tried_pipeline(deployment, target="tensorrt")
    else:
        with pytest.raises(EngineError, match=r"engine 'codec_decode' ended its process \(signal SIGSEGV\)"):
            open_tried_pipeline(deployment, target="tensorrt")
    assert calls == [(deployment.path, "tensorrt"), *(["tensorrt"] if is_mended else [])]
    assert "engine codec_decode ended its process (signal SIGSEGV)" in caplog.text


@pytest.mark.shipped
def test_only_missing_and_unfit_engines_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = load_deployment(tiny_deployment(tmp_path, more=FEW_VARIANTS, codec=False, text_encoder=False))
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").write_text("raise AssertionError('a module of the working directory')")
    monkeypatch.chdir(tmp_path)
    open_built_pipeline(deployment).close()
    assert "decoder  (not built yet)" in capsys.readouterr().err
    open_built_pipeline(deployment).close()
    assert capsys.readouterr().err == ""
    with (deployment.engine_folder() / "decoder.onnx").open("ab") as file:
        file.write(b"changed")
    open_built_pipeline(deployment).close()
    said = capsys.readouterr().err
    assert "built" in said
    assert "decoder" in said
    assert said.count("reused") > 1


@pytest.mark.shipped
def test_a_failed_build_raises_its_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "an error: found"
    path = tiny_deployment(folder, codec=False, text_encoder=False)
    (folder / "tiny" / "decoder.onnx").write_bytes(b"not a graph")
    with pytest.raises(BuildError) as caught:
        build_engines(path, "cpu", quiet=True)
    assert caught.value.what.startswith(f"{folder / 'tiny' / 'decoder.onnx'} is not an ONNX graph")
    assert caught.value.fix == "copy or export the file again"
    assert caught.value.what.count("\n") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("start", "module"),
    [
        ("runtime.pipeline.building import build_engines as f; f(path, 'cpu', quiet=True)", "engine_build/cli.py"),
        ("runtime.engines.tensorrt.trials import _run as f; f(path, ['decoder'], 600.0)", "cuda/bindings/runtime.py"),
    ],
)
def test_what_it_has_started_ends_soon_after_a_process_that_is_killed(start: str, module: str, tmp_path: Path) -> None:
    """A build, and the first execute of plans, also where they take no notice."""
    pid = tmp_path / "pid"
    stub = tmp_path / module
    stub.parent.mkdir(parents=True)
    stub.write_text(
        f"import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    for package in (stub.parent, *stub.parent.parents):
        if package != tmp_path and package.is_relative_to(tmp_path):
            (package / "__init__.py").touch()
    name, _, call = start.partition(" import ")
    code = (
        f"import sys, pathlib; from {name} import {call.partition('; ')[0]}; path = pathlib.Path({str(tmp_path)!r}); "
        f"sys.path.insert(0, str(path)); {call.partition('; ')[2]}"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        eventually(lambda: pid.exists() and pid.read_text(), 60)
        assert is_running(pid.read_text())
        process.kill()
    eventually(lambda: not is_running(pid.read_text()), 3)


@pytest.mark.shipped
def test_an_interrupt_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class RecordedPopen(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    class InterruptingStream(io.StringIO):
        def write(self, text: str) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", RecordedPopen)
    monkeypatch.setattr(sys, "stderr", InterruptingStream())
    monkeypatch.setattr(building, "CLEANUP_S", 0.0)
    path = tiny_deployment(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        build_engines(path, "cpu")
    assert started[0].wait(30) != 0
    assert not list(tmp_path.rglob("*partial*"))
