"""Typed prompts: their file, and judgements of levels, sounds and answers whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.evaluation import typed
from configs.demo.recipe.evaluation.typed import Answer, Expectation, judge, parse_line, read_prompts
from configs.demo.recipe.instruments import pitch_channels
from configs.demo.recipe.latents import CHANNELS, SAMPLE_RATE_HZ, FloatArray
from runtime.base.errors import ConfigError


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
