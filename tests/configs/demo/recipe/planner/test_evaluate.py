"""The figures of plans: what the corpus reaches, what a form out of order reaches, and single figures by hand."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.paths import ROOT

from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.evaluation.player import open_player
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.planner.arrangement import Arrangement, Section, render_arrangement
from configs.demo.recipe.planner.evaluate import (
    HELD_OUT_SEED,
    NUM_PROMPTS,
    by_step,
    evaluate,
    planned_form,
    prompt_of,
    return_similarities,
    score,
    shuffled,
)
from configs.demo.recipe.planner.pages import StructureCodes, draw_form
from configs.demo.recipe.planner.prompt import build_prompt_tokenizer
from configs.demo.recipe.planner.tokens import TOKEN_IDS, song_tokens
from runtime.music.sections import SongSection

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
    (form,) = shuffled([arrangement])
    assert form != arrangement
    assert sorted(map(str, form.sections)) == sorted(map(str, arrangement.sections))


def test_layers_count_one_by_one(arrangement: Arrangement) -> None:
    levels = render_arrangement(arrangement)
    levels[: arrangement.start_frames[1]] = 0.0
    found = score([(arrangement, levels)])
    assert found["layers"] == pytest.approx(1.0 - 2 / 25)
    assert found["layers_sounding"] == pytest.approx(1.0 - 2 / 22)
    assert found["worst_layer_sounding"] == pytest.approx(1.0 - 1 / 5)


def test_sections_are_laid_upon_each_other_by_their_beats(arrangement: Arrangement) -> None:
    levels = np.zeros((arrangement.start_frames[-1], 64), np.float32)
    for section in (1, 3):
        levels[arrangement.start_frames[section] :][:30, 7] = 1.0
    first, again = by_step(arrangement, levels, 1), by_step(arrangement, levels, 3)
    assert first.shape == (4, 16, 55)
    assert np.allclose(first, again, atol=0.2), "a frame lies up to half a frame beside its beat"
    assert return_similarities(arrangement, levels) == [(pytest.approx(1.0, abs=0.01), 0.0), (0.0, 0.0)]


def test_a_prompt_names_all_but_the_sections() -> None:
    tokenizer = build_prompt_tokenizer()
    for index in range(NUM_PROMPTS):
        piece = draw_form(np.random.default_rng([HELD_OUT_SEED, index]))
        song = piece.arrangement.song
        layers = [TOKEN_IDS[f"layer:{layer}" if layer in song.layers else f"no:{layer}"] for layer in LAYERS]
        assert sorted(tokenizer.encode(prompt_of(piece)).ids) == sorted([*song_tokens(song, piece.moods), *layers])


def test_a_plan_counts_as_far_as_there_are_whole_bars(arrangement: Arrangement) -> None:
    song = replace(arrangement.song, bpm=100)
    bar, sections = 60, list[SongSection]()
    for kind, bars, end in (("intro", 4, 4 * bar), ("verse", 8, 10 * bar + 59), ("chorus", 4, 11 * bar + 40)):
        start = sections[-1].end_frame if sections else 0
        sections.append(SongSection(len(sections), kind, ("pad",), bars, start, end, None))
    form = planned_form(song, sections)
    assert [(section.kind, section.bars, section.layers) for section in form.sections] == [
        ("intro", 4, {"pad"}),
        ("verse", 7, {"pad"}),
    ]


@pytest.mark.slow
def test_a_plan_is_what_makes_form() -> None:
    with open_player(ROOT / "configs/demo") as player:
        found = evaluate(player, StructureCodes(ROOT / "configs/demo"), count=7, song_s=90.0)
    assert found["generated_layers"] > found["unplanned_layers"] + 0.05
    assert found["generated_return_similarity"] > found["unplanned_return_similarity"]
    assert found["generated_tempo"] > found["unplanned_tempo"]
    assert found["generated_in_key"] > 0.95
