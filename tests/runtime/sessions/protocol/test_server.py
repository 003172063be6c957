"""Messages of a server: what is not known is null, and aliases are those of the protocol."""

from __future__ import annotations

import json

from runtime.sessions.protocol.messages import message_text
from runtime.sessions.protocol.server import Applied, ReadyControls


def test_null_members_are_sent() -> None:
    assert json.loads(message_text(Applied(seq=1)))["full_sample"] is None


def test_the_schema_of_the_controls_is_the_member_schema() -> None:
    controls = ReadyControls(schema={"type": "object"}, values={}, prompts=[], blend="velocity", seed=1)
    assert json.loads(controls.model_dump_json())["schema"] == {"type": "object"}
