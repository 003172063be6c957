"""Plans and typed prompts as they are played, and listened to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("librosa")

from helpers.factories import TinySpec, tiny_bundle
from helpers.generations import generate
from helpers.paths import ROOT

from configs.demo.recipe.evaluation import listening, sound, typed
from configs.demo.recipe.evaluation.evaluate import cover_source, held_out_requests, latents_of, score
from configs.demo.recipe.evaluation.measure import difference, in_key_energy, layers_present
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
from configs.demo.recipe.evaluation.player import EndlessPiece, Piece, Player, open_player
from configs.demo.recipe.evaluation.typed import Answer, Expectation, judge, parse_line, read_prompts
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    CHANNELS,
    HOP_SAMPLES,
    SAMPLE_RATE_HZ,
    FloatArray,
    levels_from_latents,
)
from configs.demo.recipe.planner.pages import StructureCodes
from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment
from runtime.music.sections import SongSection
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import open_pipeline
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.planner import Planner

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


def levels(*layers: str) -> FloatArray:
    found = np.zeros((200, CHANNELS), np.float32)
    for layer in layers:
        found[:, pitch_channels(layer)[0]] = 0.5
    return found


def hits(bpm: float, seconds: float = 12.0) -> FloatArray:
    audio = np.zeros((round(seconds * SAMPLE_RATE_HZ), 2), np.float32)
    burst = (0.4 * np.random.default_rng(0).standard_normal((1200, 2))).astype(np.float32)
    for start in np.round(np.arange(0, seconds - 0.1, 60 / bpm) * SAMPLE_RATE_HZ).astype(int):
        audio[start : start + 1200] += burst
    return audio


def tone(pitch: float = 69, seconds: float = 4.0) -> FloatArray:
    time_s = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    wave = 0.2 * np.sin(2 * np.pi * 440 * 2 ** ((pitch - 69) / 12) * time_s)
    return np.repeat(wave[:, None], 2, axis=1).astype(np.float32)


def wrong(line: str, heard: FloatArray, audio: FloatArray, answer: Answer | None = None) -> set[str]:
    """The checks that fail."""
    checks = judge(parse_line(line), answer or Answer(), heard, audio)
    return {check for check, text in checks.items() if text}


def test_the_file_has_a_hundred_prompts_of_which_twenty_are_given() -> None:
    prompts = read_prompts()
    assert len({one.prompt for one in prompts}) == len(prompts) == 100
    assert prompts[0] == Expectation(
        "lofi hip hop beats to study", "drums bass harmony; bpm 65-95", frozenset({"drums", "bass"}),
        harmony=True, bpm=((65.0, 95.0),),
    )  # fmt: skip
    assert prompts[typed.NUM_GIVEN - 1].prompt == "music"
    assert prompts[typed.NUM_GIVEN - 1].names_genre


def test_a_line_says_what_should_be_heard() -> None:
    found = parse_line("a b | only drums bass | bpm 60-70 or 120-140; key F# minor; said b; sustained")
    assert (found.layers, found.is_only, found.tonic) == (frozenset({"drums", "bass"}), True, 6)
    assert found.bpm == ((60.0, 70.0), (120.0, 140.0))
    assert (found.said, found.is_sustained) == (("b",), True)
    assert parse_line("a | any2 no-drums |").absent == {"drums"}


@pytest.mark.parametrize(
    "line", ["no columns", "a | lute |", "a | drums | loud", "a | drums | key H major", "a | drums | louder lute drums"]
)
def test_a_line_that_says_something_else_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        parse_line(line)


@pytest.mark.parametrize(
    ("expected", "right", "not_right"),
    [
        ("drums bass", ("drums", "bass", "pad"), ("drums", "pad")),
        ("only melody", ("melody",), ("melody", "pad")),
        ("harmony", ("arp",), ("bass", "melody")),
        ("any2", ("bass", "pad"), ("pad",)),
        ("pad no-arp", ("pad",), ("pad", "arp")),
    ],
)
def test_layers_are_those_of_the_latents(expected: str, right: tuple[str, ...], not_right: tuple[str, ...]) -> None:
    line = f"a | {expected} |"
    assert "layers" not in wrong(line, levels(*right), tone())
    assert "layers" in wrong(line, levels(*not_right), tone())


def test_audio_contradicts_latents_where_it_can_tell() -> None:
    assert "librosa layers" in wrong("a | drums |", levels("drums"), tone())
    assert "librosa layers" not in wrong("a | drums |", levels("drums"), hits(100))
    assert "librosa layers" in wrong("a | only melody |", levels("melody"), hits(100))


def test_the_tempo_has_to_be_heard_and_said() -> None:
    line, said = "a | drums | bpm 95-105", Answer(played="drums; rock; 100 bpm")
    assert wrong(line, levels("drums"), hits(100), said) == set()
    assert wrong(line, levels("drums"), hits(100)) == {"bpm said"}
    assert wrong(line, levels("drums"), hits(100), replace(said, played="120 bpm")) == {"bpm said"}
    assert wrong(line, levels("drums"), hits(128), said) == {"bpm"}
    assert wrong("a | drums | bpm 45-55 or 20-30", levels("drums"), hits(100), Answer(played="50 bpm")) == set()


def test_the_tonic_is_that_of_the_key_profile() -> None:
    chord = tone(62) + tone(66) + tone(69)
    assert "key" not in wrong("a | any2 | key D major", levels("pad", "arp"), chord)
    assert "key" in wrong("a | any2 | key A major", levels("pad", "arp"), chord)


def test_a_sustained_prompt_has_no_gaps() -> None:
    stabs = tone()
    stabs[2 * SAMPLE_RATE_HZ :] = 0.0
    assert "sustained" not in wrong("a | pad | sustained", levels("pad"), tone())
    assert "sustained" in wrong("a | pad | sustained", levels("pad"), stabs)


def test_words_are_said_as_unknown_or_with_near_ones() -> None:
    line = "a | pad | said fugue"
    assert wrong(line, levels("pad"), tone(), Answer(unknown=("organ Fugue",))) == set()
    assert wrong(line, levels("pad"), tone(), Answer(near={"fugue": ("fog",)})) == set()
    assert wrong(line, levels("pad"), tone(), Answer(unknown=("fugues",))) == {"said"}


def test_the_genre_that_was_drawn_is_named() -> None:
    line = f"music | any2 | {typed.NAMES_GENRE}"
    assert wrong(line, levels("pad", "arp"), tone(), Answer(played="genre drawn by the seed: bossa nova")) == set()
    assert wrong(line, levels("pad", "arp"), tone()) == {"genre said"}


def notes(level: float, every: int, layer: str, frames: int = 200) -> FloatArray:
    made = np.zeros((frames, CHANNELS), np.float32)
    made[::every, pitch_channels(layer)[0]] = level
    return made


def test_one_layer_is_louder_or_denser_than_another() -> None:
    heard = notes(0.8, 8, "drums") + notes(0.4, 20, "pad")
    assert "louder" not in wrong("a | drums | louder drums pad", heard, tone())
    assert "louder" in wrong("a | drums | louder pad drums", heard, tone())
    assert "denser" not in wrong("a | drums | denser drums pad", heard, tone())
    assert "denser" in wrong("a | drums | denser pad drums", heard, tone())
    assert "louder" in wrong("a | drums | louder drums pad", levels("pad"), tone())


def test_a_piece_begins_with_what_is_said_first() -> None:
    heard = levels("pad", "drums")
    heard[: typed.FIRST_FRAMES, pitch_channels("drums")] = 0.0
    assert "first" not in wrong("a | pad drums | first pad", heard, tone())
    assert "first" not in wrong("a | pad drums | first no-drums", heard, tone())
    assert "first" in wrong("a | pad drums | first pad", levels("pad", "drums"), tone())
    assert "first" in wrong("a | pad drums | first no-drums", levels("pad", "drums"), tone())


def test_a_piece_rises_or_falls() -> None:
    rising = tone() * np.linspace(0.2, 1.0, len(tone()), dtype=np.float32)[:, None]
    assert "rise" not in wrong("a | pad | rises", levels("pad"), rising)
    assert "rise" in wrong("a | pad | falls", levels("pad"), rising)
    assert "rise" in wrong("a | pad | rises", levels("pad"), tone())
    assert "rise" not in wrong("a | pad | falls", levels("pad"), rising[::-1])


def test_the_answer_says_which_mood_belongs_to_which_part_and_who_does_not_play() -> None:
    line = "a | pad | binds soft piano; without guitar"
    said = Answer(played="piano pads; pop · soft: piano pads -6 dB")
    assert wrong(line, levels("pad"), tone(), said) == set()
    assert wrong(line, levels("pad"), tone(), Answer(played="guitar pads; soft; piano")) == {"bound", "without"}


def test_a_prompt_passes_where_every_seed_does() -> None:
    one = parse_line("a | drums | bpm 90-100")
    fine = {"layers": "", "bpm": "", "bpm said": ""}
    rows = [
        typed.prompt_row(one, [fine, fine]),
        typed.prompt_row(one, [fine, {**fine, "bpm": "120 bpm"}]),
        typed.prompt_row(one, [fine, {**fine, "bpm said": "says no bpm"}]),
    ]
    assert [(row["passed"], row["heard"], row["answered"]) for row in rows] == [
        (True, True, True), (False, False, True), (False, True, False),
    ]  # fmt: skip
    figures = typed.typed_figures(rows, [fine, {**fine, "bpm": "120 bpm"}])
    assert (figures["typed_passed"], figures["typed_heard"], figures["typed_bpm"]) == (1, 2, 0.5)


RATE = SAMPLE_RATE_HZ


def stereo(mono: np.ndarray) -> FloatArray:
    return np.repeat(np.asarray(mono, np.float32)[:, None], 2, axis=1)


def tones(pitches: Sequence[float], seconds: float, level: float = 0.1) -> np.ndarray:
    """MIDI pitches together, each with four partials."""
    time_s = np.arange(round(seconds * RATE)) / RATE
    parts = [
        level / n * np.sin(2 * np.pi * n * 440 * 2 ** ((p - 69) / 12) * time_s) for p in pitches for n in range(1, 5)
    ]
    fade = np.minimum(1, np.minimum(time_s, time_s[::-1]) / 0.02)
    return np.sum(parts, axis=0) * fade


def clicks(starts_s: np.ndarray, seconds: float) -> FloatArray:
    audio = np.zeros(round(seconds * RATE))
    burst = 0.5 * np.random.default_rng(0).standard_normal(1200) * np.linspace(1, 0, 1200)
    for start in np.round(starts_s * RATE).astype(int):
        audio[start : start + 1200] += burst[: len(audio) - start]
    return stereo(audio)


def cadences(*chords: Sequence[float]) -> FloatArray:
    return stereo(np.concatenate([tones(chord, 0.8) for chord in chords] * 3))


@pytest.mark.parametrize("bpm", [83.0, 97.0, 151.0])
def test_the_tempo_of_clicks(bpm: float) -> None:
    audio = clicks(np.arange(0, 19, 60 / bpm), 20)
    assert listening.octave_in(listening.tempo_bpm(audio), bpm, bpm) > 0
    assert listening.tempo_bpm(audio, near_bpm=bpm) == pytest.approx(bpm, rel=0.01)
    assert listening.tempo_bpm(audio, near_bpm=1.1 * bpm) != pytest.approx(1.1 * bpm, rel=0.05)


def test_silence_has_no_tempo_and_no_onsets() -> None:
    silence = np.zeros((4 * RATE, 2), np.float32)
    assert listening.tempo_bpm(silence) == 0.0
    assert len(listening.onset_times_s(silence)) == 0


def test_octaves_of_a_tempo_are_named() -> None:
    found = [listening.octave_in(bpm, 85, 105) for bpm in (95, 190, 47, 120, 83)]
    assert found == [1.0, 0.5, 2.0, 0.0, 1.0]


def test_the_tonic_of_a_cadence() -> None:
    d_major = cadences((62, 66, 69), (62, 67, 71), (61, 64, 69), (62, 66, 69))
    b_minor = cadences((62, 66, 71), (64, 67, 71), (61, 66, 70), (62, 66, 71))
    assert listening.key_of(d_major) == (2, "major")
    assert listening.key_of(b_minor) == (11, "minor")


def test_the_profile_is_turned_to_its_tonic() -> None:
    for mode, profile in listening.KEY_PROFILES.items():
        assert [listening.key_of_chroma(np.roll(profile, n)) for n in range(12)] == [(n, mode) for n in range(12)]


def test_drums_and_bass_are_heard_where_they_sound_alone() -> None:
    pad, bass = stereo(tones((60, 64, 67), 5)), stereo(tones((40,), 5, 0.4))
    drums = clicks(np.arange(0, 5, 0.25), 5)
    assert listening.heard_layers(pad) == {"drums": False, "bass": False}
    assert listening.heard_layers(bass) == {"drums": False, "bass": True}
    assert listening.heard_layers(drums) == {"drums": True, "bass": False}
    assert listening.heard_layers(pad + bass + drums) == {"drums": True, "bass": None}


def test_a_gap_is_as_long_as_it_is() -> None:
    audio = stereo(np.concatenate([tones((60,), 2), np.zeros(RATE), tones((60,), 1)]))
    share, longest_s = listening.gaps(audio)
    assert share == pytest.approx(0.25, abs=0.02)
    assert longest_s == pytest.approx(1.0, abs=0.06)
    assert listening.gaps(stereo(tones((60,), 2)))[0] < 0.02
    assert listening.gaps(np.zeros((RATE, 2), np.float32)) == (1.0, pytest.approx(1.0, abs=0.06))


def test_levels_are_those_of_both_channels() -> None:
    audio = np.zeros((RATE, 2), np.float32)
    audio[:, 0] = 0.1
    assert listening.levels_db(audio) == pytest.approx(-23.0, abs=0.1)
    assert listening.levels_db(np.stack([audio[:, 0], -audio[:, 0]], axis=1)) == pytest.approx(-20.0, abs=0.1)


def test_onsets_are_where_clicks_are() -> None:
    starts_s = np.arange(0.5, 9.5, 0.5)
    found = listening.onset_times_s(clicks(starts_s, 10))
    assert listening.match_f1(found, starts_s) > 0.95
    assert listening.match_f1(found, starts_s + 0.2) < 0.1


def test_times_match_one_to_one() -> None:
    assert listening.match_f1([1.0, 2.0], [1.04, 2.0]) == 1.0
    assert listening.match_f1([1.0, 2.0], [1.06, 2.0]) == 0.5
    assert listening.match_f1([1.0, 1.01, 1.02], [1.0]) == 0.5
    assert listening.match_f1([], [1.0]) == 0.0
    assert listening.match_f1([], []) == 1.0


def test_the_distance_of_spectra_is_in_decibels() -> None:
    noise = stereo(0.1 * np.random.default_rng(1).standard_normal(2 * RATE))
    assert listening.mel_distance_db(noise, noise) == 0.0
    assert listening.mel_distance_db(noise, 0.5 * noise) == pytest.approx(6.02, abs=0.1)
    assert listening.mel_distance_db(noise, np.zeros_like(noise)) > 30.0


def test_strength_is_where_something_begins() -> None:
    audio = np.zeros((2 * SAMPLE_RATE_HZ, 2), np.float32)
    noise = 0.5 * np.random.default_rng(0).standard_normal((2400, 2)).astype(np.float32)
    for start_s in (0.5, 1.2):
        audio[round(start_s * SAMPLE_RATE_HZ) :][:2400] = noise
    strength = listening.onset_strength(audio)
    assert len(strength) == pytest.approx(2 * listening.STRENGTH_HZ, abs=2)
    strongest = sorted(np.argsort(strength)[-2:])
    assert strongest == pytest.approx([0.5 * listening.STRENGTH_HZ, 1.2 * listening.STRENGTH_HZ], abs=3)


FOLDER = ROOT / "configs" / "demo"
PLAYED_PROMPT = "pads, bass and drums in A minor at 100 bpm"


@pytest.fixture(scope="module")
def player(built_demo: Deployment) -> Iterator[Player]:
    with open_pipeline(built_demo) as pipeline:
        yield Player(pipeline)


@pytest.fixture(scope="module")
def played(player: Player) -> FloatArray:
    return player.play([PLAYED_PROMPT], seed=3)[0]


def test_engines_are_built_in_a_folder_of_their_own(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path)
    files = set(tmp_path.rglob("*"))
    with open_player(bundle) as opened:
        assert opened.pipeline.bundle.folder == bundle
        assert opened.play(["a"], seed=1).shape == (1, TinySpec().canvas_frames, TinySpec().channels)
    assert set(tmp_path.rglob("*")) == files


def test_it_plays_what_it_is_asked_for(player: Player) -> None:
    requests = held_out_requests(4)
    rolls = levels_from_latents(player.play([request.prompt for request in requests], seed=50))
    scores = score(requests, rolls)
    assert scores.in_key > 0.9
    assert scores.layers_present > 0.9
    assert scores.layers_absent > 0.9


def test_a_seed_gives_one_piece_and_another_seed_another(player: Player, played: FloatArray) -> None:
    first, again = levels_from_latents(played), levels_from_latents(player.play([PLAYED_PROMPT], seed=3))[0]
    other = levels_from_latents(player.play([PLAYED_PROMPT], seed=4))[0]
    live = levels_from_latents(player.play([PLAYED_PROMPT], seed=3, live=True))[0]
    assert difference(first, again) < 1e-3
    assert difference(first, other) > 0.1
    assert 0.0 < difference(first, live) < difference(first, other)


def test_dcw_keeps_the_key_at_small_strengths_only(player: Player) -> None:
    def in_key(low: float) -> float:
        request = player.pipeline.request("pads and bass in A minor", seed=1, dcw={"low": low}, steps=16)
        return in_key_energy(levels_from_latents(generate(player.pipeline.loop, request)), 9, "minor")

    assert in_key(0.02) > 0.9
    assert in_key(0.2) < 0.75


def test_a_longer_piece_goes_on_as_it_began(player: Player) -> None:
    (latents,) = player.generate([Piece(PLAYED_PROMPT, 1, {"seconds": 20.0})])
    levels = levels_from_latents(latents)
    assert latents.shape == (500, CHANNELS)
    assert in_key_energy(levels[CANVAS_FRAMES:], 9, "minor") > 0.9
    assert layers_present(levels[CANVAS_FRAMES:]) == layers_present(levels) == {"pad", "bass", "drums"}


def test_a_session_without_end_begins_as_its_plan_does(player: Player) -> None:
    pieces = [EndlessPiece(player.pipeline, Piece(PLAYED_PROMPT, 3, {}), 300) for _ in range(2)]
    first, again = player.finish(pieces)
    assert first.shape == again.shape == (300, CHANNELS)
    assert difference(levels_from_latents(first), levels_from_latents(again)) < 1e-3
    assert pieces[0].sections[0].start_frame == 0
    planned = {layer for section in pieces[0].sections if section.start_frame < 300 for layer in section.layers}
    assert layers_present(levels_from_latents(first)) <= planned


def test_a_plans_codes_are_in_a_rare_key_because_others_never_come(player: Player) -> None:
    pipeline = player.pipeline
    options = {"seconds": 20.0, "plan": True, "plan_temperature": 1.0, "plan_top_p": 1.0}
    assert pipeline.planner is not None
    assert pipeline.structure is not None
    spec = pipeline.planner.spec
    assert spec.plan is not None
    free = spec.model_copy(update={"plan": spec.plan.model_copy(update={"scales": (), "pitches": ()})})
    planner = Planner(pipeline.bundle, free, pipeline.loop, pipeline.structure)
    structure, found = StructureCodes(FOLDER), list[float]()
    for each in (player, Player(replace(pipeline, planner=planner))):
        plan = each.begin(Piece("techno, pads, melody, bass, arps, drums, A# blues, 128 bpm", 1, options)).plan
        assert isinstance(plan, SongPlan)
        found.append(in_key_energy(structure.decode(np.array(plan.finish())), 10, "blues"))
        assert (plan.header["key"], plan.header["mode"]) == ("a#", "blues")
    assert found[0] > 0.95
    assert found[1] < 0.9


def test_a_cover_keeps_harmony_and_rhythm_as_far_as_asked(player: Player) -> None:
    song, _, prompt = cover_source(0)
    source = latents_of(song)
    audio = player.decode(source)
    pieces = [
        Piece(prompt, 1, {"task": "cover", "structure_strength": strength}, GenerationInputs(source=source))
        for strength in (1.0, 0.0)
    ]
    kept, free = (player.decode(latents) for latents in player.generate(pieces))
    assert sound.chroma_similarity(audio, kept) > 0.6
    assert sound.chroma_similarity(audio, kept) > sound.chroma_similarity(audio, free) + 0.2
    assert sound.onset_correlation(audio, kept) > sound.onset_correlation(audio, free) + 0.2


def test_finished_audio_is_loud_and_below_the_ceiling(player: Player) -> None:
    audio = player.finished_audio(Piece(PLAYED_PROMPT, 3, {}))
    assert audio.shape == (CANVAS_FRAMES * HOP_SAMPLES, 2)
    assert sound.true_peak_db(audio) < -1.0
    assert sound.level_db(audio) > -25.0
    assert sound.num_clicks(audio, []) == 0


def test_encoding_what_was_decoded_gives_its_notes(player: Player, played: FloatArray) -> None:
    encoded = player.encode(player.decode(played))
    levels, heard = levels_from_latents(played), levels_from_latents(encoded)
    sounding = levels[:, :52] > 0.25
    assert np.mean(heard[:, :52][sounding] > 0.1) > 0.7
