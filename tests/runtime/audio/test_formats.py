"""Formats are known by name, and latents files by suffix or content."""

from pathlib import Path

import numpy as np
import safetensors.numpy

from runtime.audio.formats import is_latents_file, latents_bytes


def test_latents_are_one_tensor_of_a_safetensors_file() -> None:
    latents = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    tensors = safetensors.numpy.load(latents_bytes(latents, {"seed": "3"}))
    assert list(tensors) == ["latents"]
    assert np.array_equal(tensors["latents"], latents)


def test_latents_files_are_recognized_by_suffix_or_content() -> None:
    assert is_latents_file(Path("a.safetensors"))
    assert not is_latents_file(Path("a.wav"))
    assert is_latents_file(latents_bytes(np.zeros((2, 4), np.float32), {}))
    assert not is_latents_file(b"RIFF\xff\xff\xff\xffWAVE")
    assert not is_latents_file(b"")
