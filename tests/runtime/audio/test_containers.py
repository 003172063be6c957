"""Links of Ogg files and formats of WAV files of unknown origin; what they sound like is judged in test_decoding.py."""

from __future__ import annotations

import io

import pytest
from helpers.odd_audio import CHAINED, QUIET, extensible, written
from hypothesis import given
from hypothesis import strategies as st

from runtime.audio.containers import (
    MAX_LINKS,
    WavFormat,
    corrected,
    is_cut_mp4,
    ogg_links,
    wav_format,
    wav_start,
    whole_share,
)

OGG = CHAINED["opus + quiet opus"][0]


def test_a_file_that_is_not_chained_is_the_file() -> None:
    for data in (b"", b"OggS", written(QUIET, "WAV", "PCM_16"), OGG):
        file = io.BytesIO(data)
        assert [link is file for link in ogg_links(file)] == [True]
        assert file.tell() == 0


def test_there_are_no_more_links_than_are_opened_in_time() -> None:
    page = b"OggS\0\2" + bytes(20) + b"\0" + b"OggS\0\0" + bytes(20) + b"\0"
    links = list(ogg_links(io.BytesIO(page * (MAX_LINKS + 9))))
    assert (len(links), sum(len(link.read()) for link in links)) == (MAX_LINKS, len(page) * (MAX_LINKS + 9))


@given(st.binary(max_size=400) | st.binary(max_size=400).map(lambda data: OGG[:300] + data))
def test_links_have_all_bytes(data: bytes) -> None:
    assert b"".join(link.read() for link in ogg_links(io.BytesIO(data))) == data


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (written(QUIET, "WAV", "PCM_24"), WavFormat("pcm_s24le", 48_000, 2, 3)),
        (written(QUIET, "WAV", "FLOAT", endian="BIG"), WavFormat("pcm_f32be", 48_000, 2, 4)),
        (written(QUIET, "WAV", "PCM_U8"), WavFormat("pcm_u8", 48_000, 2, 1)),
        (written(QUIET, "W64", "DOUBLE"), WavFormat("pcm_f64le", 48_000, 2, 8)),
        (extensible(QUIET, 32, 24), WavFormat("pcm_s32le", 48_000, 2, 4)),
        (written(QUIET, "WAV", "ULAW"), None),
        (written(QUIET, "AIFF", "PCM_16"), None),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + bytes(16), None),
        (b"RIFF\0\0\0\0WAVEJUNK" + bytes(100), None),
        (b"riff" + bytes(1000), None),
    ],
)
def test_samples_of_wav_are_as_its_header_says(data: bytes, expected: WavFormat | None) -> None:
    assert wav_format(data) == expected


@given(st.binary(max_size=200), st.sampled_from([b"RIFF", b"RIFX", b"riff", b"caff", b"ID3\3\0\0", b"\0\0\0\x20ftyp"]))
def test_any_bytes_are_judged(data: bytes, begin: bytes) -> None:
    head = begin + data
    assert len(corrected(head)) == len(head)
    assert whole_share(head, len(head)) >= 1.0
    assert 0 <= wav_start(head) < len(head)
    assert is_cut_mp4(io.BytesIO(head)) in (False, head[4:8] == b"ftyp")
