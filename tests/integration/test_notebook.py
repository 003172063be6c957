"""The notebook's cells run in order, and what they play is music: not silent, not clipped, of the length asked for."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from numpy.typing import NDArray

import tickrt

pytestmark = pytest.mark.shipped

NOTEBOOK = json.loads((ROOT / "configs" / "demo" / "tickrt.ipynb").read_text(encoding="utf-8"))
CODE_CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line where that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "tickrt.ipynb", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "tickrt.ipynb", "eval"), names)


def assert_is_music(pcm: NDArray[np.float32]) -> None:
    assert np.isfinite(pcm).all()
    assert np.abs(pcm).max() > 0.05
    assert np.sqrt(np.square(pcm).mean()) > 0.01
    assert (np.abs(pcm) >= 0.999).mean() < 1e-3


def test_the_cells_run_and_play_music(tmp_path: Path, demo_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One thread per engine: threads that wait for each other use the cores of other tests.
    demo_config.write_text(demo_config.read_text().replace("[runtime]\n", "[runtime]\nthreads = 1\n"))
    open_model = tickrt.open
    monkeypatch.setattr(tickrt, "open", lambda name: open_model(demo_config if name == "demo" else name))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [run_cell("".join(cell["source"]), names) for cell in CODE_CELLS]
    seconds = {"audio": 12.0, "cover": 12.0, "repainted": 12.0, "morph": 10.0, "before": 10.0, "after": 10.0}
    for name, expected in seconds.items():
        assert names[name].seconds == pytest.approx(expected, abs=0.1)
        assert_is_music(names[name].pcm)
    assert np.abs(names["before"].pcm - names["after"].pcm).max() > 0.05
    for audio in names["many"]:
        assert audio.seconds == 5.0
        assert_is_music(audio.pcm)
    assert 8.0 <= len(names["beginning"]) / 48_000 < 60.0
    assert_is_music(names["beginning"])
    assert (tmp_path / "calm.flac").stat().st_size > 100_000
    assert sum(isinstance(value, tickrt.Audio) for value in shown) == 6


def test_it_holds_no_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE_CELLS)
