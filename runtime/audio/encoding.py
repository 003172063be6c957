"""Encoders of float PCM to a stream of bytes: wav, pcm, flac, ogg (Opus).

PCM is float32 `[N, channels]`, full scale -1..1. Bytes that `write` has returned do not change later, so they can be
sent at once; chunk boundaries do not change the encoded bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, BinaryIO, Protocol

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from runtime.audio.formats import AUDIO_FORMATS, FORMATS, LAYOUTS, Pcm
from runtime.errors import NonFiniteError, RequestError

OPUS_RATE_HZ = 48_000
OPUS_BITS_PER_CHANNEL = 64_000
UNKNOWN_SIZE = 0xFFFF_FFFF


def to_s16(pcm: Pcm) -> NDArray[np.int16]:
    """PCM as 16-bit integers, clipped at full scale, without dither. Raises NonFiniteError."""
    rounded: NDArray[np.int16] = np.rint(_clipped(pcm) * np.float32(32767)).astype(np.int16)
    return rounded


def _clipped(pcm: Pcm) -> Pcm:
    if not np.isfinite(pcm).all():
        raise NonFiniteError("the audio has samples that are not finite", fix="lower guidance, scales or noise")
    clipped: Pcm = np.clip(pcm, -1.0, 1.0)
    return clipped


class _Encoder(Protocol):
    def encode(self, pcm: Pcm) -> bytes: ...
    def finish(self) -> bytes: ...
    def header(self, samples: int | None) -> bytes: ...


class AudioWriter:
    """Encodes PCM in chunks: `write` returns the bytes that are ready, `close` the rest.

    format: one of AUDIO_FORMATS. total_samples: the length for the header; where it is None the header has 0xFFFFFFFF
    (wav) or 0 (flac), "unknown", and `header()` returns the final one after the last write. Raises RequestError for an
    unknown format.
    """

    def __init__(self, format: str, sample_rate_hz: int, channels: int, *, total_samples: int | None = None) -> None:
        if format not in AUDIO_FORMATS:
            raise RequestError(f"expected one of {', '.join(AUDIO_FORMATS)}, got {format!r:.40}", field="format")
        self.format = FORMATS[format]
        self.channels = channels
        self.samples = 0
        self._encoder = _open_encoder(format, sample_rate_hz, channels)
        self._header = self._encoder.header(total_samples)
        self._closed = False

    def write(self, pcm: Pcm) -> bytes:
        """Encode `[N, channels]` float32. Raises NonFiniteError."""
        if pcm.ndim != 2 or pcm.shape[1] != self.channels:
            raise ValueError(f"expected [N, {self.channels}] samples, got shape {pcm.shape}")
        if self._closed:
            raise ValueError("the writer is closed")
        self.samples += len(pcm)
        return self._with_header(self._encoder.encode(pcm) if len(pcm) else b"")

    def close(self) -> bytes:
        """The last bytes. Writing afterwards is an error."""
        if self._closed:
            return b""
        self._closed = True
        return self._with_header(self._encoder.finish())

    def header(self) -> bytes:
        """The header with the number of samples written so far, to overwrite the start of a seekable file."""
        return self._encoder.header(self.samples)

    def _with_header(self, encoded: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + encoded


def write_audio(file: BinaryIO, writer: AudioWriter, chunks: Iterable[Pcm]) -> None:
    """Write chunks to a file and close the writer; a seekable file's header then gets the final sizes."""
    for chunk in chunks:
        file.write(writer.write(chunk))
    file.write(writer.close())
    if file.seekable():
        end = file.tell()
        file.seek(0)
        file.write(writer.header())
        file.seek(end)


def _open_encoder(format: str, sample_rate_hz: int, channels: int) -> _Encoder:
    if format == "flac":
        return _FlacEncoder(sample_rate_hz, channels)
    if format == "ogg":
        return _OpusEncoder(sample_rate_hz, channels)
    return _PcmEncoder(sample_rate_hz, channels, has_header=format == "wav")


class _PcmEncoder:
    """s16le, with or without a wav header."""

    def __init__(self, sample_rate_hz: int, channels: int, *, has_header: bool) -> None:
        self._rate = sample_rate_hz
        self._channels = channels
        self._has_header = has_header

    def encode(self, pcm: Pcm) -> bytes:
        return to_s16(pcm).astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return b""

    def header(self, samples: int | None) -> bytes:
        return wav_header(self._rate, self._channels, samples) if self._has_header else b""


def wav_header(sample_rate_hz: int, channels: int, samples: int | None) -> bytes:
    """The 44-byte header of s16le data; sizes that are unknown or too large are 0xFFFFFFFF."""
    frame_bytes = 2 * channels
    data_bytes = UNKNOWN_SIZE if samples is None else samples * frame_bytes
    riff_bytes = data_bytes + 36
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        min(riff_bytes, UNKNOWN_SIZE),
        b"WAVE",
        b"fmt ",
        16,
        1,
        channels,
        sample_rate_hz,
        sample_rate_hz * frame_bytes,
        frame_bytes,
        16,
        b"data",
        min(data_bytes, UNKNOWN_SIZE),
    )


class _ByteSink:
    """The muxer's output file. It cannot seek, so bytes that were written do not change."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: Any) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken


class _Muxer:
    """One PyAV stream in a container. `head` is the container's header."""

    def __init__(
        self, container: str, codec: str, sample_rate_hz: int, channels: int, sample_format: str, **options: str
    ) -> None:
        self._sink = _ByteSink()
        self._container = av.open(self._sink, "w", format=container, options={"fflags": "+bitexact", **options})
        self._stream: Any = self._container.add_stream(codec, rate=sample_rate_hz, layout=LAYOUTS[channels - 1])
        self._stream.codec_context.format = sample_format
        if codec == "libopus":
            self._stream.bit_rate = OPUS_BITS_PER_CHANNEL * channels
        self._container.start_encoding()
        self.head = self._sink.take()
        self._rate = sample_rate_hz
        self._channels = channels
        self._format = sample_format
        self._samples = 0

    def frame(self, samples: NDArray[Any], *, rate: int) -> av.AudioFrame:
        packed = np.ascontiguousarray(samples).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format=self._format, layout=LAYOUTS[self._channels - 1])
        frame.sample_rate = rate
        return frame

    def write(self, frame: av.AudioFrame) -> None:
        frame.pts = self._samples
        frame.time_base = Fraction(1, self._rate)
        self._samples += frame.samples
        self._container.mux(self._stream.encode(frame))

    def take(self) -> bytes:
        return self._sink.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


class _FlacEncoder:
    """FLAC with 16 bits per sample."""

    def __init__(self, sample_rate_hz: int, channels: int) -> None:
        self._rate = sample_rate_hz
        self._muxer = _Muxer("flac", "flac", sample_rate_hz, channels, "s16")

    def encode(self, pcm: Pcm) -> bytes:
        self._muxer.write(self._muxer.frame(to_s16(pcm), rate=self._rate))
        return self._muxer.take()

    def finish(self) -> bytes:
        return self._muxer.finish()

    def header(self, samples: int | None) -> bytes:
        """STREAMINFO with its 36 bits of total samples: the low 4 of byte 21 and bytes 22..25; 0 is "unknown"."""
        head = bytearray(self._muxer.head)
        total = samples if samples is not None and samples < 2**36 else 0
        head[21] = head[21] & 0xF0 | total >> 32
        head[22:26] = struct.pack(">I", total & 0xFFFF_FFFF)
        return bytes(head)


class _OpusEncoder:
    """Opus in Ogg at 48 kHz, one page per 20 ms for low latency."""

    def __init__(self, sample_rate_hz: int, channels: int) -> None:
        self._rate = sample_rate_hz
        self._muxer = _Muxer("ogg", "libopus", OPUS_RATE_HZ, channels, "flt", page_duration="20000")
        layout = LAYOUTS[channels - 1]
        is_needed = sample_rate_hz != OPUS_RATE_HZ
        self._resampler = AudioResampler("flt", layout, OPUS_RATE_HZ) if is_needed else None

    def encode(self, pcm: Pcm) -> bytes:
        frame = self._muxer.frame(_clipped(pcm), rate=self._rate)
        self._write([frame] if self._resampler is None else self._resampler.resample(frame))
        return self._muxer.take()

    def finish(self) -> bytes:
        if self._resampler is not None:
            self._write(self._resampler.resample(None))
        return self._muxer.finish()

    def header(self, samples: int | None) -> bytes:
        return self._muxer.head

    def _write(self, frames: Iterable[av.AudioFrame]) -> None:
        for frame in frames:
            self._muxer.write(frame)
