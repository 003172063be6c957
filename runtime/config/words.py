"""Keys, tempos, time signatures, spans, adapters and names as people write them: one reader for all that takes them.

Each takes a value of any type and leaves what it cannot read as it is: the option's own check says what it expects.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Final

MAX_CHARACTERS: Final = 50
MAX_ITEM_CHARACTERS: Final = 200
# Texts that say nothing: the model's choice.
NOTHING: Final = frozenset(
    ("", "-", "n/a", "na", "none", "null", "auto", "any", "unknown", "unspecified", "not specified", "default")
)
INSTRUMENTAL: Final = frozenset(("inst", "instrumental", "no vocals", "no vocal", "no lyrics"))
_KEY = re.compile(r"([a-g]) ?(#|b|sharp|flat|) ?(major|maj|minor|min|m|)", re.IGNORECASE)
_GERMAN_KEY = re.compile(r"([a-h](?:is|es|s|#|b|)) ?(dur|moll)", re.IGNORECASE)
_ROMANCE_KEY = re.compile(
    r"(do|re|mi|fa|sol|la|si) ?(#|b|) ?(mayor|menor|majeur|mineur|maggiore|minore|maior|)", re.IGNORECASE
)
_ROMANCE: Final = {"do": "C", "re": "D", "mi": "E", "fa": "F", "sol": "G", "la": "A", "si": "B"}
_KEY_PREFIX = re.compile(r"(?:in )?(?:the )?(?:key )?(?:of |is )?", re.IGNORECASE)
# A German B is flat, and H is the note above it.
_GERMAN: Final = {"b": "Bb", "h": "B", "as": "Ab", "es": "Eb"}
_TEMPO = re.compile(
    r"(?:tempo|bpm)?[ :=~]*(\d{1,9}(?:[.,]\d{1,6})?) ?(?:bpm|b\.p\.m\.?|beats per minute)?", re.IGNORECASE
)
_METER = re.compile(r"(\d{1,2})(?:\.0)?(?: ?/ ?[248])?(?: time)?", re.IGNORECASE)
_SPAN = re.compile(r"(\+?(?:\d++\.?\d*+|\.\d++)) ?: ?(\+?(?:\d++\.?\d*+|\.\d++)) ?s?")
_STRENGTH = re.compile(r"[+-]?(?:\d++\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?")
_METER_NAMES: Final = {"c": 4, "common": 4, "common time": 4, "cut": 2, "cut time": 2, "alla breve": 2, "waltz": 3}

_NUMBER: Final = r"[1-9][0-9]{1,2}(?:[.,][0-9]{1,6})?(?![0-9'’]|[.,][0-9]| ?/|s(?![a-z]))"
_UNIT: Final = (
    r"\+?[ -]?(?:bpm|b\.p\.m\.?|beats? ?(?:per|a|/) ?min(?:ute)?|schlage?(?: (?:pro|in der|die) minute)?|"
    r"battements(?: par minute)?|pulsaciones(?: por minuto)?|negras por minuto)(?![a-z])"
)
_BEGINS: Final = r"(?<![a-z0-9.,/#:+<'’_-])"
# Words that a number behind them belongs to.
_NAMES: Final = (
    "top in no no. nr nr. number op op. opus bwv kv k. route highway interstate studio area level blink eiffel windows"
    " juno jupiter mpc tr dx sp mk vol vol. volume part page chapter channel since of year years the from for"
)
_RANGE_BEGINS: Final = rf"{_BEGINS}(?:between |zwischen |entre )?(?=(?:[3-9]|[12][0-9])[0-9](?![0-9]))"
_RANGE_TO: Final = r" ?(?:-|–|—|~|\.\.+|to|bis|a|and|und|et|y) ?"
_COUNTED: Final = (  # no tempo: it counts something, which is mostly a plural
    r"(?![ -]*(?:[%°$€]|(?:bit|min|sec|k?hz|db|m?s|rpm|th|er|percent|prozent|minuten?|sekunden|jahren?|takten?|leuten?|"
    r"personen|year|piece|string|voice|bar|track|inch|man|ans|mann)(?![a-z])|"
    r"(?!(?:drums|pads|arps|chords|blues|synths|strings)(?![a-z]))[a-z]{2,}[a-rt-z]s(?![a-z])))"
)
_PHRASE_ENDS: Final = (
    r"(?= *(?:$|[,.;:!?)<|\n\r]|[-–—] |(?:with|and|but|without|no|only|mit|und|ohne|nur|aber|avec|et|sans|con|y|sin|"
    r"(?:deep |hard |dark |sad )?(?:techno|house|trance|dnb|drum|dubstep|trap|hip|rap|pop|rock|punk|metal|jazz|funk|"
    r"disco|reggae|lo-?fi|ambient|edm|beat|groove|half|double))(?![a-z])))"
)
_TEMPO_NAMES: Final = r"bpm|b\.p\.m\.|tempo|speed|metronome?|m\.m\.|geschwindigkeit|velocidad|vitesse"
_NOTE_NAMES: Final = "q|quarter(?:[ -]note)?|crotchet|viertel|noire|negra|mm"
_AT: Final = rf"(?:[@~≈]|{_BEGINS}(?:at|a|bei|um|ca|circa|around|auf)(?![a-z])\.?)"
_OF: Final = r"(?:(?:is|ist|of|von|de|at|um|bei|about|around|approx|circa|ca|to|auf|a)\.?(?![a-z]) *|[=:~≈@] *|- )*+"
_NOT_NAMED: Final = "".join(rf"(?<!\b{re.escape(name)} )" for name in _NAMES.split())
_MIDDLE: Final = "(?=(?:[6-9]|1[0-9])[0-9](?![0-9]))"
# What makes every tempo of a plain text `tempo:NUMBER`, with `bpm` behind it for a unit, in order: patterns that
# Python and Oniguruma read alike. Of a range the upper end counts.
TEMPO_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(rf"(?<=[0-9]),(?=[0-9]{{1,6}}{_UNIT})"), "."),
    (re.compile(rf"{_RANGE_BEGINS}{_NUMBER}{_RANGE_TO}(?={_NUMBER}(?:{_UNIT}|(?![a-z-])))"), ""),
    (re.compile(rf"{_BEGINS}(?:{_TEMPO_NAMES}) *{_OF}(?={_NUMBER})"), " tempo:"),
    (re.compile(rf"(?:♩|♪|{_BEGINS}(?:{_NOTE_NAMES})) *= *(?={_NUMBER})"), " tempo:"),
    (re.compile(rf"{_BEGINS}(?={_NUMBER}{_UNIT})"), " tempo:"),
    (re.compile(rf"{_AT} *(?=(?:[4-9]|[12][0-9])[0-9](?![0-9]))(?={_NUMBER}{_COUNTED})"), " tempo:"),
    (re.compile(rf"{_NOT_NAMED}{_BEGINS}{_MIDDLE}(?={_NUMBER}{_PHRASE_ENDS})"), " tempo:"),
    (re.compile(rf"(?<=[0-9]){_UNIT}"), "bpm"),
)
_MARKED = re.compile(r"(?<![a-z<])tempo:([0-9]+(?:\.[0-9]+)?)")


def read_key(value: Any) -> Any:
    """ "Bb Major", "B-flat Major", "Am", "f# min", "fis-moll" as "Bb major", "A minor", "F# minor"."""
    return _read(value, _key)


def read_tempo(value: Any) -> Any:
    """ "120", "120 BPM", "118,5 bpm" as 120.0 and 118.5."""
    return _read(value, _tempo)


def read_time_signature(value: Any) -> Any:
    """ "4/4", "6/8", "3", "common time" as the number of beats: 4, 6, 3 and 4."""
    return _read(value, _beats)


def read_spans(value: Any) -> Any:
    """ "8:12" or "8:12, 20:24.5", or a list of such texts, as [{"start_s": 8.0, "end_s": 12.0}]."""
    return _read_each(value, _span)


def read_adapters(value: Any) -> Any:
    """ "soft", "soft:0.7", {"soft": 0.7}, one object, or a list of those, as [{"id": "soft", "strength": 0.7}]."""
    match value:
        case {"id": _}:
            return [value]
        case dict():
            return [{"id": name, "strength": strength} for name, strength in value.items()]
    return _read_each(value, _adapter)


def read_names(value: Any) -> Any:
    """ "drums, bass" as ["drums", "bass"]."""
    return _read_each(value, str.strip) if isinstance(value, str) else value


# Option -> what reads it.
READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "key": read_key, "bpm": read_tempo, "time_signature": read_time_signature,
}  # fmt: skip


def written_tempo(text: str) -> float | None:
    """The first tempo that a prompt says, such as "at 92", "bpm: 93.5" or "90-95 bpm"; None where it says none."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char)).lower()
    for pattern, marked in TEMPO_RULES:
        plain = pattern.sub(marked, plain)
    found = _MARKED.search(plain)
    return None if found is None else float(found[1])


def with_word(text: str, word: str, other: str) -> str:
    """A text with another in the place of a word or several, where they stand alone, in any case."""
    plain, place, found = text.lower(), 0, list[str]()
    plain = plain if len(plain) == len(text) else text
    while (start := plain.find(word.lower(), place)) >= 0:
        end = start + len(word)
        is_alone = not plain[max(start - 1, 0) : start].isalnum() and not plain[end : end + 1].isalnum()
        found += [text[place:start], other if is_alone else text[start:end]]
        place = end
    return "".join([*found, text[place:]])


def is_instrumental(lyrics: str) -> bool:
    """Whether lyrics, or a tag of theirs, say that nothing is sung, such as "[Instrumental]"; none do not say it."""
    text = lyrics.strip(" \n\t[](){}.").casefold() if len(lyrics) <= MAX_CHARACTERS else ""
    return bool(text) and text in INSTRUMENTAL | NOTHING


def _read(value: Any, read: Callable[[str], Any]) -> Any:
    """None for a text that says nothing; what is no text, too long or not understood as it is."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        return value
    text = " ".join(value.split())
    if text.casefold() in NOTHING:
        return None
    found = read(text)
    return value if found is None else found


def _read_each(value: Any, read: Callable[[str], Any]) -> Any:
    """Each text of a list, or of a text with commas; what is not understood as it is."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        return value
    found = [read(item) if isinstance(item, str) and len(item) <= MAX_ITEM_CHARACTERS else None for item in items]
    return [item if each is None else each for item, each in zip(items, found, strict=True)]


def _span(text: str) -> dict[str, float] | None:
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else {"start_s": float(found[1]), "end_s": float(found[2])}


def _adapter(text: str) -> dict[str, Any] | None:
    name, separator, strength = text.strip().rpartition(":")
    if not separator:
        return {"id": text.strip()}
    return {"id": name, "strength": float(strength)} if _STRENGTH.fullmatch(strength.strip()) else None


def _key(text: str) -> str | None:
    plain = " ".join(re.sub(r"[_:-]", " ", text.replace("♯", "#").replace("♭", "b")).rstrip(".").split())
    plain = _KEY_PREFIX.sub("", plain.replace("é", "e").replace("É", "E"), count=1)
    if (romance := _ROMANCE_KEY.fullmatch(plain)) is not None:
        is_minor = romance[3].lower().startswith(("men", "min"))
        return f"{_ROMANCE[romance[1].lower()]}{romance[2]} {'minor' if is_minor else 'major'}"
    if (german := _GERMAN_KEY.fullmatch(plain)) is not None:
        return f"{_german_note(german[1].lower())} {'major' if german[2].lower() == 'dur' else 'minor'}"
    if (found := _KEY.fullmatch(plain)) is None:
        return None
    sign = {"sharp": "#", "flat": "b"}.get(found[2].lower(), found[2].lower())
    is_minor = found[3] == "m" or found[3].lower().startswith("min")
    return f"{found[1].upper()}{sign} {'minor' if is_minor else 'major'}"


def _tempo(text: str) -> float | None:
    found = _TEMPO.fullmatch(text)
    return written_tempo(text) if found is None else float(found[1].replace(",", "."))


def _beats(text: str) -> int | None:
    found = _METER.fullmatch(text)
    return _METER_NAMES.get(text.casefold()) if found is None else int(found[1])


def _german_note(name: str) -> str:
    letter, sign = name[0], name[1:].replace("is", "#").replace("es", "b").replace("s", "b")
    return _GERMAN.get(name) or _GERMAN.get(letter, letter.upper())[:1] + sign
