"""The figures of plans: what the corpus reaches, what a form out of order reaches, and single figures by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")

from engine_build.demo_model.corpus.songs import draw_song  # noqa: E402
from engine_build.demo_model.instruments import LAYERS  # noqa: E402
from engine_build.demo_model.planner import player  # noqa: E402
from engine_build.demo_model.planner.arrangement import Arrangement, Section, render_arrangement  # noqa: E402
from engine_build.demo_model.planner.evaluate import (  # noqa: E402
    by_step,
    evaluate,
    layer_agreement,
    return_similarities,
    score,
    shuffled,
)
from engine_build.demo_model.planner.model import Planner, PlannerShape  # noqa: E402
from engine_build.demo_model.planner.pages import StructureCodes  # noqa: E402

ALL = frozenset(LAYERS)


@pytest.fixture(scope="module")
def arrangement() -> Arrangement:
    song = replace(draw_song(np.random.default_rng(2)), bpm=97, meter="4/4", section=None, layers=ALL, mode="minor")
    intro, verse, chorus = (
        Section("intro", 4, frozenset({"bass", "arp"})),
        Section("verse", 4, ALL),
        Section("chorus", 4, ALL),
    )
    return Arrangement(song, (intro, verse, chorus, verse, chorus))


def test_the_corpus_plays_its_own_form_and_not_another(arrangement: Arrangement) -> None:
    levels = render_arrangement(arrangement)
    intro, verse, chorus, *_ = arrangement.sections
    other = replace(arrangement, sections=(verse, verse, intro, chorus, chorus))
    found, control = score([(arrangement, levels)]), score([(other, levels)])
    assert found["layers"] == found["returns_nearer"] == found["tempo"] == 1.0
    assert found["in_key"] == pytest.approx(1.0)
    assert found["return_similarity"] > 0.98 > found["other_similarity"]
    assert control["layers"] < 1.0
    assert control["return_similarity"] < 0.9
    ((form, _),) = shuffled([(arrangement, levels)])
    assert form != arrangement
    assert sorted(map(str, form.sections)) == sorted(map(str, arrangement.sections))


def test_layers_count_one_by_one(arrangement: Arrangement) -> None:
    levels = render_arrangement(arrangement)
    levels[: arrangement.start_frames[1]] = 0.0
    assert layer_agreement(arrangement, levels) == pytest.approx(1.0 - 2 / 25)


def test_sections_are_laid_upon_each_other_by_their_beats(arrangement: Arrangement) -> None:
    levels = np.zeros((arrangement.start_frames[-1], 64), np.float32)
    for section in (1, 3):
        levels[arrangement.start_frames[section] :][:30, 7] = 1.0
    first, again = by_step(arrangement, levels, 1), by_step(arrangement, levels, 3)
    assert first.shape == (4, 16, 55)
    assert np.allclose(first, again, atol=0.2), "a frame lies up to half a frame beside its beat"
    assert return_similarities(arrangement, levels) == [(pytest.approx(1.0, abs=0.01), 0.0), (0.0, 0.0)]


def test_an_untrained_planner_keeps_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(player, "MOST_SECTIONS", 2)
    model = Planner(PlannerShape(hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=16)).eval()
    found = evaluate(model, StructureCodes(ROOT / "configs/demo"), count=1)
    assert found["in_key"] < found["ceiling_in_key"] - 0.1
    assert found["minutes"] > 0.0
