"""Do instruments breathe? Notes fall as the corpus' do, are struck only where they begin, and do not die away.

Every instrument plays alone: as the decoder likes to, by a plan, and notes that it is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.envelopes import CURVES, ENVELOPE_INDEX
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.instruments import INSTRUMENTS, keys_of, pitch_channels
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray, levels_from_latents
from runtime.config.notes import NotesSpec
from runtime.music.tracker import VELOCITY_FRAMES, FrameNote, NoteTracker

PROMPT: Final = "{} {}, sparse, slow, 60 bpm, legato"
LAYER_WORDS: Final = {"pad": "chords", "arp": "arpeggios", "bass": "bassline", "melody": "melody"}
FIRST_SEED: Final = 9000
# Pieces of each instrument; few notes of unplanned ones are long.
NUM_SEEDS: Final = {"unplanned": 4, "planned": 2, "played": 1, "exact": 1}
# What is told of an instrument is told of so many notes at least.
LEAST_NOTES: Final = 3
SECONDS: Final = 20.0
GIVEN_S: Final = 3.0
# The options of each way.
WAYS: Final[Mapping[str, Mapping[str, object]]] = {
    "unplanned": {},
    "planned": {"plan": True, "seconds": SECONDS, "ending": "cut"},
    "played": {"ending": "cut"},
    "exact": {"notes_exact": True, "ending": "cut"},
}
HELD_FRAMES: Final = round(FRAME_RATE_HZ)
# A level is as the corpus has it within this share of it, or within so much of the note's highest.
TOLERANCE, LEAST_TOLERANCE = 0.2, 0.03
# The codec begins the noise of an attack where a level rises by so much in a frame.
HAMMER_RISE: Final = 0.05
# What a plan sounds, what is silence, and what of a note counts as its end here: it may fall as far as the corpus' do.
PLANNED_LEVEL, SILENT_LEVEL, END_LEVEL = 0.3, 0.06, 0.02


class Breath(NamedTuple):
    """What was found in pieces of one instrument.

    held: levels 1 s after onsets, as shares of the notes' highest. hammers: how many in `seconds` of held notes.
    silent_s: the longest silence where the plan sounds.
    """

    held: tuple[float, ...]
    hammers: int
    seconds: float
    silent_s: float = 0.0


def measure(player: Player) -> Measured:
    """All instruments of pitched layers, in every way."""
    asked = [(layer, name) for layer in LAYER_WORDS for name in INSTRUMENTS[layer]]
    found = {way: breaths(player, asked, way) for way in WAYS}
    rows = [breath_row(each, {way: found[way][each] for way in WAYS}) for each in asked]
    return Measured(breathes_figures(found), {"Levels 1 s after onsets, of 1; hammers a second; silence": rows})


def breaths(player: Player, asked: Sequence[tuple[str, str]], way: str) -> dict[tuple[str, str], Breath]:
    """Of every layer and instrument, over some pieces each."""
    spec, options = player.pipeline.bundle.notes, dict(WAYS[way])
    assert spec is not None
    pieces = []
    for number in range(NUM_SEEDS[way]):
        for index, (layer, name) in enumerate(asked):
            prompt, seed = PROMPT.format(name, LAYER_WORDS[layer]), FIRST_SEED + 100 * number + index
            given = {"notes": given_notes(layer, seed)} if way in ("played", "exact") else {}
            pieces.append(Piece(prompt, seed, {**options, **given}))
    generations = [player.begin(piece) for piece in pieces]
    found: dict[tuple[str, str], list[Breath]] = {}
    for index, latents in enumerate(player.finish(generations)):
        layer, name = asked[index % len(asked)]
        plan = generations[index].plan
        hints = None if plan is None else levels_from_latents(plan.hints(0, len(latents)))
        one = breath(spec, layer, levels_from_latents(latents), player.pipeline.bundle.silence(1)[0], hints)
        found.setdefault((layer, name), []).append(one)
    return {each: joined(those) for each, those in found.items()}


def given_notes(layer: str, seed: int) -> list[dict[str, object]]:
    """Notes of 3 s, one after the other, for a canvas."""
    keys = np.random.default_rng(seed).permutation(keys_of(layer))
    times = np.arange(0.4, 7.0, GIVEN_S + 0.2)
    return [
        {"layer": layer, "pitch": int(key), "velocity": 100, "start_s": float(start), "seconds": GIVEN_S}
        for key, start in zip(keys, times, strict=False)
    ]


def breath(
    spec: NotesSpec, layer: str, levels: FloatArray, silence: FloatArray, hints: FloatArray | None = None
) -> Breath:
    """Of one layer of a piece's levels `[T, C]`. hints: the plan's, of the same shape."""
    tracker = NoteTracker(spec.model_copy(update={"off": END_LEVEL}), silence)
    latents = levels * np.float32(spec.scale) + silence
    notes = [note for note in (*tracker.track(latents), *tracker.sounding()) if note.layer == layer]
    channels, keys = list(pitch_channels(layer)), list(keys_of(layer))
    played = levels[:, channels]  # [T, K]
    held = [level for note in notes if (level := held_level(played[:, keys.index(note.key)], note)) is not None]
    inside, struck = np.zeros(played.shape, bool), np.zeros(played.shape, bool)
    for note in notes:
        place = keys.index(note.key)
        inside[note.start_frame + VELOCITY_FRAMES : note.end_frame, place] = True
        struck[max(note.start_frame - 1, 0) : note.start_frame + VELOCITY_FRAMES, place] = True
    inside &= ~struck
    rises = np.diff(played, axis=0, prepend=played[:1]) > HAMMER_RISE
    silent_s = 0.0 if hints is None else longest_silence_s(played, hints[:, channels])
    return Breath(tuple(held), int((rises & inside).sum()), float(inside.sum()) / FRAME_RATE_HZ, silent_s)


def held_level(levels: FloatArray, note: FrameNote) -> float | None:
    """A key's level `[T]` 1 s after a note's highest one, as its share; None where it ends earlier."""
    highest = note.start_frame + int(np.argmax(levels[note.start_frame : note.start_frame + VELOCITY_FRAMES]))
    after = highest + HELD_FRAMES
    if after >= min(note.end_frame - 1, len(levels)):
        return None
    return float(levels[after] / levels[highest])


def longest_silence_s(levels: FloatArray, hints: FloatArray) -> float:
    """The longest time in which a plan sounds a key of a layer, and the layer is silent; both `[T, K]`."""
    is_silent = (hints.max(axis=1) > PLANNED_LEVEL) & (levels.max(axis=1) < SILENT_LEVEL)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_silent.astype(np.int8), [0]))))
    return float(max(edges[1::2] - edges[::2], default=0)) / FRAME_RATE_HZ


def joined(breaths: Iterable[Breath]) -> Breath:
    """Of several pieces together."""
    those = list(breaths)
    return Breath(
        tuple(level for each in those for level in each.held),
        sum(each.hammers for each in those),
        sum(each.seconds for each in those),
        max(each.silent_s for each in those),
    )


def corpus_level(instrument: str) -> float:
    """What `held_level` finds in a note of the corpus that is held for ever."""
    curve: npt.NDArray[np.float32] = CURVES[ENVELOPE_INDEX[instrument]]
    highest = int(np.argmax(curve[:VELOCITY_FRAMES]))
    return float(curve[highest + HELD_FRAMES] / curve[highest])


def is_near(level: float, wanted: float) -> bool:
    """Whether a level is the corpus'."""
    return abs(level - wanted) <= max(TOLERANCE * wanted, LEAST_TOLERANCE)


def breath_row(asked: tuple[str, str], found: Mapping[str, Breath]) -> Row:
    """One instrument in every way."""
    layer, name = asked
    row: dict[str, object] = {"layer": layer, "instrument": name, "corpus": round(corpus_level(name), 3)}
    for way, each in found.items():
        row[way] = "" if not each.held else round(float(np.median(each.held)), 3)
        row[f"{way} notes"] = len(each.held)
        row[f"{way} hammers/s"] = round(each.hammers / max(each.seconds, 1.0), 3)
    return {**row, "silence s": round(found["planned"].silent_s, 2)}


def breathes_figures(ways: Mapping[str, Mapping[tuple[str, str], Breath]]) -> Figures:
    """By way the share of instruments whose median level is the corpus', and hammers a second; the longest silence."""
    figures: Figures = {}
    for way, those in ways.items():
        known = [(name, each.held) for (_, name), each in those.items() if len(each.held) >= LEAST_NOTES]
        near = [is_near(float(np.median(held)), corpus_level(name)) for name, held in known]
        figures[f"breathes_{way}"] = round(float(np.mean(near)), 4) if near else 1.0
        seconds = sum(each.seconds for each in those.values())
        figures[f"breathes_{way}_hammers"] = round(sum(each.hammers for each in those.values()) / max(seconds, 1.0), 4)
    figures["breathes_silence_s_max"] = round(max(each.silent_s for each in ways["planned"].values()), 2)
    return figures
