"""Latents files are written and read; invalid ones are refused."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from runtime.audio.formats import is_latents_file, latents_bytes, read_latents
from runtime.errors import RequestError


def test_a_missing_latents_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none\.safetensors cannot be read: No such file"):
        read_latents(tmp_path / "none.safetensors", channels=4, max_frames=7)


def test_latents_and_metadata_are_written_and_read(tmp_path: Path) -> None:
    latents = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    path = tmp_path / "a.safetensors"
    path.write_bytes(latents_bytes(latents, {"seed": "3"}))
    read, metadata = read_latents(path, channels=4, max_frames=7)
    assert np.array_equal(read, latents)
    assert metadata == {"seed": "3"}


def _safetensors(dtype: str, shape: list[int], size_bytes: int, name: str = "latents") -> bytes:
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, size_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size_bytes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
        (_safetensors("F32", [2**40, 2**40], 32), "not a safetensors file"),
        (_safetensors("F32", [2, 4], 32, "other"), 'no tensor "latents"'),
        (_safetensors("F32", [4, 2], 32), r"expected F32 \[T, 4\]"),
        (_safetensors("F32", [8, 4], 128), "T up to 7"),
        (_safetensors("F32", [0, 4], 0), "T up to 7"),
        (_safetensors("I64", [1, 4], 32), "I64"),
        (latents_bytes(np.full((2, 4), np.nan, np.float32), {}), "not finite"),
    ],
)
def test_invalid_latents_are_refused_with_the_cause(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_latents(data, channels=4, max_frames=7)


def test_latents_files_are_recognized_by_suffix_or_content() -> None:
    assert is_latents_file(Path("a.safetensors"))
    assert not is_latents_file(Path("a.wav"))
    assert is_latents_file(latents_bytes(np.zeros((2, 4), np.float32), {}))
    assert not is_latents_file(b"RIFF\xff\xff\xff\xffWAVE")
    assert not is_latents_file(b"")
