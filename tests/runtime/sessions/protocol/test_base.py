"""What messages are made of."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runtime.sessions.protocol.base import MAX_SEQ, Message, Seq


class Counted(Message):
    seq: Seq


@pytest.mark.parametrize(
    "text", ['{"seq": 0}', f'{{"seq": {MAX_SEQ + 1}}}', '{"seq": "1"}', '{"seq": 1, "more": 2}', "{}"]
)
def test_wrong_members_are_refused(text: str) -> None:
    assert Counted.model_validate_json('{"seq": 1}').seq == 1
    with pytest.raises(ValidationError):
        Counted.model_validate_json(text)
