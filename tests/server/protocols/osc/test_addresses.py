"""OSC addresses: drawn from the schema, and the messages that their arguments make."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pythonosc.osc_bundle_builder import IMMEDIATELY, OscBundleBuilder
from pythonosc.osc_message import OscMessage
from pythonosc.osc_message_builder import OscMessageBuilder, build_msg

from runtime.base.errors import RequestError
from runtime.live.parts.controls import LiveControls
from runtime.live.protocol.messages import CLIENT_MESSAGES
from server.protocols.osc.addresses import NO_ADDRESSES, Address, AddressKind, AddressTable
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
VALUES: dict[str, Any] = {
    "guidance": 3.0,
    "dcw": {"mode": "double", "low": 0.0, "high": 0.1},
    "prompts": [{"text": "a", "weight": 1.0}],
    "adapters": [{"id": "soft", "strength": 0.5}],
    "source": None,
    "timbre": {"id": "abc", "strength": None},
    "band": [0.0, 2.0],
    "playing": True,
}


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


def test_the_messages_of_a_bundle_keep_their_order() -> None:
    inner, outer = OscBundleBuilder(IMMEDIATELY), OscBundleBuilder(2_000_000_000)
    for value in (2, 3):
        inner.add_content(build_msg("/b", value))
    for content in (build_msg("/a", 1), inner.build(), build_msg("/c", 4)):
        outer.add_content(content)
    assert list(parse_packet(outer.build().dgram)) == [("/a", [1]), ("/b", [2]), ("/b", [3]), ("/c", [4])]
    assert list(parse_packet(OscBundleBuilder(IMMEDIATELY).build().dgram)) == []
    assert list(parse_packet(b"/tickrt/play\0\0\0\0")) == [("/tickrt/play", [])], "without types, no arguments"


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


@pytest.fixture(scope="module")
def table() -> AddressTable:
    return AddressTable(LiveControls.model_json_schema())


def found(table: AddressTable, name: str) -> Address:
    address = table.find(name)
    assert address is not None
    return address


def test_every_control_and_every_message_for_clients_has_an_address(table: AddressTable) -> None:
    names = {address.name for address in table.all(VALUES)}
    shown = {address.shows for address in table.all(VALUES)}
    assert set(LiveControls.model_fields) <= shown
    assert set(CLIENT_MESSAGES) - set(NO_ADDRESSES) <= names
    assert {"dcw/low", "prompt/1/text", "prompt/1/weight", "adapter/soft", "blend", "playing", "mode"} <= names


def test_what_a_model_does_not_take_has_no_address() -> None:
    schema = LiveControls.model_json_schema()
    del schema["properties"]["timbre_strength"]
    names = {address.name for address in AddressTable(schema).all(VALUES)}
    assert "structure" in names
    assert not {"timbre", "timbre_strength"} & names


@pytest.mark.parametrize(
    ("name", "arguments", "members"),
    [
        ("guidance", [5], {"type": "set", "values": {"guidance": 5.0}}),
        ("guidance", [5.0, 1.0], {"type": "set", "values": {"guidance": [5.0, 1.0]}}),
        ("guidance", [None], {"type": "set", "values": {"guidance": None}}),
        ("steps", [7.6], {"type": "set", "values": {"steps": 8}}),
        ("solver", [1.0], {"type": "set", "values": {"solver": "sde"}}),
        ("solver", ["sde"], {"type": "set", "values": {"solver": "sde"}}),
        ("track_classes", ["bass"], {"type": "set", "values": {"track_classes": ["bass"]}}),
        ("dcw/low", [0.2], {"type": "set", "values": {"dcw": {"mode": "double", "low": 0.2, "high": 0.1}}}),
        ("prompt/1/weight", [2], {"type": "prompts", "items": [{"text": "a", "weight": 2.0}]}),
        ("prompt/2/text", ["b"], {"type": "prompts", "items": [VALUES["prompts"][0], {"text": "b", "weight": 1.0}]}),
        ("blend", ["tokens"], {"type": "prompts", "items": VALUES["prompts"], "blend": "tokens"}),
        ("adapter/warm", [1.5], {"type": "adapter", "id": "warm", "strength": 1.5}),
        ("adapter/e\u0301te\u0301 (2)", [1.5], {"type": "adapter", "id": "\xe9t\xe9 (2)", "strength": 1.5}),
        ("adapter", ["warm", None], {"type": "adapter", "id": "warm", "strength": None}),
        ("source", ["abc", 0.5], {"type": "source", "id": "abc", "strength": 0.5}),
        ("source", [""], {"type": "source", "id": None}),
        ("band", [], {"type": "band", "start_s": None, "end_s": None}),
        ("band", [1, 2.5], {"type": "band", "start_s": 1.0, "end_s": 2.5}),
        ("seek", [1.5], {"type": "seek", "to_s": 1.5}),
        ("seek", [1.5, "bar"], {"type": "seek", "to_s": 1.5, "at": "bar"}),
        ("band", [None, None, 7.5], {"type": "band", "start_s": None, "end_s": None, "at": 7.5}),
        ("muted", ["drums", "bass"], {"type": "mute", "layers": ["drums", "bass"]}),
        ("muted", [""], {"type": "mute", "layers": []}),
        ("muted", [], {"type": "mute", "layers": []}),
        ("play", [], {"type": "play"}),
        ("pause", [1.0], {"type": "pause"}),
        ("playing", [0.0], {"type": "pause"}),
    ],
)
def test_arguments_make_a_message(
    table: AddressTable, name: str, arguments: list[Any], members: dict[str, Any]
) -> None:
    message = found(table, name).message(arguments, VALUES)
    assert message is not None
    dumped = message.model_dump()
    assert {key: dumped[key] for key in members} == members


def test_a_released_button_does_nothing(table: AddressTable) -> None:
    assert found(table, "play").message([0.0], VALUES) is None
    assert found(table, "play").message([False], VALUES) is None


@pytest.mark.parametrize("name", ["gudance", "prompt/9/text", "prompt/0/text", "adapter/", "", "set", "write", "close"])
def test_an_unknown_address(table: AddressTable, name: str) -> None:
    assert table.find(name) is None
    assert "no address" in table.unknown(name).what


def test_values_are_shown_at_the_addresses_that_have_them(table: AddressTable) -> None:
    changed = {
        "dcw": {"mode": "low", "low": 0.5, "high": 0.1},
        "adapters": [{"id": "warm", "strength": 2.0}],
        "prompts": [{"text": "b", "weight": 0.5}],
        "source": {"id": "abc", "strength": 0.25},
        "band": None,
        "playing": False,
        "muted": [],
        "prompt_words": [],
    }
    assert dict(table.shown(VALUES, changed)) == {
        "dcw/mode": ["low"],
        "dcw/low": [0.5],
        "dcw/high": [0.1],
        "adapter/soft": [0.0],
        "adapter/warm": [2.0],
        "prompt/1/text": ["b"],
        "prompt/1/weight": [0.5],
        "source": ["abc", 0.25],
        "muted": [""],
        "playing": [0],
    }


def test_a_description_has_range_choices_and_value(table: AddressTable) -> None:
    assert found(table, "guidance").description(VALUES) == ["f", 0.0, 50.0, "", 3.0]
    assert found(table, "dcw/mode").description(VALUES) == ["s", None, None, "low|high|double|pix", "double"]
    assert found(table, "timbre").description(VALUES) == ["sff", None, None, "", "abc"]
    assert found(table, "play").description(VALUES) == ["", None, None, ""]


def test_an_argument_of_another_type_is_left_for_the_message_to_refuse() -> None:
    assert AddressKind("i").one("7") == "7"
    assert math.isinf(AddressKind("i").one(math.inf))
    assert AddressKind("s", choices=("a", "b")).one(5.0) == 5.0
    assert AddressKind("s").one(2.0) == 2.0
    assert AddressKind("f").one(True) == 1.0
