"""Deployment files: what is loaded, what is refused, and which model made something."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.factories import tiny_bundle
from helpers.limits import assert_limits
from helpers.paths import DEMO

from runtime.base.errors import ConfigError
from runtime.config import deployment as module
from runtime.config.bundle import Bundle
from runtime.config.deployment import (
    Deployment,
    ModelIdentity,
    RuntimeConfig,
    ShapeRanges,
    build_command,
    load_deployment,
    resolve_deployment,
)

GOOD = """
[deployment]
bundle = "b"
[[shapes]]
rows = { min = 1, opt = 2, max = 4 }
frames = { min = 2, opt = 16, max = 32 }
tokens = { min = 1, opt = 8, max = 16 }
[[shapes]]
rows = { min = 1, opt = 1, max = 2 }
frames = { min = 33, opt = 64, max = 128 }
tokens = { min = 1, opt = 8, max = 64 }
[server]
port = 9
"""


def load(folder: Path, text: str = GOOD) -> Deployment:
    path = folder / "d.toml"
    path.write_text(text)
    return load_deployment(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    deployment = load(tmp_path)
    assert deployment.bundle == tmp_path / "b"
    assert deployment.engine_folder() == tmp_path / ".engines" / "d" / "cpu"
    assert deployment.engine_folder("tensorrt").name == "tensorrt"


def test_tables_of_other_packages_are_not_validated(tmp_path: Path) -> None:
    assert load(tmp_path).tables == {"server": {"port": 9}}


def test_limits_and_ranges_for_shapes(tmp_path: Path) -> None:
    deployment = load(tmp_path)
    assert (deployment.max_rows, deployment.max_tokens) == (4, 64)
    assert [shape.holds(4, 32, 16) for shape in deployment.shapes] == [True, False]
    assert not any(shape.holds(3, 64, 8) for shape in deployment.shapes)
    assert [deployment.rows_limit(*shape) for shape in ((16, 8), (64, 8), (16, 32), (256, 8))] == [4, 2, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("opt = 2, max = 4", "opt = 5, max = 4", "min <= opt <= max, got 1, 5, 4"),
        ("[server]", "[sever]", "sever: is not a known name; did you mean server"),
        ('bundle = "b"', 'bundles = "b"', "deployment.bundle: is missing"),
        ('bundle = "b"', 'bundle = "b"\ntarget = "abacus"', "target.*abacus"),
        ("[server]", "[runtime]\ndepth = 0\n[server]", "runtime.depth.*found 0"),
        ("[deployment]", "[deployment", "is not TOML"),
        ("min = 2, opt = 16", "min = 0, opt = 16", r"shapes\.0\.frames\.min"),
    ],
)
def test_an_invalid_file_names_the_key_and_the_expected_value(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=rf"d\.toml[\s\S]*{says}"):
        load(tmp_path, GOOD.replace(old, new, 1))


def test_missing_shapes_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shapes: is missing"):
        load(tmp_path, '[deployment]\nbundle = "b"\n')
    with pytest.raises(ConfigError, match="no configuration at"):
        load_deployment(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_deployment(tmp_path)


def test_a_bundle_in_place_of_a_deployment_is_said_in_one_sentence(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path / "model")
    for path, kind in ((bundle / "bundle.toml", "is a bundle"), (bundle, "is a bundle's folder")):
        with pytest.raises(ConfigError, match=f"{kind}, expected a deployment") as caught:
            load_deployment(path)
        assert "known name" not in str(caught.value)


def test_a_name_that_is_nearly_that_of_a_shipped_deployment_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"did you mean demo\?"):
        load_deployment(Path("deno"))


def test_the_build_command_has_a_path_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert build_command(tmp_path / "configs" / "demo.toml", "cpu") == "tickrt-build configs/demo.toml --target cpu"
    outside = tmp_path.parent / "other.toml"
    assert build_command(outside, "tensorrt") == f"tickrt-build {outside} --target tensorrt"


def test_a_shipped_deployment_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_deployment(Path("demo")) == DEMO
    (tmp_path / "demo").mkdir()
    assert load_deployment(Path("demo")).engines == DEMO.parent / ".engines" / "demo"
    with pytest.raises(ConfigError, match=r"no configuration at nowhere[\s\S]*shipped one: .*demo"):
        resolve_deployment(Path("nowhere"))


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text(GOOD)
    assert load_deployment(Path("demo")).path == tmp_path / "demo"


@pytest.mark.parametrize("variable", ["TICKRT_CACHE", "XDG_CACHE_HOME"])
def test_engines_of_an_installed_package_are_built_in_the_cache_folder(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, cache = tmp_path / "installed", tmp_path / "cache"
    installed.mkdir()
    (installed / "demo.toml").write_text(GOOD)
    monkeypatch.delenv("TICKRT_CACHE", raising=False)
    monkeypatch.setenv(variable, str(cache))
    monkeypatch.setattr(module, "PACKAGED", installed)
    monkeypatch.setattr(module, "SHIPPED", installed)
    deployment = load_deployment(Path("demo"))
    assert deployment.bundle == installed / "b"
    folder = cache if variable == "TICKRT_CACHE" else cache / "tickrt"
    assert deployment.engines.relative_to(folder).parts == ("engines", version("tickrt"), "demo")
    assert build_command(deployment.path, "cpu") == "tickrt-build demo --target cpu"


def test_tokens_may_be_left_out(tmp_path: Path) -> None:
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith("tokens"))
    assert load(tmp_path, text).max_tokens == 1


def test_the_nearest_size_of_a_range(tmp_path: Path) -> None:
    frames = load(tmp_path).shapes[0].frames
    assert [frames.nearest(size) for size in (1, 2, 20, 32, 99)] == [2, 2, 20, 32, 32]


def test_the_limits_and_defaults_are_those_of_files_that_there_are() -> None:
    assert_limits("config", Bundle, RuntimeConfig, ShapeRanges)


HERE = ModelIdentity(64 * "a", "fp32")


def test_equal_models_do_not_differ() -> None:
    assert HERE.difference(ModelIdentity(64 * "a", "fp32")) == ""


def test_what_differs_is_said_in_words() -> None:
    assert HERE.difference(ModelIdentity(64 * "b", "int8")) == "another model (bbbbbbbbbbbb; this is aaaaaaaaaaaa)"
    assert HERE.difference(ModelIdentity(64 * "a", "int8")) == ("this model in another precision (int8; this is fp32)")
    assert HERE.difference(ModelIdentity()) == "a model that is not named"
