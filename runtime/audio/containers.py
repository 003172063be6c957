"""What FFmpeg's demuxers get wrong: chained Ogg files, samples of WAV that fill their words partly, RIFX, and what is
missing of files that were cut.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

HEAD_BYTES = 2**16
MAX_LINKS = 1000
# Of mp3: what encoders add before the sound and behind it is no more.
MP3_SILENT_FRAMES = 4
# Of an Ogg page: its header without the table of segments, and the flag of the first page of a stream.
PAGE, PAGE_BYTES, IS_FIRST = b"OggS", 27, 0x02


class _Layout(NamedTuple):
    """How the chunks of a file are written: their header, what of it their size counts, and where the first one is."""

    order: Literal["little", "big"]
    header_bytes: int = 8
    size_bytes: int = 4
    counted_bytes: int = 0
    multiple: int = 2
    first: int = 12


# By the first bytes of a file. W64 (riff) has names of 16 bytes.
LAYOUTS = {
    **dict.fromkeys((b"RIFF", b"RF64", b"BW64"), _Layout("little")),
    b"RIFX": _Layout("big"),
    b"riff": _Layout("little", 24, 8, 24, 8, 40),
    b"caff": _Layout("big", 12, 8, 0, 1, 8),
}
# What programs write that do not know the length yet.
UNKNOWN_BYTES = 0x7FFFFF00
INTEGERS, FLOATS, EXTENSIBLE = 0x0001, 0x0003, 0xFFFE
KINDS = {(INTEGERS, 1): "u8", **{(INTEGERS, n): f"s{8 * n}" for n in (2, 3, 4)}, (FLOATS, 4): "f32", (FLOATS, 8): "f64"}
FMT_BYTES = 40
# A mark of UTF-8 and ends of lines, as servers and editors put them before a file.
BLANKS = b"\xef\xbb\xbf\r\n "
GUID_SIZES = (2, 2, 4, 4, 2, 2)


class WavFormat(NamedTuple):
    """How the samples of a WAV file are written: FFmpeg's name of their decoder, and the bytes of one."""

    decoder: str
    sample_rate_hz: int
    channels: int
    sample_bytes: int


def ogg_links(file: BinaryIO) -> Iterator[BinaryIO]:
    """The links of a chained Ogg file, each as a file of its own; any other file as it is."""
    starts = _link_starts(file)
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if len(starts) < 2:
        yield file
        return
    for start, end in zip(starts, [*starts[1:], size], strict=True):
        file.seek(start)
        yield io.BytesIO(file.read(end - start))


def _link_starts(file: BinaryIO) -> list[int]:
    """Where a stream begins behind pages of another one, as far as pages follow each other."""
    starts, at, is_head = list[int](), 0, False
    while len(starts) < MAX_LINKS:
        file.seek(at)
        page = file.read(PAGE_BYTES + 255)
        if page[:4] != PAGE or len(page) < PAGE_BYTES:
            break
        was_head, is_head = is_head, bool(page[5] & IS_FIRST)
        if is_head and not was_head:
            starts.append(at)
        lengths = page[PAGE_BYTES : PAGE_BYTES + page[26]]
        at += PAGE_BYTES + len(lengths) + sum(lengths)
    return starts


def wav_format(head: bytes) -> WavFormat | None:
    """By the first HEAD_BYTES of a file; None where it is no WAV, or compressed.

    The words of samples are as long as the blocks tell, where the bytes per second agree: the valid bits come first.
    """
    layout, chunk = LAYOUTS.get(head[:4]), _chunk(head, b"fmt ")
    if layout is None or chunk is None:
        return None
    content = head[chunk.start : chunk.start + FMT_BYTES]
    tag, channels, rate_hz, bytes_per_s, block, bits = (
        int.from_bytes(content[i:j], layout.order) for i, j in ((0, 2), (2, 4), (4, 8), (8, 12), (12, 14), (14, 16))
    )
    if tag == EXTENSIBLE:
        tag = int.from_bytes(content[24:28], layout.order)
    is_whole = block % max(channels, 1) == 0 and bytes_per_s == rate_hz * block
    sample_bytes = block // max(channels, 1) if is_whole else -(-bits // 8)
    kind = KINDS.get((tag, sample_bytes))
    if kind is None or not channels:
        return None
    order = "" if kind == "u8" else "be" if layout.order == "big" else "le"
    return WavFormat(f"pcm_{kind}{order}", rate_hz, channels, sample_bytes)


def whole_share(head: bytes, file_bytes: int) -> float:
    """How many times the samples that are there the chunk with them tells; 1.0 where it tells no more, or no length."""
    data = _chunk(head, b"data")
    if data is None or data.size >= UNKNOWN_BYTES or data.start >= file_bytes:
        return 1.0
    return max(1.0, data.size / (file_bytes - data.start))


def num_mp3_frames(head: bytes) -> int:
    """How many frames of an mp3 file are heard at least, as its first one counts them; 0 where it does not."""
    for tag in (b"Xing\0\0\0", b"Info\0\0\0"):
        at = head.find(tag)
        if at >= 0 and head[at + 7 : at + 8] and head[at + 7] & 1:
            return max(0, int.from_bytes(head[at + 8 : at + 12]) - MP3_SILENT_FRAMES)
    return 0


def is_cut_mp4(file: BinaryIO) -> bool:
    """Whether a file of MP4 ends before its index, without which nothing of it is known."""
    size, at = file.seek(0, io.SEEK_END), 0
    for _ in range(MAX_LINKS):
        file.seek(at)
        box = file.read(16)
        if box[4:8] == b"moov" or (at == 0 and box[4:8] != b"ftyp"):
            return False
        length = int.from_bytes(box[:4])
        at += int.from_bytes(box[8:16]) if length == 1 else length
        if length == 0 or not 0 < at < size:
            return True
    return False


def corrected(head: bytes) -> bytes:
    """The beginning of a file as FFmpeg's demuxer reads it right: RIFX as RIFF, and blocks of the samples' length."""
    written, fmt = wav_format(head), _chunk(head, b"fmt ")
    head = _little_endian(head)
    if written is None or fmt is None:
        return head
    block = written.channels * written.sample_bytes
    right = (written.sample_rate_hz * block % 2**32).to_bytes(4, "little") + (block % 2**16).to_bytes(2, "little")
    start, end = fmt.start + 8, fmt.start + 14
    is_right = head[start:end] == right or head.startswith(b"RIFX")
    return head if is_right else head[:start] + right + head[end:]


def _little_endian(head: bytes) -> bytes:
    """The beginning of a RIFX file with its numbers as in RIFF, whose demuxer of FFmpeg knows more; others as they are.

    Samples stay as they are: those of compressed kinds are the same in both.
    """
    fmt, data = _chunk(head, b"fmt "), _chunk(head, b"data")
    if not head.startswith(b"RIFX") or fmt is None or data is None or data.start < fmt.start:
        return head
    swapped = bytearray(head)
    # The first parts of the format's GUID are numbers; the coefficients of ADPCM, of 16 bits, are where it would be.
    sizes = GUID_SIZES if fmt.size >= FMT_BYTES and head[fmt.start : fmt.start + 2] == EXTENSIBLE.to_bytes(2) else ()
    places = [(4, 8), *((chunk.start - 4, chunk.start) for chunk in _chunks(head))]
    places += [(chunk.start, chunk.start + 4) for chunk in _chunks(head) if chunk.name == b"fact"]
    at, end = fmt.start, min(fmt.start + fmt.size, data.start)
    for size in (2, 2, 4, 4, 2, 2, *(sizes or (2,) * (fmt.size // 2 - 8))):
        if at + size <= end:
            places.append((at, at + size))
        at += size
    for start, end in places:
        swapped[start:end] = swapped[start:end][::-1]
    return b"RIFF" + bytes(swapped[4:])


def wav_start(head: bytes) -> int:
    """How many bytes are before the header of a WAV file: a tag of ID3, or a line; 0 where none is behind them."""
    start = len(head) - len(head.lstrip(BLANKS))
    if head.startswith(b"ID3") and len(head) >= 10:
        start = 10 + sum((head[9 - i] & 0x7F) << 7 * i for i in range(4))
    return start if head[start : start + 4] in LAYOUTS else 0


class Overlaid(io.RawIOBase):
    """A file from the byte `start` on, whose first bytes are others."""

    def __init__(self, file: BinaryIO, head: bytes, start: int) -> None:
        self._file, self._head, self._start = file, head, start

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset + (self._start if whence == io.SEEK_SET else 0), whence) - self._start

    def read(self, size: int = -1) -> bytes:
        at = self.tell()
        data = self._file.read(size)
        return self._head[at : at + len(data)] + data[max(0, len(self._head) - at) :]


class _Chunk(NamedTuple):
    """Where its content is, and how long it is by its header."""

    name: bytes
    start: int
    size: int


def _chunk(head: bytes, name: bytes) -> _Chunk | None:
    return next((chunk for chunk in _chunks(head) if chunk.name == name), None)


def _chunks(head: bytes) -> Iterator[_Chunk]:
    """Those whose headers are in the beginning of a file, up to that of the samples."""
    layout = LAYOUTS.get(head[:4])
    at, name = 0 if layout is None else layout.first, b""
    while layout is not None and name != b"data" and len(head) >= (start := at + layout.header_bytes):
        name = head[at : at + 4]
        size = int.from_bytes(head[start - layout.size_bytes : start], layout.order) - layout.counted_bytes
        yield _Chunk(name, start, size)
        at = max(start + size + -(start + size) % layout.multiple, start)
