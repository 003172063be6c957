"""Figures of "How it compares" that follow from the repository, or from each other."""

from __future__ import annotations

import json
import re

from helpers.paths import ROOT

TEXT = (ROOT / "configs/docs/pages/compared.md").read_text(encoding="utf-8")


def test_the_parity_vectors_are_counted() -> None:
    scenarios = json.loads((ROOT / "tests/data/tick_parity/scenarios.json").read_text(encoding="utf-8"))
    assert f"parity vectors: {len(scenarios)} scenarios" in TEXT


def test_the_estimate_is_its_formula() -> None:
    (tflop,) = re.findall(r"= rows x ([\d.]+) TFLOP / sustained rate", TEXT)
    rates = re.findall(r"(\d+) to (\d+)(?: TFLOP/s)? on an (\w+(?: \d+)?)", TEXT)
    shown = re.findall(r"TickRT, an estimate.*\| (.+?) \| (\d+) to (\d+) / (\d+) to (\d+) at depth 4 / 8", TEXT)
    by_card = {card: (float(slow), float(fast)) for slow, fast, card in rates}
    assert len(shown) == 2
    for card, *figures in shown:
        slow, fast = by_card[card]
        expected = [rows * float(tflop) / rate * 1000 for rows in (4, 8) for rate in (fast, slow)]
        assert all(abs(int(figure) - value) < 1.5 for figure, value in zip(figures, expected, strict=True)), card
