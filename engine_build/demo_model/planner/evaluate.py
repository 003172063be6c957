"""Does a plan sound as it says? Detectors on the hints of codes: layers, returns, tempo and key by section."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from engine_build.demo_model.evaluation.measure import in_key_energy, is_tempo
from engine_build.demo_model.instruments import LAYERS, pitch_channels
from engine_build.demo_model.latents import FRAME_RATE_HZ, FloatArray
from engine_build.demo_model.planner.arrangement import Arrangement
from engine_build.demo_model.planner.model import Planner
from engine_build.demo_model.planner.pages import Piece, StructureCodes, draw_piece
from engine_build.demo_model.planner.player import write_piece, write_sections
from engine_build.demo_model.planner.tokens import PLAN, START, TOKEN_IDS, song_tokens

NUM_PROMPTS: Final = 32
HELD_OUT_SEED: Final = 2_000_081
NOTE_CHANNELS: Final = 55
WINDOW_S: Final = 30.0
# Hints are blurred: a layer sounds where it is this loud in this share of the frames (98 % right on the corpus).
_SOUNDING_LEVEL: Final = 0.3
_PRESENT_SHARE: Final = 0.03
_STEPS_PER_BEAT: Final = 4

Figures = dict[str, float]
Performance = tuple[Arrangement, FloatArray]


def evaluate(model: Planner, structure: StructureCodes, count: int = NUM_PROMPTS) -> Figures:
    """Figures of held-out prompts: of the planner's plans and codes, of the corpus' codes, of plans out of order."""
    pieces = [draw_piece(structure, HELD_OUT_SEED, index) for index in range(count)]
    planned = [(planned_arrangement(model, piece, seed), piece.moods) for seed, piece in enumerate(pieces)]
    written = [write_piece(model, structure, form, moods, seed) for seed, (form, moods) in enumerate(planned)]
    played, corpus = ([performance(structure, piece) for piece in listed] for listed in (written, pieces))
    return {
        **score(played),
        **{f"ceiling_{name}": value for name, value in score(corpus).items()},
        **{f"shuffled_{name}": value for name, value in score(shuffled(played)).items()},
        "minutes": float(np.mean([form.start_frames[-1] for form, _ in played]) / FRAME_RATE_HZ / 60.0),
    }


def planned_arrangement(model: Planner, piece: Piece, seed: int) -> Arrangement:
    """A plan of the planner for a piece's prompt, which names all but the sections."""
    song = piece.arrangement.song
    layers = [f"layer:{layer}" if layer in song.layers else f"no:{layer}" for layer in LAYERS]
    asked = [*song_tokens(song, piece.moods), *(TOKEN_IDS[name] for name in layers)]
    prompt = [TOKEN_IDS[START], *sorted(asked), TOKEN_IDS[PLAN], *song_tokens(song)]
    return Arrangement(song, write_sections(model, prompt, seed))


def performance(structure: StructureCodes, piece: Piece) -> Performance:
    """A piece's form and the levels `[T, C]` of its codes' hints."""
    levels, end = structure.decode(piece.codes), piece.arrangement.start_frames[-1]
    return piece.arrangement, np.pad(levels, ((0, end - len(levels)), (0, 0)))


def shuffled(pieces: Sequence[Performance]) -> list[Performance]:
    """The same levels with each form's sections in another order."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(form.sections)) for form, _ in pieces]
    return [
        (replace(form, sections=tuple(form.sections[i] for i in order)), levels)
        for (form, levels), order in zip(pieces, orders, strict=True)
    ]


def sections_of(arrangement: Arrangement, levels: FloatArray) -> list[FloatArray]:
    """The levels `[T, C]` of each section."""
    return np.split(levels, arrangement.start_frames[1:-1])


def layer_agreement(arrangement: Arrangement, levels: FloatArray) -> float:
    """Share of layers and sections that sound where the plan says so and are silent elsewhere."""
    parts = zip(sections_of(arrangement, levels), arrangement.sections, strict=True)
    return float(
        np.mean([_sounds(part, layer) == (layer in section.layers) for part, section in parts for layer in LAYERS])
    )


def _sounds(levels: FloatArray, layer: str) -> bool:
    loudest = levels[:, pitch_channels(layer)].max(axis=1)
    return float((loudest > _SOUNDING_LEVEL).mean()) > _PRESENT_SHARE


def by_step(arrangement: Arrangement, levels: FloatArray, index: int) -> FloatArray:
    """Mean levels `[bars, steps, 55]` of a section's quarter beats, so that sections can be laid upon each other."""
    song, section = arrangement.song, arrangement.sections[index]
    step_frames = song.frames_per_beat / _STEPS_PER_BEAT
    first = arrangement.start_bars[index] * song.beats_per_bar * _STEPS_PER_BEAT
    edges = step_frames * (first + np.arange(section.bars * song.beats_per_bar * _STEPS_PER_BEAT + 1))
    sums = np.concatenate([np.zeros((1, NOTE_CHANNELS)), np.cumsum(levels[:, :NOTE_CHANNELS], axis=0)])
    at = np.stack([np.interp(edges, np.arange(len(sums)), column) for column in sums.T], axis=1)
    return np.asarray(np.diff(at, axis=0).reshape(section.bars, -1, NOTE_CHANNELS) / step_frames, np.float32)


def similarity(one: FloatArray, other: FloatArray) -> float:
    """Cosine of two sections over the bars that both have."""
    bars = min(len(one), len(other))
    a, b = one[:bars].ravel(), other[:bars].ravel()
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-9))


def return_similarities(arrangement: Arrangement, levels: FloatArray) -> list[tuple[float, float]]:
    """For each section that returns: its similarity to the first of its kind, and the most to one of another kind."""
    parts = [by_step(arrangement, levels, index) for index in range(len(arrangement.sections))]
    kinds = [section.kind for section in arrangement.sections]
    found: list[tuple[float, float]] = []
    for index, kind in enumerate(kinds):
        if (first := kinds.index(kind)) == index:
            continue
        others = [similarity(parts[index], parts[i]) for i in range(index) if kinds[i] != kind]
        if others:
            found.append((similarity(parts[index], parts[first]), max(others)))
    return found


def score(pieces: Sequence[Performance]) -> Figures:
    """Figures of pieces, those of returns where there are any; tempo and key are kept in windows of half a minute."""
    returns = [pair for piece in pieces for pair in return_similarities(*piece)]
    windows = [(form.song, part) for form, levels in pieces for part in _windows(levels)]
    values: dict[str, list[float]] = {
        "layers": [layer_agreement(*piece) for piece in pieces],
        "returns_nearer": [float(first > other) for first, other in returns],
        "return_similarity": [first for first, _ in returns],
        "other_similarity": [other for _, other in returns],
        "tempo": [float(is_tempo(part, song.bpm, song.meter)) for song, part in windows],
        "in_key": [in_key_energy(part, song.root, song.mode) for song, part in windows],
    }
    return {name: float(np.mean(listed)) for name, listed in values.items() if listed}


def _windows(levels: FloatArray) -> list[FloatArray]:
    size = round(WINDOW_S * FRAME_RATE_HZ)
    return [levels[start : start + size] for start in range(0, max(len(levels) - size, 0) + 1, size)]
