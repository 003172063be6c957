"""Deployment files: paths, ranges, tables, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.config.deployment import Deployment, load_deployment
from runtime.errors import ConfigError

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


def test_other_rooms_tables_are_kept_unread(tmp_path: Path) -> None:
    assert load(tmp_path).tables == {"server": {"port": 9}}


def test_ranges_answer_for_shapes(tmp_path: Path) -> None:
    deployment = load(tmp_path)
    assert (deployment.max_rows, deployment.max_tokens) == (4, 64)
    assert deployment.range_for(4, 32, 16) == deployment.shapes[0]
    assert deployment.range_for(3, 64, 8) is None
    assert [deployment.rows_limit(*shape) for shape in ((16, 8), (64, 8), (16, 32), (256, 8))] == [4, 2, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("opt = 2, max = 4", "opt = 5, max = 4", "min <= opt <= max, got 1, 5, 4"),
        ("[server]", "[sever]", "sever.*not permitted"),
        ('bundle = "b"', 'bundles = "b"', "bundle: Field required"),
        ('bundle = "b"', 'bundle = "b"\ntarget = "abacus"', "target.*abacus"),
        ("[server]", "[runtime]\ndepth = 0\n[server]", "runtime.depth.*found 0"),
        ("[deployment]", "[deployment", "is not TOML"),
        ("min = 2, opt = 16", "min = 0, opt = 16", r"shapes\.0\.frames\.min"),
    ],
)
def test_a_bad_file_names_the_key_and_what_was_expected(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=rf"d\.toml[\s\S]*{says}"):
        load(tmp_path, GOOD.replace(old, new, 1))


def test_missing_shapes_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shapes: Field required"):
        load(tmp_path, '[deployment]\nbundle = "b"\n')
    with pytest.raises(ConfigError, match="no configuration at"):
        load_deployment(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_deployment(tmp_path)
