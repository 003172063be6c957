"""MIDI files as programs, mail and damaged disks leave them: one melody, with something beside it wrong or unusual."""

from __future__ import annotations

from collections.abc import Mapping

from helpers.midi_files import END, chunk, header, quantity

PITCHES = (40, 41, 43, 45, 47)
DIVISION = 480
ON = 0x90


def notes(*pitches: int, beat: int = DIVISION) -> bytes:
    """A beat each, of which they sound the first half."""
    half = quantity(beat // 2)
    return b"".join(
        (half if i else b"\0") + bytes((ON, p, 80)) + half + bytes((ON, p, 0)) for i, p in enumerate(pitches)
    )


def meta(kind: int, data: bytes = b"", size: int | None = None) -> bytes:
    """A meta event at once; size: what it says, where that is not the content's."""
    return bytes((0, 0xFF, kind)) + quantity(len(data) if size is None else size) + data


def file(before: bytes = b"", after: bytes = b"", end: bytes = END) -> bytes:
    """The melody with events before it and behind it."""
    return header(1, 0, DIVISION) + chunk(b"MTrk", before + TRACK + after + end)


def riff(content: bytes, name: bytes = b"RIFF", order: str = "little") -> bytes:
    """RMID: the file as a chunk of RIFF."""
    size = len(content).to_bytes(4, order)  # type: ignore[arg-type]
    return name + (len(content) + 12).to_bytes(4, order) + b"RMIDdata" + size + content  # type: ignore[arg-type]


TRACK = notes(*PITCHES)
MELODY = file()
HEAD, CHUNK = header(1, 0, DIVISION), chunk(b"MTrk", TRACK + END)
_METAS = {
    **{f"a key of {flats} flats": meta(0x59, bytes((256 - flats, 0))) for flats in (7, 8, 64)},
    "a key of 99 sharps in mode 7": meta(0x59, bytes((99, 7))),
    "an empty key": meta(0x59),
    "a short tempo": meta(0x51, b"\7"),
    "an empty tempo": meta(0x51),
    "a long tempo": meta(0x51, bytes(9)),
    "a short meter": meta(0x58, b"\4"),
    "an empty meter": meta(0x58),
    "a meter with powers that there are not": meta(0x58, bytes((255, 255, 0, 0))),
    "SMPTE offsets": meta(0x54, bytes((0xFF, 99, 99, 99, 99))),
    "a short SMPTE offset": meta(0x54, b"\1"),
    "a channel above 15": meta(0x20, b"\x63"),
    "a port of no bytes": meta(0x21),
    "a sequence number of one byte": meta(0x00, b"\1"),
    "a name in Latin 1": meta(0x03, "Flöte".encode("latin-1")),
    "a name in Shift-JIS": meta(0x03, "ピアノ".encode("shift-jis")),
    "a text of two bytes of length": meta(0x01, bytes(300)),
    "a meta event above 127": bytes((0, 0xFF, 0xF3, 0)),
    "an unknown meta event": meta(0x60, b"abc"),
    "a proprietary meta event": meta(0x7F, bytes(range(256))),
    "system exclusive": b"\0\xf0\x03\x41\x10\xf7",
    "system exclusive without its end": b"\0\xf0\x02\x41\x10",
    "system exclusive above 127": b"\0\xf0\x03\xfe\xfd\xf7",
    "system exclusive in parts": b"\0\xf0\x02\x41\x10\x05\xf7\x02\x10\xf7".replace(b"\x05", b"\0"),
    **{
        f"a status {status:X}": bytes((0, status))
        for status in (0xF4, 0xF5, 0xF6, 0xF8, 0xF9, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE)
    },
    "a song position": b"\0\xf2\1\2",
    "a song select": b"\0\xf3\1",
    "a controller above 127": bytes((0, 0xB0, 7, 168)),
    "a program above 127": bytes((0, 0xC0, 208)),
    "a bend above 127": bytes((0, 0xE0, 200, 255)),
    "a pressure of a key": bytes((0, 0xA0, 40, 3)),
    "a time with zeros in front": b"\x80\x80\x80\x80\x80\0" + meta(0x01, b"a")[1:],
}
_RUNNING = notes(40) + meta(0x01, b"a") + quantity(240) + bytes((41, 80)) + quantity(240) + bytes((41, 0))

# What is wrong -> the file, and how many notes of the melody it has.
ODD_FILES: Mapping[str, tuple[bytes, int]] = {
    **{name: (file(event), 5) for name, event in _METAS.items()},
    **{f"{name}, last": (file(b"", event), 5) for name, event in _METAS.items()},
    "RMID": (riff(MELODY), 5),
    "RMID in big endian": (riff(MELODY, b"RIFX", "big"), 5),
    "RMID with a list before": (riff(MELODY).replace(b"data", b"LIST\x04\0\0\0INFOdata"), 5),
    "RMID with an odd size": (riff(MELODY)[:-1], 5),
    "MacBinary": (b"\0\x04song" + bytes(122) + MELODY + bytes(90), 5),
    "a line before": (b"Content-Type: audio/midi\r\n\r\n" + MELODY, 5),
    "zeros behind": (MELODY + bytes(1000), 5),
    "a line behind": (MELODY + b"<!-- served by a proxy -->", 5),
    "a byte between chunks": (HEAD + b"\0" + CHUNK, 5),
    "a header of 8 bytes": (b"MThd\0\0\0\x08" + HEAD[8:] + b"\0\0" + CHUNK, 5),
    "a header of 0 bytes": (b"MThd\0\0\0\0" + HEAD[8:] + CHUNK, 5),
    "a header of very many bytes": (b"MThd\xff\xff\xff\xff" + HEAD[8:] + CHUNK, 5),
    "an unknown format": (header(1, 7, DIVISION) + CHUNK, 5),
    "format 0 with two tracks": (header(2, 0) + CHUNK + chunk(b"MTrk", END), 5),
    "a count of 0": (header(0, 1) + CHUNK, 5),
    "a count above what is there": (header(9, 1) + CHUNK, 5),
    "a count below what is there": (header(1, 1) + chunk(b"MTrk", END) + CHUNK, 5),
    "an unknown chunk before": (HEAD + chunk(b"XFIH", b"\xff" * 9) + CHUNK, 5),
    "an unknown chunk behind": (HEAD + CHUNK + chunk(b"CASM", b"\0" * 9), 5),
    "an unknown chunk with a wrong length": (HEAD + chunk(b"XFIH", bytes(9), 2**31) + CHUNK, 5),
    "a chunk with a name of zeros": (HEAD + chunk(bytes(4), bytes(9)) + CHUNK, 5),
    **{
        f"a track of {size} bytes by its header": (HEAD + chunk(b"MTrk", TRACK + END, size) + chunk(b"MTrk", END), 5)
        for size in (0, 1, len(TRACK) - 2, len(TRACK + END) - 1, len(TRACK + END) + 1, 900, 2**31, 2**32 - 1)
    },
    "a track that ends within its chunk": (HEAD + chunk(b"MTrk", TRACK + END + bytes(20)), 5),
    "no end of track": (file(end=b""), 5),
    "no end of any track": (header(2) + chunk(b"MTrk", meta(0x01, b"a")) + chunk(b"MTrk", TRACK), 5),
    "an end of track without its length": (HEAD + chunk(b"MTrk", TRACK + END)[:-1], 5),
    "an end of track with a length": (file(end=bytes((0, 0xFF, 0x2F, 5))), 5),
    "a cut end": (MELODY[: len(HEAD) + 8 + len(notes(40, 41, 43))], 3),
    "a cut event": (MELODY[: len(HEAD) + 8 + len(notes(40, 41, 43)) + 2], 3),
    "a cut file of two tracks": ((header(2) + chunk(b"MTrk", TRACK + END) + CHUNK)[: len(HEAD + CHUNK) + 3], 5),
    "a text that is longer than its track": (file(after=meta(0x01, b"abc", 5000)), 5),
    "a time that is too large": (file(after=b"\xff" * 9 + b"\x7f" + notes(50)[1:]), 5),
    "data without a status": (file(bytes((0, 5, 6))), 5),
    "a track without a status": (header(2) + chunk(b"MTrk", bytes((0, 40, 80)) + END) + CHUNK, 5),
    "running status behind a meta event": (file().replace(TRACK, _RUNNING), 2),
    "running status behind system exclusive": (
        file().replace(TRACK, _RUNNING.replace(meta(0x01, b"a"), b"\0\xf0\1\xf7")), 2,
    ),
    **{
        f"{frames} frames per second": (
            header(1, 0, (256 - frames) << 8 | 40)
            + chunk(b"MTrk", meta(0x51, b"\1\1\1") + notes(*PITCHES, beat=(30 if frames == 29 else frames) * 20) + END),
            5,
        )
        for frames in (24, 25, 29, 30)
    },
}  # fmt: skip
