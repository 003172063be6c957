"""MIDI files as bytes: valid ones from their parts, and Hypothesis strategies of files with a structure that is off."""

from __future__ import annotations

from hypothesis import strategies as st

NOTE = bytes((0, 0x90, 40, 80, 96, 40, 0))  # on, and off by running status
END = bytes((0, 0xFF, 0x2F, 0))


def quantity(value: int) -> bytes:
    """A number in groups of seven bits."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    """size: what its header says, where that is not the content's."""
    return name + (len(content) if size is None else size).to_bytes(4) + content


def header(tracks: int, format: int = 1, division: int = 480) -> bytes:
    """The chunk that a file begins with."""
    return chunk(b"MThd", b"".join(value.to_bytes(2) for value in (format, tracks, division)))


def midi_file(*tracks: bytes, division: int = 480) -> bytes:
    """A file of tracks without their ends."""
    return header(len(tracks), division=division) + b"".join(chunk(b"MTrk", track + END) for track in tracks)


_LENGTHS = st.integers(0, 200) | st.sampled_from([0x7F, 0x80, 0x3FFF, 0x1FFFFF, 0x0FFFFFFF]) | st.integers(0, 2**32 - 1)
_SIZES = st.integers(0, 2**32 - 1)
# Times and lengths as they are, not ended, and of many bytes.
_QUANTITIES = _LENGTHS.map(quantity) | st.integers(1, 2000).map(lambda n: b"\xff" * n + b"\x7f")
_DATA = st.binary(max_size=12)
_NOTES = st.builds(
    lambda status, pitch, velocity: bytes((status, pitch, velocity)),
    st.integers(0x80, 0x9F),
    st.integers(0, 130),
    st.integers(0, 130),
)
_META = st.builds(
    lambda kind, data, size: bytes((0xFF, kind)) + (quantity(len(data)) if size is None else size) + data,
    st.sampled_from([0x01, 0x03, 0x2F, 0x51, 0x54, 0x58, 0x59, 0x7F]) | st.integers(0, 255),
    _DATA | st.just(bytes(3)),
    st.none() | _QUANTITIES,
)
_SYSEX = st.builds(
    lambda status, size, data: bytes((status,)) + size + data, st.sampled_from([0xF0, 0xF7]), _QUANTITIES, _DATA
)
_OTHERS = st.builds(lambda status, data: bytes((status,)) + data, st.integers(0, 255), st.binary(max_size=3))
_EVENTS = st.builds(
    lambda delta, event: delta + event,
    st.integers(0, 2000).map(quantity) | _QUANTITIES,
    _NOTES | _NOTES.map(lambda note: note[1:]) | _META | _SYSEX | _OTHERS,
)
_PLAIN = st.sampled_from(
    [
        NOTE, bytes((9, 0x80, 40, 0)), bytes((0, 0xC3, 7)), b"\0\xff\x51\3\0\0\0", b"\0\xff\x51\3\7\xa1\x20",
        b"\0\xff\x03\4bass", b"\0\xff\x01\3abc", b"\0\xf0\2\1\xf7", b"\x87\x68\xff\x58\4\4\2\x18\x08",
    ]
)  # fmt: skip


@st.composite
def _tracks(draw: st.DrawFn) -> bytes:
    """Usual events, and a few that are not."""
    events = draw(st.lists(_PLAIN, min_size=1, max_size=8))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        events.insert(draw(st.integers(0, len(events))), draw(_EVENTS))
    return b"".join(events)


_CHUNKS = st.builds(
    chunk,
    st.sampled_from([*[b"MTrk"] * 8, b"MThd", b"XFIH"]),
    st.builds(lambda track, end: track + end, _tracks(), st.sampled_from([END, END, b""])),
    st.sampled_from([True] * 9 + [False]).flatmap(lambda is_right: st.none() if is_right else _SIZES),
)
_HEADERS = st.builds(
    header,
    st.integers(0, 4) | st.integers(0, 0xFFFF),
    st.integers(0, 1) | st.integers(0, 0xFFFF),
    st.sampled_from([480, 96, 1, 0, 0x7FFF, 0xE728, 0x8000]) | st.integers(0, 0xFFFF),
)
_BUILT = st.lists(_CHUNKS, min_size=1, max_size=3).flatmap(
    lambda chunks: st.builds(
        lambda head: head + b"".join(chunks),
        st.just(header(len(chunks))) | st.just(header(len(chunks), 0, 96)) | _HEADERS,
    )
)


@st.composite
def damaged(draw: st.DrawFn, data: st.SearchStrategy[bytes] = _BUILT) -> bytes:
    """A file with bytes replaced, left out or repeated."""
    found = bytearray(draw(data))
    for _ in range(draw(st.integers(0, 3))):
        at, length = draw(st.integers(0, len(found))), draw(st.integers(0, 8))
        found[at : at + length] = draw(st.binary(max_size=8) | st.just(bytes(found[at : at + length]) * 2))
    return bytes(found)


midi_files = _BUILT | damaged()
