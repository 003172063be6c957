"""What plans do with named layers, on plans that are written here."""

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.evaluation.plans import (
    NUM_SECTIONS,
    PROMPTS,
    form_figures,
    form_of,
    form_row,
    planned,
    planned_shares,
    played_figures,
    played_row,
)
from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import CHANNELS, FloatArray
from runtime.config.deployment import Deployment
from runtime.music.sections import SongSection
from runtime.pipeline.pipeline import open_pipeline

PROMPT = "dark bass and drums"


def plan(*items: tuple[str, str], bars: int = 8, frames: int = 100) -> list[SongSection]:
    return [
        SongSection(i, kind, tuple(layers.split("+")), bars, i * frames, (i + 1) * frames, None)
        for i, (kind, layers) in enumerate(items)
    ]


def sounding(sections: list[SongSection], layer: str, share: float = 1.0) -> FloatArray:
    """Levels in which a layer sounds in the first frames of the sections that have it."""
    levels = np.zeros((sections[-1].end_frame, CHANNELS), np.float32)
    for section in sections:
        end = section.start_frame + round(share * (section.end_frame - section.start_frame))
        levels[section.start_frame : end, pitch_channels(layer)] = 0.5 * (layer in section.layers)
    return levels


def test_prompts_name_known_layers() -> None:
    assert len(PROMPTS) == 10
    assert {layer for named in PROMPTS.values() for layer in named} == set(LAYERS)


def test_named_layers_are_in_the_union_and_in_every_main_section() -> None:
    whole = form_of(plan(("intro", "bass"), ("verse", "bass+drums"), ("chorus", "bass+drums")), PROMPTS[PROMPT])
    part = form_of(plan(("intro", "drums"), ("verse", "bass"), ("chorus", "bass+drums")), PROMPTS[PROMPT])
    none = form_of(plan(("verse", "bass"), ("chorus", "bass")), PROMPTS[PROMPT])
    assert [(form.in_union, form.in_mains) for form in (whole, part, none)] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    figures = form_figures({PROMPT: [whole, part, none, none]})
    assert (figures["union"], figures["mains"], figures["union_2"], figures["mains_2"]) == (0.5, 0.25, 0.5, 0.25)
    assert form_row(PROMPT, [whole, none])["worst"] == "verse8:b chorus8:b"


def test_a_run_is_of_sections_of_equal_kind_layers_and_bars() -> None:
    same, other = ("chorus", "bass+drums"), ("chorus", "bass")
    assert form_of(plan(same, same, other, same), ()).run == 2
    assert form_of([*plan(same, same), *plan(same, bars=16)], ()).run == 2
    runs = [form_of(plan(*[same] * count), ()) for count in (1, 4, 5)]
    figures = form_figures({"rock in E minor": runs})
    assert (figures["longest_run"], figures["long_runs"], figures["mains"]) == (5, pytest.approx(0.6667), 1.0)


def test_named_layers_that_do_not_sound_are_missed() -> None:
    sections = plan(("intro", "bass"), ("verse", "bass+drums"), ("chorus", "bass+drums"))
    bass, drums = sounding(sections, "bass"), sounding(sections, "drums")
    silent_chorus = bass + drums
    silent_chorus[200:] = 0.0
    rows = [
        played_row(PROMPT, 0, bass + drums, sections, {"bass": True, "drums": None}),
        played_row(PROMPT, 1, silent_chorus, sections, {"bass": True, "drums": True}),
        played_row(PROMPT, 2, bass, sections, {"bass": True, "drums": False}),
    ]
    assert [(row["sounding"], row["in mains"], row["of"]) for row in rows] == [(2, 4, 4), (2, 2, 4), (1, 2, 4)]
    figures = played_figures(rows)
    assert figures["sounding"] == figures["sounding_2"] == pytest.approx(0.6667)
    assert figures["sounding_mains"] == pytest.approx(8 / 12, abs=1e-4)
    assert figures["librosa_agrees"] == pytest.approx(0.6667)


def test_planned_layers_sound_in_a_share_of_their_sections() -> None:
    sections = plan(("intro", "drums"), ("verse", "pad+drums"))
    levels = sounding(sections, "pad", 0.25) + sounding(sections, "drums")
    assert planned_shares(levels, sections) == {"drums": 1.0, "pad": 0.25}
    assert planned_shares(levels[:100], sections) == {"drums": 1.0}


def test_plans_are_read_as_far_as_they_are_judged(built_demo: Deployment) -> None:
    with open_pipeline(built_demo) as pipeline:
        live = planned(Player(pipeline), PROMPT, 0, None)
        song = planned(Player(pipeline), PROMPT, 0, 120.0)
    assert len(live) >= NUM_SECTIONS
    assert [section.index for section in live] == list(range(len(live)))
    assert song[-1].end_frame == 3000
