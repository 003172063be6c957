"""What FFmpeg's demuxers get wrong: the links of chained Ogg files, and samples of WAV that fill their words partly."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

HEAD_BYTES = 2**16
MAX_LINKS = 1000
# Of an Ogg page: its header without the table of segments, and the flag of the first page of a stream.
PAGE, PAGE_BYTES, IS_FIRST = b"OggS", 27, 0x02
# The first bytes of a file -> the byte order of its numbers; the chunks of W64 (riff) have names of 16 bytes.
RIFF: dict[bytes, Literal["little", "big"]] = {
    **dict.fromkeys((b"RIFF", b"RF64", b"BW64", b"riff"), "little"),
    b"RIFX": "big",
}
INTEGERS, FLOATS, EXTENSIBLE = 0x0001, 0x0003, 0xFFFE
KINDS = {(INTEGERS, 1): "u8", **{(INTEGERS, n): f"s{8 * n}" for n in (2, 3, 4)}, (FLOATS, 4): "f32", (FLOATS, 8): "f64"}
FMT_BYTES = 40


class WavFormat(NamedTuple):
    """How the samples of a WAV file are written: FFmpeg's name of their decoder."""

    decoder: str
    sample_rate_hz: int
    channels: int


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
    order = RIFF.get(head[:4])
    content = b"" if order is None else _fmt_chunk(head, order)
    if order is None or len(content) < 16:
        return None
    places = ((0, 2), (2, 4), (4, 8), (8, 12), (12, 14), (14, 16))
    tag, channels, rate_hz, bytes_per_s, block, bits = (int.from_bytes(content[i:j], order) for i, j in places)
    if tag == EXTENSIBLE:
        tag = int.from_bytes(content[24:26], order)
    is_whole = block % max(channels, 1) == 0 and bytes_per_s == rate_hz * block
    kind = KINDS.get((tag, block // max(channels, 1) if is_whole else -(-bits // 8)))
    if kind is None or not channels:
        return None
    return WavFormat(f"pcm_{kind}{'' if kind == 'u8' else 'be' if order == 'big' else 'le'}", rate_hz, channels)


def _fmt_chunk(head: bytes, order: Literal["little", "big"]) -> bytes:
    """The first bytes of the chunk with the format; b"" where there is none."""
    # Chunks of W64 count their own header, and begin at multiples of 8 bytes.
    name_bytes, header, multiple, at = (16, 24, 8, 40) if head.startswith(b"riff") else (4, 8, 2, 12)
    while len(head) >= at + header:
        if head[at : at + 4] == b"fmt ":
            return head[at + header : at + header + FMT_BYTES]
        size = int.from_bytes(head[at + name_bytes : at + header], order) + (0 if name_bytes == 16 else header)
        at += max(-(-size // multiple) * multiple, header)
    return b""
