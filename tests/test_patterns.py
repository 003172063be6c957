"""Regular expressions take a time that grows with the text, and no faster: `re` holds the interpreter meanwhile."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.growth import FLOOR_S, MOST_GROWTH, cpu_s, growth
from helpers.patterns import FEW, Attack, PatternUse, attacks, pattern_uses

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("runtime", "server", "engine_build", "profiling")
LENGTH, LONG = 2000, 20_000
FEW_S = 0.001


def _work(use: PatternUse, method: str, attack: Attack) -> Callable[[int], Callable[[], object]]:
    """Length -> the use of the pattern on a text of that length."""
    is_bytes = isinstance(use.pattern.pattern, bytes)
    function = getattr(use.pattern, method)
    replacement: tuple[Any, ...] = (b"" if is_bytes else "",) if method in ("sub", "subn") else ()

    def of(length: int) -> Callable[[], object]:
        text = attack.text(length).encode() if is_bytes else attack.text(length)
        return lambda: list(function(*replacement, text) or ())

    return of


def _superlinear(use: PatternUse, length: int) -> str:
    """The first attack that a pattern takes too long for, in words; "" where there is none."""
    for method in sorted(use.methods):
        for attack in attacks(use.pattern):
            work = _work(use, method, attack)
            if cpu_s(work(FEW)) > FEW_S and cpu_s(work(FEW), 3) > FEW_S:
                return f"{method} takes exponential time for {attack}"
            if cpu_s(work(length)) <= FLOOR_S or (found := growth(work, length)) <= MOST_GROWTH:
                continue
            # Again over three doublings: beside other work, linear work may seem to take three times as long once.
            if growth(work, length, times=8, most=MOST_GROWTH**3) > MOST_GROWTH**3:
                return f"{method} takes {found:.1f} times as long for twice of {attack}"
    return ""


@pytest.fixture(scope="module")
def found() -> tuple[list[PatternUse], list[str]]:
    importlib.import_module("server.app")  # with all routes
    return pattern_uses(ROOT, PACKAGES)


@pytest.fixture(scope="module")
def uses(found: tuple[list[PatternUse], list[str]]) -> list[PatternUse]:
    assert len(found[0]) > 30
    assert "server.routes.sources /v1/sources/{source_id}" in {use.where for use in found[0]}
    return found[0]


def test_no_pattern_is_made_at_run_time(found: tuple[list[PatternUse], list[str]]) -> None:
    assert found[1] == [], "a text in a pattern can make it slow: use methods of str"


def test_patterns_take_linear_time(uses: list[PatternUse]) -> None:
    slow = {use.where: f"{use.pattern.pattern!r}: {what}" for use in uses if (what := _superlinear(use, LENGTH))}
    assert slow == {}


@pytest.mark.slow
def test_patterns_take_linear_time_on_long_texts(uses: list[PatternUse]) -> None:
    slow = {use.where: f"{use.pattern.pattern!r}: {what}" for use in uses if (what := _superlinear(use, LONG))}
    assert slow == {}


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"([A-Ga-g]) *([#b]?) *(major|m|)", "fullmatch"),
        (r"\[([^\]\n]*)\]", "findall"),
        (r"[,;|\r\n]|[.:!?]+(?:\s|$)", "split"),
        (rb"\((.*?)\)", "search"),
        (r"(a|a)*b", "fullmatch"),
    ],
)
def test_the_attacks_find_patterns_that_backtrack(pattern: str | bytes, method: str) -> None:
    assert _superlinear(PatternUse("", re.compile(pattern), frozenset({method})), LENGTH // 4) != ""


def test_no_pattern_escapes_the_search() -> None:
    texts = {file: file.read_text(encoding="utf-8") for name in PACKAGES for file in (ROOT / name).rglob("*.py")}
    others = [
        str(file) for file, text in texts.items() if re.search(r"^\s*(from re |import re as)", text, re.MULTILINE)
    ]
    assert others == [], "helpers.patterns finds calls of re.FUNCTION only"
    engines = [str(file) for file, text in texts.items() if "regex_engine" in text]
    assert engines == [], "pydantic's own engine takes linear time, that of Python does not"
