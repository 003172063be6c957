"""The corpus: songs as notes, their harmony, melody, drums and form; their prompts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from configs.demo.recipe.corpus.drums import write_drums
from configs.demo.recipe.corpus.envelopes import CURVES, ENVELOPE_INDEX, ENVELOPES, RELEASE_FRAMES, RELEASES
from configs.demo.recipe.corpus.form import Bar, Note, accents, bars_of, degrees_of, hits_of, step_beats
from configs.demo.recipe.corpus.genres import (
    BEATS_PER_BAR,
    GENRES,
    METER_GROOVES,
    METERS,
    STEPS_PER_BEAT,
    Groove,
)
from configs.demo.recipe.corpus.harmony import write_arp, write_bass, write_pad
from configs.demo.recipe.corpus.melody import write_melody
from configs.demo.recipe.corpus.prompts import Request, draw_request
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import BPM_RANGE, SECTIONS, Song, draw_instruments, draw_song
from configs.demo.recipe.corpus.theory import (
    GENRE_PROGRESSIONS,
    LEADING_DEGREES,
    MODES,
    PROGRESSIONS,
    chord_pitch_classes,
    chord_pitches,
    lead_voices,
    num_clashes,
    scale_pitch_classes,
    scale_pitches,
)
from configs.demo.recipe.corpus.vocabulary import (
    ALWAYS_ID,
    BPM_CONCEPTS,
    FIRST_TEMPO_ID,
    MAX_CONDITION_TOKENS,
    METER_CONCEPTS,
    MOODS,
    NUM_TOKENS,
    SCALES,
    TOKEN_IDS,
    TOKENS,
    draw_concepts,
    fixed_columns,
    moods_of,
    tempo_interpolation,
    token_ids,
)
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS, REGISTERS, pitch_channels
from configs.demo.recipe.latents import FIRST_PITCH, HAT, KICK, SNARE, FloatArray
from configs.demo.recipe.tokenizer import UNKNOWN, build_tokenizer


def test_scales_start_on_their_root() -> None:
    assert scale_pitch_classes(0, "major") == (0, 2, 4, 5, 7, 9, 11)
    assert scale_pitch_classes(9, "minor") == (9, 11, 0, 2, 4, 5, 7)
    assert set(scale_pitch_classes(9, "minor")) == set(scale_pitch_classes(0, "major"))
    assert set(scale_pitch_classes(9, "minor pentatonic")) == set(scale_pitch_classes(0, "pentatonic"))
    assert scale_pitches(0, "major", 60, 72) == (60, 62, 64, 65, 67, 69, 71, 72)


def test_chords_are_stacked_thirds() -> None:
    assert chord_pitch_classes(0, "major", 0, 3) == (0, 4, 7)
    assert chord_pitch_classes(0, "major", 4, 4) == (7, 11, 2, 5)
    assert chord_pitch_classes(0, "major", 3, 5) == (5, 9, 4, 7)
    assert chord_pitch_classes(0, "major", 0, 5) == (0, 4, 7), "the tonic is a triad"
    assert chord_pitch_classes(0, "major", 1, 5) == (2, 5, 9, 0), "a ninth would lie a semitone from the third"
    assert chord_pitch_classes(9, "harmonic minor", 4, 3) == (4, 8, 11)
    assert chord_pitch_classes(0, "minor", 0, 2) == (0, 7)
    assert chord_pitches((0, 4, 7), 60, 72) == (60, 64, 67, 72)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_chords_belong_to_their_scale(mode: str, size: int) -> None:
    for root in range(12):
        for degree in range(len(MODES[mode])):
            chord = chord_pitch_classes(root, mode, degree, size)
            assert set(chord) <= set(scale_pitch_classes(root, mode))
            is_triad = degree == 0 and len(MODES[mode]) == 7
            assert len(set(chord)) == len(chord) == min(size, 3 if is_triad else 4)
            assert chord[0] == scale_pitch_classes(root, mode)[degree]


@pytest.mark.parametrize("mode", list(MODES))
def test_progressions_start_on_the_tonic(mode: str) -> None:
    assert all(degrees[0] == 0 and len(degrees) == 4 for degrees in PROGRESSIONS[mode])
    named = [degrees for modes in GENRE_PROGRESSIONS.values() for degrees in modes.get(mode, ())]
    assert all(degrees[0] == 0 and len(degrees) in (4, 8, 12) for degrees in named)
    assert all(max(degrees) < len(MODES[mode]) for degrees in (*PROGRESSIONS[mode], *named))


def test_voices_move_as_little_as_possible() -> None:
    first = lead_voices((0, 4, 7), (), 48, 60)
    assert {pitch % 12 for pitch in first} == {0, 4, 7}
    second = lead_voices((9, 0, 4), first, 48, 60)
    assert len(set(first) & set(second)) == 2, "C major and A minor share two pitches"
    assert lead_voices((0, 4, 7), first, 48, 60) == first


def test_semitone_clashes_are_avoided_where_there_is_room() -> None:
    assert not num_clashes(lead_voices((0, 4, 7, 11), (), 48, 60))
    assert num_clashes(lead_voices((5, 9, 0, 4), (), 48, 60)) == 1


SONG = replace(
    draw_song(np.random.default_rng(3)),
    genre="jazz",
    mode="major",
    meter="4/4",
    section=None,
    density=1,
    articulation=1,
)


def in_bar(notes: list[Note], bar: Bar, song: Song) -> list[Note]:
    return [note for note in notes if bar.start_beat <= note.start_beat < bar.start_beat + song.beats_per_bar]


def test_chords_are_the_bars_voicings() -> None:
    bars = bars_of(SONG, 8)
    notes = list(write_pad(SONG, bars, np.random.default_rng(0)))
    for bar in bars:
        assert {note.channel + FIRST_PITCH for note in in_bar(notes, bar, SONG)} == set(bar.voicing)


def test_arpeggios_are_broken_chords() -> None:
    bars = bars_of(SONG, 8)
    notes = list(write_arp(SONG, bars, np.random.default_rng(0)))
    for bar in bars:
        struck = in_bar(notes, bar, SONG)
        assert len({note.start_beat for note in struck}) == len(struck)
        assert {(note.channel + FIRST_PITCH) % 12 for note in struck} <= set(bar.chord)


def test_a_walking_bass_begins_on_the_root_and_leads_to_the_next() -> None:
    bars = bars_of(SONG, 9)
    notes = list(write_bass(SONG, bars, np.random.default_rng(0)))
    for bar, following in pairwise(bars):
        walked = [(note.channel + FIRST_PITCH) % 12 for note in in_bar(notes, bar, SONG)]
        assert len(walked) == 4
        assert walked[0] == bar.chord[0]
        assert min((walked[-1] - following.chord[0]) % 12, (following.chord[0] - walked[-1]) % 12) <= 2
    low, high = REGISTERS["bass"]
    assert all(low <= note.channel + FIRST_PITCH <= high for note in notes)


def test_reggae_chords_are_off_the_beat() -> None:
    song = replace(SONG, genre="reggae", mode="minor", density=1)
    notes = list(write_pad(song, bars_of(song, 4), np.random.default_rng(1)))
    assert notes
    assert all(note.start_beat % 4 != 0 for note in notes)


@pytest.mark.parametrize(
    "change", [{"density": 0}, {"articulation": 2}, {"instruments": {**SONG.instruments, "pad": "strings"}}]
)
def test_chords_are_held_in_calm_songs_and_by_strings(change: dict[str, Any]) -> None:
    song = replace(SONG, genre="reggae", mode="minor", **change)
    share, staccato = (
        (render(each, 400, ["pad"])[:, list(pitch_channels("pad"))].max(axis=1) > 0.05).mean()
        for each in (song, replace(song, articulation=0))
    )
    assert share > 0.95
    assert staccato < 0.8


def test_every_layer_ends_on_one_stroke_of_the_tonic() -> None:
    bars = bars_of(SONG, 4, ends=True)
    for layer, write in (("pad", write_pad), ("arp", write_arp), ("bass", write_bass)):
        last = [note for note in write(SONG, bars, np.random.default_rng(1)) if note.start_beat >= bars[3].start_beat]
        assert {note.start_beat for note in last} == {bars[3].start_beat}
        assert {note.end_beat for note in last} == {bars[3].start_beat + SONG.beats_per_bar}
        pitches = {(note.channel + FIRST_PITCH) % 12 for note in last}
        assert SONG.root in pitches, layer
        assert pitches <= set(bars[3].triad), layer


def test_arpeggios_begin_on_the_root() -> None:
    bars = bars_of(replace(SONG, genre="rock"), 4)
    notes = [
        note for note in write_arp(SONG, bars, np.random.default_rng(1)) if note.start_beat % SONG.beats_per_bar == 0
    ]
    assert [(note.channel + FIRST_PITCH) % 12 for note in notes] == [bar.chord[0] for bar in bars]


def test_staccato_is_short() -> None:
    bars = bars_of(SONG, 4)
    lengths = []
    for articulation in (0, 1):
        notes = write_pad(replace(SONG, articulation=articulation), bars, np.random.default_rng(0))
        lengths.append(np.mean([note.end_beat - note.start_beat for note in notes]))
    assert lengths[0] < 0.7 * lengths[1]


def song(seed: int, **fields: object) -> Song:
    drawn = draw_song(np.random.default_rng([7, seed]))
    return replace(drawn, **{"genre": "pop", "meter": "4/4", "section": None, "density": 1, **fields})  # type: ignore[arg-type]


def melody(of: Song, num_bars: int = 16) -> list[Note]:
    return list(write_melody(of, bars_of(of, num_bars), np.random.default_rng(of.seed)))


def rhythm(notes: list[Note], bar: int) -> list[float]:
    return [note.start_beat - 4 * bar for note in notes if 0 <= note.start_beat - 4 * bar < 4]


@pytest.mark.parametrize("seed", range(12))
def test_a_phrase_repeats_its_motif_and_closes_with_a_rest_on_a_chord_tone(seed: int) -> None:
    of = song(seed)
    notes, bars = melody(of), bars_of(of, 16)
    assert rhythm(notes, 0) == rhythm(notes, 2) == rhythm(notes, 4)
    for bar in bars[3::4]:
        last = [note for note in notes if note.start_beat < bar.start_beat + 4][-1]
        assert (last.channel + FIRST_PITCH) % 12 in bar.triad
        assert last.end_beat <= bar.start_beat + 3.0


def test_phrase_b_has_motifs_of_its_own() -> None:
    differ = [rhythm(melody(song(seed)), 0) != rhythm(melody(song(seed)), 8) for seed in range(12)]
    assert np.mean(differ) > 0.5


def test_the_melody_stays_in_its_register_and_moves_in_small_steps() -> None:
    low, high = REGISTERS["melody"]
    for seed in range(12):
        pitches = np.array([note.channel + FIRST_PITCH for note in melody(song(seed))])
        assert low <= pitches.min() < pitches.max() <= high
        assert np.median(np.abs(np.diff(pitches))) <= 4


def test_a_riff_is_one_figure() -> None:
    notes = melody(song(1, genre="techno"))
    assert rhythm(notes, 0) == rhythm(notes, 1) == rhythm(notes, 2)


def test_a_chorus_lies_above_a_verse() -> None:
    means = [
        np.mean([note.channel for seed in range(12) for note in melody(song(seed, section=section))])
        for section in ("verse", "chorus")
    ]
    assert means[0] + 1 < means[1]


DRUM_SONG = replace(
    draw_song(np.random.default_rng(3)), genre="house", meter="4/4", section=None, density=1, loudness=2, bpm=120
)


def drums(song: Song, num_bars: int = 8, seed: int = 0) -> list[Note]:
    return list(write_drums(song, bars_of(song, num_bars), np.random.default_rng(seed)))


def beats(notes: list[Note], channel: int, bar: int) -> list[float]:
    return [
        note.start_beat - 4 * bar for note in notes if note.channel == channel and 0 <= note.start_beat - 4 * bar < 4
    ]


def test_house_has_four_on_the_floor_and_hats_between() -> None:
    notes = drums(DRUM_SONG)
    assert beats(notes, KICK, 0) == [0.0, 1.0, 2.0, 3.0]
    assert beats(notes, SNARE, 0) == [1.0, 3.0]
    assert {0.5, 1.5, 2.5, 3.5} <= set(beats(notes, HAT, 0))


def test_a_waltz_has_one_kick_a_bar() -> None:
    song = replace(DRUM_SONG, genre="waltz", meter="3/4")
    kicks = [note.start_beat for note in drums(song) if note.channel == KICK]
    assert kicks == [3.0 * bar for bar in range(8)]


def test_jazz_swings() -> None:
    notes = drums(replace(DRUM_SONG, genre="jazz"))
    assert any(abs(beat % 1 - 0.667) < 1e-6 for beat in beats(notes, HAT, 0))


def test_phrases_end_with_fills() -> None:
    has_fill = [
        beats(drums(DRUM_SONG, seed=seed), SNARE, 3) != beats(drums(DRUM_SONG, seed=seed), SNARE, 2)
        for seed in range(20)
    ]
    assert 0.5 < np.mean(has_fill) < 1.0


def test_dense_songs_have_ghost_notes() -> None:
    snares = [note.velocity for note in drums(replace(DRUM_SONG, genre="funk", density=2)) if note.channel == SNARE]
    assert min(snares) < 0.5 * max(snares)


def test_a_break_has_no_snare_and_a_build_rolls() -> None:
    assert not [note for note in drums(replace(DRUM_SONG, section="break")) if note.channel == SNARE]
    build = drums(replace(DRUM_SONG, section="build", density=2))
    assert len(beats(build, SNARE, 4)) < len(beats(build, SNARE, 5)) < len(beats(build, SNARE, 7)) == 16


FORM_SONG = replace(draw_song(np.random.default_rng(3)), genre="pop", mode="major", meter="4/4", section=None)


def test_phrases_follow_the_form() -> None:
    degrees, bars = degrees_of(FORM_SONG, 16), bars_of(FORM_SONG, 16)
    phrases = [degrees[start : start + 4] for start in range(0, 16, 4)]
    assert "".join(bar.phrase for bar in bars[::4]) == "AABA"
    assert phrases[1] == phrases[3]
    assert phrases[0][:2] == phrases[1][:2]
    assert [phrase[0] for phrase in phrases] == [0, 0, 0, 0]
    assert phrases[1][2:] == [LEADING_DEGREES[FORM_SONG.mode], 0], "the second A goes home"
    assert all(bar.start_beat == 4 * bar.index for bar in bars)


def test_a_piece_that_ends_goes_home_in_its_last_bars() -> None:
    bars, endless = bars_of(FORM_SONG, 7, ends=True), bars_of(FORM_SONG, 7)
    assert [bar.is_final for bar in bars] == [False] * 6 + [True]
    assert not any(bar.is_final for bar in endless)
    assert bars[6].triad == bars[0].triad
    assert bars[5].next_root == FORM_SONG.root
    assert [bar.chord for bar in bars[:5]] == [bar.chord for bar in endless[:5]]


def test_a_blues_has_twelve_bars() -> None:
    blues = replace(FORM_SONG, genre="blues", mode="mixolydian")
    degrees = degrees_of(blues, 24)
    assert degrees[:12] == degrees[12:]
    assert degrees[4:6] == [3, 3]


def test_voicings_stay_in_the_register_of_chords() -> None:
    low, high = REGISTERS["pad"]
    for index in range(30):
        song = draw_song(np.random.default_rng([4, index]))
        for bar in bars_of(song, 8):
            assert all(low <= pitch <= high for pitch in bar.voicing)
            assert {pitch % 12 for pitch in bar.voicing} == set(bar.chord)
            assert not num_clashes(bar.voicing)


def test_a_density_keeps_the_hits_of_its_letters() -> None:
    assert [hit.step for hit in hits_of("X.o.x.O.", 0)] == [0, 6]
    assert [hit.step for hit in hits_of("X.o.x.O.", 1)] == [0, 4, 6]
    assert [hit.step for hit in hits_of("X.o.x.O.", 2)] == [0, 2, 4, 6]
    assert [(hit.step, hit.end) for hit in hits_of("X-x-X...", 0)] == [(0, 4), (4, 5)], "a held hit takes over"
    assert [(hit.step, hit.end) for hit in hits_of("X.x-X...", 0)] == [(0, 1), (4, 5)]
    assert [hit.letter for hit in hits_of("R-f-", 1)] == ["R", "f"]


def test_swing_moves_what_lies_off_the_beat() -> None:
    assert step_beats("4/4", 4, 0.5, 0.5)[:5] == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert step_beats("4/4", 4, 0.667, 0.5)[2] == 0.667
    assert step_beats("4/4", 4, 0.5, 0.6)[1] == 0.3
    assert step_beats("6/8", 2, 0.667, 0.6) == tuple(step / 6 for step in range(13))


def test_sections_change_density_and_dynamics() -> None:
    song = replace(FORM_SONG, density=1, loudness=1)
    by_section = {
        name: bars_of(replace(song, section=name), 16) for name in ("intro", "chorus", "break", "build", "outro")
    }
    assert [bar.density for bar in by_section["intro"]][:4] == [0, 0, 0, 0]
    assert by_section["intro"][12].density == 1
    assert {bar.density for bar in by_section["chorus"]} == {2}
    assert {bar.density for bar in by_section["break"]} == {0}
    assert by_section["build"][0].velocity < by_section["build"][7].velocity
    assert by_section["outro"][0].velocity > by_section["outro"][8].velocity


@pytest.mark.parametrize(("meter", "beats"), [("4/4", (0, 4, 8, 12)), ("3/4", (0, 4, 8)), ("6/8", (0, 6))])
def test_beats_weigh_more_than_what_lies_between(meter: str, beats: tuple[int, ...]) -> None:
    weights = accents(meter)
    assert weights[0] == max(weights)
    assert {step for step, weight in enumerate(weights) if weight >= 0.9} == set(beats)


@cache
def songs() -> list[Song]:
    return [draw_song(np.random.default_rng([9, index])) for index in range(1500)]


def test_a_seed_gives_one_song() -> None:
    assert draw_song(np.random.default_rng(1)) == draw_song(np.random.default_rng(1))
    assert draw_song(np.random.default_rng(1)) != draw_song(np.random.default_rng(2))


def test_everything_a_prompt_can_name_occurs() -> None:
    assert {song.root for song in songs()} == set(range(12))
    assert {song.mode for song in songs()} == set(MODES)
    assert {song.bpm for song in songs()} == set(range(BPM_RANGE[0], BPM_RANGE[1] + 1))
    assert {song.meter for song in songs()} == set(METERS)
    assert {song.genre for song in songs()} == set(GENRES)
    assert {song.section for song in songs()} == {None, *SECTIONS}
    assert {len(song.layers) for song in songs()} == set(range(1, len(LAYERS) + 1))
    for layer in LAYERS:
        assert {song.instruments[layer] for song in songs()} == set(INSTRUMENTS[layer])


def test_most_songs_are_what_their_genre_suggests() -> None:
    in_range = [song.rule.bpm[0] <= song.bpm <= song.rule.bpm[1] for song in songs()]
    assert np.mean(in_range) > 0.6
    assert np.mean([song.meter == song.rule.meter for song in songs()]) > 0.75
    assert np.mean([song.layers == song.rule.layer_set for song in songs()]) > 0.3


def test_a_beat_of_six_eight_is_a_dotted_quarter() -> None:
    beats = {song.meter: song.beats_per_bar for song in songs()}
    assert beats == {"4/4": 4, "3/4": 3, "6/8": 2}
    assert all(song.frames_per_beat == 1500 / song.bpm for song in songs())


def test_instruments_lean_towards_the_genre() -> None:
    drawn = [draw_instruments(np.random.default_rng(index), "reggae")["bass"] for index in range(200)]
    assert 0.5 < np.mean([name == "electric bass" for name in drawn]) < 0.85


def check_patterns(groove: Groove, meter: str) -> None:
    size = BEATS_PER_BAR[meter] * STEPS_PER_BEAT[meter]
    for pattern in (groove.kick, groove.snare, groove.hat, *groove.chords):
        assert len(pattern) == size
        assert set(pattern) <= set("XxOo-.")
    for pattern in groove.bass:
        assert len(pattern) == size
        assert set(pattern) <= set("RFTArfta-.")
    assert all(any(letter in "XO" for letter in pattern) for pattern in (groove.kick, *groove.chords))
    assert all(any(letter.isupper() for letter in pattern) for pattern in groove.bass)


@pytest.mark.parametrize("name", list(GENRES))
def test_a_genre_is_a_whole_rule(name: str) -> None:
    genre = GENRES[name]
    check_patterns(genre.groove, genre.meter)
    assert BPM_RANGE[0] <= genre.bpm[0] < genre.bpm[1] <= BPM_RANGE[1]
    assert genre.layer_set <= set(LAYERS)
    assert len(genre.layer_set) >= 2
    assert set(genre.modes) <= set(MODES)
    assert not genre.progressions or genre.progressions in GENRE_PROGRESSIONS
    for layer in LAYERS:
        assert set(genre.instruments[layer]) <= set(INSTRUMENTS[layer])


@pytest.mark.parametrize("meter", METERS)
def test_every_meter_has_a_groove(meter: str) -> None:
    check_patterns(METER_GROOVES[meter], meter)


def test_no_two_genres_have_the_same_groove() -> None:
    grooves = [(genre.groove, genre.bpm) for genre in GENRES.values()]
    assert len(set(grooves)) == len(grooves)


def requests(count: int = 100) -> list[Request]:
    rngs = [np.random.default_rng(seed) for seed in range(count)]
    return [draw_request(draw_song(rng), rng) for rng in rngs]


def test_named_layers_and_instruments_are_the_song_s() -> None:
    for request in requests():
        assert set(request.layers_asked) <= request.song.layers
        assert not set(request.layers_excluded) & request.song.layers
        if request.layers_asked:
            assert {*request.layers_asked, *request.layers_excluded} == set(LAYERS)
        for layer, name in request.instruments_asked.items():
            assert layer in request.layers_asked
            assert request.song.instruments[layer] == name
            assert name in request.prompt


def test_named_tempos_and_keys_are_the_song_s() -> None:
    found = requests()
    for request in found:
        assert (f"at {request.song.bpm} bpm" in request.prompt) == request.names_tempo
        assert (f" {request.song.mode}" in request.prompt.partition(" in ")[2]) >= request.names_key
    assert 0.5 < np.mean([request.names_key for request in found]) < 1.0
    assert 0.5 < np.mean([request.names_tempo for request in found]) < 1.0
    assert 0.2 < np.mean([bool(request.instruments_asked) for request in found]) < 1.0


def test_every_word_is_understood() -> None:
    tokenizer = build_tokenizer()
    for request in requests():
        assert UNKNOWN not in tokenizer.encode(request.prompt).tokens, request.prompt


def test_a_seed_gives_one_prompt() -> None:
    first, second = (draw_request(draw_song(np.random.default_rng(1)), np.random.default_rng(2)) for _ in range(2))
    assert first == second
    assert len({request.prompt for request in requests(50)}) > 40


def drawn(count: int) -> list[tuple[Song, tuple[str, ...]]]:
    rngs = [np.random.default_rng([4, index]) for index in range(count)]
    songs = [draw_song(rng) for rng in rngs]
    return [(song, draw_concepts(song, rng)) for song, rng in zip(songs, rngs, strict=True)]


def test_every_token_occurs_in_training_prompts() -> None:
    found = {number for _, names in drawn(2500) for number in token_ids(names)}
    missing = {TOKENS[number] for number in set(range(NUM_TOKENS)) - found - {ALWAYS_ID}}
    assert not missing - set(SCALES)
    assert len(missing) < 20, "120 scales, some of them rare"


def test_named_layers_are_all_layers_and_true() -> None:
    for song, names in drawn(400):
        sounding = {name.removeprefix("layer:") for name in names if name.startswith("layer:")}
        silent = {name.removeprefix("no:") for name in names if name.startswith("no:")}
        assert sounding in (set(), set(song.layers))
        assert not silent & song.layers
        players = [name.split(":") for name in names if name.split(":")[0] in LAYERS]
        assert all(layer in sounding and song.instruments[layer] == player for layer, player in players)
        if sounding:
            assert sounding | silent == set(LAYERS)
        else:
            assert not players
            assert not any(name.startswith("genre:") for name in names)


def test_what_a_genre_does_not_suggest_is_said() -> None:
    for song, names in drawn(600):
        if f"genre:{song.genre}" not in names:
            continue
        assert song.mode in song.rule.modes or f"mode:{song.mode}" in names
        for layer in song.layers:
            is_usual = song.instruments[layer] in song.rule.instruments[layer]
            assert is_usual or f"{layer}:{song.instruments[layer]}" in names


def test_other_layers_can_be_named_than_those_of_the_song() -> None:
    song, rng = draw_song(np.random.default_rng(1)), np.random.default_rng(2)
    found = [set(draw_concepts(song, rng, frozenset({"arp"}), names_instruments=False)) for _ in range(50)]
    assert sum("layer:arp" in names for names in found) > 35
    assert not any("layer:pad" in names or f"arp:{song.instruments['arp']}" in names for names in found)


def test_prompts_fit_the_condition() -> None:
    assert max(len(token_ids(names)) for _, names in drawn(600)) < MAX_CONDITION_TOKENS


def test_training_prompts_name_one_tempo_and_one_meter() -> None:
    for song, names in drawn(100):
        assert [name for name in names if name in BPM_CONCEPTS] == [f"bpm:{song.bpm}"]
        assert [name for name in names if name in METER_CONCEPTS] == [f"meter:{song.meter}"]


def test_a_key_and_a_mode_give_a_scale() -> None:
    assert token_ids(["key:d", "mode:dorian", "layer:pad"]) == sorted(
        TOKEN_IDS[name] for name in ("layer:pad", "key:d/mode:dorian", "key:d", "mode:dorian")
    )
    assert token_ids(["key:d", "layer:pad"]) == sorted((TOKEN_IDS["key:d"], TOKEN_IDS["layer:pad"]))


def test_fixed_columns_write_tempo_meter_and_scale() -> None:
    columns = fixed_columns()
    assert columns.shape == (NUM_TOKENS, 15)
    assert columns[TOKEN_IDS["bpm:90"], 0] == pytest.approx(90 / 60 / 25)
    assert columns[TOKEN_IDS["meter:3/4"], 1:3].tolist() == [np.float32(1 / 3), 0.0]
    assert columns[TOKEN_IDS["meter:6/8"], 1:3].tolist() == [0.5, 1.0]
    white_keys = [1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1]
    assert columns[TOKEN_IDS["key:d/mode:dorian"], 3:].tolist() == white_keys
    assert np.count_nonzero(columns) == 121 + 3 + 1 + 12 * 120
    assert not columns[ALWAYS_ID].any()


def test_tempos_lie_between_anchors() -> None:
    weights = tempo_interpolation()
    bpms = np.arange(BPM_RANGE[0], BPM_RANGE[1] + 1)
    assert weights.shape == (121, 9)
    assert np.allclose(weights @ np.arange(60, 181, 15), bpms)
    assert np.all((weights > 0).sum(axis=1) <= 2)
    assert TOKENS[FIRST_TEMPO_ID : FIRST_TEMPO_ID + 121] == BPM_CONCEPTS


def test_moods_follow_from_the_song() -> None:
    song = draw_song(np.random.default_rng(1))
    song = replace(song, mode="minor", density=0, loudness=0, articulation=1, bpm=80, genre="pop", meter="4/4")
    assert set(moods_of(song)) == {"mood:dark", "mood:sparse", "mood:soft", "mood:calm", "mood:sad"}
    loud = replace(song, mode="major", density=2, loudness=2, bpm=130, articulation=0, genre="funk")
    assert {"mood:bright", "mood:happy", "mood:energetic", "mood:playful", "mood:groovy"} <= set(moods_of(loud))


def test_every_mood_is_true_of_some_songs_and_false_of_others() -> None:
    songs = [draw_song(np.random.default_rng([5, index])) for index in range(300)]
    for mood, is_true in MOODS.items():
        assert 0.0 < np.mean([is_true(song) for song in songs]) < 0.6, mood


def curve(name: str) -> FloatArray:
    found: FloatArray = CURVES[ENVELOPE_INDEX[name]]
    return found


def test_every_pitched_instrument_has_an_envelope() -> None:
    names = {name for layer in LAYERS if layer != "drums" for name in INSTRUMENTS[layer]}
    assert names | {"kick", "snare", "hat"} == set(ENVELOPES)


def test_curves_are_levels() -> None:
    assert CURVES.min() >= 0.0
    assert CURVES.max() <= 1.0
    assert RELEASES.shape == (len(ENVELOPES), RELEASE_FRAMES + 1)
    assert np.all(RELEASES[:, -1] == 1.0)


def test_instruments_differ_as_they_do() -> None:
    assert curve("piano")[50] < 0.3 < curve("organ")[50]
    assert np.all(np.diff(curve("strings")[:4]) > 0)
    assert curve("marimba")[8] < 0.05
    assert curve("flute").argmax() > curve("harp").argmax() == 0
    assert ENVELOPES["bells"].ring_frames > ENVELOPES["harp"].ring_frames > ENVELOPES["organ"].ring_frames


def test_a_tremolo_has_no_steps_that_look_like_onsets() -> None:
    assert np.diff(curve("electric piano")[3:]).max() < 0.05
