"""Binary messages of audio chunks, and the client's numbers of changes among those of others."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.errors import NonFiniteError, RequestError
from runtime.live.protocol.client_seqs import MAX_SEQS, ClientSeqs
from runtime.live.protocol.frames import HEADER, AudioChunk, ChunkEncoder, decode_chunk, decode_pcm
from runtime.live.protocol.server_messages import Applied, CanvasPicture, Closed, problem_of

RATE = 48_000


def tone(start: int, samples: int, channels: int = 2) -> np.ndarray:
    """A 440 Hz tone whose phase follows the play axis."""
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(start, start + samples) / RATE)
    return np.repeat(wave[:, None], channels, axis=1).astype(np.float32)


def test_the_header_is_28_bytes_little_endian() -> None:
    chunk = AudioChunk(7, 2**40, tone(0, 3, 1), first_seq=5, full_seq=4, is_replacing=True, is_after_underrun=True)
    data = ChunkEncoder("s16", RATE, 1).encode(chunk)
    assert data[:28] == struct.pack("<IQIIIHH", 7, 2**40, 3, 5, 4, 0, 3)
    assert len(data) == 28 + 3 * 2


@pytest.mark.parametrize(("format", "tolerance"), [("f32", 0.0), ("s16", 1e-4)])
@pytest.mark.parametrize("channels", [1, 2])
def test_pcm_round_trip(format: str, tolerance: float, channels: int) -> None:
    chunk = AudioChunk(1, 960, tone(960, 500, channels), 3, 2, is_replacing=True)
    decoded = decode_chunk(ChunkEncoder(format, RATE, channels).encode(chunk), RATE, channels)
    assert np.abs(decoded.pcm - chunk.pcm).max() <= tolerance
    assert (decoded.epoch, decoded.start_sample, decoded.end_sample) == (1, 960, 1460)
    assert (decoded.first_seq, decoded.full_seq) == (3, 2)
    assert (decoded.is_replacing, decoded.is_after_underrun) == (True, False)


@pytest.mark.parametrize("samples", [960, 9600, 14411])
def test_an_opus_chunk_decodes_alone_to_its_length(samples: int) -> None:
    chunk = AudioChunk(1, 0, tone(0, samples))
    decoded = decode_chunk(ChunkEncoder("opus", RATE, 2).encode(chunk), RATE, 2)
    assert decoded.pcm.shape == (samples, 2)
    assert np.sqrt(np.mean((decoded.pcm - chunk.pcm)[480:] ** 2)) < 0.02


def test_opus_chunks_that_follow_each_other_join_without_a_click() -> None:
    encoder = ChunkEncoder("opus", RATE, 2)
    chunks = [AudioChunk(1, start, tone(start, 9600)) for start in range(0, 48_000, 9600)]
    joined = np.concatenate([decode_chunk(encoder.encode(chunk), RATE, 2).pcm for chunk in chunks])
    jumps = np.abs(np.diff(joined[:, 0]))
    seams = [jumps[chunk.start_sample - 1] for chunk in chunks[1:]]
    assert max(seams) < 1.2 * np.abs(np.diff(tone(0, 48_000)[:, 0])).max()


def test_a_replacing_opus_chunk_has_no_audio_of_another_place() -> None:
    encoder = ChunkEncoder("opus", RATE, 2)
    encoder.encode(AudioChunk(1, 0, tone(0, 9600)))
    alone = ChunkEncoder("opus", RATE, 2).encode(AudioChunk(1, 4800, tone(4800, 4800), is_replacing=True))
    assert len(encoder.encode(AudioChunk(1, 4800, tone(4800, 4800), is_replacing=True))) == len(alone)


def test_other_rates_keep_their_length_in_opus() -> None:
    encoder = ChunkEncoder("opus", 24_000, 1)
    for start in (0, 4800):
        data = encoder.encode(AudioChunk(1, start, tone(start, 4800, 1)))
        assert HEADER.unpack_from(data)[2] == 4800
        assert len(decode_pcm(data[28:], "opus", RATE, 1)) == 9600


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "chunk"),
        (bytes(27), "chunk"),
        (HEADER.pack(0, 0, 0, 0, 0, 3, 0), "chunk.format"),
        (HEADER.pack(0, 0, 1, 0, 0, 0, 0) + bytes(3), "samples"),
        (HEADER.pack(0, 0, 2, 0, 0, 0, 0) + bytes(4), "chunk.samples"),
        (HEADER.pack(0, 0, 1, 0, 0, 1, 0) + b"\0\0\xc0\x7f" * 2, "samples"),
    ],
)
def test_a_wrong_message_is_refused(data: bytes, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_chunk(data, RATE, 2)
    assert caught.value.field == field


def test_samples_that_are_not_finite_are_refused() -> None:
    with pytest.raises(NonFiniteError):
        ChunkEncoder("s16", RATE, 2).encode(AudioChunk(0, 0, np.full((4, 2), np.nan, np.float32)))


@settings(max_examples=50)
@given(st.lists(st.integers(min_value=0, max_value=5), max_size=40))
def test_numbers_grow_and_give_the_clients_newest_change_back(jumps: list[int]) -> None:
    """0: another client changes something; n: the client's next seq is n larger."""
    seqs, accepted, client_seq, expected = ClientSeqs(), 0, 0, dict[int, int]()
    for jump in jumps:
        client_seq += jump
        number = seqs.number(client_seq) if jump else accepted + 1
        if not jump:
            seqs.add(number)
        assert number > accepted
        accepted = number
        expected[number] = client_seq
    assert {number: seqs.client_seq(number) for number in expected} == expected


def test_old_changes_of_others_are_counted_only() -> None:
    seqs = ClientSeqs()
    for number in range(1, 3 * MAX_SEQS + 1):
        seqs.add(number)
    assert len(seqs.others) == MAX_SEQS
    newest = seqs.number(1)
    assert newest == 3 * MAX_SEQS + 1
    assert [seqs.client_seq(number) for number in (newest, newest - 1, 5, 0)] == [1, 0, 0, 0]
    assert ClientSeqs(seqs.num_older, list(seqs.others)).number(1) == newest


def test_messages_and_audio_have_the_clients_numbers() -> None:
    seqs = ClientSeqs()
    picture = CanvasPicture(start_s=0.0, seconds=1.0, width=3, height=1, data="", seqs=[0, 1, 4])
    chunk = AudioChunk(1, 0, np.zeros((1, 2), np.float32), first_seq=4, full_seq=2)
    assert seqs.of_message(picture) is picture
    assert seqs.of_chunk(chunk) is chunk
    seqs.add(1)
    seqs.add(3)
    assert seqs.of_message(picture) == picture.model_copy(update={"seqs": [0, 0, 2]})
    assert (seqs.of_chunk(chunk).first_seq, seqs.of_chunk(chunk).full_seq) == (2, 1)
    assert seqs.of_message(Applied(seq=4)) == Applied(seq=2)
    assert seqs.of_message(Applied(seq=1)) is None
    problems = [seqs.of_message(problem_of(RequestError("no"), seq)) for seq in (None, 3, 4)]
    assert problems == [problem_of(RequestError("no"), seq) for seq in (None, None, 2)]
    closed = Closed(reason="closed", resumable=False)
    assert seqs.of_message(closed) is closed
