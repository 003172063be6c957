"""What is measured of sound and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("librosa")
pytest.importorskip("pretty_midi")

import onnxruntime as ort
from helpers.ebur128 import measured
from helpers.paths import ROOT

from configs.demo.recipe.codec.decoder import build_decoder
from configs.demo.recipe.corpus.batches import draw_songs
from configs.demo.recipe.corpus.envelopes import CURVES, ENVELOPE_INDEX
from configs.demo.recipe.corpus.rendering import notes_of, write_levels
from configs.demo.recipe.corpus.theory import MODES, NOTE_NAMES
from configs.demo.recipe.evaluation import beat, midi, sound, steps
from configs.demo.recipe.evaluation.blends import PLACES, PRESETS, blend_figures, corner_mean_db, place_row, weights_of
from configs.demo.recipe.evaluation.breathes import (
    Breath,
    breath,
    breath_row,
    breathes_figures,
    corpus_level,
    given_notes,
    is_near,
    joined,
)
from configs.demo.recipe.evaluation.ends import SECONDS, chord_share, ends_figures, off_line
from configs.demo.recipe.evaluation.instruments import CLIP_FRAMES, solo, train_ear
from configs.demo.recipe.evaluation.moves import Section, heard, moves_figures, song_rows
from configs.demo.recipe.evaluation.notes import (
    FIRST_SEED,
    echo_row,
    given_row,
    matched,
    melody,
    melody_f1,
    note_figures,
)
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.sound import onsets
from configs.demo.recipe.evaluation.sustained import sustained_figures, sustained_row
from configs.demo.recipe.evaluation.tonic import PIECES, num_changes, relation, tonic_figures
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS, channels_of, keys_of, pitch_channels
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    HOP_SAMPLES,
    SAMPLE_RATE_HZ,
    SILENCE,
    FloatArray,
    latents_from_levels,
)
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.config.notes import NotesSpec
from runtime.live.protocol.server_messages import Beat
from runtime.music.midi_file import midi_bytes
from runtime.music.score import Score
from runtime.music.sections import SongSection
from runtime.music.tracker import score_of
from runtime.pipeline.pipeline import open_pipeline


def tone(frequency_hz: float, seconds: float = 1.0, level: float = 0.5, phase: float = 0.0) -> FloatArray:
    time_s = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    wave = level * np.sin(2 * np.pi * frequency_hz * time_s + phase)
    return np.repeat(wave[:, None], 2, axis=1).astype(np.float32)


def bursts(starts_s: npt.NDArray[np.float64], seconds: float = 4.0) -> FloatArray:
    audio = np.zeros((round(seconds * SAMPLE_RATE_HZ), 2), np.float32)
    noise = 0.5 * np.random.default_rng(0).standard_normal((2400, 2)).astype(np.float32)
    for start in np.round(starts_s * SAMPLE_RATE_HZ).astype(int):
        audio[start : start + 2400] = noise[: len(audio) - start]
    return audio


@pytest.mark.parametrize(("frequency_hz", "pitch_class"), [(440.0, 9), (261.63, 0), (207.65, 8), (1318.5, 4)])
def test_chroma_of_a_tone_is_its_pitch_class(frequency_hz: float, pitch_class: int) -> None:
    energy = sound.chroma(tone(frequency_hz))
    assert np.all(energy.argmax(axis=1) == pitch_class)
    assert np.all(energy.max(axis=1) > 0.8 * energy.sum(axis=1))


def test_octaves_are_alike_and_other_pitches_are_not() -> None:
    audio = tone(220.0)
    assert sound.chroma_similarity(audio, audio) == pytest.approx(1.0)
    assert sound.chroma_similarity(audio, tone(880.0)) > 0.99
    assert sound.chroma_similarity(audio, tone(311.1)) < 0.05
    assert sound.chroma_similarity(audio, np.zeros_like(audio)) == 0.0


def test_onsets_at_the_same_times_correlate() -> None:
    audio = bursts(np.arange(0.2, 4.0, 0.5))
    assert sound.onset_correlation(audio, 0.3 * audio) > 0.9
    assert sound.onset_correlation(audio, bursts(np.arange(0.45, 4.0, 0.5))) < 0.1
    assert sound.onset_correlation(audio, np.zeros_like(audio)) == 0.0


def test_the_level_of_a_tone() -> None:
    assert sound.level_db(tone(1000.0, level=1.0)) == pytest.approx(-3.01, abs=0.01)
    assert sound.level_db(np.zeros((10, 2), np.float32)) == sound.QUIET_DB


def test_a_true_peak_lies_between_samples() -> None:
    audio = tone(SAMPLE_RATE_HZ / 4, level=1.0, phase=np.pi / 4)[2400:-2400]
    assert 20 * np.log10(np.abs(audio).max()) == pytest.approx(-3.01, abs=0.01)
    assert sound.true_peak_db(audio * np.hanning(len(audio))[:, None].astype(np.float32)) == pytest.approx(
        0.0, abs=0.05
    )


def test_true_peaks_are_those_of_another_meter() -> None:
    noise = np.random.default_rng(1).standard_normal((SAMPLE_RATE_HZ, 2))
    smooth = np.apply_along_axis(lambda channel: np.convolve(channel, np.hanning(9), "same"), 0, noise)
    audio = (0.1 * smooth * np.hanning(len(smooth))[:, None]).astype(np.float32)
    assert sound.true_peak_db(audio) == pytest.approx(measured(audio, SAMPLE_RATE_HZ).true_peak_dbtp, abs=0.2)


def test_clicks_are_jumps_at_ends_and_joins() -> None:
    audio = tone(200.0, phase=1.0)
    assert sound.num_clicks(audio, []) == 2
    faded = audio.copy()
    ramp = np.sin(np.linspace(0, np.pi / 2, 1440, dtype=np.float32))[:, None] ** 2
    faded[:1440] *= ramp
    faded[-1440:] *= ramp[::-1]
    assert sound.num_clicks(faded, [24_000]) == 0
    faded[24_000:] *= 0.8
    assert sound.num_clicks(faded, [24_000]) == 1


def test_there_are_pieces_of_several_modes() -> None:
    assert len(PIECES) == 24
    assert {mode for _, _, mode in PIECES} <= set(MODES)
    assert {name for _, name, _ in PIECES} <= set(NOTE_NAMES)


@pytest.mark.parametrize(
    ("asked", "found", "expected"),
    [
        ((2, "major"), (2, "major"), "exact"),
        ((2, "major"), (2, "minor"), "exact"),
        ((2, "major"), (11, "minor"), "relative"),
        ((9, "minor"), (0, "major"), "relative"),
        ((2, "dorian"), (9, "minor"), "relative"),
        ((2, "dorian"), (7, "major"), "other"),
        ((7, "pentatonic"), (4, "minor"), "relative"),
        ((9, "blues"), (0, "major"), "relative"),
        ((2, "major"), (9, "major"), "other"),
    ],
)
def test_keys_of_the_same_notes_are_relative(asked: tuple[int, str], found: tuple[int, str], expected: str) -> None:
    assert relation(*asked, *found) == expected


def test_shares_are_of_all_pieces_and_of_those_that_have_a_layer() -> None:
    heard = (
        ("exact", "pad 0 bass 3", "pad"),
        ("exact", "pad 4", ""),
        ("relative", "", ""),
        ("other", "bass 0", "bass"),
    )
    figures = tonic_figures([{"is": kind, "changes": changes, "still": still} for kind, changes, still in heard])
    shares = {"tonic_exact": 0.5, "tonic_relative": 0.25, "tonic_other": 0.25}
    assert figures == {**shares, "tonic_still_pad": 0.5, "tonic_still_bass": 0.5}


def test_a_layer_moves_where_another_key_is_the_loudest() -> None:
    levels = np.zeros((40, 64), np.float32)
    first, second = pitch_channels("melody")[:2]
    levels[:10, first] = levels[20:, first] = 0.8
    levels[10:15, second] = 0.8
    levels[12, first] = 0.5
    assert (num_changes(levels, "melody"), num_changes(levels, "pad")) == (2, 0)


PROMPTS = beat.PROMPTS[:1]
# Of all genres, 60 s each, plans have 0.59 (140 bpm) to 0.75, pieces without one 0.04 to 0.4. Here are 100 onsets.
LEAST_COHERENCE = 0.4


@pytest.fixture(scope="module")
def player(built_demo: Deployment) -> Iterator[Player]:
    with open_pipeline(built_demo) as pipeline:
        yield Player(pipeline)


def test_onsets_on_a_grid_and_beside_it() -> None:
    assert beat.on_grid(np.arange(20.0)).coherence == pytest.approx(1.0)
    assert beat.on_grid(np.arange(20.0) + 0.25).offset == pytest.approx(0.25)
    assert beat.on_grid(np.arange(20.0) / 5).coherence == pytest.approx(0.0, abs=1e-9)
    assert beat.on_grid(np.zeros(0)).coherence == 0.0


def test_a_blow_is_where_a_drum_rises_most() -> None:
    latents = np.full((100, 64), SILENCE, np.float32)
    kick = beat.pitch_channels("drums")[0]
    for frame in (25, 50):
        latents[frame : frame + 3, kick] += np.array([6.0, 3.0, 1.0])
    latents[24, kick] += 1.0
    assert beat.drum_onsets_s(latents).tolist() == [1.0, 2.0]


def test_each_onset_has_the_grid_of_its_bar() -> None:
    beats = [Beat(bpm=bpm, beats=4, bar=0, phase=0.0, sample=sample) for bpm, sample in ((120, 48_000), (100, 144_000))]
    starts, steps = beat.grids(beats, np.array([0.5, 1.0, 2.9, 3.0, 9.0]))
    assert starts.tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert steps.tolist() == [0.125, 0.125, 0.125, 0.15, 0.15]


@pytest.mark.parametrize("bpm", [97, 140])
def test_files_and_sessions_keep_the_beat_after_their_first_canvas(player: Player, bpm: int) -> None:
    for row in (beat.file_row, beat.live_row):
        found = row(player, bpm, beat.PROMPTS[:4], 32.0)
        assert found["onsets"] > 40
        assert found["coherence"] >= LEAST_COHERENCE, found
        assert abs(found["offset ms"]) <= 25, found


def test_loops_keep_the_beat_and_their_seams_are_short(player: Player) -> None:
    found = beat.loop_row(player, 124, PROMPTS, 30.0)
    assert found["coherence"] >= 0.6
    assert max(beat.seam_ms(bpm) for bpm in beat.LOOP_TEMPOS) <= 20


def test_the_clock_is_exact_and_a_controllers_is_followed(player: Player) -> None:
    assert beat.clock_figures(player, 20.0)["beat_clock_drift_ms"] <= 1
    found = beat.followed_figures(player)
    assert found["beat_followed_bpm"] == beat.FOLLOWED_BPM
    assert found["beat_followed_after_bars"] <= 1.5
    assert found["beat_followed_error_ms"] <= 22
    assert found["beat_followed_coherence"] >= LEAST_COHERENCE


def test_the_share_of_silence_and_the_longest_gap() -> None:
    levels = np.zeros((100, CHANNELS), np.float32)
    levels[:50, pitch_channels("pad")] = 0.5
    audio = np.full((4 * SAMPLE_RATE_HZ, 2), 0.1, np.float32)
    whole = sustained_row("a", 1, latents_from_levels(levels), audio)
    audio[:SAMPLE_RATE_HZ] = 1e-4
    holed = sustained_row("a", 2, latents_from_levels(levels), audio)
    assert (whole["quiet share"], whole["pad share"]) == (0.0, 0.5)
    assert holed["quiet share"] == pytest.approx(0.25, abs=0.02)
    figures = sustained_figures([whole, holed])
    assert figures["sustained_quiet_share"] == pytest.approx(0.125, abs=0.01)
    assert figures["sustained_quiet_share_max"] == pytest.approx(0.25, abs=0.02)
    assert figures["sustained_longest_gap_s"] == pytest.approx(1.0, abs=0.06)


BUNDLE = load_bundle(ROOT / Path("configs/demo"))
SILENT = np.full(CHANNELS, SILENCE, np.float32)
C2 = pitch_channels("bass").start


@pytest.fixture
def spec() -> NotesSpec:
    assert BUNDLE.notes is not None
    return BUNDLE.notes


def levels_with(curve: FloatArray) -> FloatArray:
    levels = np.zeros((80, CHANNELS), np.float32)
    levels[5 : 5 + len(curve), C2] = curve
    return levels


@pytest.mark.parametrize("name", ["piano", "upright bass", "violin", "choir"])
def test_a_note_of_the_corpus_has_its_level(spec: NotesSpec, name: str) -> None:
    found = breath(spec, "bass", levels_with(0.9 * CURVES[ENVELOPE_INDEX[name]][:60]), SILENT)
    assert len(found.held) == 1
    assert is_near(found.held[0], corpus_level(name))
    assert found.hammers == 0
    assert breath(spec, "pad", levels_with(CURVES[0][:60]), SILENT) == Breath((), 0, 0.0)


def test_rises_in_held_notes_are_hammers_and_strokes_are_not(spec: NotesSpec) -> None:
    flat = np.full(60, 0.8, np.float32)
    flat[30] = 0.7
    flat[45:48] = 0.3
    found = breath(spec, "bass", levels_with(flat), SILENT)
    assert found.hammers == 1
    assert found.held == (pytest.approx(0.7 / 0.8, abs=0.15),)
    assert not is_near(found.held[0], corpus_level("upright bass"))


def test_silence_counts_where_the_plan_sounds(spec: NotesSpec) -> None:
    hints, levels = levels_with(np.full(60, 0.6, np.float32)), levels_with(np.full(10, 0.6, np.float32))
    assert breath(spec, "bass", levels, SILENT, hints).silent_s == pytest.approx(50 / 25)
    assert breath(spec, "bass", hints, SILENT, hints).silent_s == 0.0


def test_figures_are_shares_of_instruments() -> None:
    piano, bass = ("pad", "piano"), ("bass", "upright bass")
    good, bad = Breath((0.39,) * 3, 1, 8.0, 0.5), Breath((0.9,) * 3, 3, 8.0, 0.2)
    found = breathes_figures({"planned": {piano: good, bass: bad}, "played": {piano: Breath((0.9,), 0, 0.0)}})
    assert found["breathes_planned"] == 0.5
    assert found["breathes_planned_hammers"] == 0.25
    assert found["breathes_silence_s_max"] == 0.5
    assert found["breathes_played"] == 1.0, "one note tells nothing"
    row = breath_row(piano, {"planned": joined([good, bad])})
    assert (row["planned"], row["planned notes"], row["silence s"]) == (0.645, 6, 0.5)


def test_given_notes_fit_their_layer() -> None:
    notes = given_notes("melody", 3)
    assert len({note["pitch"] for note in notes}) == len(notes) == 3
    assert all(note["pitch"] in keys_of("melody") for note in notes)


def test_the_corpus_notes_are_found_with_their_instruments() -> None:
    figures, rows = note_figures(load_bundle(ROOT / "configs" / "demo"), draw_songs(6, FIRST_SEED + 1))
    assert [row["layer"] for row in rows] == list(LAYERS)
    assert figures["notes_f1"] >= 0.98
    assert all(figures[f"notes_f1_{layer}"] >= 0.97 for layer in LAYERS), figures
    assert figures["notes_quantized_p95_ms"] <= 16
    assert figures["notes_instruments"] == 1.0


def test_an_onset_matches_once_within_the_tolerance() -> None:
    assert matched({40: [0.0, 0.05, 1.0]}, {40: [0.03, 1.05], 41: [1.0]}) == [(0.0, 0.03)]
    assert matched({40: [0.5]}, {}) == []


def test_notes_that_are_given_are_played_with_a_bass_in_their_key(player: Player) -> None:
    planned = given_row(player, num_melodies=4, plan=True)
    assert planned["F1"] >= 0.7
    assert planned["bass in key"] >= 0.9
    assert given_row(player, num_melodies=2, plan=True, notes_exact=True)["F1"] >= 0.97


def test_a_bar_that_is_played_to_a_live_session_comes_back_a_bar_later(player: Player) -> None:
    assert echo_row(player, 0, exact=True)["F1"] >= 0.9
    assert echo_row(player, 0, exact=False)["F1"] >= 0.5


def test_melodies_are_compared_by_pitch_and_onset() -> None:
    notes = melody(0)
    assert melody_f1(notes, notes) == 1.0
    assert melody_f1(notes, [note._replace(start_s=note.start_s + 0.07) for note in notes]) == 0.0
    assert melody_f1(notes, [note._replace(pitch=note.pitch + 12) for note in notes]) == 0.0
    assert melody_f1(notes[:10], notes[:20]) == pytest.approx(2 / 3)


MIDI_BUNDLE = load_bundle(ROOT / "configs" / "demo")


def song_latents() -> list[FloatArray]:
    """Of two songs of the corpus that have drums, a canvas of each."""
    found = []
    for song in draw_songs(24, midi.FIRST_SEED):
        notes = notes_of(song, CANVAS_FRAMES / song.frames_per_beat)
        if notes.get("drums"):
            found.append(latents_from_levels(write_levels(song, CANVAS_FRAMES, notes)))
    return [found[0], found[-1]]  # the next one has the same notes, with other instruments


def song_score(latents: FloatArray) -> Score:
    return score_of(MIDI_BUNDLE, latents, {"bpm": 97.3})


@pytest.mark.parametrize("reader", midi.READERS)
def test_two_readers_find_the_notes_of_each_layer(reader: str) -> None:
    score, other = map(song_score, song_latents())
    assert len(score.notes) > 40
    assert midi.read_share(score, midi_bytes(score), reader) == 1.0
    assert midi.read_share(score, midi_bytes(other), reader) < 0.5
    first = score.parts[0]
    without = replace(score, parts=(replace(first, notes=first.notes[1:]), *score.parts[1:]))
    assert midi.read_share(score, midi_bytes(without), reader) < 1.0


def strength(frames: list[int]) -> midi.Values:
    """Onsets in some of 400 frames, each of which fades out."""
    onsets = np.zeros(400)
    onsets[frames] = 1.0
    return np.convolve(onsets, [1.0, 0.6, 0.3], "full")[:400]


def test_onsets_are_compared_at_the_lag_that_fits_best() -> None:
    frames = [50, 110, 190, 220, 330]
    early, late, other = (strength(each) for each in (frames, [frame + 4 for frame in frames], [80, 150, 260, 300]))
    assert midi.correlation(early, late) == (pytest.approx(1.0, abs=0.01), 4)
    assert midi.correlation(late, early) == (pytest.approx(1.0, abs=0.01), -4)
    assert midi.correlation(early, strength([frame + 9 for frame in frames]))[0] < 0.5
    assert midi.correlation(early, other)[0] < 0.3
    assert midi.correlation(early, np.zeros(400))[0] == 0.0


def test_fluidsynth_plays_the_drums_where_ours_are(player: Player, tmp_path: Path) -> None:
    if missing := midi.missing_synthesizer():
        pytest.skip(missing)
    latents = song_latents()
    stems = [onsets(midi.stems_of(player, each)["drums"]) for each in latents]
    render = onsets(midi.rendered(song_score(latents[0]), "drums", tmp_path))
    assert midi.correlation(stems[0], render, 3)[0] >= 0.7
    assert midi.correlation(stems[1], render, 3)[0] <= 0.4


def test_without_fluidsynth_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "FluidSynth is not installed" in midi.missing_synthesizer()


def test_a_section_that_gets_louder_rises() -> None:
    noise = np.random.default_rng(0).standard_normal((48_000, 2)).astype(np.float32)
    found = heard("build", 4, 0.1 * noise * np.linspace(0.25, 1.0, 48_000, dtype=np.float32)[:, None])
    assert found.rise_db == pytest.approx(8.4, abs=0.3)
    assert heard("verse", 4, 0.1 * noise).level_db == pytest.approx(-20.0, abs=0.1)


def test_shares_are_of_builds_and_of_songs_with_a_chorus() -> None:
    songs = [
        [Section("build", 4, -20.0, 3.5), Section("chorus", 8, -15.0, 0.0), Section("outro", 5, -20.0, 0.0)],
        [Section("build", 3, -14.0, 1.0), Section("chorus", 8, -15.0, 0.0), Section("outro", 7, -20.0, 0.0)],
        [Section("verse", 8, -15.0, 0.0)],
    ]
    assert moves_figures(songs) == {
        "moves_songs": 3,
        "moves_builds": 2,
        "moves_odd_sections": 2,
        "moves_builds_rise": 0.5,
        "moves_builds_rise_db": 2.25,
        "moves_chorus_loudest": 0.5,
    }
    (row,) = song_rows({("house", 3): songs[0]})
    assert row["sections"] == "build 4: -20.0 (+3.5), chorus 8: -15.0, outro 5: -20.0"


def test_the_share_of_a_chord_is_that_of_its_pitch_classes() -> None:
    time = np.arange(2 * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    tones = [np.sin(2 * np.pi * 440.0 * 2 ** ((pitch - 69) / 12) * time) for pitch in (60, 64, 67)]
    audio = np.repeat(np.sum(tones, axis=0)[:, None] / 4, 2, axis=1).astype(np.float32)
    assert chord_share(audio, 0.5, (0, 4, 7)) > 0.95
    assert chord_share(audio, 0.5, (2, 5, 9)) < 0.05


def test_bar_lines_are_counted_from_the_first_section() -> None:
    section = SongSection(0, "verse", ("bass",), 8, 10, 410, None, bpm=120.0, beats=4, offset=0.25)
    assert off_line([section], 60) == pytest.approx(0.25)
    assert off_line([section], 85) == pytest.approx(24.75)


def test_shares_are_of_all_pieces_and_of_those_with_last_notes() -> None:
    rows = [
        {"seconds": SECONDS[0], "last 100 ms dB": -120.0, "clicks": 0, "sections": 2, "chord": 0.9, "frames off": 0.4},
        {"seconds": SECONDS[0], "last 100 ms dB": -49.0, "clicks": 1, "sections": 1, "chord": 0.7, "frames off": 3.0},
        {"seconds": 4.0, "last 100 ms dB": -80.0, "clicks": 0},
    ]
    figures = ends_figures(rows)
    assert figures["ends_silent"] == pytest.approx(2 / 3, abs=1e-4)
    assert (figures["ends_clicks"], figures["ends_on_line"], figures["ends_two_sections"]) == (1, 0.5, 0.5)
    assert figures["ends_chord"] == pytest.approx(0.8)


def test_presets_are_those_of_the_page() -> None:
    page = (ROOT / "server" / "live" / "page" / "presets.js").read_text(encoding="utf-8")
    for name, preset in PRESETS.items():
        assert all(f'"{text}"' in page for text in (name, *preset.prompts))


def test_weights_are_bilinear() -> None:
    assert [weights_of(*PLACES[corner]).index(1.0) for corner in "ABCD"] == [0, 1, 2, 3]
    assert weights_of(*PLACES["A+B"]) == (0.5, 0.5, 0.0, 0.0)
    assert weights_of(*PLACES["centre"]) == (0.25,) * 4


def test_corners_are_averaged_by_energy() -> None:
    levels = {"A": -20.0, "B": -20.0, "C": -10.0, "D": -120.0}
    assert corner_mean_db(levels, "A") == pytest.approx(-20.0)
    assert corner_mean_db(levels, "A+B") == pytest.approx(-20.0)
    assert corner_mean_db(levels, "C+D") == pytest.approx(-13.01, abs=0.01)


def test_a_quiet_centre_is_what_deviates() -> None:
    levels = dict.fromkeys(PLACES, -17.0) | {"centre": -23.0, "A+B": -16.0}
    figures = blend_figures([place_row("one", place, levels, levels) for place in PLACES])
    assert figures["rms_deviation_db"] == figures["lufs_deviation_db"] == pytest.approx(-6.0)
    assert (figures["centre_db"], figures["a_and_b_db"]) == (pytest.approx(-6.0), pytest.approx(1.0))


FRAMES = 128


def beats(moved: int = 0) -> FloatArray:
    """A note every 12 frames; every second one comes `moved` frames late."""
    levels = np.zeros((FRAMES, CHANNELS), np.float32)
    for number, start in enumerate(range(12, FRAMES - 12, 12)):
        first = start + moved * (number % 2)
        levels[first : first + 4, 20] = 0.8
    return levels


class LatePlayer:
    """With few steps half of its notes are two frames late; noise where they sound."""

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        late = [0 if piece.options["steps"] >= 100 else 2 for piece in pieces]
        return [latents_from_levels(beats(each)) for each in late]

    def decode(self, latents: FloatArray) -> FloatArray:
        noise = np.random.default_rng(0).standard_normal((len(latents) * HOP_SAMPLES, 2)).astype(np.float32)
        return noise * np.repeat(latents[:, 20:21] + 0.25, HOP_SAMPLES, axis=0) * 0.05


def test_notes_match_within_a_frame() -> None:
    assert steps.note_f1(beats(), beats()) == 1.0
    assert steps.note_f1(beats(), beats(1)) == 1.0
    assert steps.note_f1(beats(), beats(2)) == pytest.approx(5 / 9, abs=0.01)
    assert steps.note_f1(np.zeros_like(beats()), beats()) == 0.0
    assert steps.note_f1(np.roll(beats(), 1, axis=1), beats()) == 0.0


def test_figures_tell_few_steps_from_many() -> None:
    figures = steps.measure(LatePlayer()).figures  # type: ignore[arg-type]
    assert figures["steps_100_onset_f1"] == figures["steps_100_note_f1"] == 1.0
    assert figures["steps_100_mel_db"] == 0.0
    assert figures["steps_8_onset_f1"] < 0.8
    assert figures["steps_8_note_f1"] < 0.6
    assert figures["steps_8_mel_db"] > 1.0


@pytest.fixture(scope="module")
def decode() -> Callable[[FloatArray], FloatArray]:
    session = ort.InferenceSession(build_decoder().SerializeToString(), providers=["CPUExecutionProvider"])

    def run(latents: FloatArray) -> FloatArray:
        feed = {"latents": latents[None], "start_frame": np.zeros(1, np.int64)}
        return np.asarray(session.run(None, feed)[0][0].T, np.float32)

    return run


def test_a_solo_has_one_layer() -> None:
    latents = solo("melody", "flute", [1, 2])
    others = np.setdiff1d(np.arange(64), channels_of("melody"))
    assert latents.shape == (CLIP_FRAMES, 64)
    assert np.all(latents[:, others] == np.float32(SILENCE))
    assert (latents > 1.0).any()


def test_it_tells_basses_apart(decode: Callable[[FloatArray], FloatArray]) -> None:
    ear = train_ear(decode, layers=("bass",), songs_per_instrument=4)
    names = INSTRUMENTS["bass"]
    heard = [ear.instrument("bass", decode(solo("bass", name, [3, index]))) for index, name in enumerate(names)]
    assert sum(one == name for one, name in zip(heard, names, strict=True)) >= 3
