"""Prompts as people type them: is what they ask for played, and does the answer say what is?

A prompt passes where all its seeds do. Layers are judged on latents, where they have channels of their own, and by what
audio can tell of drums and bass; tempo and tonic by librosa, silence on finished loudness.
"""

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.genres import GENRES
from configs.demo.recipe.corpus.theory import NOTE_NAMES
from configs.demo.recipe.evaluation import listening, sound
from configs.demo.recipe.evaluation.measure import layers_present
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Measured, Row
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import FloatArray, levels_from_latents
from runtime.base.errors import ConfigError
from runtime.pipeline.generation import WINDOW_FRAMES, LongGeneration
from runtime.requests.prompt_words import PromptWords

FILE: Final = Path(__file__).with_name("typed_prompts.txt")
NUM_GIVEN: Final = 20  # the first of the file
NUM_SEEDS: Final = 3
SECONDS: Final = 20.0
FIRST_SEED: Final = 8000
MAX_QUIET_SHARE: Final = 0.05
HARMONY: Final = frozenset({"pad", "arp"})
NAMES_GENRE: Final = "the answer names the genre that was drawn"
# What the answer has to say, and what has to be heard.
ANSWERS: Final = ("said", "bpm said", "genre said", "bound", "without")
# Notes of one layer against those of another, how a piece begins, and how its level changes from one part to another.
LOUDER_DB: Final = 4.0
DENSER: Final = 1.5
FIRST_FRAMES: Final = 75
RISE_DB: Final = 2.0
_EARLY, _LATE = (0.02, 0.3), (0.62, 0.9)
_ONSET: Final = 0.12
_BPM: Final = re.compile(r"(\d+(?:\.\d+)?) ?bpm")
_CORRECTED: Final = re.compile(r"(\S+) played as")
_THREADS: Final = 2
MOST_AT_ONCE: Final = 60 * NUM_SEEDS  # of what a player takes

Range = tuple[float, float]


@dataclass(frozen=True)
class Expectation:
    """What a prompt should give. layers: all of them sound; is_only: and no other. bpm: one of the ranges."""

    prompt: str
    text: str
    layers: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    is_only: bool = False
    any_two: bool = False
    harmony: bool = False
    bpm: tuple[Range, ...] = ()
    tonic: int | None = None
    is_sustained: bool = False
    said: tuple[str, ...] = ()
    names_genre: bool = False
    binds: tuple[tuple[str, ...], ...] = ()
    without: tuple[str, ...] = ()
    louder: tuple[str, ...] = ()
    denser: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    rise: int = 0


@dataclass(frozen=True)
class Answer:
    """What the answer of a request says. played: in one line, "" where the model does not tell."""

    unknown: tuple[str, ...] = ()
    near: Mapping[str, Sequence[str]] = field(default_factory=dict)
    played: str = ""

    @property
    def bpm(self) -> float | None:
        """The tempo that it says."""
        found = _BPM.search(self.played)
        return None if found is None else float(found[1])


def read_prompts(file: Path = FILE) -> list[Expectation]:
    """The file's prompts. Raises ConfigError for a line that is not one."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [parse_line(line) for line in lines if line.strip() and not line.startswith("#")]


def parse_line(line: str) -> Expectation:
    """`prompt | layers that sound | other facts`, as the file's first lines explain. Raises ConfigError."""
    parts = [part.strip() for part in line.split("|")]
    if len(parts) != 3:
        raise ConfigError(f"typed prompt {line!r} has {len(parts)} columns", fix="prompt | layers | facts")
    prompt, layers, facts = parts
    values: dict[str, Any] = {}
    for fact in filter(None, (fact.strip() for fact in facts.split(";"))):
        values |= _fact(fact, values)
    return Expectation(prompt, f"{layers}; {facts}".strip("; "), **_layers(layers), **values)


def _layers(text: str) -> dict[str, Any]:
    words = text.split()
    named = {word for word in words if word in LAYERS}
    absent = {word.removeprefix("no-") for word in words if word.startswith("no-")}
    if unknown := set(words) - named - {"any2", "harmony", "only"} - {f"no-{layer}" for layer in LAYERS}:
        raise ConfigError(f"typed prompts name layers {', '.join(sorted(unknown))}", fix=f"some of {', '.join(LAYERS)}")
    return {
        "layers": frozenset(named),
        "absent": frozenset(absent),
        "is_only": "only" in words,
        "any_two": "any2" in words,
        "harmony": "harmony" in words,
    }


def _fact(fact: str, values: Mapping[str, Any]) -> dict[str, Any]:
    kind, _, value = fact.partition(" ")
    if fact == NAMES_GENRE:
        return {"names_genre": True}
    if fact == "sustained":
        return {"is_sustained": True}
    if fact in ("rises", "falls"):
        return {"rise": 1 if fact == "rises" else -1}
    if kind == "binds" and len(value.split()) == 2:
        return {"binds": (*values.get("binds", ()), tuple(value.split()))}
    if kind == "without":
        return {"without": (*values.get("without", ()), value)}
    if kind in ("louder", "denser", "first") and {word.removeprefix("no-") for word in value.split()} <= set(LAYERS):
        return {kind: tuple(value.split())}
    if kind == "said":
        return {"said": (*values.get("said", ()), value)}
    if kind == "key" and value.split()[0] in NOTE_NAMES:
        return {"tonic": NOTE_NAMES.index(value.split()[0])}
    if kind == "bpm":
        ranges = [part.split("-") for part in value.split(" or ")]
        return {"bpm": tuple((float(low), float(high)) for low, high in ranges)}
    raise ConfigError(f"typed prompts have the fact {fact!r}", fix="one that the file's first lines name")


def measure(player: Player, expectations: Sequence[Expectation] | None = None) -> Measured:
    """All prompts on `NUM_SEEDS` seeds, as a request without other options plays them."""
    wanted = read_prompts() if expectations is None else expectations
    asked = [(one, FIRST_SEED + seed) for one in wanted for seed in range(NUM_SEEDS)]
    found = list[dict[str, str]]()
    for start in range(0, len(asked), MOST_AT_ONCE):
        batch = asked[start : start + MOST_AT_ONCE]
        made = [player.begin(Piece(one.prompt, seed, {"seconds": SECONDS, "plan": None})) for one, seed in batch]
        pieces = zip((one for one, _ in batch), made, player.finish(made), strict=True)
        with ThreadPoolExecutor(_THREADS) as pool:
            found += pool.map(lambda piece: judged(player, *piece), list(pieces))
    per_prompt = [found[start : start + NUM_SEEDS] for start in range(0, len(found), NUM_SEEDS)]
    rows = [prompt_row(one, seeds) for one, seeds in zip(wanted, per_prompt, strict=True)]
    return Measured(typed_figures(rows, found), {f"Typed prompts, {NUM_SEEDS} seeds from {FIRST_SEED}": rows})


def judged(player: Player, wanted: Expectation, made: LongGeneration, latents: FloatArray) -> dict[str, str]:
    """What is wrong with a piece of latents `[T, C]`. Only finished audio has the levels of a song's sections."""
    audio = finished(player, made, latents) if wanted.rise else sound.at_loudness(player.decode(latents))
    return judge(wanted, answer_of(player, made), levels_from_latents(latents), audio)


def finished(player: Player, made: LongGeneration, latents: FloatArray) -> FloatArray:
    """Audio `[samples, 2]` of all latents of a generation, as a user gets it."""
    decoder, codec = made.audio_decoder(), player.pipeline.codec
    assert codec is not None
    windows = codec.window_cutter(WINDOW_FRAMES, total_frames=made.total_frames).cut(latents)
    return np.concatenate([decoder.decode(window, codec) for window in windows])


def answer_of(player: Player, generation: LongGeneration) -> Answer:
    """What a request's answer says of a prompt's words, and of what is played where the runtime tells."""
    words = player.pipeline.prompts.words(generation.options) or PromptWords()
    return Answer(words.unknown, words.near, "; ".join(map(str, generation.meanings)))


def judge(wanted: Expectation, answer: Answer, levels: FloatArray, audio: FloatArray) -> dict[str, str]:
    """By check what is wrong with levels `[T, C]`, audio at a finished loudness and the answer; "" where nothing is."""
    checks = {"layers": _wrong_layers(wanted, layers_present(levels))}
    checks["librosa layers"] = _contradicted(wanted, listening.heard_layers(audio))
    if wanted.bpm:
        checks["bpm"] = _wrong_tempo(wanted.bpm, answer.bpm, audio)
        is_said = answer.bpm is not None and _is_inside(answer.bpm, wanted.bpm)
        checks["bpm said"] = "" if is_said else f"says {answer.bpm or 'no'} bpm"
    if wanted.tonic is not None:
        tonic, mode = listening.key_of(audio)
        checks["key"] = "" if tonic == wanted.tonic else f"{NOTE_NAMES[tonic]} {mode}"
    if wanted.is_sustained:
        quiet, longest_s = listening.gaps(audio)
        checks["sustained"] = "" if quiet <= MAX_QUIET_SHARE else f"{quiet:.0%} quiet, {longest_s:.1f} s"
    if wanted.said:
        checks["said"] = ", ".join(word for word in wanted.said if not _is_said(word, answer))
    if wanted.names_genre:
        checks["genre said"] = "" if any(genre in answer.played for genre in GENRES) else "no genre"
    if wanted.binds:
        parts = re.split(r"[;·]", answer.played)
        lacking = [pair for pair in wanted.binds if not any(all(word in part for word in pair) for part in parts)]
        checks["bound"] = ", ".join(map(" ".join, lacking))
    if wanted.without:
        players = re.split(r"[;·]", answer.played)[0]
        checks["without"] = ", ".join(word for word in wanted.without if word in players)
    return checks | _wrong_course(wanted, levels, audio)


def _wrong_course(wanted: Expectation, levels: FloatArray, audio: FloatArray) -> dict[str, str]:
    """What is wrong with layers beside each other, with how a piece begins, and how its level changes."""
    checks = dict[str, str]()
    if wanted.louder:
        loud, soft = (_note_level_db(levels, layer) for layer in wanted.louder)
        checks["louder"] = "" if loud - soft >= LOUDER_DB else f"{loud - soft:+.1f} dB"
    if wanted.denser:
        dense, sparse = (int(_onsets(levels, layer).any(axis=1).sum()) for layer in wanted.denser)
        checks["denser"] = "" if dense >= DENSER * sparse > 0 else f"{dense} against {sparse}"
    if wanted.first:
        sounding = {layer for layer in LAYERS if levels[:FIRST_FRAMES, pitch_channels(layer)].max() > _ONSET}
        named = {layer for layer in wanted.first if layer in LAYERS}
        is_right = not any(f"no-{layer}" in wanted.first for layer in sounding) and (not named or sounding == named)
        checks["first"] = "" if is_right else "+".join(sorted(sounding)) or "silence"
    if wanted.rise:
        early, late = (audio[int(first * len(audio)) : int(end * len(audio))] for first, end in (_EARLY, _LATE))
        rise = 10.0 * math.log10(max(float(np.square(late).mean()), 1e-10) / max(float(np.square(early).mean()), 1e-10))
        checks["rise"] = "" if wanted.rise * rise >= RISE_DB else f"{rise:+.1f} dB"
    return checks


def _onsets(levels: FloatArray, layer: str) -> npt.NDArray[np.bool_]:
    """`[T, K]`: where a note of a layer begins."""
    own = levels[:, pitch_channels(layer)]
    before = np.concatenate((np.zeros_like(own[:1]), own[:-1]))
    return np.asarray((own > _ONSET) & (own - before > _ONSET / 2))


def _note_level_db(levels: FloatArray, layer: str) -> float:
    """The median level of a layer's notes in their loudest frame of the first three."""
    own, begins = levels[:, pitch_channels(layer)], _onsets(levels, layer)
    peaks = [float(own[frame : frame + 3, key].max()) for frame, key in zip(*np.nonzero(begins), strict=True)]
    return 20.0 * math.log10(float(np.median(peaks))) if peaks else -60.0


def _wrong_layers(wanted: Expectation, sounding: frozenset[str]) -> str:
    """What sounds, where it is not what should."""
    is_right = wanted.layers <= sounding and not wanted.absent & sounding
    is_right &= not wanted.is_only or sounding == wanted.layers
    is_right &= not wanted.any_two or len(sounding) >= 2
    is_right &= not wanted.harmony or bool(sounding & HARMONY)
    return "" if is_right else "+".join(layer for layer in LAYERS if layer in sounding) or "silence"


def _contradicted(wanted: Expectation, heard: Mapping[str, bool | None]) -> str:
    """The layers of which audio says the opposite of what should sound."""
    absent = wanted.absent | (frozenset(LAYERS) - wanted.layers if wanted.is_only else frozenset())
    missing = [f"no {layer}" for layer, sounds in heard.items() if layer in wanted.layers and sounds is False]
    more = [layer for layer, sounds in heard.items() if layer in absent and sounds]
    return ", ".join(missing + more)


def _wrong_tempo(ranges: Sequence[Range], said_bpm: float | None, audio: FloatArray) -> str:
    """The tempo that librosa finds, where it lies in no range, octaves allowed.

    As it takes other subdivisions for the beat in one of seven songs, it may also look around the tempo that is said,
    or else around the middle of a range.
    """
    first = listening.tempo_bpm(audio)
    if _is_inside_octaves(first, ranges):
        return ""
    near = [said_bpm] if said_bpm is not None else [math.sqrt(low * high) for low, high in ranges]
    found = [listening.tempo_bpm(audio, bpm) for bpm in near]
    return "" if any(_is_inside_octaves(bpm, ranges) for bpm in found) else f"{first:.0f} bpm"


def _is_inside_octaves(bpm: float, ranges: Sequence[Range]) -> bool:
    return any(listening.octave_in(bpm, *each) for each in ranges)


def _is_inside(bpm: float, ranges: Sequence[Range]) -> bool:
    return any(low <= bpm <= high for low, high in ranges)


def _is_said(word: str, answer: Answer) -> bool:
    """Whether a word is named as not understood, answered with near ones, or told to be played as another."""
    named = (*answer.unknown, *answer.near, *_CORRECTED.findall(answer.played))
    return any(re.search(rf"\b{re.escape(word)}\b", phrase, re.IGNORECASE) for phrase in named)


def prompt_row(wanted: Expectation, seeds: Sequence[Mapping[str, str]]) -> Row:
    """One prompt's verdict: passed where nothing is wrong on any seed; heard: without what the answer should say."""
    wrong = [f"{check}: {text}" for checks in seeds for check, text in checks.items() if text]
    heard = not any(text for checks in seeds for check, text in checks.items() if check not in ANSWERS)
    return {
        "prompt": wanted.prompt,
        "expected": wanted.text,
        "passed": not wrong,
        "heard": heard,
        "answered": not any(checks.get(check) for checks in seeds for check in ANSWERS),
        "wrong": "; ".join(f"{text} x{wrong.count(text)}" for text in dict.fromkeys(wrong)),
    }


def typed_figures(rows: Sequence[Row], found: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Numbers of prompts, and per check the share of pieces in which it is right."""
    figures: dict[str, float] = {"typed_prompts": len(rows)}
    figures |= {f"typed_{name}": sum(bool(row[name]) for row in rows) for name in ("passed", "heard", "answered")}
    figures["typed_given_passed"] = sum(bool(row["passed"]) for row in rows[:NUM_GIVEN])
    figures["typed_given_heard"] = sum(bool(row["heard"]) for row in rows[:NUM_GIVEN])
    for check in dict.fromkeys(check for checks in found for check in checks):
        texts = [checks[check] for checks in found if check in checks]
        figures[f"typed_{check.replace(' ', '_')}"] = round(sum(not text for text in texts) / len(texts), 4)
    return figures
