"""OSC packets, by python-osc.

Bundles are read here: python-osc's parser never ends where an element has a negative size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pythonosc.osc_message import OscMessage, ParseError
from pythonosc.osc_message_builder import OscMessageBuilder

from runtime.errors import RequestError

Argument = int | float | str | bool | None
# Parsing takes a time that grows with the square of it: 5 ms at 16 KiB.
MAX_PACKET_BYTES = 16 * 1024
BUNDLE, BUNDLE_HEADER_BYTES = b"#bundle\0", 16
# An address, and the types of the arguments, which an old sender leaves out where there are none.
HEAD = re.compile(rb"/[^\0]*\0{1,4}(,[ihfdsTFN]*\0.*)?", re.DOTALL)
MAX_INT = 2**63


def parse_packet(packet: bytes) -> list[tuple[str, list[Argument]]]:
    """Addresses and arguments of a message, or of a bundle's messages, whose time is now. Raises RequestError."""
    if len(packet) > MAX_PACKET_BYTES:
        raise RequestError(f"a packet of {len(packet)} bytes, at most {MAX_PACKET_BYTES} are taken")
    return [_parse_message(message) for message in _messages(packet)]


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
    if not HEAD.fullmatch(data):
        raise RequestError("expected an OSC message with arguments of the types i, h, f, d, s, T, F and N")
    try:
        message = OscMessage(data)
    except (ParseError, UnicodeDecodeError):
        raise RequestError("the OSC message is damaged") from None
    return message.address, message.params
