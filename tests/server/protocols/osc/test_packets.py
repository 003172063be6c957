"""OSC packets, against python-osc's builders and its own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pythonosc.osc_bundle_builder import IMMEDIATELY, OscBundleBuilder
from pythonosc.osc_message import OscMessage
from pythonosc.osc_message_builder import OscMessageBuilder, build_msg

from runtime.base.errors import RequestError
from server.protocols.osc.packets import MAX_PACKET_BYTES, build_packet, parse_packet

ARGUMENTS = st.lists(
    st.one_of(
        st.booleans(),
        st.none(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    ),
    max_size=5,
)


@settings(max_examples=60)
@given(ARGUMENTS)
def test_a_message_is_read_and_written_as_python_osc_does(arguments: list[object]) -> None:
    builder = OscMessageBuilder("/tickrt/guidance")
    for argument in arguments:
        builder.add_arg(argument)  # type: ignore[arg-type]
    packet = builder.build().dgram
    assert list(parse_packet(packet)) == [("/tickrt/guidance", OscMessage(packet).params)]
    assert OscMessage(build_packet("/tickrt/guidance", arguments)).params == arguments  # type: ignore[arg-type]


def test_what_osc_cannot_say_is_a_text() -> None:
    sent = [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, "a\0b", "\ud800"]
    assert OscMessage(build_packet("/a", sent)).params == [
        2**63 - 1,
        str(2**63),
        -(2**63),
        str(-(2**63) - 1),
        "a b",
        "?",
    ]


def test_a_message_without_types_has_no_arguments() -> None:
    assert list(parse_packet(b"/tickrt/play\0\0\0\0")) == [("/tickrt/play", [])]


def test_the_messages_of_a_bundle_keep_their_order() -> None:
    inner, outer = OscBundleBuilder(IMMEDIATELY), OscBundleBuilder(2_000_000_000)
    for value in (2, 3):
        inner.add_content(build_msg("/b", value))
    for content in (build_msg("/a", 1), inner.build(), build_msg("/c", 4)):
        outer.add_content(content)
    assert list(parse_packet(outer.build().dgram)) == [("/a", [1]), ("/b", [2]), ("/b", [3]), ("/c", [4])]
    assert list(parse_packet(OscBundleBuilder(IMMEDIATELY).build().dgram)) == []


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"", "expected an OSC message"),
        (b"tickrt", "expected an OSC message"),
        (b"/tickrt", "expected an OSC message"),
        (b"/a\0\0,s\0\0ab", "expected an OSC message"),
        (b"/a\0\0,s\0\0\xff\xff\0\0", "expected an OSC message"),
        (b"/a\0\0,i\0\0ab", "expected an OSC message"),
        (b"/a\0\0,[[]\0\0\0\0", "of the types"),
        (b"/a\0\0Q\0\0\0", "of the types"),
        (b"/a\0\0,Q\0\0", "of the types"),
        (b"#bundle\0" + bytes(8) + b"\0\0\0\x05/a\0\0\0", "wrong size"),
        (b"#bundle\0" + bytes(8) + b"\xff\xff\xff\xfc", "wrong size"),
        (b"#bundle\0" + bytes(8) + b"\0\0", "wrong size"),
        (b"#bundle\0" + bytes(8) + bytes(4), "wrong size"),
        (b"/" * (MAX_PACKET_BYTES + 4), "at most"),
    ],
)
def test_a_damaged_packet_is_refused(packet: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        list(parse_packet(packet))


def test_no_number_is_passed_on_for_another() -> None:
    ((_, (value,)),) = parse_packet(build_msg("/a", math.nan).dgram)
    assert math.isnan(value)  # type: ignore[arg-type]
