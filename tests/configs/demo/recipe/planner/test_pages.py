"""Pages: what stands in them, what a section is played after, how long they are."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.paths import ROOT

from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import CHANNELS, FIRST_PITCH, FRAMES_PER_CODE
from configs.demo.recipe.planner.arrangement import Arrangement, Section, render_arrangement
from configs.demo.recipe.planner.pages import (
    MAX_PAGE_TOKENS,
    Piece,
    StructureCodes,
    draw_piece,
    plan_page,
    recalled_codes,
    recalled_section,
    section_page,
    section_prompt,
    section_span,
)
from configs.demo.recipe.planner.tokens import (
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_GROUPS,
    TOKEN_IDS,
    TOKENS,
    beat_steps,
    code_tokens,
    codes_of,
    header,
    section_of,
)


@pytest.fixture(scope="module")
def structure() -> StructureCodes:
    return StructureCodes(ROOT / "configs/demo")


@pytest.fixture(scope="module")
def pieces(structure: StructureCodes) -> list[Piece]:
    return [draw_piece(structure, 5, index) for index in range(6)]


def codes_in(tokens: list[int]) -> list[int]:
    groups = np.array([token for token in tokens if token >= FIRST_CODE_ID]).reshape(-1, NUM_GROUPS)
    return codes_of(groups).tolist()


def test_codes_are_those_of_the_bundle_and_sound_like_the_song(structure: StructureCodes, pieces: list[Piece]) -> None:
    levels = render_arrangement(pieces[0].arrangement)
    assert len(pieces[0].codes) == len(levels) // FRAMES_PER_CODE
    hints = structure.decode(pieces[0].codes)[:, :55]
    written = levels[: len(hints), :55]
    assert np.corrcoef(hints.ravel(), written.ravel())[0, 1] > 0.7
    assert draw_piece(structure, 5, 0).moods == pieces[0].moods


def sounded(structure: StructureCodes, channel: int, level: float) -> list[set[int]]:
    """By layer the pitch classes that the code in the middle of one long note sounds."""
    levels = np.zeros((5 * FRAMES_PER_CODE, CHANNELS), np.float32)
    levels[:, channel] = level
    places = code_tokens(structure.encode(levels))[2] - FIRST_CODE_ID - GROUP_SIZE * np.arange(NUM_GROUPS)
    found = [structure.pitches[group][place] for group, place in enumerate(places)]
    return [{pitch for pitch in range(12) if classes >> pitch & 1} for classes in found]


@pytest.mark.parametrize("layer", ["arp", "bass", "melody"])
def test_a_code_sounds_the_note_that_it_was_encoded_from(structure: StructureCodes, layer: str) -> None:
    for channel in pitch_channels(layer):
        expected = {layer: {(FIRST_PITCH + channel) % 12}}
        assert sounded(structure, channel, 0.6) == [expected.get(each, set()) for each in LAYERS]


def test_a_pads_code_sounds_its_note_and_others_that_it_is_blurred_with(structure: StructureCodes) -> None:
    for channel in pitch_channels("pad"):
        pad, *others = sounded(structure, channel, 1.0)
        assert (FIRST_PITCH + channel) % 12 in pad
        assert len(pad) < 5
        assert others == [set()] * 4


def test_neither_silence_nor_drums_sound_a_pitch(structure: StructureCodes) -> None:
    assert [len(pitches) for pitches in structure.pitches] == [GROUP_SIZE] * NUM_GROUPS
    for group, token in enumerate(structure.silent.values()):
        assert structure.pitches[group][token - FIRST_CODE_ID - GROUP_SIZE * group] == 0
    assert [any(pitches) for pitches in structure.pitches] == [layer != "drums" for layer in LAYERS]


def test_a_code_strikes_the_drums_where_they_were_struck(structure: StructureCodes) -> None:
    kick, group = pitch_channels("drums")[0], LAYERS.index("drums")
    for place in range(FRAMES_PER_CODE):
        levels = np.zeros((5 * FRAMES_PER_CODE, CHANNELS), np.float32)
        levels[2 * FRAMES_PER_CODE + place, kick] = 1.0
        token = code_tokens(structure.encode(levels))[2, group]
        assert structure.onsets[group][token - FIRST_CODE_ID - GROUP_SIZE * group] == 1 << place
    assert structure.onsets[group][structure.silent["drums"] - FIRST_CODE_ID - GROUP_SIZE * group] == 0
    assert [len(each) for each in structure.onsets] == [0] * group + [GROUP_SIZE]


def test_songs_strike_their_drums_on_the_steps_of_genre_and_meter(structure: StructureCodes) -> None:
    """Nearly all of their codes: a code may blur a strike with the next frame."""
    group, steps, off, struck = LAYERS.index("drums"), beat_steps(), 0, 0
    for index in range(8):
        piece = draw_piece(structure, 4242, index)
        song = piece.arrangement.song
        tokens = code_tokens(piece.codes)[:, group] - FIRST_CODE_ID - GROUP_SIZE * group
        onsets = np.array(structure.onsets[group])[tokens]
        places = steps.get(song.meter, steps[song.genre])
        frames = np.array([piece.rhythm.step_frames(number, places) for number in range(len(onsets))])
        off, struck = off + np.count_nonzero(onsets & ~frames), struck + np.count_nonzero(onsets)
    assert struck > 300
    assert off < 0.03 * struck


def test_the_sections_pages_hold_all_codes_once(pieces: list[Piece]) -> None:
    for piece in pieces:
        sections = range(len(piece.arrangement.sections))
        pages = [section_page(piece, index)[len(section_prompt(piece, index)) :] for index in sections]
        assert [code for page in pages for code in codes_in(page)] == piece.codes.tolist()


def test_a_section_is_played_after_the_first_of_its_kind_or_else_of_its_material() -> None:
    sections = [
        Section(kind, 4, frozenset({"pad"})) for kind in ("intro", "verse", "chorus", "verse", "build", "verse")
    ]
    assert [recalled_section(sections, index) for index in range(6)] == [None, 0, None, 1, 2, 1]


def test_a_recalled_token_stands_six_places_before_its_own(structure: StructureCodes, pieces: list[Piece]) -> None:
    for piece in pieces:
        for index in range(len(piece.arrangement.sections)):
            recalled = recalled_codes(structure, piece, index)
            if recalled is None:
                continue
            prompt, page = section_prompt(piece, index), section_page(piece, index, recalled)
            assert page[: len(prompt)] == prompt
            assert len(page) <= MAX_PAGE_TOKENS
            marks = [place for place, token in enumerate(page) if token == TOKEN_IDS["recall"]]
            own = code_tokens(piece.codes[section_span(piece, index)[0] :][: len(marks)])
            assert len(marks) == len(section_span(piece, index))
            for group in range(NUM_GROUPS):
                places = np.array(marks) + 1 + group
                assert np.array_equal(np.array(page)[places], code_tokens(recalled)[:, group])
                assert np.array_equal(np.array(page)[places + NUM_GROUPS + 1], own[:, group])


def test_a_section_that_is_played_again_recalls_mostly_what_it_plays(
    structure: StructureCodes, pieces: list[Piece]
) -> None:
    shares = {"same": list[float](), "other": list[float]()}
    for piece in pieces:
        sections, starts = piece.arrangement.sections, piece.arrangement.start_frames
        for index in range(len(sections)):
            recalled, first = recalled_codes(structure, piece, index), recalled_section(sections, index)
            if recalled is not None and first is not None and sections[first] == sections[index]:
                span = section_span(piece, index)
                is_equal = code_tokens(recalled) == code_tokens(piece.codes[span.start : span.stop])
                is_in_phase = (starts[index] - starts[first]) % FRAMES_PER_CODE == 0
                shares["same" if is_in_phase else "other"].append(float(is_equal.mean()))
    assert np.mean(shares["same"]) > 0.5
    assert np.mean(shares["other"]) > 0.35


def test_recalled_codes_are_moved_frame_by_frame_and_repeat(structure: StructureCodes) -> None:
    first, longer = Section("verse", 4, frozenset({"bass"})), Section("verse", 8, frozenset({"bass"}))
    song = replace(draw_song(np.random.default_rng(1)), bpm=97, meter="4/4")
    arrangement = Arrangement(song, (first, longer))
    piece = Piece(arrangement, structure.encode(render_arrangement(arrangement)), ())
    starts, span = arrangement.start_frames, section_span(piece, 1)
    hints = structure.decode(piece.codes[: section_span(piece, 0).stop])
    wanted = np.zeros((FRAMES_PER_CODE * len(span), hints.shape[1]), np.float32)
    for row, frame in enumerate(range(FRAMES_PER_CODE * span.start, FRAMES_PER_CODE * span.stop)):
        offset = frame - starts[1]
        wanted[row] = hints[min(max(offset % starts[1] if offset >= 0 else offset, 0), len(hints) - 1)]
    assert np.array_equal(recalled_codes(structure, piece, 1), structure.encode(wanted))
    assert recalled_codes(structure, piece, 0) is None


def test_a_section_reads_the_bar_before(pieces: list[Piece]) -> None:
    piece = pieces[0]
    prompt = section_prompt(piece, 2)
    last = piece.rhythm.code_range(piece.arrangement.start_bars[2] - 1, 1)
    assert codes_in(prompt[prompt.index(TOKEN_IDS["before"]) :]) == piece.codes[last.start : last.stop].tolist()
    assert prompt[-3:] == header(piece.arrangement.sections[2])
    assert TOKEN_IDS["before"] not in section_prompt(piece, 0)


def test_a_plan_says_what_the_prompt_leaves_open_and_the_sections(pieces: list[Piece]) -> None:
    for piece in pieces:
        page = plan_page(piece, np.random.default_rng(3))
        at = page.index(TOKEN_IDS["plan"])
        assert TOKENS[page[0]] == "start"
        assert TOKENS[page[-1]] == "end"
        assert [TOKENS[token].split(":")[0] for token in page[at + 1 : at + 6]] == [
            "genre",
            "bpm",
            "meter",
            "key",
            "mode",
        ]
        plan = page[at + 6 : -1]
        assert tuple(section_of(plan[i : i + 3]) for i in range(0, len(plan), 3)) == piece.arrangement.sections
    shorter = [len(plan_page(pieces[0], np.random.default_rng(seed))) for seed in range(6)]
    assert len(set(shorter)) > 1, "prompts name more or less"
