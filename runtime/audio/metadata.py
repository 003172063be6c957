"""What a file was made from: model, options and seed as JSON, in the tags of audio files and of latents files.

The tag is TICKRT in flac, ogg (Vorbis comments), mp3 (ID3) and safetensors, the comment ICMT in wav, a text event in
mid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.audio.decoding import read_tags
from runtime.audio.formats import FORMATS, is_latents_file
from runtime.base.errors import FileError, RequestError
from runtime.base.files import open_file, read_file
from runtime.base.midi_events import META, TAG, TEXT, read_midi
from runtime.base.untrusted import safetensors_header

WAV_TAG = b"ICMT"
# What PyAV calls the wav tag.
WAV_TAG_NAME = "COMMENT"
MAX_BYTES = 2**20
# libsndfile and FFmpeg find no mp3 after a longer tag.
MP3_BYTES = 2**14
MAX_MIDI_BYTES = 2**24
# mido reads no longer text events than 10^6.
MIDI_BYTES = 2**19


class GenerationMetadata(BaseModel):
    """What a file was made from.

    options: those that were given, and the seed. inputs: SHA-256 of the latents of `source` and `target` and of the
    tokens `condition`, where the generation had them. plan: what its planner made: metadata by the planner's names, and
    structure codes, as far as they are short enough. omitted: names of options that are too long for a tag.
    bundle_sha256, precision: see ModelIdentity.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    model_version: str
    bundle_sha256: str = ""
    precision: str = ""
    options: dict[str, Any]
    inputs: dict[str, str] = {}
    plan: dict[str, Any] = {}
    omitted: tuple[str, ...] = ()

    def bounded(self, num_bytes: int = MAX_BYTES) -> GenerationMetadata:
        """The same without the longest options where the rest is longer than `num_bytes` as JSON; so of the plan."""
        options = without_longest(self.options, num_bytes)
        plan = without_longest(self.plan, num_bytes - len(ascii_json(options)))
        omitted = [name for name in self.options if name not in options]
        return self.model_copy(update={"options": options, "plan": plan, "omitted": (*self.omitted, *omitted)})

    def to_tag(self, format: str) -> str:
        """The text of the tag of a file: JSON in ASCII, of MAX_BYTES at most; MP3_BYTES in mp3, MIDI_BYTES in mid."""
        bounded = self.bounded({"mp3": MP3_BYTES, "mid": MIDI_BYTES}.get(format, MAX_BYTES))
        return ascii_json(bounded.model_dump(exclude_defaults=True))


def latents_tags(frame_rate_hz: float, metadata: str) -> dict[str, str]:
    """The metadata of a latents file; `metadata` is the text of its tag, "" for none."""
    tags = {"frame_rate_hz": f"{frame_rate_hz:g}"}
    return tags | {TAG: metadata} if metadata else tags


def without_longest(values: Mapping[str, Any], num_bytes: int) -> dict[str, Any]:
    """The values without the longest ones where the rest is longer than `num_bytes` as JSON."""
    sizes = {name: len(ascii_json({name: value})) for name, value in values.items()}
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if sum(sizes.values()) <= num_bytes:
            break
        del sizes[name]
    return {name: values[name] for name in sizes}


def ascii_json(value: Any) -> str:
    """JSON in printable ASCII, for tags and HTTP headers."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def read_metadata(path: Path) -> GenerationMetadata:
    """What a file was made from. Raises FileError where it cannot be read, RequestError where it does not say."""
    try:
        text = _tag_of(path)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return GenerationMetadata.model_validate_json(text)
    except ValidationError:
        raise RequestError(
            f"{path} does not say what it was made from: it has no tag {TAG}",
            field="like",
            fix="give a wav, flac, ogg, mp3, mid or safetensors file that TickRT wrote with metadata",
        ) from None


def _tag_of(path: Path) -> str:
    """The text of a file's tag; "" where there is none."""
    if path.suffix.lower() == FORMATS["mid"].suffix:
        return _midi_tag(path)
    return _latents_tag(path) if is_latents_file(path) else _audio_tag(path)


def _midi_tag(path: Path) -> str:
    """The text event that begins with the tag's name."""
    begin = bytes((TEXT,)) + f"{TAG}=".encode()
    with suppress(RequestError):  # no MIDI file, or a broken one
        file = read_midi(read_file(path, MAX_MIDI_BYTES))
        events = (data for i in range(len(file.tracks)) for _, status, data in file.events(i) if status == META)
        return next((data[len(begin) :].decode("utf-8", "replace") for data in events if data.startswith(begin)), "")
    return ""


def _audio_tag(path: Path) -> str:
    """The text of the tag; "" where there is none."""
    tags = read_tags(path)
    return tags.get(TAG, tags.get(WAV_TAG_NAME, ""))


def _latents_tag(path: Path) -> str:
    with open_file(path) as file, suppress(RequestError, KeyError, TypeError):
        return str(safetensors_header(file)["__metadata__"][TAG])
    return ""
