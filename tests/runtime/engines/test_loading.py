"""Opening engines: checks of file, manifest and machine; checks of engines that replace others."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from simulator.fixture import simulated

from runtime.base.errors import EngineMismatchError, EngineNotBuiltError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import HostDevice
from runtime.engines import loading
from runtime.engines.engine import EngineSet, LanguageEngines, check_replaceable
from runtime.engines.loading import open_engine, open_engines, tool_versions, warm_up
from runtime.engines.manifest import manifest_path, read_manifest, write_manifest
from runtime.engines.onnxruntime import OnnxRuntimeEngine

DEVICE = HostDevice()


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Deployment:
    """A deployment whose engine files a test may change."""
    original = built()
    shutil.copytree(original.engines, tmp_path / "engines")
    return original.model_copy(update={"engines": tmp_path / "engines"})


def test_a_missing_engine_names_the_build_command(copy: Deployment) -> None:
    shutil.rmtree(copy.engines)
    with pytest.raises(EngineNotBuiltError, match=r"tickrt-build .*tiny\.toml --target cpu"):
        open_engines(copy, DEVICE)


def test_random_bit_flips_are_refused(copy: Deployment) -> None:
    path, random = copy.engine_folder() / "decoder.onnx", np.random.default_rng(0)
    original = path.read_bytes()
    for position in random.integers(0, len(original), 50):
        damaged = bytearray(original)
        damaged[position] ^= 1 << random.integers(8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(EngineMismatchError, match="SHA-256"):
            open_engine(copy.engine_folder(), "decoder", DEVICE)


@pytest.mark.parametrize("change", [{"tool_versions": {"onnxruntime": "0.1"}}, {"device": {"arch": "z80"}}])
def test_an_engine_of_another_machine_or_version_is_refused(change: dict[str, Any], copy: Deployment) -> None:
    path = manifest_path(copy.engine_folder(), "decoder")
    write_manifest(path, read_manifest(path).model_copy(update=change))
    with pytest.raises(EngineMismatchError, match=r"was built for .*this machine has"):
        open_engines(copy, DEVICE)


def test_a_damaged_manifest_is_refused(copy: Deployment) -> None:
    manifest_path(copy.engine_folder(), "decoder").write_text("{}")
    with pytest.raises(EngineMismatchError, match="manifest"):
        open_engines(copy, DEVICE)


def test_no_engine_stays_open_where_a_later_one_does_not_open(
    copy: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest_path(copy.engine_folder(), "step.plain").write_text("{}")
    opened: list[Any] = []
    closed: list[Any] = []
    close = OnnxRuntimeEngine.close

    def open_noting(*arguments: Any, **options: Any) -> Any:
        opened.append(open_engine(*arguments, **options))
        return opened[-1]

    def close_noting(engine: OnnxRuntimeEngine) -> None:
        closed.append(engine)
        close(engine)

    monkeypatch.setattr(loading, "open_engine", open_noting)
    monkeypatch.setattr(OnnxRuntimeEngine, "close", close_noting)
    with pytest.raises(EngineMismatchError, match="manifest"):
        open_engines(copy, DEVICE)
    assert len(opened) > 1
    assert closed == opened[::-1]


def test_tool_versions_of_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = tool_versions("cpu")
    assert versions
    assert all(metadata.version(package) == version for package, version in versions.items())
    with simulated():
        assert tool_versions("tensorrt") == {"tensorrt": "11.4.0.106"}
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert tool_versions("tensorrt") == {}


class ReplacedEngine:
    """An engine with other attributes."""

    def __init__(self, engine: Any, **changes: Any) -> None:
        self.__dict__.update(engine.__dict__, **changes)


def test_engines_are_replaceable_by_engines_with_equal_tensors_and_variants(built: Built) -> None:
    engines = open_engines(built(), DEVICE)
    check_replaceable(engines, engines)
    renamed = {f"{name}2": info for name, info in engines.decoder.inputs.items()}
    other: Any = ReplacedEngine(engines.decoder, inputs=renamed)
    with pytest.raises(EngineMismatchError, match="'decoder' has other inputs than the current one"):
        check_replaceable(engines, replace(engines, decoder=other))
    for kind in ("rows", "steps"):
        variants = getattr(engines, kind)
        another: Any = {name: ReplacedEngine(engine, inputs={}) for name, engine in variants.items()}
        with pytest.raises(EngineMismatchError, match="has other inputs than the current one"):
            check_replaceable(engines, replace(engines, **{kind: another}))
    with pytest.raises(EngineMismatchError, match=r"lack the step variants .*plain"):
        check_replaceable(engines, replace(engines, steps={}))
    adapted = replace(engines, adapted=engines.decoder)
    check_replaceable(adapted, adapted)
    check_replaceable(engines, adapted)
    with pytest.raises(EngineMismatchError, match="has other inputs than the current one"):
        check_replaceable(adapted, replace(engines, adapted=other))
    with pytest.raises(EngineMismatchError, match="lack the decoder for adapters"):
        check_replaceable(adapted, engines)
    planned = replace(engines, planner=LanguageEngines(engines.decoder, engines.decoder))
    check_replaceable(planned, planned)
    with pytest.raises(EngineMismatchError, match="has other inputs than the current one"):
        check_replaceable(planned, replace(engines, planner=LanguageEngines(engines.decoder, other)))
    for planner in (None, LanguageEngines(engines.decoder, engines.decoder, engines.decoder)):
        with pytest.raises(EngineMismatchError, match="lack the planner or its draft"):
            check_replaceable(planned, replace(engines, planner=planner))
    engines.close()


def test_warm_up_refuses_a_decoder_whose_outputs_are_not_finite(built: Built) -> None:
    deployment = built()
    engines, bundle = open_engines(deployment, DEVICE), load_bundle(deployment.bundle)
    warm_up(engines, bundle, deployment)
    shapes: list[tuple[int, ...]] = []

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        shapes.append(feeds[bundle.decoder.inputs.latents].shape)
        return {"other": np.zeros(1, np.float32), "velocity": np.full(shapes[-1], np.nan, np.float32)}

    broken: Any = ReplacedEngine(engines.decoder, run=run)
    with pytest.raises(EngineMismatchError, match="outputs are not finite"):
        warm_up(EngineSet(broken, engines.rows, engines.steps), bundle, deployment)
    least = deployment.shapes[0]
    assert shapes == [(least.rows.min, least.frames.min, bundle.latents.channels)]
    engines.close()
