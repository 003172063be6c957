"""Formats and output files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from runtime.audio.formats import complete_file, format_of, is_latents_file, latents_bytes, read_latents
from runtime.base import untrusted
from runtime.base.errors import FileError, RequestError
from runtime.base.untrusted import MAX_HEADER_BYTES

LATENTS = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)


def test_latents_files_are_recognized_by_suffix_or_content() -> None:
    assert is_latents_file(Path("a.safetensors"))
    assert not is_latents_file(Path("a.wav"))
    assert is_latents_file(latents_bytes(np.zeros((2, 4), np.float32), {}))
    assert not is_latents_file(b"RIFF\xff\xff\xff\xffWAVE")
    assert not is_latents_file(b"")


def read(source: Path | bytes) -> np.ndarray:
    return read_latents(source, channels=4, max_frames=7)


def with_header(header: dict[str, Any] | bytes, num_bytes: int = 32) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes)


def one_tensor(dtype: Any, shape: Any, offsets: Any = (0, 32), name: str = "latents") -> bytes:
    return with_header({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def test_latents_are_one_tensor_of_a_file_that_is_read_from_a_path_and_from_bytes(tmp_path: Path) -> None:
    path, data = tmp_path / "a.safetensors", latents_bytes(LATENTS, {"seed": "3"})
    assert list(safetensors.numpy.load(data)) == ["latents"]
    path.write_bytes(data)
    assert np.array_equal(read(path), LATENTS)
    assert np.array_equal(read(data), LATENTS)
    with pytest.raises(RequestError, match=r"none\.safetensors cannot be read: No such file"):
        read(tmp_path / "none.safetensors")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_other_floats_and_files_with_more_tensors_are_read(dtype: type) -> None:
    tensors = {"before": np.zeros(3), "latents": LATENTS.astype(dtype), "zero": np.zeros((0, 2))}
    found = read(safetensors.numpy.save(tensors, metadata={"note": "a: [b] {c}"}))
    assert found.dtype == np.float32
    assert np.array_equal(found, LATENTS.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
        (with_header(b"{}")[:9], "not a safetensors file"),
        (with_header(b"[]"), "not a safetensors file"),
        (with_header({}), 'no tensor "latents"'),
        (with_header({"latents": 1}), 'no tensor "latents"'),
        (one_tensor("F32", [2, 4], name="other"), 'no tensor "latents"'),
        (one_tensor("F32", [2**40, 2**40]), r"expected F32 \[T, 4\]"),
        (one_tensor("F32", [4, 2]), r"expected F32 \[T, 4\]"),
        (one_tensor("F32", [8, 4]), "T up to 7"),
        (one_tensor("F32", [0, 4]), "T up to 7"),
        (one_tensor("F32", [-1, 4]), "T up to 7"),
        (one_tensor("F32", [2.0, 4]), "T up to 7"),
        (one_tensor("F32", [True, 4]), "T up to 7"),
        (one_tensor("F32", "24"), "T up to 7"),
        (one_tensor("I64", [1, 4]), "I64"),
        (one_tensor(["F32"], [2, 4]), "expected F32"),
        (one_tensor("F32", [2, 4], [0, 16]), "data_offsets"),
        (one_tensor("F32", [2, 4], [8, 40]), "data_offsets"),
        (one_tensor("F32", [2, 4], [-8, 24]), "data_offsets"),
        (one_tensor("F32", [2, 4], [2**80, 2**80 + 32]), "data_offsets"),
        (one_tensor("F32", [2, 4], None), "data_offsets"),
        (latents_bytes(np.full((2, 4), np.nan, np.float32), {}), "not finite"),
    ],
)
def test_invalid_latents_are_refused_with_the_cause(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read(data)


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b" " * MAX_HEADER_BYTES + b"}",
        json.dumps({f"t{number}": EMPTY for number in range(20_000)}).encode(),
        json.dumps({"__metadata__": {f"k{number}": "v" for number in range(100_000)}}).encode(),
    ],
    ids=["length", "tensors", "metadata"],
)
def test_a_header_with_too_much_in_it_is_refused_before_it_is_parsed(
    header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: Any, **__: Any) -> None:
        pytest.fail("the header was parsed")

    monkeypatch.setattr(untrusted, "from_json", parse)
    with pytest.raises(RequestError, match="not a safetensors file"):
        read(with_header(header))


@pytest.mark.parametrize("data", [one_tensor("F\nERROR " + "x" * 5000, [1, 4]), one_tensor("F32", list(range(5000)))])
def test_what_a_header_says_is_bounded_and_on_one_line(data: bytes) -> None:
    with pytest.raises(RequestError) as error:
        read(data)
    assert len(str(error.value)) < 250
    assert "\n" not in str(error.value)


def test_the_format_is_that_of_the_suffix_unless_it_is_given() -> None:
    names = {"a.wav": "wav", "a.OPUS": "ogg", "a.ogg": "ogg", "a.raw": "pcm", "a.safetensors": "latents"}
    assert {name: format_of(Path(name)) for name in names} == names
    assert format_of(Path("a.wav"), "flac") == "flac"


@pytest.mark.parametrize(("name", "format"), [("a.mp4", None), ("a", None), ("a.wav", "mp4")])
def test_an_unknown_format_is_refused(name: str, format: str | None) -> None:
    with pytest.raises(RequestError, match=r"\.wav|wav, pcm"):
        format_of(Path(name), format)


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_text("old")
    with complete_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(TypeError), complete_file(path) as file:
        file.write("half")  # type: ignore[arg-type]
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_a_file_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "a.wav"):
        with pytest.raises(FileError, match=str(tmp_path)), complete_file(path):
            pass
