"""A folder with a deployment's engines for the machine with the card."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.adapters import random_factors, write_peft
from helpers.factories import tiny_bundle, tiny_deployment
from typer.testing import CliRunner

from engine_build.cli import app
from engine_build.compile import builder, targets
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.rebuild_check import check_rebuilds
from engine_build.config import BuildConfig
from engine_build.request import BuildRequest, load_request
from engine_build.shipping import check_shippable, copy_bundle, ship
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError, ConfigError, EngineNotBuiltError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.engines.adapter_files import read_catalog

RELEASE = "1.7.1.116"
ELSEWHERE = BuildEnvironment({"tensorrt-rtx": RELEASE}, {}, cannot_run="there is no NVIDIA driver")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    more = '[build]\nstep_variants = ["plain"]\ncapabilities = ["SM89"]\n'
    return tiny_deployment(tmp_path / "here", adapters=True, codec=False, text_encoder=False, more=more)


@pytest.fixture
def built(path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Engines for tensorrt-rtx; ONNX Runtime compiles them."""
    monkeypatch.setitem(targets.COMPILERS, "tensorrt-rtx", targets.COMPILERS["cpu"])
    builder.build(load_request(path), target="tensorrt-rtx", environment=ELSEWHERE)
    return load_deployment(path)


def actions(path: Path) -> set[str]:
    decisions = check_rebuilds(load_request(path), load_deployment(path).target, environment=ELSEWHERE)
    return {f"{decision.action}: {decision.reason}" for decision in decisions}


def test_the_folder_is_complete_wherever_it_is_copied(built: Deployment, path: Path, tmp_path: Path) -> None:
    ship(built, tmp_path / "out")
    assert {file.name for file in tmp_path.iterdir()} == {"here", "out"}
    shutil.move(tmp_path / "out", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    there = tmp_path / "there"
    found = load_deployment(there / "deployment.toml")
    assert (found.target, found.bundle, found.engines) == ("tensorrt-rtx", there / "bundle", there / "engines")
    assert (found.shapes, found.runtime, found.tables) == (built.shapes, built.runtime, built.tables)
    assert actions(found.path) == {"reuse: up to date"}
    assert (there / "requirements.txt").read_text().splitlines() == [
        f"tickrt[tensorrt-rtx]=={metadata.version('tickrt')}", f"tensorrt-rtx=={RELEASE}",
    ]  # fmt: skip
    readme = (there / "README.md").read_text()
    assert "RTX cards (SM89)" in readme
    assert "tickrt-serve deployment.toml" in readme


@pytest.mark.parametrize("inside", [True, False])
def test_adapters_go_along(built: Deployment, path: Path, tmp_path: Path, inside: bool) -> None:
    folder = (built.bundle if inside else tmp_path / "here") / "loras"
    spec = load_bundle(built.bundle).adapters
    assert spec is not None
    write_peft(folder / "soft", random_factors(spec, 4, 0))
    path.write_text(path.read_text().replace('target = "cpu"', f'target = "cpu"\nadapters = "{folder}"'))
    (tmp_path / "out").mkdir()  # an empty folder is taken
    ship(load_deployment(path), tmp_path / "out")
    found = load_deployment(tmp_path / "out" / "deployment.toml").adapters
    assert found == tmp_path / "out" / "adapters"
    assert (found / "soft" / "adapter_model.safetensors").is_file()
    assert len(read_catalog(load_deployment(tmp_path / "out" / "deployment.toml")).adapters) == 1


def test_only_what_the_deployment_names_is_shipped(built: Deployment, path: Path, tmp_path: Path) -> None:
    for stray in ("notes.txt", "training.onnx", ".engines/tiny/cpu/decoder.onnx", "recipe/x.py", "loras/x.safetensors"):
        (built.bundle / stray).parent.mkdir(parents=True, exist_ok=True)
        (built.bundle / stray).write_bytes(b"mine")
    (built.engines / "cpu").mkdir(parents=True)
    (built.engines / "cpu" / "decoder.onnx").write_bytes(b"another target's")
    (built.engine_folder("tensorrt-rtx") / "stray.plan").write_bytes(b"no engine")
    ship(built, tmp_path / "out")
    shipped = {
        file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*") if file.is_file()
    }
    engines = {name for name in shipped if name.startswith("engines/tensorrt-rtx/")}
    assert {name.rpartition("/")[2].partition(".")[0] for name in engines} == {"decoder", "rows", "step"}
    assert "engines/tensorrt-rtx/stray.plan" not in engines
    named = {"bundle/bundle.toml", "bundle/decoder.onnx", "deployment.toml", "README.md", "requirements.txt"}
    assert shipped - engines == named


@pytest.mark.parametrize("place", ["tiny/out", "tiny/deep/er/out", "out"])
def test_a_folder_beside_or_in_what_is_shipped_is_written_once(built: Deployment, place: str) -> None:
    out = built.path.parent / place
    ship(built, out)
    assert not list(out.rglob("out"))
    assert actions(out / "deployment.toml") == {"reuse: up to date"}


@pytest.mark.parametrize("place", ["engines", "engines/tensorrt-rtx/out", "adapters/out"])
def test_a_folder_that_the_deployment_reads_is_refused(
    built: Deployment, path: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "loras").mkdir()
    found = built.model_copy(update={"adapters": tmp_path / "loras"})
    out = {"engines": found.engines, "adapters": tmp_path / "loras"}[place.partition("/")[0]] / place.partition("/")[2]
    with pytest.raises(ConfigError, match=r"finds its own files|not an empty folder"):
        check_shippable(found, out, "tensorrt-rtx")


@pytest.mark.parametrize("inside", [True, False])
def test_every_file_that_a_bundle_names_goes_along(tmp_path: Path, inside: bool) -> None:
    """The copy is read as the bundle is: all graphs with their data, tokenizers, arrays, names."""
    bundle = tiny_bundle(tmp_path / "one/bundle", conditions=True, planner={}, meaning=True, adapters=True)
    np.save(bundle / "silence.npy", np.zeros((3, 8), np.float32))
    np.save(bundle / "null.npy", np.zeros((2, 12), np.float32))
    model = onnx.load(bundle / "decoder.onnx")
    (bundle / "weights").mkdir()
    onnx.save(
        model, bundle / "decoder.onnx", save_as_external_data=True, location="weights/decoder.data", size_threshold=0
    )
    text = (bundle / "bundle.toml").read_text()
    text = re.sub(r"silence = .*", 'silence = "silence.npy"', text)
    text = text.replace('graph = "decoder.onnx"', 'graph = "decoder.onnx"\nnull_condition = "null.npy"')
    if not inside:
        shutil.move(bundle / "codec_decode.onnx", tmp_path / "one" / "codec_decode.onnx")
        text = text.replace('"codec_decode.onnx"', '"../codec_decode.onnx"')
    (bundle / "bundle.toml").write_text(text)
    (bundle / "stray.npy").write_bytes(b"")
    copied = copy_bundle(bundle, tmp_path / "two")
    assert copied == tmp_path / "two" / ("" if inside else "bundle")
    assert {file.name for file in bundle.rglob("*") if file.is_file()} - {"stray.npy"} == {
        file.name for file in copied.rglob("*") if file.is_file()
    }
    shutil.rmtree(tmp_path / "one")
    found = load_bundle(copied)
    deployment = load_deployment(tiny_deployment(tmp_path / "three", conditions=True))
    request = BuildRequest(deployment.model_copy(update={"bundle": copied}), BuildConfig())
    assert {spec.kind for spec in engine_specs(request)} >= {"decoder", "codec_decode", "lyric_encoder", "planner"}
    assert found.silence(1).shape == (1, 8)
    assert found.null_condition() is not None
    assert found.meaning_names()


def test_a_file_of_one_machine_alone_is_refused(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path / "one")
    text = (bundle / "bundle.toml").read_text()
    (bundle / "bundle.toml").write_text(text.replace('"decoder.onnx"', f'"{bundle / "decoder.onnx"}"'))
    with pytest.raises(ConfigError, match=r"bundle\.toml names /.*decoder\.onnx\n  fix: name it relative to"):
        copy_bundle(bundle, tmp_path / "two")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[deployment]\n", "[ deployment ]\n"),
        ('[deployment]\nbundle = "tiny"\n', '[deployment]\n# [not a table]\nbundle = """\\\n  tiny"""\n'),
    ],
)
def test_the_table_is_replaced_however_it_is_written(
    built: Deployment, path: Path, tmp_path: Path, old: str, new: str
) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    ship(load_deployment(path), tmp_path / "out")
    assert load_deployment(tmp_path / "out" / "deployment.toml").tables == built.tables


def test_a_file_that_cannot_be_written_anew_is_refused(built: Deployment, path: Path, tmp_path: Path) -> None:
    text = path.read_text().replace("[deployment]\n", "").replace("\n[", "\n\n[", 1)
    head, _, rest = text.partition("\n\n")
    lines = [f"deployment.{line}" if "=" in line else line for line in head.splitlines()]
    path.write_text("\n".join(lines) + "\n\n" + rest)
    deployment = load_deployment(path)
    with pytest.raises(ConfigError, match=r"tiny\.toml cannot be written anew for another folder"):
        ship(deployment, tmp_path / "out")
    assert {file.name for file in tmp_path.iterdir()} == {"here"}


def test_only_engines_that_run_elsewhere_are_shipped(path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(path), "--target", "tensorrt", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "engines of tensorrt run where they are built" in result.stderr
    assert "--target tensorrt-rtx" in result.stderr
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        check_shippable(load_deployment(path), tmp_path, "tensorrt-rtx")


def test_a_failure_leaves_nothing(built: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*about: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(BuildError, match="No space left on device") as caught:
            ship(built, tmp_path / "out")
    assert caught.value.fix == "free disk space there"
    shutil.rmtree(built.engines)
    with pytest.raises(EngineNotBuiltError):
        ship(built, tmp_path / "out")
    assert {file.name for file in tmp_path.iterdir()} == {"here"}
