"""Standard MIDI Files of unknown origin as events.

Every length in them is held against the bytes that are there; where one is wrong, the next track is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runtime.base.errors import RequestError
from runtime.base.files import tell_loss

# What the tag or text that says how a file was made is called.
TAG = "TICKRT"
MAGIC, TRACK = b"MThd", b"MTrk"
CHUNK_HEADER_BYTES, HEADER_BYTES = 8, 14
MAX_QUANTITY = 2**28 - 1
UNREADABLE = "the file is not MIDI that can be read: "
# Statuses, and types of meta events.
SYSTEM, META = (0xF0, 0xF7), 0xFF
TEXT, TRACK_NAME, END_OF_TRACK, TEMPO = 0x01, 0x03, 0x2F, 0x51
# Bytes after a status that no length follows; none after those that are not listed.
DATA_BYTES = {status: 1 if 0xC0 <= status < 0xE0 else 2 for status in range(0x80, 0xF0)} | {0xF1: 1, 0xF2: 2, 0xF3: 1}
# Values have seven bits.
CLIPPED = bytes(min(value, 127) for value in range(256))

# Ticks since the track's beginning; the status; what follows it, of a META event its type and content.
Event = tuple[int, int, bytes]


@dataclass(frozen=True)
class MidiFile:
    """The header's format and division, and the content of every track.

    division: ticks per quarter below 2**15; else in its upper byte 256 - frames per second, in the lower ticks of one.
    """

    format: int
    division: int
    tracks: tuple[bytes, ...]

    def events(self, number: int) -> Iterator[Event]:
        """The events of a track, counted from 0, as they are read. Raises RequestError."""
        track, at, tick, running = self.tracks[number], 0, 0, 0
        try:
            while at < len(track):
                delta, at = _quantity(track, at)
                tick += delta
                if track[at] < 0x80 and not running:
                    tell_loss("what of the MIDI file has no status is left out")
                    while track[at] < 0x80:
                        at += 1
                status = track[at]
                at += status >= 0x80
                if status < 0x80:
                    status = running
                elif status < 0xF0:
                    running = status
                data, at = _data(track, status, at)
                yield tick, status, data
                if status == META and data[0] == END_OF_TRACK:
                    return
        except IndexError:
            raise unreadable_midi(f"track {number + 1} ends within an event") from None


def read_midi(data: bytes) -> MidiFile:
    """The tracks of a file, however many its header counts; Raises RequestError where there is no header or none.

    What lies before the header (RIFF's in RMID, MacBinary's) and chunks that are no tracks are left out.
    """
    at = data.find(MAGIC)
    if at < 0:
        raise unreadable_midi("it has no header (MThd)")
    if at + HEADER_BYTES > len(data):
        raise unreadable_midi("it ends within its header")
    format, division = (int.from_bytes(data[i : i + 2]) for i in (at + 8, at + 12))
    tracks = tuple(content for name, content in _chunks(data, at) if name == TRACK)
    if not tracks:
        raise unreadable_midi("it has no tracks (MTrk)")
    if len(tracks) < (counted := int.from_bytes(data[at + 10 : at + 12])):
        tell_loss(f"the MIDI file has {len(tracks)} of the {counted} tracks that its header counts")
    return MidiFile(format, division, tracks)


def unreadable_midi(what: str) -> RequestError:
    """The error of a file of which this cannot be read."""
    return RequestError(f"{UNREADABLE}{what}", field="notes", fix="export it again")


def _chunks(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents of the chunks from `at` on."""
    while (start := at + CHUNK_HEADER_BYTES) <= len(data):
        end = start + int.from_bytes(data[at + 4 : start])
        if not _is_end(data, end):
            found = data.find(TRACK, start)
            end = found if found >= 0 else len(data)
            if data[at : at + 4] == TRACK:
                tell_loss("a track of the MIDI file has a wrong length: it is read up to the next one, or the end")
        yield data[at : at + 4], data[start:end]
        at = end


def _is_end(data: bytes, at: int) -> bool:
    """Whether the file ends, or a whole chunk begins there."""
    start = at + CHUNK_HEADER_BYTES
    is_chunk = data[at : at + 4].isalnum() and int.from_bytes(data[at + 4 : start]) <= len(data) - start
    return at == len(data) or is_chunk or data[at : at + 4] == TRACK


def _data(track: bytes, status: int, at: int) -> tuple[bytes, int]:
    """What follows a status, and where the next event begins. Raises IndexError at the end of the track."""
    size, start, kind = DATA_BYTES.get(status, 0), at, b""
    if status == META:
        kind, at = bytes((track[at],)), at + 1
    if status == META or status in SYSTEM:
        size, start = _quantity(track, at)
    data, end = track[start : start + size], start + size
    if end > len(track):
        raise IndexError
    if status >= SYSTEM[0] or data.isascii():
        return kind + data, end
    tell_loss("values above 127 in the MIDI file are read as 127")
    return data.translate(CLIPPED), end


def _quantity(track: bytes, at: int) -> tuple[int, int]:
    """A time or a length, in groups of seven bits, and where it ends. Raises IndexError at the end of the track."""
    value, end = 0, at
    while value <= MAX_QUANTITY:
        value = value << 7 | track[end] & 0x7F
        end += 1
        if track[end - 1] < 0x80:
            return value, end
    raise unreadable_midi(f"a time or a length is too large (byte {at} of its track)")
