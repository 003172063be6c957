"""server/live/PROTOCOL.md: its exchange runs against a server, and it names every message and every member."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from helpers.http_harness import serving, tiny
from helpers.live_player import Player, is_audio, player
from helpers.paths import ROOT

from runtime.config.deployment import Deployment
from runtime.live.protocol.frames import HEADER
from runtime.live.protocol.messages import CLIENT_MESSAGES, SUBPROTOCOL, parse_client_message
from runtime.live.protocol.server_messages import SERVER_MESSAGES, Applied, parse_server_message
from server.live.connection import CLOSE_CODES

__all__ = ["tiny"]
DOCUMENT = (ROOT / "server" / "live" / "PROTOCOL.md").read_text(encoding="utf-8")
(PLAN,) = re.findall(r"^```plan\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
NOTES = "".join(re.findall(r"^```notes\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
(EXCHANGE,) = re.findall(r"^```exchange\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
(BEAT,) = re.findall(r"^```beat\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
EXACT = (
    "type",
    "mode",
    "format",
    "seq",
    "code",
    "urn",
    "status",
    "field",
    "reason",
    "resumable",
    "resumed",
    "client_time_s",
)


def fits(shown: Any, value: Any, name: str = "") -> bool:
    """Whether a value is as shown: the same members of the same types; in EXACT members the same values."""
    if isinstance(shown, dict):
        return isinstance(value, dict) and all(fits(item, value.get(key), key) for key, item in shown.items())
    if name in EXACT:
        return bool(shown == value)
    is_number = isinstance(shown, int | float) and not isinstance(shown, bool)
    return isinstance(value, int | float) if is_number else shown is None or isinstance(value, type(shown))


def test_the_exchange_runs(tiny: Callable[..., Deployment]) -> None:
    with serving(tiny()) as served, player(served, subprotocols=[SUBPROTOCOL]) as client:
        for line in EXCHANGE.splitlines():
            direction, _, text = line.partition(" ")
            if direction == ">":
                client.send(**json.loads(text))
            elif text == "audio":
                client.receive_until(is_audio)
            else:
                receive_shown(client, json.loads(text))


def receive_shown(client: Player, shown: dict[str, Any]) -> None:
    """Receive until a message of the shown type; of the messages `applied`, until one fits."""

    def is_wanted(item: Any) -> bool:
        if is_audio(item) or item.type != shown["type"]:
            return False
        is_fitting = fits(shown, json.loads(item.model_dump_json()))
        assert is_fitting or isinstance(item, Applied) or item.type == "state", item
        return is_fitting

    client.receive_until(is_wanted)


@pytest.mark.parametrize("name", sorted({*CLIENT_MESSAGES, *SERVER_MESSAGES}))
def test_every_message_is_described(name: str) -> None:
    assert f"`{name}`" in DOCUMENT
    assert f'"type": "{name}"' in EXCHANGE + PLAN + BEAT + NOTES or name in (
        "source",
        "structure",
        "timbre",
        "adapter",
        "write",
        "band",
        "seek",
        "reset",
        "changed",
    )


def test_messages_about_the_beat_are_what_is_taken_and_sent() -> None:
    for line in BEAT.splitlines():
        direction, _, text = line.partition(" ")
        (parse_client_message if direction == ">" else parse_server_message)(text)


@pytest.mark.parametrize("name", sorted(CLIENT_MESSAGES))
def test_every_member_that_a_client_sends_is_described(name: str) -> None:
    (row,) = re.findall(rf"^\| [^|]*`{name}`[^|]*\|([^|]*)\|", DOCUMENT.partition("## The server")[0], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(CLIENT_MESSAGES[name].model_fields) - {"type"}


def test_shown_notes_are_messages() -> None:
    for line in NOTES.splitlines():
        models = CLIENT_MESSAGES if line.startswith("> ") else SERVER_MESSAGES
        assert models["notes"].model_validate_json(line[2:]).type == "notes"


def test_every_server_message_of_the_exchange_has_members_that_exist() -> None:
    for line in EXCHANGE.splitlines():
        if line.startswith("< {"):
            shown = json.loads(line[2:])
            assert set(shown) <= set(SERVER_MESSAGES[shown["type"]].model_fields)


def test_every_close_reason_and_the_header_are_described() -> None:
    for reason, code in CLOSE_CODES.items():
        assert re.search(rf"^\| {code} \|.*`{reason}`", DOCUMENT, re.MULTILINE), reason
    assert f"header of {HEADER.size} bytes" in DOCUMENT
