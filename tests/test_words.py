"""Keys, tempos, time signatures and formats as people write them, by every way that they come in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_bundle
from helpers.live_simulation import MODEL
from pydantic import ValidationError

from runtime.audio.formats import FORMATS, format_of
from runtime.base.errors import RequestError
from runtime.commands.generate_options import flag_values
from runtime.config.bundle import load_bundle
from runtime.config.words import NOTHING, is_instrumental, read_key, with_word
from runtime.live.parts.controls import check_controls
from runtime.requests.options import GenerationOptions, given_options, parse_options
from server.asgi.openapi import body_model
from server.asgi.problems import ProblemError
from server.protocols.acestep.fields import THEIR_NAMES, Fields
from server.protocols.acestep.request import task_request
from server.protocols.lyria.messages import MusicGenerationConfig, Scale
from tickrt.options import plain_options

WORDS: Mapping[str, Mapping[Any, Any]] = {
    "key": {
        "C major": "C major", "Bb Major": "Bb major", "C# Minor": "C# minor", "Am": "A minor", "am": "A minor",
        "B-flat Major": "Bb major", "F sharp minor": "F# minor", "f# min": "F# minor", "Gmaj": "G major",
        "E♭ maj": "Eb major", "F♯ minor": "F# minor", "Dbm": "Db minor", "CM": "C major", "G": "G major",
        "a-moll": "A minor", "A dur": "A major", "fis-moll": "F# minor", "Es-Dur": "Eb major", "As-Dur": "Ab major",
        "B-Dur": "Bb major", "H-moll": "B minor", " A  MINOR ": "A minor", "A_FLAT_MAJOR": "Ab major",
        "la menor": "A minor", "Fa# majeur": "F# major", "Sib maggiore": "Bb major", "Ré mineur": "D minor",
        "C:min": "C minor", "key of G": "G major", "in E minor": "E minor",
    },
    "bpm": {
        120: 120.0, 97.5: 97.5, "120": 120.0, "120 BPM": 120.0, "120bpm": 120.0, "118,5 bpm": 118.5, "~90": 90.0,
        "tempo: 99": 99.0, "100 beats per minute": 100.0, "♩=96": 96.0, "120-125 bpm": 125.0,
    },
    "time_signature": {
        4: 4, "4": 4, "4/4": 4, "3/4 time": 3, "6/8": 6, "2 / 4": 2, "common time": 4, "Cut time": 2, "4.0": 4, "C": 4,
    },
}  # fmt: skip
UNKNOWN: Mapping[str, tuple[str, ...]] = {
    "key": ("H major", "Cmaj7", "loud", "A" * 10_000, "C major" + " " * 10_000 + "x"),
    "bpm": ("fast", "900", "12 12", "9" * 10_000),
    "time_signature": ("7/8", "12/8", "4/4/4", "x"),
}
FORMAT_WORDS = {
    "MP3": "mp3", ".mp3": "mp3", "audio/mpeg": "mp3", "wave": "wav", "audio/x-wav": "wav", "WAV": "wav",
    "audio/wav; codecs=1": "wav", "Flac": "flac", "audio/flac": "flac", "OPUS": "ogg", "audio/ogg": "ogg",
}  # fmt: skip


def read_by_acestep(name: str, value: Any, folder: Path) -> Any:
    bundle = load_bundle(tiny_bundle(folder, conditions=True))
    request = task_request(Fields({"prompt": "a", THEIR_NAMES.get(name, name): value}), (), bundle)
    return request.values.get(name)


def read_by_schema(name: str, value: Any) -> Any:
    return getattr(body_model(30.0).model_validate({"prompt": "", name: value}), name)


# By what a value comes in -> what it becomes there.
ENTRIES: Mapping[str, Callable[[str, Any, Path], Any]] = {
    "options": lambda name, value, _: getattr(parse_options({"prompt": "", name: value}), name),
    "HTTP": lambda name, value, _: read_by_schema(name, value),
    "live": lambda name, value, _: check_controls({name: value}, MODEL)[name],
    "command line": lambda name, value, _: getattr(
        parse_options({"prompt": "", **flag_values([], [], {name: str(value)})}), name
    ),
    "Python": lambda name, value, _: getattr(parse_options({"prompt": "", **plain_options({name: value})}), name),
    "ACE-Step": read_by_acestep,
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_words_are_the_same_wherever_they_come_in(entry: str, name: str, tmp_path: Path) -> None:
    found = {word: ENTRIES[entry](name, word, tmp_path / str(i)) for i, word in enumerate(WORDS[name])}
    assert found == dict(WORDS[name])
    nothing = {word: ENTRIES[entry](name, word, tmp_path / word.strip()) for word in ("none", " auto ", "Unknown")}
    assert set(nothing.values()) == {None}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("entry", ENTRIES)
def test_other_words_are_refused_with_what_is_expected(entry: str, name: str, tmp_path: Path) -> None:
    expected = {"key": "such as|at most 50", "bpm": "number|300", "time_signature": "2, 3, 4 or 6|2, 3, 4, 6"}
    for i, word in enumerate(UNKNOWN[name]):
        with pytest.raises((RequestError, ProblemError, ValidationError), match=f"{expected[name]}|at most 8192"):
            ENTRIES[entry](name, word, tmp_path / str(i))


def test_a_tempo_is_held_against_the_models_range_however_it_is_written() -> None:
    ranges = MODEL.ranges.model_validate({"bpm": {"min": 60, "max": 180}})
    for tempo in (200, "200 BPM"):
        with pytest.raises(RequestError, match="is 200, this model takes 60 to 180"):
            parse_options({"prompt": "", "bpm": tempo}, ranges)


def test_what_was_taken_is_what_files_and_headers_say() -> None:
    options = parse_options({"prompt": "", "key": "B-flat Major", "bpm": "120 BPM", "time_signature": "4/4"})
    said = json.loads(options.model_dump_json(exclude_unset=True))
    assert said == {"prompt": "", "key": "Bb major", "bpm": 120.0, "time_signature": 4}


@pytest.mark.parametrize("scale", [name for name in Scale.__args__ if "MAJOR" in name])
def test_scales_of_lyria_are_keys_of_the_options(scale: str) -> None:
    key = MusicGenerationConfig(scale=scale).controls["scale"]
    assert parse_options({"prompt": "", "key": key}).key == key == read_key(key)


@pytest.mark.parametrize("text", ["[Instrumental]", "[inst]", "instrumental", "(No vocals)", "[INSTRUMENTAL]\n", "N/A"])
def test_lyrics_that_say_that_nothing_is_sung_are_none(text: str) -> None:
    assert is_instrumental(text)
    assert given_options(GenerationOptions(prompt="", lyrics=text), ["lyrics"]) == []
    assert given_options(GenerationOptions(prompt="", lyrics=f"{text} la la"), ["lyrics"]) == ["lyrics"]


@pytest.mark.parametrize("word", FORMAT_WORDS)
def test_formats_are_known_by_their_usual_names(word: str, tmp_path: Path) -> None:
    body = {"prompt": "a", "audio_format": word}
    request = task_request(Fields(body), (), load_bundle(tiny_bundle(tmp_path, conditions=True)))
    assert request.values["response_format"] == FORMAT_WORDS[word]
    assert read_by_schema("response_format", word) == FORMAT_WORDS[word]
    assert format_of(Path("a"), word) == FORMAT_WORDS[word]


def test_every_format_is_known_by_its_suffix_and_media_type() -> None:
    for item in FORMATS.values():
        assert {format_of(Path("a"), text) for text in (item.name, item.suffix, item.media_type)} == {item.name}
    with pytest.raises(ValidationError, match="latents"):
        read_by_schema("response_format", "aac")


def test_what_says_nothing_is_no_word() -> None:
    assert {read_key(text) for text in NOTHING} == {None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a Drone", "a pad"),
        ("drone, drones and drone-like", "pad, drones and pad-like"),
        ("dronedrone adrone", "dronedrone adrone"),
        ("", ""),
        ("İ drone", "İ pad"),  # of another length in lower case
    ],
)
def test_a_word_is_replaced_where_it_stands_alone(text: str, expected: str) -> None:
    assert with_word(text, "drone", "pad") == expected
