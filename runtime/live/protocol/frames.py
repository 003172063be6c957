"""The binary messages of the live protocol: one chunk of audio with a header of 28 bytes.

The header is little-endian: u32 epoch, u64 start_sample, u32 samples (per channel), u32 first_seq, u32 full_seq,
u16 format, u16 flags (bit 0: replaces audio that was sent before; bit 1: the audio after an underrun). The body:

- s16, f32: `samples` interleaved samples per channel, little-endian.
- opus: one complete Ogg Opus stream (RFC 7845) at 48 kHz that decodes to exactly the chunk (`samples` at the session's
  rate), so any decoder of Opus files takes it alone, also after dropped chunks. Its pre-skip covers up to 80 ms of the
  audio before the chunk, where the server sent that last: chunks that follow each other join without a click.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.audio.decoding import read_audio
from runtime.audio.encoding import AudioWriter, to_s16
from runtime.audio.formats import OPUS_RATE_HZ
from runtime.base.errors import RequestError
from runtime.config.codec import Pcm

HEADER = struct.Struct("<IQIIIHH")
FORMATS = ("s16", "f32", "opus")
DTYPES: dict[str, np.dtype[Any]] = {"s16": np.dtype("<i2"), "f32": np.dtype("<f4")}
IS_REPLACING = 1
IS_AFTER_UNDERRUN = 2
PREROLL_S = 0.08


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """Audio for the samples from `start_sample` on: `pcm` `[n, channels]` float32, full scale -1..1.

    `full_seq`: the newest seq that all of it was made with. `first_seq`: the newest seq that has any part in it.
    """

    epoch: int
    start_sample: int
    pcm: Pcm
    first_seq: int = 0
    full_seq: int = 0
    is_replacing: bool = False
    is_after_underrun: bool = False

    @property
    def end_sample(self) -> int:
        """The sample after its last one."""
        return self.start_sample + len(self.pcm)


class ChunkEncoder:
    """Encodes the chunks of one connection. `format`: one of FORMATS. `is_slow`: a chunk takes milliseconds."""

    def __init__(self, format: str, sample_rate_hz: int, channels: int) -> None:
        self.is_slow = format == "opus"
        self._format = FORMATS.index(format)
        self._encode = {"s16": _s16_bytes, "f32": _f32_bytes, "opus": self._opus_bytes}[format]
        self._rate = sample_rate_hz
        self._channels = channels
        self._last: AudioChunk | None = None

    def encode(self, chunk: AudioChunk) -> bytes:
        """The binary message of a chunk. Raises NonFiniteError."""
        flags = IS_REPLACING * chunk.is_replacing | IS_AFTER_UNDERRUN * chunk.is_after_underrun
        header = HEADER.pack(
            chunk.epoch, chunk.start_sample, len(chunk.pcm), chunk.first_seq, chunk.full_seq, self._format, flags
        )
        return header + self._encode(chunk)

    def _opus_bytes(self, chunk: AudioChunk) -> bytes:
        last, self._last = self._last, chunk
        follows = last is not None and (last.epoch, last.end_sample) == (chunk.epoch, chunk.start_sample)
        preroll = last.pcm[-round(PREROLL_S * self._rate) :] if last is not None and follows else chunk.pcm[:0]
        writer = AudioWriter("ogg", self._rate, self._channels)
        # [preroll + n, channels]
        encoded = bytearray(writer.write(np.concatenate([preroll, chunk.pcm])) + writer.close())
        _add_pre_skip(encoded, len(preroll) * OPUS_RATE_HZ // self._rate)
        return bytes(encoded)


def decode_chunk(data: bytes, sample_rate_hz: int, channels: int) -> AudioChunk:
    """The chunk of a binary message. Raises RequestError where it is none."""
    if len(data) < HEADER.size:
        raise RequestError(f"{len(data)} bytes, expected a header of {HEADER.size} bytes", field="chunk")
    epoch, start_sample, samples, first_seq, full_seq, format, flags = HEADER.unpack_from(data)
    if format >= len(FORMATS):
        raise RequestError(f"format {format}, expected 0 to {len(FORMATS) - 1}", field="chunk.format")
    pcm = decode_pcm(data[HEADER.size :], FORMATS[format], sample_rate_hz, channels)
    if len(pcm) != samples:
        raise RequestError(f"{len(pcm)} samples, expected {samples}", field="chunk.samples")
    is_replacing, is_after_underrun = bool(flags & IS_REPLACING), bool(flags & IS_AFTER_UNDERRUN)
    return AudioChunk(epoch, start_sample, pcm, first_seq, full_seq, is_replacing, is_after_underrun)


def decode_pcm(body: bytes, format: str, sample_rate_hz: int, channels: int) -> Pcm:
    """PCM `[n, channels]` float32 of a body. Raises RequestError."""
    if format == "opus":
        return read_audio(body, sample_rate_hz, channels, max_seconds=60.0)
    size_bytes = sample_bytes(format, channels)
    if len(body) % size_bytes:
        raise RequestError(f"{len(body)} bytes, expected whole samples of {size_bytes} bytes", field="samples")
    values = np.frombuffer(body, DTYPES[format]).reshape(-1, channels)  # [n, channels]
    pcm: Pcm = values.astype(np.float32)
    if format == "s16":
        pcm /= np.float32(32767)
    elif not np.isfinite(pcm).all():
        raise RequestError("the audio has samples that are not finite", field="samples")
    return pcm


def sample_bytes(format: str, channels: int) -> int:
    """Bytes of one sample of all channels in s16 or f32."""
    itemsize: int = DTYPES[format].itemsize
    return itemsize * channels


def _s16_bytes(chunk: AudioChunk) -> bytes:
    return to_s16(chunk.pcm).astype("<i2", copy=False).tobytes()


def _f32_bytes(chunk: AudioChunk) -> bytes:
    return chunk.pcm.astype("<f4", copy=False).tobytes()


def _add_pre_skip(stream: bytearray, samples: int) -> None:
    """Raise the pre-skip of an Ogg Opus stream, in samples of 48 kHz; its first page is OpusHead alone."""
    body = 27 + stream[26]
    end = body + sum(stream[27:body])
    (pre_skip,) = struct.unpack_from("<H", stream, body + 10)
    struct.pack_into("<H", stream, body + 10, pre_skip + samples)
    struct.pack_into("<I", stream, 22, 0)
    struct.pack_into("<I", stream, 22, _ogg_checksum(stream[:end]))


def _ogg_checksum(page: bytes | bytearray) -> int:
    """CRC-32 of an Ogg page: polynomial 0x04c11db7, not reflected, start 0 (RFC 3533)."""
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C1_1DB7 if crc & 0x8000_0000 else 0)) & 0xFFFF_FFFF
    return crc
