"""Audio: its length, its files, and how a notebook shows it."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

import tickrt
from runtime.audio.formats import read_latents
from runtime.audio.metadata import GenerationMetadata, read_metadata
from runtime.base.errors import FileError
from runtime.music.score import Marker, Note, Part, Score

RATE_HZ = 48_000
LATENTS = np.random.default_rng(1).standard_normal((25, 4)).astype(np.float32)
PCM = np.random.default_rng(2).uniform(-0.5, 0.5, (RATE_HZ, 2)).astype(np.float32)
OPTIONS = {"prompt": "a", "seed": 3}
METADATA = GenerationMetadata(model="tiny", model_version="1.0.0", options=OPTIONS)


def audio(pcm: np.ndarray | None = PCM) -> tickrt.Audio:
    return tickrt.Audio(LATENTS, 25.0, 0 if pcm is None else RATE_HZ, 3, OPTIONS, ("tiny", "1.0.0"), pcm, METADATA)


def test_length_and_text() -> None:
    assert (len(audio()), audio().seconds) == (RATE_HZ, 1.0)
    assert repr(audio()) == "<tickrt.Audio: 1.00 s, 48000 Hz, 2 channels, seed 3>"


@pytest.mark.parametrize("suffix", [".wav", ".WAV", ".flac", ".ogg", ".opus", ".mp3", ".safetensors"])
def test_a_file_has_what_it_was_made_with_unless_that_is_taken_away(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    audio().save(str(path))
    assert read_metadata(path) == METADATA
    replace(audio(), metadata=None).save(tmp_path / f"b{suffix}")
    assert b"seed" not in (tmp_path / f"b{suffix}").read_bytes()
    if suffix == ".safetensors":
        assert np.array_equal(read_latents(path, 4, 100), LATENTS)
    else:
        read, rate_hz = soundfile.read(path, dtype="float32")
        assert (len(read), rate_hz) == (pytest.approx(RATE_HZ, abs=2000 if suffix == ".mp3" else 8), RATE_HZ)
        assert suffix not in (".wav", ".WAV", ".flac") or np.abs(read - PCM).max() < 1e-4


def test_notes_of_a_score_are_listed_and_saved(tmp_path: Path) -> None:
    notes = (Note("bass", 40, 100, 0.12, 0.1),)
    score = Score((Part("bass", notes),), 1.0, 0.04, 120.0, sections=(Marker(0.0, "verse"),))
    made = SimpleNamespace(score=lambda latents, quantize=False: score.quantized() if quantize else score)
    played = replace(audio(), _generation=made)
    assert (played.notes, played.score) == ([*notes], score)
    played.save(tmp_path / "a.mid")
    assert (tmp_path / "a.mid").read_bytes() == played.midi() != played.midi(quantize=True)
    assert read_metadata(tmp_path / "a.mid") == METADATA
    with pytest.raises(tickrt.RequestError, match="nothing tells the notes"):
        audio().midi()


def test_a_format_comes_before_the_suffix(tmp_path: Path) -> None:
    audio().save(tmp_path / "a.bin", format="pcm")
    assert (tmp_path / "a.bin").read_bytes() == audio().to_bytes("pcm")
    assert len(audio().to_bytes("pcm")) == RATE_HZ * 2 * 2


def test_what_cannot_be_saved_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("old")
    for name, kind in (("a.mp4", tickrt.RequestError), ("nowhere/a.wav", FileError), ("a.wav", tickrt.ConfigError)):
        with pytest.raises(kind):
            audio(None).save(tmp_path / name) if kind is tickrt.ConfigError else audio().save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
    assert (tmp_path / "a.wav").read_text() == "old"


def test_a_notebook_shows_a_player() -> None:
    html = audio()._repr_html_()
    assert html is not None
    (data,) = re.findall(r'^<audio controls src="data:audio/flac;base64,([^"]+)"></audio>$', html)
    assert len(soundfile.read(io.BytesIO(base64.b64decode(data)))[0]) == RATE_HZ


def test_latents_without_a_codec() -> None:
    latents = audio(None)
    assert (len(latents), latents.seconds, latents._repr_html_()) == (25, 1.0, None)
    assert repr(latents) == "<tickrt.Audio: 1.00 s, latents, seed 3>"
    assert latents.to_bytes("latents")
    with pytest.raises(tickrt.ConfigError, match="'tiny' makes latents, not audio"):
        _ = latents.pcm
