"""What is told of generations: short headers of any text, and how long, and of whom, the rest is kept."""

from __future__ import annotations

import itertools
import json
from typing import Any
from urllib.parse import unquote

import pytest
from helpers.http_harness import GENERATIONS, sent_head, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from server.asgi.middleware import MAX_BYTES, sendable
from server.asgi.openapi import GENERATION_HEADERS
from server.service import generation_cards
from server.service.generation_cards import GenerationCard, GenerationCards

LONG = {"a" * 2000: ("b" * 2000,) * 9}
ID = "a" * 32
# Short ones, and so long that nothing else fits.
WORDS = st.builds(str.__mul__, st.text(max_size=9), st.sampled_from((1, 1, 99)))
TABLES = st.dictionaries(WORDS, WORDS | st.floats(allow_nan=False), max_size=4)


def card(**changes: Any) -> GenerationCard:
    given = {"model": "m", "model_version": "1", "options": {}, "id": ID, "created": 1, "seed": 1}
    return GenerationCard(**{**given, "response_format": "wav", **changes})


def size(headers: dict[str, str]) -> int:
    return sum(len(f"{name}: {value}\r\n") for name, value in headers.items())


WORST = 50 + size(
    card(
        model="m" * 99,
        model_version="\u00e9" * 99,
        seed=2**64 - 1,
        estimated=True,
        sample_rate_hz=192_000,
        channels=2,
        bit_depth=24,
        unknown=("x" * 127,),
        near={"x" * 40: ("y" * 46,)},
        meanings=({"plays": "p" * 208},),
        plan={"caption": "c" * 140},
        options={"prompt": "p" * 205},
    ).headers()
)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.tuples(WORDS, WORDS),
    options=TABLES,
    plan=TABLES,
    unknown=st.lists(WORDS.map(str.strip).filter(bool), max_size=20),
    near=st.dictionaries(WORDS, st.lists(WORDS, max_size=3), max_size=4),
    meanings=st.lists(st.fixed_dictionaries({"plays": WORDS}), max_size=4),
)
def test_any_text_makes_short_headers_that_h11_sends(
    texts: tuple[str, str],
    options: dict[str, Any],
    plan: dict[str, Any],
    unknown: list[str],
    near: dict[str, Any],
    meanings: list[dict[str, str]],
) -> None:
    told = card(
        **dict(zip(("model", "model_version"), texts, strict=True)),
        options=options,
        plan=plan,
        unknown=unknown,
        near=near,
        meanings=meanings,
    )
    headers = told.headers()
    assert size(headers) <= WORST
    assert set(headers) <= set(GENERATION_HEADERS)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert sent_head(sendable(raw)).startswith(b"HTTP/1.1 200")
    words = [unquote(word) for word in headers.get("X-Prompt-Unknown", "").split(", ")]
    assert words in ([GENERATIONS + "/" + ID], unknown[: len(words)], [""])
    for name, value in (("X-Parameters", options), ("X-Plan", plan), ("X-Prompt-Near", near)):
        if headers.get(name, told.path) != told.path:
            assert json.loads(headers[name]).items() <= json.loads(json.dumps(value)).items()


@pytest.mark.parametrize("name", ["unknown", "near", "meanings", "plan"])
def test_a_text_of_which_nothing_fits_is_the_path(name: str) -> None:
    value = {"unknown": tuple(LONG), "near": LONG, "meanings": (LONG,), "plan": LONG}[name]
    headers = card(**{name: value}).headers()
    assert [text for name, text in headers.items() if "Prompt" in name or "Plan" in name] == [f"{GENERATIONS}/{ID}"]


def test_all_headers_of_a_response_are_below_the_limit(tiny: Any) -> None:
    origin = "https://" + "a" * 60
    with serving(tiny(), allowed_origins=(origin,)) as served, served.client() as client:
        headers = {"Origin": origin, "X-Request-ID": "x" * 128, "Connection": "close"}
        body = {"prompt": "\u00e9" * 8, "guidance": [1.5] * 500, "response_format": "latents", "stream": False}
        response = client.post(GENERATIONS, json=body, headers=headers)
        assert response.status_code == 200, response.text
        exposed = response.headers["access-control-expose-headers"].split(", ")
    assert set(GENERATION_HEADERS) <= set(exposed)
    ours = {name.lower() for name in GENERATION_HEADERS}
    others = {name: value for name, value in response.headers.items() if name not in ours}
    assert size(others) + WORST < MAX_BYTES


def test_a_clients_own_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_cards, "MAX_BYTES", 2**20)
    cards, text = GenerationCards(keep_s=60.0), "x" * 2**17
    cards.put(card(id="other"), "other")
    for number in range(12):
        cards.put(card(id=str(number), options={"prompt": text}), "greedy")
    kept = [number for number in range(12) if cards.get(str(number))]
    assert kept == list(range(12 - len(kept), 12))
    assert (6 <= len(kept) <= 8, json.loads(cards.get("other") or "")["id"]) == (True, "other")
    cards.put(card(id="new", options={"prompt": text}), "new")
    assert [name for name in ("other", "new", "11") if cards.get(name)] == ["other", "new", "11"]
    assert len([number for number in range(12) if cards.get(str(number))]) < len(kept), "those of who has most"


def test_a_card_that_is_too_long_names_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_cards, "CONTENT_BYTES", 2**20)
    cards = GenerationCards(keep_s=60.0)
    cards.put(card(options={"prompt": "a", "lyrics": "x" * 2**21}), "a")
    told = json.loads(cards.get(ID) or "")
    assert (told["options"], told["omitted"]) == ({"prompt": "a"}, ["lyrics"])


def test_a_card_is_replaced_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(generation_cards.time, "monotonic", lambda: float(next(clock)))
    cards = GenerationCards(keep_s=5.0)
    cards.put(card(), "a")
    cards.put(card(seed=2), "a")
    assert json.loads(cards.get(ID) or "")["seed"] == 2
    for _ in range(5):
        cards.get(ID)
    assert (cards.get(ID), cards.get("b")) == (None, None)
