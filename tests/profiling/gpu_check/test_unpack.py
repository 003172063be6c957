"""What is packed is what is unpacked elsewhere, weights included, which are drawn again; what is missing is said."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import tiny_deployment
from onnx import numpy_helper

from profiling.gpu_check import unpack
from profiling.gpu_check.prepare import (
    MACHINE,
    NO_WHEEL,
    canonical,
    draw_weights,
    export_all,
    pack,
    read_machine,
    wheels_for,
)
from profiling.gpu_check.unpack import DEVIATION, drawn, with_weights_drawn
from runtime.base.errors import BuildError, ConfigError

LEAST = 1 << 14


def write_external(bundle: Path) -> None:
    """A graph with its weights beside it: random ones, a table, and small ones."""
    random = np.random.default_rng(0)
    table = np.sin(np.arange(4096, dtype=np.float32)[:, None] * np.geomspace(0.001, 0.1, 16, dtype=np.float32))
    tensors = {
        "random": random.normal(0, 0.02, (256, 128)).astype(np.float32),
        "table": table,
        "small": random.normal(0, 0.02, (8, 8)).astype(np.float32),
        "flat": random.normal(0, 0.02, 40_000).astype(np.float32),
    }
    graph = onnx.helper.make_graph([], "more", [], [], [numpy_helper.from_array(v, k) for k, v in tensors.items()])
    onnx.save(
        onnx.helper.make_model(graph), bundle / "more.onnx", save_as_external_data=True, location="more.data",
        size_threshold=0,
    )  # fmt: skip


def export(what: str, *words: str) -> str:
    """What the exporter would write, of a tiny bundle."""
    out = Path(words[words.index("--out") + 1])
    text = tiny_deployment(out.parent / "made" / out.name).read_text(encoding="utf-8")
    shutil.move(out.parent / "made" / out.name / "tiny", out)
    write_external(out)
    out.with_name(f"{out.name}.toml").write_text(text.replace('"tiny"', f'"{out.name}"'), encoding="utf-8")
    return ""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exports, of tiny bundles in place of large ones."""
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    folder = tmp_path / "source"
    export_all(folder, call=export)
    shutil.rmtree(folder / "made")
    return folder


def packed(source: Path) -> Path:
    """In small parts; the code that travels is one file."""
    out, small = source.with_name("parts"), {"part_bytes": 100_000, "least_elements": LEAST}
    pack(source, out, read_machine(None), "abc", has_wheels=False, code=("configs/demo.toml",), **small)
    return out


def unpacked(parts: Path, dest: Path) -> subprocess.CompletedProcess[str]:
    """By the script alone, in an interpreter that knows none of our modules."""
    words = [sys.executable, "-I", str(parts / "unpack.py"), str(parts), str(dest)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=parts)


def test_drawn_weights_are_the_same_bytes_everywhere() -> None:
    found = b"".join(drawn(7, (1 << 20) + 5, 0.02 / DEVIATION))
    assert hashlib.sha256(found).hexdigest() == "24c19163d25051d343f88f7628548d8ad236849e7fd2122a0252b6224ad611d5"
    values = np.frombuffer(found, "<f4")
    assert (len(values), round(float(values.mean()), 4), round(float(values.std()), 4)) == ((1 << 20) + 5, 0.0, 0.02)


def test_random_weights_are_drawn_and_all_others_carried(source: Path) -> None:
    before = (source / "codec" / "more.data").read_bytes()
    (file,) = draw_weights(source / "codec", LEAST)
    after = (source / "codec" / "more.data").read_bytes()
    ((offset, count, _, scale),) = file["drawn"]
    assert (file["path"], file["bytes"], count) == ("codec/more.data", len(before), 256 * 128)
    assert len(after) == len(before)
    assert after[:offset] == before[:offset]
    assert after[offset + 4 * count :] == before[offset + 4 * count :]
    assert np.frombuffer(after, "<f4", count, offset).std() == pytest.approx(0.02, rel=0.02)
    assert scale * DEVIATION == pytest.approx(0.02, rel=0.02)
    assert b"".join(with_weights_drawn(source / "codec" / "more.data.rest", file)) == after
    assert draw_weights(source / "codec", LEAST) == [file]
    assert (source / "codec" / "more.data").read_bytes() == after


def test_what_is_unpacked_is_what_was_packed(source: Path, tmp_path: Path) -> None:
    parts, dest = packed(source), tmp_path / "dest"
    manifest = json.loads((parts / "parts.json").read_bytes())
    sizes = [part["bytes"] for part in manifest["parts"]]
    assert max(sizes) == 100_000
    assert len(sizes) > 3
    assert sum(sizes) == sum(each["bytes"] for each in manifest["files"])
    assert not any(each["path"].endswith("more.data") for each in manifest["files"])
    done = unpacked(parts, dest)
    assert done.returncode == 1  # no engines of TensorRT-RTX, which is said
    assert done.stderr.startswith("error: not carried: engines of TensorRT-RTX")
    for path in source.rglob("*"):
        if path.is_file() and "work" not in path.parts:
            assert (dest / "source" / path.relative_to(source)).read_bytes() == path.read_bytes(), path
    assert (dest / "code" / "configs" / "demo.toml").is_file()


def test_parts_may_come_one_after_the_other_and_what_is_missing_or_damaged_is_named(
    source: Path, tmp_path: Path
) -> None:
    parts, came, dest = packed(source), tmp_path / "came", tmp_path / "dest"
    came.mkdir()
    shutil.copy(parts / "parts.json", came)
    names = [part["name"] for part in json.loads((parts / "parts.json").read_bytes())["parts"]]
    shutil.copy(parts / names[0], came)
    (came / names[1]).write_bytes(b"x" * 100_000)
    problems = unpack.unpack(came, dest)
    assert problems[0].startswith("part.001 is damaged")
    assert problems[1:] == [f"{name} is missing" for name in names[2:]]
    assert not (dest / "source").exists()
    (came / names[0]).unlink()
    for name in names[1:]:
        shutil.copy(parts / name, came)
    problems = unpack.unpack(came, dest)
    assert [problem.partition(":")[0] for problem in problems] == ["not carried"]
    (dest / "source" / "codec" / "more.data").write_bytes(b"other")
    assert unpack.unpack(came, dest) == problems
    assert (dest / "source" / "codec" / "more.data").read_bytes() == (source / "codec" / "more.data").read_bytes()


def test_a_full_disk_is_said_before_and_while_it_is_filled(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = packed(source)
    (problem,) = unpack.unpack(parts, tmp_path / "small", free_bytes=lambda path: 10)
    assert "GB are needed in" in problem
    full = tmp_path / "full"
    full.mkdir()
    (full / "parts").symlink_to("/dev/full")
    assert unpack.main([str(parts), str(full)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_an_interrupted_preparation_goes_on_where_it_was(source: Path) -> None:
    parts = packed(source)
    times = {path: path.stat().st_mtime_ns for path in parts.glob("part.*")}
    (parts / "part.001").write_bytes(b"half")
    shutil.rmtree(source / "full")
    asked = []
    export_all(source, call=lambda what, *words: (asked.append(what), export(what, *words))[1])
    shutil.rmtree(source / "made")
    assert asked == ["the export of full"]
    packed(source)
    again = {path for path in parts.glob("part.*") if times.get(path) != path.stat().st_mtime_ns}
    assert again == {parts / "part.001"}


def test_wheels_are_those_that_the_machine_lacks(tmp_path: Path) -> None:
    installs = [("NumPy", "2.4"), ("rich", "14.0")]
    asked: list[tuple[str, ...]] = []

    def call(what: str, *words: str) -> str:
        asked.append(words)
        if "download" in words:
            (tmp_path / "work" / "wheels" / "rich-14.0-py3-none-any.whl").write_bytes(b"")
        assert not any(word.startswith("tensorrt-rtx") for word in words), "the machine has it"
        if any(word.startswith("tensorrt-cu13") for word in words):
            raise BuildError(f"{what} failed: ERROR: {NO_WHEEL}tensorrt-cu13<12,>=10.16")
        urls = {"url": "https://index/rich-14.0-py3-none-any.whl#sha256=0"}
        found = [{"metadata": {"name": n, "version": v}, "download_info": urls} for n, v in installs]
        return json.dumps({"install": found})

    rtx = {"tensorrt-rtx": "1.7.1.116"}  # of a build that no index has
    machine = {**MACHINE, "packages": {"numpy": "2.4", **rtx}}
    missing: list[str] = []
    assert list(wheels_for(tmp_path, machine, missing, call)) == ["rich-14.0-py3-none-any.whl"]
    assert [each.partition(":")[0] for each in missing] == ["the package tensorrt-cu13"]
    assert sum("download" in words for words in asked) == 1
    assert "manylinux_2_35_x86_64" in asked[0]
    assert "manylinux_2_36_x86_64" not in asked[0]
    assert (tmp_path / "work" / "wheels" / "constraints.txt").read_text() == "numpy==2.4\ntensorrt-rtx==1.7.1.116\n"
    assert canonical("Tensorrt_cu13>=10; python_version > '3'") == "tensorrt-cu13"


def test_a_machine_describes_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unpack.main(["describe"]) == 0
    path = tmp_path / "machine.json"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert read_machine(path)["packages"]["numpy"] == np.__version__
    path.write_text('{"python": "3"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="describes no machine"):
        read_machine(path)
    other = {"machine": {"python": "2.7", "machine": unpack.here()["machine"]}, "wheels": ["one.whl"]}
    assert unpack.unfit(other) == [f"wheels are for python 2.7, this is {unpack.here()['python']}"]
    assert unpack.main([]) == 2
