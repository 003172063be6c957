"""Metadata of a generation, written into files and read back."""

from __future__ import annotations

import json
import string
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
from helpers.tones import LENGTH, RATE_HZ, tone

from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import AUDIO_FORMATS, FORMATS, latents_bytes
from runtime.audio.metadata import MAX_BYTES, MIDI_BYTES, MP3_BYTES, GenerationMetadata, ascii_json, read_metadata
from runtime.base.errors import FileError, RequestError
from runtime.base.midi_events import TAG
from runtime.music.midi_file import midi_bytes
from runtime.music.score import Score

MADE = GenerationMetadata(
    model="demo",
    model_version="1.2",
    options={"prompt": 'Käse "quoted" \n\x7f\u2028 = ; \\', "seed": 2**64 - 1, "guidance": [1.0, 2.5]},
    inputs={"source": "ab" * 32},
)


def write(path: Path, format: str, metadata: str, *, is_length_known: bool = True) -> None:
    writer = AudioWriter(format, RATE_HZ, 2, total_samples=LENGTH if is_length_known else None, metadata=metadata)
    path.write_bytes(writer.write(tone()) + writer.close())


@pytest.mark.parametrize("format", [name for name in AUDIO_FORMATS if name != "pcm"])
@pytest.mark.parametrize("is_length_known", [True, False])
def test_what_was_written_into_audio_is_read_back(format: str, is_length_known: bool, tmp_path: Path) -> None:
    path = tmp_path / f"a{FORMATS[format].suffix}"
    write(path, format, MADE.to_tag(format), is_length_known=is_length_known)
    assert read_metadata(path) == MADE


def test_what_was_written_into_latents_and_notes_is_read_back(tmp_path: Path) -> None:
    path, latents = tmp_path / "a.mid", tmp_path / "a.safetensors"
    latents.write_bytes(latents_bytes(np.zeros((4, 8), np.float32), {TAG: MADE.to_tag("latents")}))
    path.write_bytes(midi_bytes(Score((), 1.0, 0.04), MADE.to_tag("mid")))
    assert read_metadata(latents) == read_metadata(path) == MADE
    long = MADE.model_copy(update={"options": {"prompt": "x" * MIDI_BYTES, "seed": 3}})
    path.write_bytes(midi_bytes(Score((), 1.0, 0.04), long.to_tag("mid")))
    assert (read_metadata(path).options, read_metadata(path).omitted) == ({"seed": 3}, ("prompt",))


@pytest.mark.parametrize("data", [b"", b"MThd", b"RIFF1234", midi_bytes(Score((), 1.0, 0.04))])
def test_notes_without_metadata_do_not_say_what_made_them(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mid").write_bytes(data)
    with pytest.raises(RequestError, match="does not say what it was made from"):
        read_metadata(tmp_path / "a.mid")


@pytest.mark.parametrize("format", ["flac", "ogg", "mp3"])
def test_a_tag_of_the_longest_length_is_read_back(format: str, tmp_path: Path) -> None:
    long = MADE.model_copy(update={"options": {"prompt": "x" * (MAX_BYTES - 100), "mask": [0.5] * 1000}})
    path = tmp_path / f"a{FORMATS[format].suffix}"
    write(path, format, long.to_tag(format))
    found = read_metadata(path)
    assert found.omitted == ("prompt",)
    assert found.options == {"mask": [0.5] * 1000}


def test_a_tag_of_mp3_is_so_short_that_other_decoders_find_the_audio(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    options = {"prompt": "x" * (MP3_BYTES - 50), "seed": 3}
    for more in ({}, {"mask": [0.5] * 100_000}):
        write(path, "mp3", MADE.model_copy(update={"options": {**options, **more}}).to_tag("mp3"))
        assert soundfile.info(path).frames >= LENGTH
        assert (read_metadata(path).options, read_metadata(path).omitted) == (options, tuple(more))


def test_the_longest_options_are_omitted_and_named() -> None:
    values = {"prompt": "a", "mask": [0.123] * 400, "guidance": [0.5] * 40, "seed": 3}
    bounded = MADE.model_copy(update={"options": values}).bounded(500)
    assert bounded.omitted == ("mask",)
    assert list(bounded.options) == ["prompt", "guidance", "seed"]
    assert MADE.bounded() == MADE


def test_json_in_ascii_has_printable_characters_only() -> None:
    text = ascii_json({"prompt": "".join(map(chr, range(0x300))) + "\U0001f3b5"})
    assert set(text) <= set(string.printable) - set("\t\n\r\x0b\x0c")
    assert json.loads(text)["prompt"].endswith("\U0001f3b5")


def test_files_without_metadata_and_files_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    plain, other, latents = tmp_path / "a.wav", tmp_path / "b.flac", tmp_path / "c.safetensors"
    write(plain, "wav", "")
    write(other, "flac", '{"model": 3}')
    latents.write_bytes(latents_bytes(np.zeros((4, 8), np.float32), {}))
    (tmp_path / "short.safetensors").write_bytes(b"abc")
    (tmp_path / "long.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{")
    nested = "[" * 100_000
    write(tmp_path / "nested.wav", "wav", nested)
    write(tmp_path / "nested.flac", "flac", f'{{"model": "a", "model_version": "1", "options": {{"prompt": {nested}')
    (tmp_path / "nested.safetensors").write_bytes(struct.pack("<Q", len(nested)) + nested.encode())
    (tmp_path / "deep.safetensors").write_bytes(latents_bytes(np.zeros((4, 8), np.float32), {TAG: nested}))
    unusable = [
        *tmp_path.glob("short.*"),
        *tmp_path.glob("long.*"),
        *tmp_path.glob("nested.*"),
        *tmp_path.glob("deep.*"),
    ]
    assert len(unusable) == 6
    for path in (plain, other, latents, *unusable):
        with pytest.raises(RequestError, match="does not say what it was made from"):
            read_metadata(path)
    (tmp_path / "text.wav").write_text("not audio")
    for name in ("text.wav", "missing.flac", "missing.safetensors"):
        with pytest.raises(FileError, match="cannot be read"):
            read_metadata(tmp_path / name)
