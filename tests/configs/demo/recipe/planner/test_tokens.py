"""The planner's words: tokens, arrangements, prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from helpers.paths import ROOT
from helpers.tiny_planner import planner_spec
from tokenizers import Tokenizer

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import SECTIONS, draw_song
from configs.demo.recipe.corpus.vocabulary import NUM_TOKENS as NUM_CONDITIONS
from configs.demo.recipe.corpus.vocabulary import TOKENS as CONDITIONS
from configs.demo.recipe.evaluation.measure import layers_present
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import FRAME_RATE_HZ, NUM_CODES
from configs.demo.recipe.planner.arrangement import (
    MAX_SECTION_S,
    Arrangement,
    Section,
    draw_arrangement,
    notes_of_arrangement,
    render_arrangement,
)
from configs.demo.recipe.planner.prompt import build_prompt_tokenizer
from configs.demo.recipe.planner.tokens import (
    CLOCKS_PER_BEAT,
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_GROUPS,
    NUM_TOKENS,
    TOKEN_IDS,
    TOKENS,
    code_tokens,
    codes_of,
    header,
    marked_codes,
    planner_tables,
    rhythm_of,
    section_of,
)
from configs.demo.recipe.text_encoder import build_text_encoder
from configs.demo.recipe.tokenizer import build_tokenizer
from runtime.config.planner import PlannerSpec
from runtime.music.rhythm import Rhythm
from runtime.tick.language.constraints import CodesConstraint, Constraint, FormConstraint

RHYTHMS = [rhythm_of(bpm, meter) for bpm in (60, 97, 120, 131, 180) for meter in ("4/4", "3/4", "6/8")]


def test_a_code_is_one_token_of_each_group_the_lowest_digits_first() -> None:
    codes = np.random.default_rng(0).integers(0, NUM_CODES, 300)
    codes[:2] = 0, NUM_CODES - 1
    tokens = code_tokens(codes)
    firsts = FIRST_CODE_ID + GROUP_SIZE * np.arange(NUM_GROUPS)
    assert np.all((tokens >= firsts) & (tokens < firsts + GROUP_SIZE))
    assert tokens.max() == NUM_TOKENS - 1
    assert np.array_equal(codes_of(tokens), codes)
    digits = (tokens[7] - firsts).tolist()
    assert sum(digit * GROUP_SIZE**place for place, digit in enumerate(digits)) == codes[7]


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_markers_count_bars_and_tell_the_place_in_them(rhythm: Rhythm) -> None:
    for bar in range(8, 24):
        names = [[TOKENS[token] for token in rhythm.markers(code, 8)] for code in rhythm.code_range(bar, 1)]
        assert [len(listed) for listed in names] == [2] + [1] * (len(names) - 1)
        assert names[0][0] == f"bar:{bar - 8}"
        clocks = [int(listed[-1].removeprefix("clock:")) for listed in names]
        assert clocks == sorted(set(clocks))
        assert clocks[-1] < rhythm.beats * CLOCKS_PER_BEAT
        per_code = rhythm.bpm / 60.0 * CLOCKS_PER_BEAT / 5.0
        assert np.allclose(np.diff(clocks), per_code, atol=1.0)


def test_marked_codes_are_markers_and_groups() -> None:
    rhythm, codes = rhythm_of(120, "4/4"), np.arange(20)
    tokens = marked_codes(rhythm, codes, 4, 40)
    first = [TOKEN_IDS["bar:0"], TOKEN_IDS["clock:7"], *code_tokens(codes[:1])[0].tolist()]
    assert tokens[: len(first)] == first, "the last frame of the first code is 0.16 s, 7.68 of 24 parts of a beat, in"
    assert np.array_equal(codes_of(np.array([t for t in tokens if t >= FIRST_CODE_ID]).reshape(-1, NUM_GROUPS)), codes)
    assert sum(TOKENS[token].startswith("bar:") for token in tokens if token < FIRST_CODE_ID) == 2


def test_a_header_is_its_section() -> None:
    section = Section("break", 12, frozenset({"drums", "pad"}))
    assert [TOKENS[token] for token in header(section)] == ["section:break", "layers:pad+drums", "bars:12"]
    assert section_of(header(section)) == section
    with pytest.raises(ValueError, match="no section"):
        section_of(header(section)[::-1])


@pytest.fixture
def spec() -> PlannerSpec:
    return planner_spec(thinking=None, **planner_tables())


def take(constraint: Constraint, tokens: list[int]) -> list[int]:
    """The tokens that the constraint left to choose; all are allowed."""
    chosen = []
    for token in tokens:
        allowed = np.zeros(NUM_TOKENS, bool)
        constraint.write_allowed(allowed)
        assert allowed[token]
        chosen += [token] if not constraint.forced(1) else []
        constraint.advance(token)
    return chosen


def test_the_runtime_reads_a_sections_codes_and_gives_their_markers(spec: PlannerSpec) -> None:
    rhythm, codes = rhythm_of(97, "3/4"), np.random.default_rng(1).integers(0, NUM_CODES, 300)
    span = rhythm.code_range(8, 8)
    constraint = CodesConstraint(spec, len(span), lambda index: rhythm.markers(span.start + index, 8))
    tokens = marked_codes(rhythm, codes[span.start : span.stop], 8, span.start)
    chosen = take(constraint, tokens)
    assert constraint.is_done
    assert chosen == code_tokens(codes[span.start : span.stop]).ravel().tolist()
    assert spec.codes.numbers(tokens) == codes[span.start : span.stop].tolist()
    assert spec.plan is not None
    markers = [*spec.plan.bar_markers.tokens, *spec.plan.clock_markers.tokens]
    assert {token for token in tokens if token not in chosen} <= set(markers)


def test_the_runtime_reads_a_plan(spec: PlannerSpec) -> None:
    song = [TOKEN_IDS[name] for name in ("genre:jazz", "bpm:100", "meter:3/4", "key:d", "mode:dorian")]
    sections = [Section("intro", 4, frozenset({"pad"})), Section("chorus", 16, frozenset({"pad", "bass"}))]
    constraint = FormConstraint(spec, given=dict(enumerate(song)))
    tokens = [token for section in sections for token in header(section)] + [TOKEN_IDS["end"]]
    assert take(constraint, song + tokens) == tokens
    assert constraint.is_done


def test_the_runtimes_table_says_what_the_tokens_are(spec: PlannerSpec) -> None:
    plan = spec.plan
    assert plan is not None
    for field in (*plan.header, *plan.item):
        prefix = "section" if field.name == "kind" else field.name
        assert [TOKENS[token] for token in field.tokens] == [f"{prefix}:{value}" for value in field.values]
    assert plan.beats == (4, 3, 2)
    assert plan.materials[plan.kind.values.index("build")] == plan.materials[plan.kind.values.index("chorus")]
    assert TOKENS[plan.bar_markers.first] == "bar:0"
    assert TOKENS[plan.clock_markers.end - 1] == f"clock:{4 * CLOCKS_PER_BEAT - 1}"
    assert plan.style is not None
    assert all(TOKENS[token].startswith("mood:") for token in plan.style.tokens)


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


PROMPTS = (
    "drums and bass",
    "sad piano chords and flute melody in A minor",
    "house",
    "jazz without drums",
    "jazz piano",
    "piano",
    "calm guitar, strings and violin",
    "techno with bells",
    "rock and reggae",
    "energetic music",
    "no drums",
    "piano and guitar with drums",
    "sad, gloomy, dark drums, more drums and more bass",
    "techno with a big kick",
    "jazz, only drums",
    "smooth jazz saxophone solo",
    "only jazz",
    "reggaeton",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(build_prompt_tokenizer().to_str())


@pytest.fixture(scope="module")
def encoder() -> ort.InferenceSession:
    return ort.InferenceSession(build_text_encoder(np.eye(NUM_CONDITIONS, dtype=np.float32)).SerializeToString())


def test_the_bundles_file_is_written_again_byte_for_byte() -> None:
    assert build_prompt_tokenizer().to_str() == (ROOT / "configs/demo/planner_tokenizer.json").read_text("utf-8")


def names(tokenizer: Tokenizer, prompt: str) -> list[str]:
    return [TOKENS[index] for index in tokenizer.encode(prompt).ids]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_layers_are_those_that_the_decoder_plays(
    tokenizer: Tokenizer, encoder: ort.InferenceSession, prompt: str
) -> None:
    words = np.array([build_tokenizer().encode(prompt).ids])
    condition, mask, _ = encoder.run(None, {"input_ids": words, "attention_mask": np.ones_like(words)})
    meant = {CONDITIONS[index] for index in condition[mask > 0].argmax(axis=1)}
    found = names(tokenizer, prompt)
    assert sorted(n for n in found if n.startswith(("layer:", "no:"))) == sorted(
        n for n in meant if n.startswith(("layer:", "no:"))
    )
    assert len(found) == len(set(found))


def test_tempo_key_meter_mode_genre_and_moods_are_tokens(tokenizer: Tokenizer) -> None:
    found = set(names(tokenizer, "A dark, dreamy trance anthem at 138 bpm in F# minor, waltz time, as never heard"))
    assert {"genre:trance", "bpm:132", "key:f#", "mode:minor", "meter:3/4", "mood:dark", "mood:dreamy"} <= found
    assert {"bpm:68"} <= set(names(tokenizer, "slow jazz"))
    assert {"genre:pop", "bpm:68"} <= set(names(tokenizer, "calm pads")), "the decoder's default, a mood's tempo"
    assert {"genre:drum and bass", "mode:minor pentatonic"} <= set(
        names(tokenizer, "drum and bass, C minor pentatonic")
    )


def test_options_behind_the_prompt_win_and_unknown_words_are_dropped(tokenizer: Tokenizer) -> None:
    found = names(tokenizer, "techno in 3/4 at 120 bpm in D minor <bpm:97> <key:A major> <meter:6>")
    assert {"bpm:92", "key:a", "mode:major", "meter:6/8"} <= set(found)
    assert sum(name.startswith(("bpm:", "key:", "mode:", "meter:")) for name in found) == 4
    assert names(tokenizer, "zxcv qwer <bpm:> <key:> <meter:>") == names(tokenizer, "") == []
    assert "start" not in names(tokenizer, "start the section, plan an end before the recall")
