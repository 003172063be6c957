"""Are the notes of latents those that were played? What the tracker finds, against the corpus' own notes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.batches import draw_songs
from configs.demo.recipe.corpus.form import Note
from configs.demo.recipe.corpus.rendering import notes_of, write_levels
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.instruments import LAYERS, keys_of, pitch_channels
from configs.demo.recipe.latents import CANVAS_FRAMES, FRAME_RATE_HZ, FloatArray, latents_from_levels
from runtime.audio.stems import layer_latents, summing
from runtime.config.bundle import Bundle
from runtime.notes.score import Score
from runtime.notes.tracker import score_of

NUM_SONGS: Final = 40
FIRST_SEED: Final = 777
TOLERANCE_S: Final = 0.04
PIECES: Final = ("loud energetic rock", "calm piano", "techno, 130 bpm", "bass and drums", "slow strings and flute")
_KEYS: Final = {c: key for layer in LAYERS for c, key in zip(pitch_channels(layer), keys_of(layer), strict=True)}


def measure(player: Player) -> Measured:
    """F1 of notes by layer, over `NUM_SONGS` songs of the corpus; how well stems of pieces sum to their mix."""
    figures, rows = note_figures(player.pipeline.bundle, draw_songs(NUM_SONGS, FIRST_SEED))
    pieces = [Piece(prompt, FIRST_SEED + index, {}) for index, prompt in enumerate(PIECES)]
    stems = [stem_row(player, *each) for each in zip(PIECES, player.generate(pieces), strict=True)]
    figures["stems_error_db"] = max(row["error"] for row in stems)
    figures["stems_silent_db"] = max(row["loudest silent layer"] for row in stems)
    titles = (f"Notes of {NUM_SONGS} songs, {TOLERANCE_S * 1000:.0f} ms", "Stems, dB against the mix")
    return Measured(figures, dict(zip(titles, (rows, stems), strict=True)))


def stem_row(player: Player, prompt: str, latents: FloatArray) -> Row:
    """The sum of a piece's layers, each decoded by itself, against its mix; and what layers sound that it lacks."""
    bundle, codec = player.pipeline.bundle, player.pipeline.codec
    assert codec is not None
    assert bundle.stems is not None
    mix = codec.decode(latents)
    layers = layer_latents(bundle, latents)
    stems = dict(
        zip(layers, summing([codec.decode(each) for each in layers.values()], bundle.stems.saturation), strict=True)
    )
    silent = [part.layer for part in score_of(bundle, latents, {}).parts if not part.notes]
    error = np.sum(list(stems.values()), axis=0, dtype=np.float64) - mix
    return {
        "prompt": prompt,
        "error": round(_db(error) - _db(mix), 1),
        "loudest silent layer": round(max((_db(stems[layer]) - _db(mix) for layer in silent), default=-300.0), 1),
        **{layer: round(_db(stem) - _db(mix), 1) for layer, stem in stems.items()},
    }


def _db(values: npt.NDArray[Any]) -> float:
    return max(-300.0, 10 * float(np.log10(np.mean(np.square(values, dtype=np.float64)) + 1e-40)))


def note_figures(bundle: Bundle, songs: Iterable[Song]) -> tuple[Figures, list[Row]]:
    """F1 of all notes and of each layer's, the quantized onsets' error, and the share of instruments that are named."""
    hits, played, found = Counter[str](), Counter[str](), Counter[str]()
    named, errors = list[bool](), list[float]()
    for song in songs:
        notes = notes_of(song, CANVAS_FRAMES / song.frames_per_beat)
        latents = latents_from_levels(write_levels(song, CANVAS_FRAMES, notes))
        score = score_of(bundle, latents, {"bpm": song.bpm}, [{"start_s": 0.0, "kind": song.section}])
        for layer, onsets in onsets_of(song, notes).items():
            near = matched(onsets, _found(score, layer))
            hits[layer] += len(near)
            played[layer] += sum(map(len, onsets.values()))
            found[layer] += sum(map(len, _found(score, layer).values()))
            errors += [abs(one - other) for one, other in matched(onsets, _found(score.quantized(), layer))]
        named += [song.instruments[part.layer] == part.instrument.name for part in score.parts if part.instrument]
    rows: list[Row] = [
        {"layer": layer, "played": played[layer], "found": found[layer], "F1": f1(hits, played, found, layer)}
        for layer in LAYERS
    ]
    figures: Figures = {"notes_f1": f1(hits, played, found, *LAYERS)}
    figures |= {f"notes_f1_{row['layer']}": row["F1"] for row in rows}
    figures["notes_quantized_p95_ms"] = round(float(np.quantile(errors, 0.95)) * 1000, 1)
    figures["notes_instruments"] = round(float(np.mean(named)), 4)
    return figures, rows


def f1(hits: Counter[str], played: Counter[str], found: Counter[str], *layers: str) -> float:
    """Of some layers together."""
    total = sum(played[layer] + found[layer] for layer in layers)
    return round(2 * sum(hits[layer] for layer in layers) / total, 4) if total else 1.0


def onsets_of(song: Song, notes: Mapping[str, list[Note]]) -> dict[str, dict[int, list[float]]]:
    """By layer and key the exact times in s of the notes that begin, and last, within a canvas."""
    found: dict[str, dict[int, list[float]]] = {}
    for layer, played in notes.items():
        keys = found.setdefault(layer, {})
        for note in played:
            frame = note.start_beat * song.frames_per_beat
            if frame < CANVAS_FRAMES - 2:
                keys.setdefault(_KEYS[note.channel], []).append(frame / FRAME_RATE_HZ)
    return found


def matched(played: Mapping[int, Iterable[float]], found: Mapping[int, Iterable[float]]) -> list[tuple[float, float]]:
    """Pairs of onsets of the same key within the tolerance, each used once, the nearest first."""
    pairs: list[tuple[float, float]] = []
    for key, times in played.items():
        left = list(found.get(key, ()))
        for time in sorted(times):
            near = min(left, key=lambda other: abs(other - time), default=None)
            if near is not None and abs(near - time) <= TOLERANCE_S + 1e-6:
                left.remove(near)
                pairs.append((time, near))
    return pairs


def _found(score: Score, layer: str) -> dict[int, list[float]]:
    """Onsets by key of those notes that begin well within a canvas, as `onsets_of` has them."""
    keys: dict[int, list[float]] = {}
    for part in score.parts:
        for note in part.notes if part.layer == layer else ():
            if round(note.start_s * FRAME_RATE_HZ) < CANVAS_FRAMES - 2:
                keys.setdefault(note.pitch, []).append(note.start_s)
    return keys
