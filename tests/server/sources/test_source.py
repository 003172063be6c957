"""The name of a source."""

from __future__ import annotations

import pytest

from server.sources.source import Source

ID = "0123456789abcdef" * 4


def test_a_source_is_made_of_its_name_and_size() -> None:
    source = Source(ID, 1500, "audio", 40)
    assert source.name == f"{ID}.1500.audio"
    assert Source.named(source.name, 40) == source


@pytest.mark.parametrize("name", ["notes.txt", f"{ID[1:]}.1.audio", f"{ID}.1.mp3", f"../{ID}.1.audio"])
def test_another_name_is_no_source(name: str) -> None:
    assert Source.named(name, 1) is None
