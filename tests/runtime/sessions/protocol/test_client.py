"""Messages of a client: their defaults, and members that have to fit each other."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runtime.sessions.protocol.client import Ack, Open, SetBand, SetControls, WriteAudio
from runtime.sessions.protocol.messages import parse_client_message


def test_defaults_of_open() -> None:
    message = parse_client_message('{"type": "open"}')
    assert isinstance(message, Open)
    assert (message.mode, message.slots, message.format, message.blend) == ("loop", 2, "s16", "velocity")


def test_messages_are_constructed_by_name() -> None:
    assert SetControls(seq=1, values={"guidance": 3}).type == "set"
    assert WriteAudio(seq=1, at_s=0.0, samples=1).format == "s16"
    assert Ack(playhead_sample=0).worst_lead_s is None


@pytest.mark.parametrize(("start_s", "end_s"), [(2.0, 1.0), (1.0, 1.0), (2.0, None), (None, 1.0)])
def test_a_band_has_both_ends_in_order_or_none(start_s: float | None, end_s: float | None) -> None:
    assert SetBand(seq=1, start_s=None, end_s=None).end_s is None
    with pytest.raises(ValidationError, match="start_s"):
        SetBand(seq=1, start_s=start_s, end_s=end_s)
