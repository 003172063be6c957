"""Files that a caller names."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import FileError
from runtime.base.files import check_file, open_file, read_file, read_matrix


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """One that nothing writes to."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    check_file(path)
    assert read_file(path, 5) == b"12345"
    with open_file(path) as file:
        assert file.read(2) == b"12"
    with pytest.raises(FileError, match="has 5 bytes, at most 4 are read"):
        read_file(path, 4)


def test_of_a_large_file_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # without taking the disk
    with pytest.raises(FileError, match="has 10737418240 bytes"):
        read_file(path, 2**30)


def test_what_is_no_file_is_said_at_once(tmp_path: Path, pipe: Path) -> None:
    for path, cause in (
        (Path("/dev/zero"), "a device or a pipe, expected a file"),
        (pipe, "a device or a pipe, expected a file"),
        (tmp_path, "a folder, expected a file"),
        (tmp_path / "none", "No such file"),
        (Path("a\0b"), "null"),
    ):
        for read in (check_file, lambda path: read_file(path, 4)):
            with pytest.raises(FileError, match=f"cannot be read: .*{cause}"):
                read(path)


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


ARRAY = np.arange(32, dtype=np.float32).reshape(4, 8)
NPY = npy(ARRAY)
CLAIMS = [b"(4, 99999999999999999999999)", b"(4000000000000, 8)", b"(-4, 8)", b"(True, 8)", b"4", b"((((", b"(04, 8)"]


@pytest.fixture(scope="module")
def array_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "a.npy"


def test_an_array_is_read_as_it_was_saved(array_file: Path) -> None:
    for array in (ARRAY, np.asfortranarray(ARRAY)):
        array_file.write_bytes(npy(array))
        np.testing.assert_array_equal(read_matrix(array_file), ARRAY)


@pytest.mark.parametrize(
    "data",
    [
        *(NPY.replace(b"(4, 8)", claim) for claim in CLAIMS), b"", NPY[:-1], NPY[:9], NPY.replace(b"<f4", b"<f8"),
        npy(ARRAY[0]), npy([object()]), b"PK\x03\x04" + bytes(60), b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_what_is_no_array_is_said(data: bytes, array_file: Path) -> None:
    array_file.write_bytes(data)
    with pytest.raises(FileError, match="does not hold float32"):
        read_matrix(array_file)


PIECES = st.binary(max_size=40) | st.text("(){}[]',:\\n0", max_size=40).map(str.encode)


@given(st.integers(0, 127), st.integers(0, 12), PIECES)
def test_a_damaged_array_is_read_or_an_error(array_file: Path, at: int, length: int, inserted: bytes) -> None:
    array_file.write_bytes(NPY[:at] + inserted + NPY[at + length :])
    try:
        matrix = read_matrix(array_file)
    except FileError:
        return
    assert matrix.ndim == 2
