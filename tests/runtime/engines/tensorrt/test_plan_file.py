"""Headers of plan files, and the version that a plan needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import EngineMismatchError, EngineNotBuiltError, StoreUnavailableError
from runtime.engines.tensorrt.engine_file import (
    EngineHeader,
    check_engine_version,
    parse_engine_header,
    read_engine_header,
)

HEAD = b"ftrt" + bytes(20) + bytes((11, 4, 0, 106))


def test_the_version_is_read_from_the_header(tmp_path: Path) -> None:
    path = tmp_path / "decoder.plan"
    path.write_bytes(HEAD + b"the rest is not read")
    assert read_engine_header(path).version_text == "11.4.0.106"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "has 0 bytes"),
        (HEAD[:27], "has 27 bytes, a plan has at least 28"),
        (b"PK\3\4" + HEAD[4:], "is not a TensorRT plan: it begins with"),
        (HEAD[:4] + b"\1" + HEAD[5:], "is a damaged plan: bytes 4 to 7 are 01000000"),
    ],
)
def test_a_file_that_is_not_a_plan_is_refused_with_the_fix(head: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "decoder.plan"
    path.write_bytes(head)
    with pytest.raises(EngineMismatchError, match=rf"decoder\.plan {message}[\s\S]*fix: build it"):
        read_engine_header(path, fix="build it")


def test_a_missing_file_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(EngineNotBuiltError, match="no plan at"):
        read_engine_header(tmp_path / "decoder.plan")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        read_engine_header(tmp_path)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_plan_or_a_mismatch(data: bytes) -> None:
    try:
        header = parse_engine_header(data, "x")
    except EngineMismatchError:
        return
    assert data[:8] in (b"ftrt" + bytes(4), b"vtrt" + bytes(4))
    assert header.version == tuple(data[24:28])


@pytest.mark.parametrize(
    ("made_by", "installed", "compatible", "fits"),
    [
        ((11, 4, 0, 106), "11.4.0.106", False, True),
        ((11, 4, 0, 106), "11.4.0.107", False, False),
        ((10, 16, 1, 11), "11.4.0.106", False, False),
        ((10, 16, 1, 11), "11.4.0.106", True, True),
        ((11, 4, 0, 106), "10.16.1.11", True, False),
    ],
)
def test_a_plan_needs_its_version(made_by: tuple[int, ...], installed: str, compatible: bool, fits: bool) -> None:
    header = EngineHeader("TensorRT", made_by)
    if fits:
        check_engine_version(header, "TensorRT", installed, "decoder.plan", version_compatible=compatible)
        return
    with pytest.raises(
        EngineMismatchError, match=rf"built by TensorRT {header.version_text}.*installed is TensorRT {installed}"
    ):
        check_engine_version(header, "TensorRT", installed, "decoder.plan", version_compatible=compatible)


def test_a_plan_of_the_other_library_is_refused() -> None:
    header = parse_engine_header(b"vtrt" + bytes(20) + bytes((1, 7, 1, 116)), "x")
    check_engine_version(header, "TensorRT-RTX", "1.7.1.116", "decoder.plan")
    with pytest.raises(EngineMismatchError, match=r"by TensorRT-RTX 1\.7\.1\.116 and .* is TensorRT 1"):
        check_engine_version(header, "TensorRT", "1.7.1.116", "decoder.plan")
