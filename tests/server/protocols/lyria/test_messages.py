"""Lyria's messages: both spellings, numbers as texts, and what is wrong with a message."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import RequestError
from runtime.requests.options import parse_options
from server.protocols.lyria.messages import (
    ClientContent,
    LyriaPrompt,
    MusicGenerationConfig,
    Scale,
    Setup,
    parse_message,
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


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=3),
)


@given(st.dictionaries(NAMES, JSON, max_size=2))
def test_any_json_is_a_message_or_a_request_error(members: dict[str, Any]) -> None:
    with suppress(RequestError):
        parse_message(json.dumps(members))
