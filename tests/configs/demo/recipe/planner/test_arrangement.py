"""Song form: layers as the sections say, returns that play the same, lengths, the corpus' own dynamics."""

from dataclasses import replace

import numpy as np
import pytest

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import SECTIONS, draw_song
from configs.demo.recipe.evaluation.measure import layers_present
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import FRAME_RATE_HZ
from configs.demo.recipe.planner.arrangement import (
    MAX_SECTION_S,
    Arrangement,
    Section,
    draw_arrangement,
    notes_of_arrangement,
    render_arrangement,
)

ALL = frozenset(LAYERS)
BASS = frozenset({"bass"})


def arrangements(count: int) -> list[Arrangement]:
    rngs = [np.random.default_rng([31, index]) for index in range(count)]
    return [draw_arrangement(draw_song(rng), rng) for rng in rngs]


@pytest.fixture(scope="module")
def arrangement() -> Arrangement:
    song = replace(draw_song(np.random.default_rng(2)), bpm=125, meter="4/4", section=None, layers=ALL)
    verse, chorus = Section("verse", 4, ALL - {"arp"}), Section("chorus", 4, ALL)
    return Arrangement(song, (Section("intro", 4, BASS), verse, chorus, verse, chorus))


def test_a_form_is_the_same_for_a_seed_and_ends_with_what_ends_a_song() -> None:
    drawn = arrangements(40)
    assert drawn == arrangements(40)
    assert {section.kind for one in drawn for section in one.sections} == set(SECTIONS)
    assert {one.sections[-1].kind for one in drawn} == {"outro"}
    assert len({tuple(section.kind for section in one.sections) for one in drawn}) > 8
    assert np.median([one.start_frames[-1] for one in drawn]) > 120 * FRAME_RATE_HZ


@pytest.mark.parametrize("layers", [{"bass"}, {"bass", "drums"}, {"drums"}])
def test_something_sounds_in_every_section(layers: set[str]) -> None:
    rng = np.random.default_rng(3)
    song = replace(draw_song(rng), layers=frozenset(layers))
    sections = [section for _ in range(20) for section in draw_arrangement(song, rng).sections]
    assert "build" in {section.kind for section in sections}
    assert all(section.layers and section.layers <= layers for section in sections)


def test_no_section_is_longer_than_a_page_holds() -> None:
    lengths = [np.diff(one.start_frames).max() for one in arrangements(60)]
    assert max(lengths) <= MAX_SECTION_S * FRAME_RATE_HZ + 1


def test_layers_enter_and_leave_with_the_sections(arrangement: Arrangement) -> None:
    levels = render_arrangement(arrangement)
    assert len(levels) == 20 * 4 * 12  # bars, beats, frames of a beat at 125 bpm
    parts = np.split(levels, arrangement.start_frames[1:-1])
    assert [layers_present(part) for part in parts] == [section.layers for section in arrangement.sections]
    assert not parts[0][:, list(pitch_channels("drums"))].any()


def test_a_returning_section_plays_what_it_played(arrangement: Arrangement) -> None:
    notes = notes_of_arrangement(arrangement)
    for layer in ("pad", "melody", "drums"):
        first, second = (
            [
                note._replace(start_beat=note.start_beat - at, end_beat=0.0)
                for note in notes[layer]
                if at <= note.start_beat < at + 16
            ]
            for at in (16, 48)
        )
        chorus = [note._replace(start_beat=note.start_beat - 32) for note in notes[layer] if 32 <= note.start_beat < 48]
        assert first == second != [note._replace(end_beat=0.0) for note in chorus]


def test_a_section_is_a_piece_of_the_corpus_in_its_dynamics(arrangement: Arrangement) -> None:
    verse = replace(arrangement.song, section="verse")
    levels = render_arrangement(arrangement)[4 * 48 : 8 * 48]
    drums = list(pitch_channels("drums"))
    assert np.array_equal(levels[:, drums], render(verse, 4 * 48, ["drums"])[:, drums])
