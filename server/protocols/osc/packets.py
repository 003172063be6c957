"""OSC packets: read here, written by python-osc.

Its parser takes a time that grows with the square of a packet, and never ends where an element has a negative size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pythonosc.osc_message_builder import OscMessageBuilder

from runtime.base.errors import RequestError

Argument = int | float | str | bool | None
MAX_PACKET_BYTES = 16 * 1024
BUNDLE, BUNDLE_HEADER_BYTES = b"#bundle\0", 16
NUMBERS = {kind: struct.Struct(f">{code}") for kind, code in {"i": "i", "h": "q", "f": "f", "d": "d"}.items()}
CONSTANTS = {"T": True, "F": False, "N": None}
TYPES = frozenset(("s", *NUMBERS, *CONSTANTS))
MAX_INT = 2**63


def parse_packet(packet: bytes) -> Iterator[tuple[str, list[Argument]]]:
    """Addresses and arguments of a message, or of a bundle's messages, whose time is now. Raises RequestError."""
    if len(packet) > MAX_PACKET_BYTES:
        raise RequestError(f"a packet of {len(packet)} bytes, at most {MAX_PACKET_BYTES} are taken")
    return map(_parse_message, _messages(packet))


def build_packet(address: str, arguments: Sequence[Argument]) -> bytes:
    """The packet of one message. An integer that OSC does not have is a text."""
    builder = OscMessageBuilder(address)
    for argument in arguments:
        is_text = isinstance(argument, str) or (isinstance(argument, int) and not -MAX_INT <= argument < MAX_INT)
        builder.add_arg(_text(argument) if is_text else argument)
    packet: bytes = builder.build().dgram
    return packet


def _text(value: object) -> str:
    return str(value).replace("\0", " ").encode(errors="replace").decode()


def _messages(packet: bytes) -> Iterator[bytes]:
    waiting = [(0, len(packet))]
    while waiting:
        start, end = waiting.pop()
        if packet[start : start + len(BUNDLE)] == BUNDLE:
            waiting += reversed(list(_elements(packet, start + BUNDLE_HEADER_BYTES, end)))
        else:
            yield packet[start:end]


def _elements(packet: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the elements of a bundle begin and end."""
    while start < end:
        size = int.from_bytes(packet[start : start + 4], "big")
        start += 4
        if size == 0 or size % 4 or start + size > end:
            raise RequestError("an element of the bundle has a wrong size")
        yield start, start + size
        start += size


def _parse_message(data: bytes) -> tuple[str, list[Argument]]:
    with suppress(ValueError, struct.error):
        address, start = _string(data, 0)
        # An old sender leaves the types out where there are no arguments.
        types, start = _string(data, start) if start < len(data) else (",", start)
        if address.startswith("/") and types.startswith(",") and TYPES.issuperset(types[1:]):
            return address, list(_arguments(data, types[1:], start))
    raise RequestError("expected an OSC message with arguments of the types i, h, f, d, s, T, F and N")


def _arguments(data: bytes, types: str, start: int) -> Iterator[Argument]:
    """The arguments of these types. Raises ValueError, struct.error."""
    value: Argument
    for kind in types:
        if kind in CONSTANTS:
            yield CONSTANTS[kind]
        elif kind == "s":
            value, start = _string(data, start)
            yield value
        else:
            (value,) = NUMBERS[kind].unpack_from(data, start)
            start += NUMBERS[kind].size
            yield value


def _string(data: bytes, start: int) -> tuple[str, int]:
    """A text and where the next part begins: it is filled up with 1 to 4 zeros. Raises ValueError."""
    end = data.index(b"\0", start)
    following = end + 4 - (end - start) % 4
    if following > len(data):
        raise ValueError("the packet ends in a text")
    return data[start:end].decode(), following
