"""Encoders of float PCM to a stream of bytes: wav, pcm, flac, ogg (Opus) and mp3.

PCM is float32 `[N, channels]`, full scale -1..1. Bytes that `write` has returned do not change later, so they can be
sent at once; chunk boundaries do not change the encoded bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, BinaryIO, Literal, Protocol

import av
import numpy as np
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from runtime.audio.formats import AUDIO_FORMATS, FORMATS, LAYOUTS
from runtime.audio.metadata import WAV_TAG
from runtime.base.errors import NonFiniteError, RequestError
from runtime.base.midi_events import TAG
from runtime.config.codec import Pcm

UNKNOWN_SIZE = 0xFFFF_FFFF


def to_s16(pcm: Pcm) -> NDArray[np.int16]:
    """PCM as 16-bit integers, clipped at full scale, without dither. Raises NonFiniteError.

    1.0 is 2^15, as for decoders: 16-bit audio that is read and written again stays the same.
    """
    rounded: NDArray[np.int16] = np.minimum(np.rint(_clipped(pcm) * np.float32(32768)), 32767).astype(np.int16)
    return rounded


def to_s24(pcm: Pcm) -> NDArray[np.int32]:
    """As to_s16(), with 24 bits: 1.0 is 2^23."""
    rounded = np.rint(_clipped(pcm).astype(np.float64) * 2**23)
    return np.minimum(rounded, 2**23 - 1).astype(np.int32)


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
    (wav) or 0 (flac), "unknown", and `header()` returns the final one after the last write. metadata: a text for the
    file's tags; pcm has none. file_rate_hz: samples per second in the file, None: encoded_rate_hz().
    bit_rate_kbps: of all channels together, None: the codec's own. bits: 16, or 24 for wav and flac. Raises
    RequestError for a format that is unknown or cannot be written, and for rates that it does not have.
    """

    def __init__(
        self,
        format: str,
        sample_rate_hz: int,
        channels: int,
        *,
        total_samples: int | None = None,
        metadata: str = "",
        file_rate_hz: int | None = None,
        bit_rate_kbps: int | None = None,
        bits: Literal[16, 24] = 16,
    ) -> None:
        check_format(format, channels)
        check_rates(format, file_rate_hz, bit_rate_kbps)
        self.format = FORMATS[format]
        self.channels = channels
        self.samples = 0
        rate_hz = file_rate_hz or encoded_rate_hz(format, sample_rate_hz)
        self._resampler = None if rate_hz == sample_rate_hz else _Resampler(sample_rate_hz, rate_hz, channels)
        self._encoder = _open_encoder(format, rate_hz, channels, metadata, bit_rate_kbps, bits)
        self._header = self._header_of(total_samples)
        self._closed = False

    def write(self, pcm: Pcm) -> bytes:
        """Encode `[N, channels]` float32. Raises NonFiniteError."""
        if pcm.ndim != 2 or pcm.shape[1] != self.channels:
            raise ValueError(f"expected [N, {self.channels}] samples, got shape {pcm.shape}")
        if self._closed:
            raise ValueError("the writer is closed")
        self.samples += len(pcm)
        if self._resampler is not None:
            pcm = self._resampler.convert(pcm)
        return self._with_header(self._encoder.encode(pcm) if len(pcm) else b"")

    def close(self) -> bytes:
        """The last bytes. Writing afterwards is an error."""
        if self._closed:
            return b""
        self._closed = True
        rest = None if self._resampler is None else self._resampler.finish()
        encoded = b"" if rest is None or not len(rest) else self._encoder.encode(rest)
        return self._with_header(encoded + self._encoder.finish())

    def header(self) -> bytes:
        """The header with the number of samples written so far, to overwrite the start of a seekable file."""
        return self._header_of(self.samples)

    def _header_of(self, samples: int | None) -> bytes:
        if samples is not None and self._resampler is not None:
            samples = self._resampler.length_of(samples)
        return self._encoder.header(samples)

    def _with_header(self, encoded: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + encoded


def check_format(format: str, channels: int, field: str = "format") -> None:
    """Check that this machine can write `format` with that many channels. Raises RequestError, naming `field`."""
    if format not in AUDIO_FORMATS:
        raise RequestError(f"expected one of {', '.join(AUDIO_FORMATS)}, got {format!r:.40}", field=field)
    fix = "use wav, flac or ogg"
    if not is_available(format):
        raise RequestError(f"the installed package av has no encoder for {format}", field=field, fix=fix)
    if format == "mp3" and channels > 2:
        raise RequestError(f"mp3 has 1 or 2 channels, the audio has {channels}", field=field, fix=fix)


def check_rates(format: str, sample_rate_hz: int | None, bit_rate_kbps: int | None) -> None:
    """Check that `format` can have these rates; None is its own. Raises RequestError."""
    rates_hz = FORMATS[format].rates_hz
    if sample_rate_hz is not None and rates_hz is not None and sample_rate_hz not in rates_hz:
        expected = f"has {', '.join(map(str, rates_hz))}" if rates_hz else "is no audio"
        raise RequestError(f"{format} {expected}, got {sample_rate_hz}", field="sample_rate_hz")
    if bit_rate_kbps is not None and not FORMATS[format].has_bit_rate:
        raise RequestError(f"{format} has no bit rate", field="bit_rate_kbps", fix="leave it out, or use mp3 or ogg")


def is_available(format: str) -> bool:
    """Whether the installed PyAV has the encoder; builds without LAME exist."""
    return format != "mp3" or MP3.name in av.codecs_available


def available_formats(*, audio: bool, notes: bool) -> list[str]:
    """The formats that this machine can write of a model that makes audio, or tells its notes."""
    found = (name for name in AUDIO_FORMATS if audio and is_available(name))
    return [*found, *(["mid"] if notes else []), "latents"]


def encoded_rate_hz(format: str, sample_rate_hz: int) -> int:
    """Samples per second in a file of `format`: the last one that it can have where it does not have the audio's."""
    rates_hz = FORMATS[format].rates_hz
    return sample_rate_hz if rates_hz is None or sample_rate_hz in rates_hz else rates_hz[-1]


class _Resampler:
    """PCM at another rate. Its length is exact, so that a header can have it."""

    def __init__(self, from_hz: int, to_hz: int, channels: int) -> None:
        self._from_hz, self._to_hz, self._channels = from_hz, to_hz, channels
        self._resampler = AudioResampler("flt", LAYOUTS[channels - 1], to_hz)
        self._read = self._written = 0

    def length_of(self, samples: int) -> int:
        """The number of samples that `samples` become."""
        return -(-samples * self._to_hz // self._from_hz)

    def convert(self, pcm: Pcm) -> Pcm:
        """The samples that are ready, `[M, channels]`. Raises NonFiniteError."""
        clipped = _clipped(pcm)
        self._read += len(pcm)
        return self._resampled(_frame(clipped, "flt", self._from_hz)) if len(pcm) else clipped

    def finish(self) -> Pcm:
        """The rest: what is left in the filter, cut or with silence after it."""
        left = self.length_of(self._read) - self._written
        rest = self._resampled(None)[:left] if self._read else np.empty((0, self._channels), np.float32)
        return np.pad(rest, ((0, left - len(rest)), (0, 0)))

    def _resampled(self, frame: av.AudioFrame | None) -> Pcm:
        parts = [part.to_ndarray().reshape(-1, self._channels) for part in self._resampler.resample(frame)]
        self._written += sum(len(part) for part in parts)
        return np.concatenate(parts) if parts else np.empty((0, self._channels), np.float32)


def _frame(samples: NDArray[Any], format: str, rate_hz: int) -> av.AudioFrame:
    """Packed samples `[N, channels]` as a frame."""
    packed = np.ascontiguousarray(samples).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(packed, format=format, layout=LAYOUTS[samples.shape[1] - 1])
    frame.sample_rate = rate_hz
    return frame


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


def _open_encoder(
    format: str, sample_rate_hz: int, channels: int, metadata: str, bit_rate_kbps: int | None, bits: int
) -> _Encoder:
    if format == "flac":
        return _FlacEncoder(FLAC if bits == 16 else FLAC_24, sample_rate_hz, channels, metadata)
    if format in CODECS:
        return _CodecEncoder(CODECS[format], sample_rate_hz, channels, metadata, bit_rate_kbps)
    return _PcmEncoder(sample_rate_hz, channels, metadata, has_header=format == "wav", bits=bits)


class _PcmEncoder:
    """Little-endian samples of 16 or 24 bits, with or without a wav header."""

    def __init__(self, sample_rate_hz: int, channels: int, metadata: str, *, has_header: bool, bits: int) -> None:
        self._rate = sample_rate_hz
        self._channels = channels
        self._metadata = metadata
        self._has_header, self._bits = has_header, bits

    def encode(self, pcm: Pcm) -> bytes:
        if self._bits == 24:
            return to_s24(pcm).astype("<i4", copy=False).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
        return to_s16(pcm).astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return b""

    def header(self, samples: int | None) -> bytes:
        header = wav_header(self._rate, self._channels, samples, self._metadata, self._bits)
        return header if self._has_header else b""


def wav_header(sample_rate_hz: int, channels: int, samples: int | None, metadata: str = "", bits: int = 16) -> bytes:
    """What precedes the samples: 44 bytes, more with metadata. Sizes that are unknown or too large are 0xFFFFFFFF."""
    frame_bytes = bits // 8 * channels
    rates = (sample_rate_hz, sample_rate_hz * frame_bytes, frame_bytes)
    chunks = _chunk(b"fmt ", struct.pack("<HHIIHH", 1, channels, *rates, bits))
    if metadata:
        # The text ends in a zero byte.
        chunks += _chunk(b"LIST", b"INFO" + _chunk(WAV_TAG, metadata.encode() + b"\0"))
    data_bytes = UNKNOWN_SIZE if samples is None else samples * frame_bytes
    sizes = [min(size, UNKNOWN_SIZE) for size in (4 + len(chunks) + 8 + data_bytes, data_bytes)]
    return b"RIFF" + struct.pack("<I", sizes[0]) + b"WAVE" + chunks + b"data" + struct.pack("<I", sizes[1])


def _chunk(name: bytes, content: bytes) -> bytes:
    """A RIFF chunk; its content begins and ends at even offsets."""
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


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


@dataclass(frozen=True)
class _Codec:
    """A codec in PyAV: its name, the container, the sample format, bits per second and channel, the muxer's options."""

    name: str
    container: str
    sample_format: str
    bits_per_channel: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def input_format(self) -> str:
        """The packed format of the same samples."""
        return self.sample_format.removesuffix("p")


FLAC = _Codec("flac", "flac", "s16")
FLAC_24 = _Codec("flac", "flac", "s32")  # of which 24 bits are written
# One page per 20 ms: low latency.
OPUS = _Codec("libopus", "ogg", "flt", 64_000, {"page_duration": "20000"})
MP3 = _Codec("libmp3lame", "mp3", "fltp", 96_000)
CODECS = {"ogg": OPUS, "mp3": MP3}


class _CodecEncoder:
    """One PyAV stream in a container."""

    def __init__(
        self,
        codec: _Codec,
        sample_rate_hz: int,
        channels: int,
        metadata: str,
        bit_rate_kbps: int | None = None,
    ) -> None:
        self._sink = _ByteSink()
        options = {"fflags": "+bitexact", **codec.options}
        self._container = av.open(self._sink, "w", format=codec.container, options=options)
        if metadata:
            self._container.metadata[TAG] = metadata
        self._stream: Any = self._container.add_stream(codec.name, rate=sample_rate_hz, layout=LAYOUTS[channels - 1])
        self._stream.codec_context.format = codec.sample_format
        bits_per_s = codec.bits_per_channel * channels if bit_rate_kbps is None else 1000 * bit_rate_kbps
        if bits_per_s:
            self._stream.bit_rate = bits_per_s
        self._container.start_encoding()
        self._head = self._sink.take()
        self._rate, self._format = sample_rate_hz, codec.input_format
        self._samples = 0

    def encode(self, pcm: Pcm) -> bytes:
        frame = _frame(self._samples_of(pcm), self._format, self._rate)
        frame.pts = self._samples
        frame.time_base = Fraction(1, self._rate)
        self._samples += len(pcm)
        self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def _samples_of(self, pcm: Pcm) -> NDArray[Any]:
        if self._format == "s32":
            return to_s24(pcm) << 8
        return to_s16(pcm) if self._format == "s16" else _clipped(pcm)

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()

    def header(self, samples: int | None) -> bytes:
        return self._head


class _FlacEncoder(_CodecEncoder):
    """FLAC, with its length in the header."""

    def header(self, samples: int | None) -> bytes:
        """STREAMINFO with its 36 bits of total samples: the low 4 of byte 21 and bytes 22..25; 0 is "unknown"."""
        head = bytearray(self._head)
        total = samples if samples is not None and samples < 2**36 else 0
        head[21] = head[21] & 0xF0 | total >> 32
        head[22:26] = struct.pack(">I", total & 0xFFFF_FFFF)
        return bytes(head)
