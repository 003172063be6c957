"""Lyria's messages: both spellings, numbers as texts, and what is wrong with a message."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import RequestError
from runtime.requests.options import parse_options
from server.live.incoming import ViolationError
from server.protocols.lyria.messages import (
    MAX_MESSAGE_BYTES,
    ClientContent,
    LyriaPrompt,
    MusicGenerationConfig,
    Scale,
    Setup,
    audio_message,
    parse_message,
    source_metadata,
)

NAMES = st.sampled_from(
    ["setup", "clientContent", "music_generation_config", "playbackControl", "bpm", "text", "weight"]
)


def parsed(**members: Any) -> Any:
    return parse_message(json.dumps(members))


def test_both_spellings_and_numbers_as_texts_are_the_same() -> None:
    camel = {"topK": 40, "bpm": 120, "guidance": 4.5, "muteBass": True, "musicGenerationMode": "QUALITY", "seed": 7}
    snake = {"top_k": "40", "bpm": "120", "guidance": "4.5", "mute_bass": "true", "music_generation_mode": "QUALITY"}
    config = parsed(musicGenerationConfig=camel)
    assert config == parsed(music_generation_config={**snake, "seed": 7.0})
    assert config == MusicGenerationConfig(
        top_k=40, bpm=120, guidance=4.5, mute_bass=True, music_generation_mode="QUALITY", seed=7
    )
    prompts = [{"text": "a", "weight": "0.5"}, {"text": "b"}]
    content = ClientContent(weighted_prompts=[LyriaPrompt(text="a", weight=0.5), LyriaPrompt(text="b", weight=1)])
    assert parsed(clientContent={"weightedPrompts": prompts}) == content
    assert parsed(client_content={"weighted_prompts": prompts}) == content
    assert parse_message(b'{"setup": {"model": "models/lyria-realtime-exp"}}') == Setup(
        model="models/lyria-realtime-exp"
    )
    assert parsed(playback_control="RESET_CONTEXT") == "RESET_CONTEXT"
    assert parsed(musicGenerationConfig={"scale": "SCALE_UNSPECIFIED", "bpm": None}) == MusicGenerationConfig()


def test_every_scale_is_a_key_of_the_options() -> None:
    keys = [MusicGenerationConfig(scale=scale).controls["scale"] for scale in Scale.__args__]
    assert len(set(keys)) == 12
    assert keys[1] == "Db major"
    assert all(parse_options({"prompt": "", "key": key}).key == key for key in keys)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("no JSON", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "exactly one of setup, clientContent, musicGenerationConfig, playbackControl"),
        ('{"playbackControl": "PLAY", "setup": {"model": "m"}}', "exactly one of"),
        ('{"play": true}', 'Unknown name "play": Cannot find field.'),
        ('{"setup": {"model": "m", "voice": 1}}', "Unknown name \"voice\" at 'setup': Cannot find field."),
        ('{"musicGenerationConfig": {"density": NaN}}', "not valid JSON"),
        ('{"playbackControl": "PLAY", "playbackControl": "STOP"}', "occurs more than once"),
        ("x" * (MAX_MESSAGE_BYTES + 1), "larger than"),
        (b"\xff\xfe", "not valid JSON"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_message_ends_the_connection(data: str | bytes, message: str) -> None:
    with pytest.raises(ViolationError) as error:
        parse_message(data)
    assert message in error.value.what


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"musicGenerationConfig": {"bpm": 300}}, "musicGenerationConfig.bpm: expected at most 200"),
        ({"musicGenerationConfig": {"bpm": "fast"}}, "musicGenerationConfig.bpm: expected an integer"),
        ({"musicGenerationConfig": {"density": "NaN"}}, "musicGenerationConfig.density: expected a finite number"),
        ({"musicGenerationConfig": {"scale": "H_MAJOR"}}, "musicGenerationConfig.scale: expected 'C_MAJOR_A_MINOR'"),
        ({"musicGenerationConfig": {"topK": 0}}, "musicGenerationConfig.topK: expected at least 1"),
        ({"clientContent": {"weightedPrompts": [{"text": "a", "weight": -1}]}}, "weight: expected at least 0"),
        ({"clientContent": {"weightedPrompts": [{"weight": 1}]}}, "weightedPrompts.0.text: is missing"),
        ({"clientContent": {}}, "weightedPrompts: is missing"),
        ({"clientContent": {"weightedPrompts": [{"text": "a"}] * 101}}, "weightedPrompts: expected at most 100 items"),
        ({"playbackControl": "LOUDER"}, "playbackControl: expected 'PLAY', 'PAUSE', 'STOP' or 'RESET_CONTEXT'"),
    ],
)
def test_a_wrong_value_is_named(members: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        parsed(**members)
    assert not isinstance(error.value, ViolationError)
    assert message in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=3),
)


@given(st.dictionaries(NAMES, JSON, max_size=2))
def test_any_json_is_a_message_or_a_request_error(members: dict[str, Any]) -> None:
    with suppress(RequestError):
        parse_message(json.dumps(members))


def test_audio_says_what_it_was_made_with() -> None:
    prompts = ClientContent(weighted_prompts=[LyriaPrompt(text="a", weight=2.0)])
    made = source_metadata(prompts, MusicGenerationConfig(mute_drums=True))
    (chunk,) = json.loads(audio_message(b"\x01\x02", made))["serverContent"]["audioChunks"]
    assert base64.b64decode(chunk["data"]) == b"\x01\x02"
    assert chunk["sourceMetadata"] == {
        "clientContent": {"weightedPrompts": [{"text": "a", "weight": 2.0}]},
        "musicGenerationConfig": {"muteDrums": True},
    }
