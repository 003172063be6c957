"""Does a plan sound as it says? Detectors on hints of codes and on what the decoder plays: layers, returns, tempo, key.

The music without a plan is the control: the same prompts and seeds, held against the plans that it was not given.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.theory import NOTE_NAMES
from configs.demo.recipe.evaluation.measure import in_key_energy, is_tempo
from configs.demo.recipe.evaluation.player import Piece as PieceRequest
from configs.demo.recipe.evaluation.player import Player
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray, levels_from_latents
from configs.demo.recipe.planner.arrangement import Arrangement, Section
from configs.demo.recipe.planner.pages import Piece, StructureCodes, draw_piece
from configs.demo.recipe.planner.tokens import LAYER_WORDS
from runtime.music.sections import SongSection
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.songs.plan import SongPlan

NUM_PROMPTS: Final = 32
SONG_S: Final = 180.0
HELD_OUT_SEED: Final = 2_000_081
NOTE_CHANNELS: Final = 55
WINDOW_S: Final = 30.0
# Hints are blurred: a layer sounds where it is this loud in this share of the frames (98 % right on the corpus).
_SOUNDING_LEVEL: Final = 0.3
_PRESENT_SHARE: Final = 0.03
_STEPS_PER_BEAT: Final = 4

Figures = dict[str, float]
Performance = tuple[Arrangement, FloatArray]


def evaluate(player: Player, structure: StructureCodes, count: int = NUM_PROMPTS, song_s: float = SONG_S) -> Figures:
    """Figures of songs of held-out prompts, generated in a live session's steps.

    Of the hints of the planner's codes; ceiling: of the corpus' codes; shuffled: of the hints, held against plans out
    of order; generated and unplanned: of what the decoder plays with the plans, and without.
    """
    pieces = [draw_piece(structure, HELD_OUT_SEED, index) for index in range(count)]
    planned = _begun(player, pieces, song_s, is_planned=True)
    unplanned = _begun(player, pieces, song_s, is_planned=False)
    plans = [generation.plan for generation in planned if isinstance(generation.plan, SongPlan)]
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(SongPlan.finish, plans))
    forms = [planned_form(one.arrangement.song, plan.sections) for one, plan in zip(pieces, plans, strict=True)]
    hints = [structure.decode(np.array(each)) for each in codes]
    measured: dict[str, tuple[list[Arrangement], list[FloatArray]]] = {
        "": (forms, hints),
        "ceiling_": ([piece.arrangement for piece in pieces], [structure.decode(piece.codes) for piece in pieces]),
        "shuffled_": (shuffled(forms), hints),
        "generated_": (forms, [levels_from_latents(each) for each in player.finish(planned)]),
        "unplanned_": (forms, [levels_from_latents(each) for each in player.finish(unplanned)]),
    }
    return {
        f"{prefix}{name}": value
        for prefix, (played, levels) in measured.items()
        for name, value in score([performance(*one) for one in zip(played, levels, strict=True)]).items()
    }


def _begun(player: Player, pieces: Sequence[Piece], song_s: float, *, is_planned: bool) -> list[LongGeneration]:
    """A generation for each piece's prompt."""
    options = {"seconds": song_s, "steps": player.pipeline.bundle.sampler.live_steps, "plan": is_planned}
    return [player.begin(PieceRequest(prompt_of(piece), seed, options)) for seed, piece in enumerate(pieces)]


def prompt_of(piece: Piece) -> str:
    """A prompt that names all of a piece but its sections."""
    song = piece.arrangement.song
    layers = [LAYER_WORDS[layer] if layer in song.layers else f"no {LAYER_WORDS[layer]}" for layer in LAYERS]
    moods = [mood.removeprefix("mood:") for mood in piece.moods]
    return ", ".join(
        [*moods, song.genre, *layers, f"{NOTE_NAMES[song.root]} {song.mode}", f"{song.bpm} bpm", song.meter]
    )


def planned_form(song: Song, sections: Sequence[SongSection]) -> Arrangement:
    """A plan's sections as far as there are whole bars of them."""
    bar_frames = song.beats_per_bar * song.frames_per_beat
    lengths = [int((section.end_frame - section.start_frame + 1) // bar_frames) for section in sections]
    listed = [
        Section(section.kind, bars, frozenset(section.layers))
        for section, bars in zip(sections, lengths, strict=True)
        if bars
    ]
    return Arrangement(song, tuple(listed))


def performance(form: Arrangement, levels: FloatArray) -> Performance:
    """A form and the levels `[T, C]` of all its frames."""
    end = form.start_frames[-1]
    return form, np.pad(levels[:end], ((0, max(end - len(levels), 0)), (0, 0)))


def shuffled(forms: Sequence[Arrangement]) -> list[Arrangement]:
    """Each form with its sections in another order."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(form.sections)) for form in forms]
    return [
        replace(form, sections=tuple(form.sections[place] for place in order))
        for form, order in zip(forms, orders, strict=True)
    ]


def sections_of(arrangement: Arrangement, levels: FloatArray) -> list[FloatArray]:
    """The levels `[T, C]` of each section."""
    return np.split(levels, arrangement.start_frames[1:-1])


def layers_heard(arrangement: Arrangement, levels: FloatArray) -> list[tuple[str, bool, bool]]:
    """Of every layer in every section: its name, whether it is planned, whether it sounds."""
    parts = zip(sections_of(arrangement, levels), arrangement.sections, strict=True)
    return [(layer, layer in section.layers, _sounds(part, layer)) for part, section in parts for layer in LAYERS]


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
    """Figures of pieces, those of returns where there are any; tempo and key are kept in windows of half a minute.

    layers: of all layers and sections, those that sound as planned. layers_sounding: of the planned ones, those that
    sound; worst_layer_sounding: of the layer that does so least often.
    """
    heard = [one for piece in pieces for one in layers_heard(*piece)]
    by_layer = [[float(sounds) for name, planned, sounds in heard if planned and name == layer] for layer in LAYERS]
    returns = [pair for piece in pieces for pair in return_similarities(*piece)]
    windows = [(form.song, part) for form, levels in pieces for part in _windows(levels)]
    values: dict[str, list[float]] = {
        "layers": [float(planned == sounds) for _, planned, sounds in heard],
        "layers_sounding": [sounds for listed in by_layer for sounds in listed],
        "worst_layer_sounding": min((listed for listed in by_layer if listed), key=np.mean, default=[]),
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
