"""Audio files as recorders, editors, joins and damaged disks leave them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

RATE_HZ = 48_000
Sound = NDArray[np.float32]
_TIME_S = np.arange(RATE_HZ) / RATE_HZ
QUIET: Sound = (0.05 * np.sin(2 * np.pi * np.stack((220 * _TIME_S, 330 * _TIME_S), axis=1))).astype(np.float32)
NOISE: Sound = (0.2 * np.random.default_rng(0).normal(size=(RATE_HZ, 2))).astype(np.float32)


def written(sound: Sound, format: str, subtype: str, rate_hz: int = RATE_HZ, endian: str = "FILE") -> bytes:
    """A file of libsndfile."""
    file = io.BytesIO()
    soundfile.write(file, sound, rate_hz, format=format, subtype=subtype, endian=endian)
    return file.getvalue()


def encoded(sound: Sound, format: str, codec: str, rate_hz: int = RATE_HZ) -> bytes:
    """A file of FFmpeg."""
    file, layout = io.BytesIO(), {1: "mono", 2: "stereo"}[sound.shape[1]]
    with av.open(file, "w", format=format) as container:
        stream: Any = container.add_stream(codec, rate=rate_hz, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound).reshape(1, -1), format="flt", layout=layout)
        frame.sample_rate = rate_hz
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def extensible(sound: Sound, bits: int, valid_bits: int, before: bytes = b"") -> bytes:
    """WAVE_FORMAT_EXTENSIBLE with integers of `bits`, of which the first `valid_bits` are set. before: other chunks."""
    channels, step = sound.shape[1], 2.0 ** (1 - valid_bits)
    words = (np.floor(sound.astype(np.float64) / step).astype("<i8") << (bits - valid_bits)).astype("<i8")
    data = words.view(np.uint8).reshape(-1, 8)[:, : bits // 8].tobytes()
    block = channels * bits // 8
    fmt = struct.pack("<HHIIHHHHI", 0xFFFE, channels, RATE_HZ, RATE_HZ * block, block, bits, 22, valid_bits, 3)
    fmt += bytes.fromhex("0100000000001000800000aa00389b71")
    content = b"WAVE" + before + b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"data"
    content += struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(content)) + content


def rifx(wav: bytes, bits: int) -> bytes:
    """WAVE_FORMAT_EXTENSIBLE with words of `bits` in big endian."""
    fmt, data = wav.index(b"fmt ") + 8, wav.index(b"data") + 8
    form = "HHIIHHHHIIHH"
    content = struct.pack(f">{form}", *struct.unpack_from(f"<{form}", wav, fmt)) + wav[fmt + 32 : fmt + 40]
    words = np.frombuffer(wav[data:], np.uint8).reshape(-1, bits // 8)[:, ::-1].tobytes()
    content = b"WAVEfmt " + struct.pack(">I", 40) + content + b"data" + struct.pack(">I", len(words)) + words
    return b"RIFX" + struct.pack(">I", len(content)) + content


def overwritten(data: bytes, start: int, size: int, value: int = 0xAA) -> bytes:
    """Bytes of a damaged disk."""
    return data[:start] + bytes((value,)) * size + data[start + size :]


def _adts_frames(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 6]) >> 5 & 0x1FFF
        yield at, size
        at += size


def with_bad_frames(adts: bytes, share: float) -> bytes:
    """That share of AAC's frames has content that is none."""
    frames = list(_adts_frames(adts))
    for at, size in frames[3 : 3 + round(share * len(frames))]:
        adts = overwritten(adts, at + 7, size - 7)
    return adts


def _lossless() -> Iterator[tuple[str, bytes]]:
    for subtype in ("PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"):
        yield f"RIFX {subtype}", written(QUIET, "WAV", subtype, endian="BIG")
        for format in ("WAV", "WAVEX", "W64", "RF64", "AIFF", "AU", "CAF"):
            yield f"{format} {subtype}", written(QUIET, format, subtype)
    yield "FLAC PCM_24", written(QUIET, "FLAC", "PCM_24")
    yield "BW64", b"BW64" + written(QUIET, "RF64", "PCM_24")[4:]
    for bits, valid in ((32, 32), (32, 24), (32, 20), (32, 16), (24, 20), (24, 16), (16, 12)):
        yield f"{valid} bits in {bits}", extensible(QUIET, bits, valid)
        if valid > 12:
            yield f"RIFX with {valid} bits in {bits}", rifx(extensible(QUIET, bits, valid), bits)
    yield "24 bits in 32 behind other chunks", extensible(QUIET, 32, 24, b"JUNK\x05\0\0\0abcde\0bext\x04\0\0\0abcd")
    wav = written(QUIET, "WAV", "PCM_16")
    fmt = wav.index(b"fmt ") + 8
    yield "blocks that are too long by its header", wav[: fmt + 12] + struct.pack("<H", 8) + wav[fmt + 14 :]
    yield "ID3 before WAV", b"ID3\x03\0\0\0\0\x01\x02" + bytes(130) + wav
    yield "a mark of UTF-8 and a line before WAV", b"\xef\xbb\xbf\r\n" + wav
    wide = written(QUIET, "WAV", "PCM_24")
    yield (
        "blocks that are no whole samples by its header",
        wide[: fmt + 12] + struct.pack("<H", 0x2505) + wide[fmt + 14 :],
    )
    yield "no bytes per second by its header", wav[: fmt + 8] + bytes(4) + wav[fmt + 12 :]
    at = wav.index(b"data") + 4
    for size in (0, 0x7FFFFFFF, 0xFFFFFFF0, 0xFFFFFFFF):
        yield f"WAV with {size:X} bytes of data by its header", wav[:at] + struct.pack("<I", size) + wav[at + 4 :]


_MP3, _ID3 = encoded(QUIET, "mp3", "libmp3lame"), b"ID3\x03\0\0\0\0\x07\x76" + bytes(1014)
_MONO_MP3, _SLOW_MP3 = encoded(QUIET[:, :1], "mp3", "libmp3lame"), encoded(QUIET, "mp3", "libmp3lame", 44_100)
_FLAC, _AAC, _M4A = written(NOISE, "FLAC", "PCM_16"), encoded(QUIET, "adts", "aac"), encoded(QUIET, "mp4", "aac")

# Name -> a file of libsndfile, in either byte order, that is read as libsndfile reads it.
COMPRESSED: Mapping[str, bytes] = {
    f"{form} {subtype}": written(QUIET if subtype != "GSM610" else QUIET[:, :1], "WAV", subtype, endian=endian)
    for subtype in ("ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM", "GSM610")
    for form, endian in (("RIFF", "FILE"), ("RIFX", "BIG"))
}
# Name -> the file, of which QUIET is the sound.
LOSSLESS: Mapping[str, bytes] = dict(_lossless())
_CUT = {
    "WAV": ("PCM_16", "PCM_24", "FLOAT", "ULAW", "IMA_ADPCM", "MS_ADPCM"),
    "RF64": ("PCM_16",), "W64": ("PCM_24",), "CAF": ("PCM_16",), "AU": ("PCM_16",), "AIFF": ("PCM_16",),
}  # fmt: skip
# Name -> the file, and how many seconds of it are to be heard. In some, nothing is lost but time.
DAMAGED: Mapping[str, tuple[bytes, float]] = {
    "two mp3": (_MP3 + _MP3, 2.0),
    "two mp3 with tags": (_ID3 + _MP3 + _ID3 + _MP3, 2.0),
    "a mono and a stereo mp3": (_MONO_MP3 + _MP3, 2.0),
    "mp3 of two rates": (_SLOW_MP3 + _MP3, 2.0),
    "700 bytes between mp3 frames": (_MP3[:9000] + b"\x55" * 700 + _MP3[9000:], 0.95),
    "700 zeros in mp3": (overwritten(_MP3, 9000, 700, 0), 0.9),
    "200 kB of zeros in mp3": (_MP3[:9000] + bytes(200_000) + _MP3[9000:], 0.95),
    "junk before mp3": (b"\x55" * 700 + _MP3, 0.95),
    "one bad frame of aac": (with_bad_frames(_AAC, 0.03), 0.95),
    "a third of aac's frames bad": (with_bad_frames(_AAC, 0.33), 0.6),
    "bad bytes in m4a": (overwritten(_M4A, 4000, 2000), 0.8),
    "cut flac": (_FLAC[: len(_FLAC) * 2 // 3], 0.55),
    "bad bytes in flac": (overwritten(_FLAC, len(_FLAC) // 2, 100, 0), 0.85),
    "two flac": (_FLAC + _FLAC, 2.0),
    **{
        f"cut {format} {subtype}": (file[: len(file) * 2 // 3 | 1], 0.65)
        for format, subtypes in _CUT.items()
        for subtype in subtypes
        for file in (written(QUIET, format, subtype),)
    },
    "cut RIFX": (written(QUIET, "WAV", "PCM_24", endian="BIG")[:-90_001], 0.65),
    "cut mp3": (_MP3[: len(_MP3) * 2 // 3], 0.6),
    "cut aac": (_AAC[: len(_AAC) * 2 // 3 + 3], 0.6),
}
_LINKS: Mapping[str, Callable[[], bytes]] = {
    "opus": lambda: written(NOISE, "OGG", "OPUS"),
    "quiet opus": lambda: written(QUIET, "OGG", "OPUS"),
    "mono opus": lambda: encoded(QUIET[:, :1], "ogg", "libopus"),
    "vorbis": lambda: written(QUIET, "OGG", "VORBIS"),
    "slow vorbis": lambda: written(QUIET, "OGG", "VORBIS", 44_100),
}
# Name -> the links of a chained file.
CHAINED: Mapping[str, tuple[bytes, ...]] = {
    " + ".join(names): tuple(_LINKS[name]() for name in names)
    for names in (
        ("opus", "quiet opus"), ("quiet opus", "opus"), ("opus", "mono opus", "opus"), ("vorbis", "vorbis"),
        ("slow vorbis", "vorbis"), ("vorbis", "opus"),
    )
}  # fmt: skip
# Name -> the beginning of a file, and what is repeated in it without an end.
HOSTILE: Mapping[str, tuple[bytes, bytes]] = {
    "pages of ogg": (b"", b"OggS\0\2" + bytes(21)),
    "chunks of WAV": (b"RIFF\xff\xff\xff\xffWAVE", b"JUNK\0\0\0\0"),
    "chunks of RIFX": (b"RIFX\xff\xff\xff\xffWAVE", b"JUNK\0\0\0\0"),
    "chunks of W64": (b"riff" + bytes(36), b"junk" + bytes(20)),
    "chunks of CAF": (b"caff\0\1\0\0", b"free" + bytes(8)),
    "boxes of MP4": (b"\0\0\0\x08ftyp", b"\0\0\0\x08free"),
    "boxes of MP4 that are too long": (b"\0\0\0\x10ftypM4A \0\0\0\0", b"\xff\xff\xff\xffmoov"),
    "tags of ID3": (b"", b"ID3\3\0\0\0\0\0\0"),
    "the name of ID3": (b"", b"ID3"),
    "headers of mp3": (b"", b"\xff\xfb\x90\x64"),
    "headers of aac": (b"", b"\xff\xf1\x50\x80\x01\x1f\xfc"),
    "blocks of FLAC": (b"fLaC", b"\1\0\0\0"),
}
