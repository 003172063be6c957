"""The picture of a plan: bars that play the same are alike."""

from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.export

pytest.importorskip("matplotlib")

from configs.demo.recipe.latents import FRAME_RATE_HZ  # noqa: E402
from configs.demo.recipe.planner.pages import StructureCodes, draw_piece  # noqa: E402
from configs.demo.recipe.planner.picture import bar_similarity, bar_times, draw_picture  # noqa: E402
from runtime.base.errors import RequestError  # noqa: E402

SECTIONS = [
    {"kind": "verse", "layers": ["pad"], "bars": 2, "start_s": 0.0, "end_s": 4.0},
    {"kind": "chorus", "layers": ["pad", "drums"], "bars": 2, "start_s": 4.0, "end_s": 8.0},
    {"kind": "verse", "layers": ["pad"], "bars": 2, "start_s": 8.0, "end_s": 11.0},
]


def test_bars_are_cut_where_the_song_is() -> None:
    assert bar_times(SECTIONS).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 11.0]
    assert bar_times(SECTIONS[:1]).tolist() == [0.0, 2.0, 4.0]


def test_bars_that_play_the_same_are_alike() -> None:
    frames = round(2 * FRAME_RATE_HZ)
    rng = np.random.default_rng(0)
    one, other = (rng.random((frames, 64)).astype(np.float32) for _ in range(2))
    found = bar_similarity(np.concatenate([one, other, one, 0 * one]), np.array([0, 2, 4, 6, 8], np.float32))
    assert found[0, 2] == pytest.approx(1.0)
    assert found[0, 1] < 0.99 < found[0, 2]
    assert np.all(found[3] == 0.0)


def test_a_picture_is_written(tmp_path: Path) -> None:
    structure = StructureCodes(ROOT / "configs" / "demo")
    codes = draw_piece(structure, 5, 0).codes[:55].tolist()
    plan = {"genre": "jazz", "bpm": 120, "sections": SECTIONS, "codes": codes}
    draw_picture(plan, structure, tmp_path / "a.png", "calm")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RequestError, match="--plan"):
        draw_picture({"bpm": "120"}, structure, tmp_path / "b.png")
