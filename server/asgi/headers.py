"""Response headers: what HTTP can carry, and together less than proxies take: by default, 4 KiB."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, quote_from_bytes

# Those of one response together are below MAX_BYTES: of one value, only a client's URL can make more than VALUE_BYTES.
MAX_BYTES, VALUE_BYTES = 2048, 1024
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
# Of the response of a generation; each is a decimal number, or a text.
GENERATION_HEADERS = {
    "X-Generation-Id": "The generation's id: GET /v1/audio/generations/{id} has all that these headers cut",
    "X-Seed": "The seed: the requested one, or the one drawn",
    "X-Model": "The model's id",
    "X-Model-Version": "The model's version, percent-encoded",
    "X-Parameters": "The options and the seed as JSON: a body that repeats the request; where that is too long, the "
    "path of GET /v1/audio/generations/{id}, which has it as `options`",
    "X-Plan": "What was planned, as JSON, as far as it fits, or the same path",
    "X-Prompt-Unknown": "Prompt words that the model does not know, percent-encoded: as many as fit, or the same path",
    "X-Prompt-Near": "As JSON: such a word -> those that are written most like it: as many as fit, or the same path",
    "X-Prompt-Meaning": "What of each prompt is played, as JSON, of as many as fit, or the same path: `plays` in one "
    "line, `meaning` by kind, `drawn` by kind what the seed draws where it names nothing of it, "
    "`bound` moods of single parts",
    "X-Estimated": '"true": stems or notes of uploaded audio are estimates',
    "X-Damaged": '"true": parts of uploaded audio or notes could not be read; the path above has them as `losses`',
    "X-Sample-Rate": "Samples per second",
    "X-Channels": "Audio channels",
    "X-Bit-Depth": "Bits per sample of wav, pcm and flac",
}
NUMBERS = ("X-Seed", "X-Sample-Rate", "X-Channels", "X-Bit-Depth")


def sendable(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers as they are sent: printable ASCII without spaces around it, other bytes percent-encoded.

    Every response passes here, so that no text of a client or a model makes one that cannot be sent. What is longer
    than VALUE_BYTES is left out.
    """
    encoded = ((name, quote_from_bytes(value, safe=PRINTABLE).strip().encode()) for name, value in headers)
    return [(name, value) for name, value in encoded if len(value) <= VALUE_BYTES]


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
