"""The evaluation as a whole: its measures, report, plots, and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("librosa")

from configs.demo.recipe.corpus.prompts import Request
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import Song, draw_song
from configs.demo.recipe.evaluation import schedules
from configs.demo.recipe.evaluation.evaluate import (
    LAYER_PROMPTS,
    Scores,
    continuation_figures,
    cover_source,
    held_out_requests,
    layer_figures,
    score,
    seed_figures,
)
from configs.demo.recipe.evaluation.measure import difference, in_key_energy, is_tempo, layers_present, tempo_bpm
from configs.demo.recipe.evaluation.player import Piece
from configs.demo.recipe.evaluation.report import Measured, markdown, table
from configs.demo.recipe.evaluation.schedules import Judge, lengths_of, rows_of, search, times_of
from configs.demo.recipe.evaluation.steps import CONVERGED_STEPS
from configs.demo.recipe.instruments import LAYERS, channels_of
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    FIRST_PITCH,
    FRAME_RATE_HZ,
    HOP_SAMPLES,
    SAMPLE_RATE_HZ,
    SILENCE,
    FloatArray,
    latents_from_levels,
)
from runtime.music.sections import SongSection
from runtime.requests.timesteps import schedule

REQUESTS = held_out_requests(24)


class CorpusPlayer:
    """Answers prompts with songs that fit them: all figures are the ceiling's. Its audio is the sum of the levels."""

    def __init__(self, requests: Sequence[Request] = ()) -> None:
        self.songs = {request.prompt: request.song for request in requests}

    def play(self, prompts: Sequence[str], seed: int, *, live: bool = False) -> FloatArray:
        return np.stack([self._latents(prompt, seed + i, CANVAS_FRAMES) for i, prompt in enumerate(prompts)])

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        return [self._latents(p.prompt, p.seed, round(p.options["seconds"] * FRAME_RATE_HZ)) for p in pieces]

    def decode(self, latents: FloatArray) -> FloatArray:
        mono = np.repeat(latents.sum(axis=1), HOP_SAMPLES)
        return np.repeat(mono[:, None], 2, axis=1)

    def _latents(self, prompt: str, seed: int, frames: int) -> FloatArray:
        song = self.songs.get(prompt, draw_song(np.random.default_rng(seed)))
        levels = render(song, frames, LAYER_PROMPTS.get(prompt, song.layers))
        return latents_from_levels(np.roll(levels, seed, axis=0))


class ClutteredPlayer(CorpusPlayer):
    """Adds drums to everything."""

    def _latents(self, prompt: str, seed: int, frames: int) -> FloatArray:
        latents = super()._latents(prompt, seed, frames)
        drums = latents_from_levels(render(draw_song(np.random.default_rng(0)), frames, ["drums"]))
        return np.maximum(latents, drums)


def test_the_corpus_itself_scores_one() -> None:
    rolls = [render(request.song, CANVAS_FRAMES, request.song.layers) for request in REQUESTS]
    scores = score(REQUESTS, rolls)
    assert min(vars(scores).values()) > 0.98
    assert scores.rounded("ceiling_")["ceiling_in_key"] > 0.98


def test_a_player_that_ignores_prompts_scores_low() -> None:
    roll = render(draw_song(np.random.default_rng(1)), CANVAS_FRAMES, ["pad"])
    scores = score(REQUESTS, [roll] * len(REQUESTS))
    assert scores.in_key < 0.8
    assert scores.layers_present < 0.8
    assert scores.tempo < 0.5


def test_silence_has_no_layer() -> None:
    scores = score(REQUESTS, [np.zeros((CANVAS_FRAMES, CHANNELS), np.float32)] * len(REQUESTS))
    assert scores == Scores(in_key=1.0, layers_present=0.0, layers_absent=1.0, tempo=scores.tempo)


def test_other_seeds_are_told_from_the_same_ones() -> None:
    player = CorpusPlayer(REQUESTS)
    prompts = [request.prompt for request in REQUESTS]
    again = np.maximum((player.play(prompts, 2000) + 0.25) / 6.0, 0.0)
    assert seed_figures(player, REQUESTS, again)["seeds_differ"] == 0.0  # type: ignore[arg-type]
    assert seed_figures(player, REQUESTS, np.roll(again, 9, axis=1))["seeds_differ"] > 0.9  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("player", "absent", "drums_db"), [(CorpusPlayer(), 1.0, -100.0), (ClutteredPlayer(), 0.0, 20.0)]
)
def test_layers_that_were_not_asked_for_are_counted_by_layer(
    player: CorpusPlayer, absent: float, drums_db: float
) -> None:
    figures = layer_figures(player, seeds=2)  # type: ignore[arg-type]
    assert figures["absent_worst_layer"] == absent
    assert figures["present_worst_layer"] == 1.0
    assert (figures["drums_in_pads_db"] < -50.0) == (drums_db < -50.0)


def test_long_pieces_that_keep_their_layers_score_one() -> None:
    figures = continuation_figures(CorpusPlayer(held_out_requests()), count=2)  # type: ignore[arg-type]
    assert figures["continued_layers_kept"] > 0.95
    assert figures["continued_layers_absent"] == 1.0
    assert figures["continued_in_key"] > 0.98


def test_held_out_prompts_are_always_the_same() -> None:
    assert held_out_requests(5) == held_out_requests(5)
    assert len({request.prompt for request in held_out_requests()}) > 60


def test_a_cover_has_the_notes_of_its_source_and_names_its_instruments() -> None:
    song, other, prompt = cover_source(3)
    assert song.seed == other.seed
    assert all(other.instruments[layer] in prompt for layer in song.layers)
    channels = sorted(
        set(range(CHANNELS)) - {c for layer in LAYERS if layer not in song.layers for c in channels_of(layer)}
    )
    assert not np.delete(render(song, 100, song.layers), channels, axis=1).any()


NUM_SONGS = 60

Corpus = list[tuple[Song, FloatArray]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    songs = [draw_song(np.random.default_rng([21, index])) for index in range(NUM_SONGS)]
    return [(song, render(song, 256, song.layers)) for song in songs]


def test_layers_are_found_exactly(corpus: Corpus) -> None:
    assert all(layers_present(levels) == song.layers for song, levels in corpus)


def test_tempo_is_found_in_every_meter(corpus: Corpus) -> None:
    assert np.mean([is_tempo(levels, song.bpm, song.meter) for song, levels in corpus]) > 0.98


def test_tempo_is_found_at_any_phase(corpus: Corpus) -> None:
    found = [is_tempo(render(song, 300, song.layers)[37:293], song.bpm, song.meter) for song, _ in corpus[:30]]
    assert np.mean(found) > 0.95


@pytest.mark.parametrize("factor", [0.93, 1.07])
def test_a_wrong_tempo_is_not_accepted(corpus: Corpus, factor: float) -> None:
    assert not any(is_tempo(levels, factor * song.bpm, song.meter) for song, levels in corpus[:30])


def test_the_tempo_of_a_metronome() -> None:
    levels = np.zeros((256, CHANNELS), np.float32)
    levels[np.round(np.arange(0, 255, 1500 / 97)).astype(int), 52] = 1.0
    assert tempo_bpm(levels, 90.0, "4/4") == pytest.approx(97.0, rel=0.01)


def test_the_corpus_is_in_key(corpus: Corpus) -> None:
    assert all(in_key_energy(levels, song.root, song.mode) > 0.999 for song, levels in corpus)


def test_half_of_the_energy_out_of_key_is_half() -> None:
    levels = np.zeros((10, CHANNELS), np.float32)
    levels[:, [60 - FIRST_PITCH, 61 - FIRST_PITCH]] = 0.5
    assert in_key_energy(levels, 0, "major") == pytest.approx(0.5)
    assert in_key_energy(np.zeros_like(levels), 0, "major") == 1.0
    assert in_key_energy(0.2 * levels, 0, "major") == 1.0, "what does not sound is in no other key"


def test_difference_is_a_distance() -> None:
    first, second = np.zeros((4, CHANNELS), np.float32), np.zeros((4, CHANNELS), np.float32)
    first[0, 0] = second[1, 1] = 1.0
    assert difference(first, first) == 0.0
    assert difference(first, second) == pytest.approx(1.0)


def test_a_group_has_its_figures_and_tables() -> None:
    text = markdown({"one": Measured({"share": 0.123456}, {"Rows": [{"a": "x|y", "b": ["p", 2.5, {"q": 0.1}]}]})})
    assert text.splitlines() == [
        "# one", "", "| figure | value |", "| --- | --- |", "| share | 0.1235 |", "",
        "## Rows", "", "| a | b |", "| --- | --- |", "| x\\|y | p, 2.5, q 0.1 |",
    ]  # fmt: skip


def test_no_rows_are_none() -> None:
    assert table([]) == "none"


class SongPlayer:
    """A player of written songs, whose audio is noise."""

    def play(self, prompts: Sequence[str], seed: int) -> FloatArray:
        songs = [draw_song(np.random.default_rng(seed + index)) for index in range(len(prompts))]
        return np.stack([latents_from_levels(render(song, 64, song.layers)) for song in songs])

    def decode(self, latents: FloatArray) -> FloatArray:
        return np.random.default_rng(0).standard_normal((len(latents) * HOP_SAMPLES, 2)).astype(np.float32)


def test_a_png_is_written(tmp_path: Path) -> None:
    from configs.demo.recipe.evaluation.plot import plot

    file = tmp_path / "samples.png"
    plot(SongPlayer(), file, ["one", "two", "three", "four"], columns=2)  # type: ignore[arg-type]
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 10_000


@pytest.mark.parametrize("frames", [2, 64, 4500])
def test_a_piece_of_any_length_has_a_picture(tmp_path: Path, frames: int) -> None:
    from configs.demo.recipe.evaluation.plot import draw_piece

    latents = latents_from_levels(np.full((frames, CHANNELS), 0.5))
    audio = np.zeros((frames * HOP_SAMPLES, 2), np.float32)
    sections = [SongSection(0, "verse", ("pad", "drums"), 8, 0, frames, None)]
    draw_piece(tmp_path / "piece.png", "a title", audio, latents, sections)
    assert (tmp_path / "piece.png").read_bytes().startswith(b"\x89PNG")


def test_a_waveform_keeps_the_peaks_of_long_audio() -> None:
    from configs.demo.recipe.evaluation.plot import waveform

    mono = np.zeros(1_000_000, np.float32)
    mono[500_001] = 0.9
    low, high = waveform(mono)
    assert len(low) == len(high) == 1600
    assert (high.max(), int(high.argmax())) == (np.float32(0.9), 800)
    assert low.min() == 0.0


def test_the_spectra_of_a_tone_peak_at_its_frequency_and_level() -> None:
    from configs.demo.recipe.evaluation.plot import spectra_db

    frequency_hz = 93 * SAMPLE_RATE_HZ / 4096
    mono = 0.1 * np.sin(2 * np.pi * frequency_hz * np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ)
    power = spectra_db(mono.astype(np.float32))
    assert np.all(power.argmax(axis=1) == 93)
    assert power.max(axis=1) == pytest.approx(-20.0, abs=0.1)


BEST = (1.0, 0.8, 0.6, 0.2)
SEEDS = (1, 100)


class DistantPlayer:
    """Latents are as far from the converged ones as a piece's times are from BEST."""

    pipeline = SimpleNamespace(bundle=SimpleNamespace(sampler=SimpleNamespace(shift=3.0)))

    def __init__(self) -> None:
        self.asked: list[Piece] = []

    def generate(self, pieces: Sequence[Piece]) -> list[FloatArray]:
        self.asked += pieces
        return [self.latents(piece) for piece in pieces]

    def latents(self, piece: Piece) -> FloatArray:
        found = np.full((16, CHANNELS), SILENCE + 1.0, np.float32)
        if "steps" in piece.options and piece.options["steps"] == CONVERGED_STEPS:
            return found
        times = piece.options.get("timesteps")
        if times is None:
            times = schedule(piece.options["steps"], shift=piece.options["shift"])[:-1].tolist()
        return found + np.float32(sum(abs(a - b) for a, b in zip(times, BEST, strict=True)))

    def decode(self, latents: FloatArray) -> FloatArray:
        return np.zeros((len(latents) * 1920, 2), np.float32)


def judge_of(player: DistantPlayer) -> Judge:
    return Judge.of(player, SEEDS)  # type: ignore[arg-type]


def test_the_converged_solution_is_guided_throughout_and_has_the_seeds_of_the_judge() -> None:
    player = DistantPlayer()
    judge = judge_of(player)
    assert len(judge.converged) == len(player.asked) == 2 * len(schedules.PROMPTS)
    assert {(piece.options["steps"], piece.options["cfg_interval_end"]) for piece in player.asked} == {(200, 1.0)}
    assert [piece.seed for piece in player.asked[:2]] == [1, 2]
    assert player.asked[len(schedules.PROMPTS)].seed == 100


def test_a_distance_is_relative_to_what_is_not_silent() -> None:
    judge = judge_of(DistantPlayer())
    assert judge.distance({"timesteps": BEST}) == 0.0
    assert judge.distance({"timesteps": (0.9, 0.8, 0.6, 0.2)}) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"steps": 16, "cfg_interval_end": 1.0}, 32),
        ({"steps": 16, "cfg_interval_end": 0.5}, 29),
        ({"steps": 8, "cfg_interval_end": 0.5}, 15),
        ({"steps": 4, "shift": 1.0, "cfg_interval_end": 0.5}, 7),
        ({"timesteps": BEST, "cfg_interval_end": 0.3}, 6),
        ({"timesteps": BEST, "cfg_interval_start": 0.1, "cfg_interval_end": 0.3}, 5),
    ],
)
def test_a_step_has_a_second_row_where_it_is_guided(options: dict[str, object], rows: int) -> None:
    assert rows_of(options, 3.0) == rows


def test_lengths_and_times_are_inverse() -> None:
    assert times_of(lengths_of(BEST)) == list(BEST)
    assert times_of(2 * lengths_of(BEST)) == list(BEST)


def test_the_search_comes_closer_and_takes_no_more_rows() -> None:
    judge, said = judge_of(DistantPlayer()), list[str]()
    start = {"steps": 4, "shift": 3.0, "solver": "ab2", "cfg_interval_end": 0.25}
    found = search(judge, start, said.append)
    assert judge.distance({"timesteps": found}) < 0.5 * judge.distance(start)
    assert found[0] == 1.0
    assert all(later < earlier for earlier, later in zip(found, [*found[1:], 0.0], strict=True))
    assert rows_of({"timesteps": found, "cfg_interval_end": 0.25}, 3.0) <= rows_of(start, 3.0)
    distances = [float(line.split()[0]) for line in said]
    assert distances == sorted(distances, reverse=True)


def test_tables_compare_solvers_intervals_and_found_times() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "COMPARED_STEPS", (4,))
        patch.setattr(schedules, "PROMPTS", schedules.PROMPTS[:1])
        judge = Judge.of(DistantPlayer(), (1,))  # type: ignore[arg-type]
        rows = list(schedules.compared(judge, {4: BEST}, 0.5))
    assert [row["steps"] for row in rows] == [
        "ode 4, guided to 1", "ode 4, guided to 0.5", "ab2 4, guided to 1", "ab2 4, guided to 0.5",
        "ab2 4, guided to 0.5, own times",
    ]  # fmt: skip
    assert [row["rows"] for row in rows] == [8, 8, 8, 8, 7]
    assert rows[-1]["distance"] == 0.0 < rows[0]["distance"]
