"""What made a generation, for its client to ask for: its headers have only what is short."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from pydantic import Field
from pydantic_core import to_json

from runtime.audio.metadata import GenerationMetadata, ascii_json, without_longest
from server.asgi.middleware import VALUE_BYTES
from server.asgi.shares import Holding, Shares
from server.config import MIB

PATH = "/v1/audio/generations"
# Texts of one response's headers: X-Parameters has what the others leave.
TEXTS_BYTES, WORDS_BYTES, NEAR_BYTES, MEANINGS_BYTES, PLAN_BYTES, MODEL_BYTES = 848, 128, 96, 224, 160, 48
# Cards that are kept, as JSON; each counts CARD_BYTES more than it has.
MAX_BYTES, CONTENT_BYTES, CARD_BYTES = 32 * MIB, 2 * MIB, 512


class GenerationCard(GenerationMetadata):
    """One generation, with the metadata of its file.

    unknown: words of its prompts that the model does not know; near: by such a word those that are written most like
    it. meanings: what of each prompt is played. sampling: its solver and steps, and why it does not jump. losses: what
    of uploaded audio and notes could not be read. estimated: its stems or notes are the encoder's guess. stems: the
    format of an archive of them, in place of response_format. sample_rate_hz, channels and bit_depth: null where the
    file has none, or none that is always the same.
    """

    id: str
    object: Literal["generation"] = "generation"
    created: int
    seed: int
    understood: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    near: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    meanings: tuple[dict[str, Any], ...] = ()
    sampling: dict[str, Any] = Field(default_factory=dict)
    losses: tuple[str, ...] = ()
    estimated: bool = False
    response_format: str
    stems: str | None = None
    seconds: float | None = None
    sample_rate_hz: int | None = None
    channels: int | None = None
    bit_depth: int | None = None

    @property
    def path(self) -> str:
        """Where it is told."""
        return f"{PATH}/{self.id}"

    def headers(self) -> dict[str, str]:
        """Headers of the response; in place of a text of which nothing fits, the path."""
        numbers = {
            "X-Seed": self.seed,
            "X-Sample-Rate": self.sample_rate_hz,
            "X-Channels": self.channels,
            "X-Bit-Depth": self.bit_depth,
        }
        return {
            "X-Generation-Id": self.id,
            "X-Model": percent_encoded(self.model, MODEL_BYTES),
            "X-Model-Version": percent_encoded(self.model_version, MODEL_BYTES),
            **{name: str(number) for name, number in numbers.items() if number is not None},
            **({"X-Estimated": "true"} if self.estimated else {}),
            **({"X-Damaged": "true"} if self.losses else {}),
            **self._texts(),
        }

    def _texts(self) -> dict[str, str]:
        texts = dict[str, str]()
        if self.unknown:
            texts["X-Prompt-Unknown"] = fitting(map(percent_encoded, self.unknown), WORDS_BYTES)
        if self.near:
            near = (f"{ascii_json(word)}: {ascii_json(others)}" for word, others in self.near.items())
            texts["X-Prompt-Near"] = fitting(near, NEAR_BYTES, ends="{}")
        if self.meanings:
            texts["X-Prompt-Meaning"] = fitting(map(ascii_json, self.meanings), MEANINGS_BYTES, ends="[]")
        if self.plan:
            plan = without_longest(self.plan, PLAN_BYTES)
            texts["X-Plan"] = ascii_json(plan) if plan else ""
        texts = {name: text or self.path for name, text in texts.items()}
        return {"X-Parameters": self._parameters(TEXTS_BYTES - sum(map(len, texts.values()))), **texts}

    def _parameters(self, num_bytes: int) -> str:
        """The options where they fit, else the path."""
        is_long = len(to_json(self.options)) > num_bytes  # sooner known than in ASCII, which is no shorter
        text = self.path if is_long else ascii_json(self.options)
        return text if len(text) <= num_bytes else self.path

    def content(self) -> bytes:
        """As JSON, without its longest options where it is too long to be kept."""
        content = self.model_dump_json()
        return (content if len(content) <= CONTENT_BYTES else self.bounded().model_dump_json()).encode()


class _Kept(NamedTuple):
    content: bytes
    until_s: float
    room: Holding


class GenerationCards:
    """The newest cards as JSON, for `keep_s` each; as much as all have makes room as it does in Shares."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._shares = Shares("keeps what made generations", MAX_BYTES, 0)
        self._cards: dict[str, _Kept] = {}

    def put(self, card: GenerationCard, client: str) -> None:
        """Keep a card of a client, in place of an older one of the same generation."""
        if (older := self._cards.pop(card.id, None)) is not None:
            older.room.release()
        content = card.content()
        room = self._shares.take(client, len(content) + CARD_BYTES, partial(self._cards.__delitem__, card.id))
        self._cards[card.id] = _Kept(content, time.monotonic() + self._keep_s, room)

    def get(self, card_id: str) -> bytes | None:
        """A card; None where it is not known, or not any more."""
        kept = self._cards.get(card_id)
        return None if kept is None or kept.until_s <= time.monotonic() else kept.content


def percent_encoded(text: str, num_bytes: int = VALUE_BYTES) -> str:
    """The characters of a text that fit, percent-encoded as UTF-8; spaces are kept."""
    return fitting((quote(character, safe=" ", errors="replace") for character in text[:num_bytes]), num_bytes, "")


def fitting(parts: Iterable[str], num_bytes: int, separator: str = ", ", ends: str = "") -> str:
    """The first parts, as many as fit, between `ends`: two characters, or none; "" where none fits."""
    taken, left = list[str](), num_bytes - len(ends)
    for part in parts:
        left -= len(part) + (len(separator) if taken else 0)
        if left < 0:
            break
        taken.append(part)
    return ends[:1] + separator.join(taken) + ends[1:] if taken else ""
