"""Are the notes of latents those that were played? What the tracker finds, against the corpus' own notes.

Are they so in MIDI files, too? And are notes that are given to generations played, in pieces and in live sessions?
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.batches import draw_songs
from configs.demo.recipe.corpus.form import Note as CorpusNote
from configs.demo.recipe.corpus.rendering import notes_of, write_levels
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.evaluation import midi
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.evaluation.session_run import PlayedRun
from configs.demo.recipe.instruments import LAYERS, keys_of, pitch_channels
from configs.demo.recipe.latents import CANVAS_FRAMES, FRAME_RATE_HZ, FloatArray, latents_from_levels
from runtime.config.bundle import Bundle
from runtime.music.score import Note, Score
from runtime.music.tracker import score_of

NUM_SONGS: Final = 40
FIRST_SEED: Final = 777
TOLERANCE_S: Final = 0.04
PIECES: Final = ("loud energetic rock", "calm piano", "techno, 130 bpm", "bass and drums", "slow strings and flute")
# A melody of d minor, over a bass that is free.
GIVEN_PROMPT: Final = "piano melody and bass, 120 bpm, d minor"
GIVEN_PITCHES: Final = (74, 76, 77, 79, 81, 82, 84, 86)
GIVEN_SCALE: Final = frozenset(pitch % 12 for pitch in GIVEN_PITCHES)
GIVEN_TOLERANCE_S: Final = 0.06
NUM_MELODIES: Final = 8
# The first notes of eighths are played; of the last ones it is too late to come back in the next bar.
ECHO_PROMPT: Final = "piano melody, bass and drums, 120 bpm, d minor"
ECHO_NOTES, ECHO_BARS, NUM_ECHOES = 6, 3, 3
_KEYS: Final = {c: key for layer in LAYERS for c, key in zip(pitch_channels(layer), keys_of(layer), strict=True)}


def measure(player: Player) -> Measured:
    """F1 of notes by layer, over `NUM_SONGS` songs of the corpus; how well stems of pieces sum to their mix."""
    figures, rows = note_figures(player.pipeline.bundle, draw_songs(NUM_SONGS, FIRST_SEED))
    pieces = [Piece(prompt, FIRST_SEED + index, {}) for index, prompt in enumerate(PIECES)]
    stems = [stem_row(player, *each) for each in zip(PIECES, player.generate(pieces), strict=True)]
    figures["stems_error_db"] = max(row["error"] for row in stems)
    figures["stems_silent_db"] = max(row["loudest silent layer"] for row in stems)
    given = [given_row(player, **options) for options in ({}, {"plan": True}, {"plan": True, "notes_exact": True})]
    echo = [echo_row(player, seed, exact=exact) for exact in (False, True) for seed in range(NUM_ECHOES)]
    figures |= {f"notes_given_{row['way'].replace(' ', '_')}_f1": row["F1"] for row in given}
    for exact in (False, True):
        found = [row["F1"] for row in echo if row["exact"] == exact]
        figures[f"notes_echo{'_exact' * exact}_f1"] = round(float(np.mean(found)), 4)
    files = midi.measure(player)
    titles = (f"Notes of {NUM_SONGS} songs, {TOLERANCE_S * 1000:.0f} ms", "Stems, dB against the mix")
    ways = (f"Notes that are given, {GIVEN_TOLERANCE_S * 1000:.0f} ms", "A bar that is echoed in a live session")
    tables = dict(zip((*titles, *ways), (rows, stems, given, echo), strict=True))
    return Measured({**figures, **files.figures}, {**tables, **files.tables})


def given_row(player: Player, *, num_melodies: int = NUM_MELODIES, **options: Any) -> Row:
    """Of a melody that pieces are given: how much of it is played, and how much of the bass is in its scale."""
    pieces, melodies = [], [melody(seed) for seed in range(num_melodies)]
    for seed, notes in enumerate(melodies):
        values = [note._asdict() for note in notes]
        given = {"notes": values, "seconds": CANVAS_FRAMES / FRAME_RATE_HZ, **options}
        pieces.append(Piece(GIVEN_PROMPT, seed, given))
    generations = [player.begin(piece) for piece in pieces]
    scores = [score_of(player.pipeline.bundle, latents, {}).notes for latents in player.finish(generations)]
    end_s = max(note.start_s for note in melodies[0]) + GIVEN_TOLERANCE_S
    played = [[note for note in notes if note.layer == "melody" and note.start_s <= end_s] for notes in scores]
    bass = [note.pitch for notes in scores for note in notes if note.layer == "bass"]
    row = {"F1": float(np.mean([melody_f1(*both) for both in zip(melodies, played, strict=True)]))}
    row["bass in key"] = float(np.mean([pitch % 12 in GIVEN_SCALE for pitch in bass]))
    way = " ".join(name.removeprefix("notes_") for name in options) or "free"
    return {"way": way, **{name: round(value, 4) for name, value in row.items()}}


def echo_row(player: Player, seed: int, *, exact: bool) -> Row:
    """Bars that a client plays to a live session, each one bar before it is to be heard again."""
    client, rng = PlayedRun(player, ECHO_PROMPT, seed), np.random.default_rng(seed)
    client.play(1.0)
    lines = client.bar_lines()
    first, expected, spans = next(i for i, line in enumerate(lines) if line > client.now_s), list[Note](), []
    for bar in range(first, first + 2 * ECHO_BARS, 2):
        start, eighth = lines[bar], (lines[bar + 1] - lines[bar]) / 8
        for place in range(ECHO_NOTES):
            pitch = int(rng.choice(GIVEN_PITCHES))
            client.play(start + (place + 0.8) * eighth)
            item = {"pitch": pitch, "start_s": place * eighth, "seconds": 0.8 * eighth}
            client.send([item], start + float(rng.uniform(-0.01, 0.01)), exact=exact)
            expected.append(Note("melody", pitch, 100, lines[bar + 1] + place * eighth, 0.8 * eighth))
        spans.append((lines[bar + 1] - GIVEN_TOLERANCE_S, lines[bar + 2] - GIVEN_TOLERANCE_S))
    client.play(spans[-1][1] + 1.0)
    heard = [note for note in client.heard("melody") if any(start <= note.start_s < end for start, end in spans)]
    client.close()
    return {"exact": exact, "seed": seed, "played": len(expected), "F1": round(melody_f1(expected, heard), 4)}


def melody(seed: int) -> list[Note]:
    """Notes of a scale on every beat of a canvas at 120 bpm, never the same twice in a row."""
    rng, notes, last = np.random.default_rng(seed), list[Note](), 0
    for beat in range(int(2 * CANVAS_FRAMES / FRAME_RATE_HZ)):
        last = int(rng.choice([pitch for pitch in GIVEN_PITCHES if pitch != last]))
        notes.append(Note("melody", last, 100, beat / 2, 0.42))
    return notes


def melody_f1(played: Iterable[Note], found: Iterable[Note]) -> float:
    """Of the onsets of two melodies."""
    both = [dict[int, list[float]]() for _ in range(2)]
    for onsets, notes in zip(both, (played, found), strict=True):
        for note in notes:
            onsets.setdefault(note.pitch, []).append(note.start_s)
    hits = len(matched(both[0], both[1], GIVEN_TOLERANCE_S))
    total = sum(len(times) for onsets in both for times in onsets.values())
    return 2 * hits / total if total else 1.0


def stem_row(player: Player, prompt: str, latents: FloatArray) -> Row:
    """The sum of a piece's layers, each decoded by itself, against its mix; and what layers sound that it lacks."""
    bundle, codec = player.pipeline.bundle, player.pipeline.codec
    assert codec is not None
    mix = codec.decode(latents)
    stems = midi.stems_of(player, latents)
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


def onsets_of(song: Song, notes: Mapping[str, list[CorpusNote]]) -> dict[str, dict[int, list[float]]]:
    """By layer and key the exact times in s of the notes that begin, and last, within a canvas."""
    found: dict[str, dict[int, list[float]]] = {}
    for layer, played in notes.items():
        keys = found.setdefault(layer, {})
        for note in played:
            frame = note.start_beat * song.frames_per_beat
            if frame < CANVAS_FRAMES - 2:
                keys.setdefault(_KEYS[note.channel], []).append(frame / FRAME_RATE_HZ)
    return found


def matched(
    played: Mapping[int, Iterable[float]], found: Mapping[int, Iterable[float]], tolerance_s: float = TOLERANCE_S
) -> list[tuple[float, float]]:
    """Pairs of onsets of the same key within the tolerance, each used once, the nearest first."""
    pairs: list[tuple[float, float]] = []
    for key, times in played.items():
        left = list(found.get(key, ()))
        for time in sorted(times):
            near = min(left, key=lambda other: abs(other - time), default=None)
            if near is not None and abs(near - time) <= tolerance_s + 1e-6:
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
