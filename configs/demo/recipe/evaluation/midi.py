"""Do MIDI files have what is heard? mido and pretty_midi read them, and FluidSynth plays each layer beside our stem.

FluidSynth is a program of the system, with a SoundFont (`apt-get install fluidsynth fluidr3mono-gm-soundfont`). Needs
librosa and pretty_midi (the extra `recipe`).
"""

import io
import shutil
import subprocess
import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import mido
import numpy as np
import numpy.typing as npt
import pretty_midi

from configs.demo.recipe.evaluation.listening import STRENGTH_HZ, onset_strength
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray
from runtime.audio.stems import layer_latents, summing
from runtime.commands.terminal import Terminal, print_line
from runtime.music.midi_file import midi_bytes
from runtime.music.score import Note, Part, Score
from runtime.music.tracker import score_of

Values = npt.NDArray[np.float64]

GENRES: Final = {"rock": 112, "techno": 128, "disco": 118, "house": 122, "pop": 96, "trance": 138}
PROMPT: Final = "{genre}, {bpm} bpm, drums, bass, pad, arpeggio and melody"
FIRST_SEED: Final = 900
SECONDS: Final = 20.0
READERS: Final = ("mido", "pretty_midi")
# A tick of MIDI at the slowest tempo of the demo, and what rounds beside it.
TICK_S: Final = 0.003
PROGRAM: Final = "fluidsynth"
# One instrument's attack comes later than another's: by 60 ms at most.
MOST_FRAMES: Final = 6
# Without effects, so that onsets stay where they are; only those samples are read that are played.
_FLUIDSYNTH: Final = ("-ni", "-q", "-R", "0", "-C", "0", "-g", "1", "-o", "synth.dynamic-sample-loading=1")

NoteStart = tuple[str, int, float]


def measure(player: Player) -> Measured:
    """Notes that readers find, of all; onset correlation of each layer, the median over pieces, and of other pieces.

    Without FluidSynth a row says that correlations are left out.
    """
    prompts = [PROMPT.format(genre=genre, bpm=bpm) for genre, bpm in GENRES.items()]
    pieces = [Piece(prompt, FIRST_SEED + i, {"seconds": SECONDS, "plan": True}) for i, prompt in enumerate(prompts)]
    latents = player.generate(pieces)
    bundle = player.pipeline.bundle
    scores = [score_of(bundle, each, {"bpm": bpm}) for each, bpm in zip(latents, GENRES.values(), strict=True)]
    files = [midi_bytes(score) for score in scores]
    figures: Figures = {}
    for reader in READERS:
        shares = [read_share(*each, reader) for each in zip(scores, files, strict=True)]
        figures[f"midi_read_by_{reader}"] = round(min(shares), 4)
    if missing := missing_synthesizer():
        print_line(f"correlations of onsets are left out: {missing}", Terminal(stderr=True))
        return Measured(figures, {"Onsets of FluidSynth": [{"left out": missing}]})
    stems = [{layer: onset_strength(audio) for layer, audio in stems_of(player, each).items()} for each in latents]
    rows = correlation_rows(list(GENRES), scores, stems)
    for layer in LAYERS:
        found = [row["same"] for row in rows if row["layer"] == layer]
        figures |= {f"midi_onsets_{layer}": round(float(np.median(found)), 4)} if found else {}
    figures["midi_onsets_other_piece"] = round(float(np.median([row["other"] for row in rows])), 4)
    return Measured(figures, {"Onsets of FluidSynth, correlation with the stem of the same piece and of another": rows})


def read_share(score: Score, file: bytes, reader: str) -> float:
    """The share of a score's notes that a reader finds in its file, in order of layer, key and start; 1: no others."""
    expected = sorted((note.layer, note.pitch, note.start_s) for note in score.notes)
    found = sorted(_read_by_mido(file) if reader == "mido" else _read_by_pretty_midi(file))
    pairs = zip(expected, found, strict=False)
    same = sum(one[:2] == other[:2] and abs(one[2] - other[2]) <= TICK_S for one, other in pairs)
    return same / max(len(expected), len(found), 1)


def _read_by_mido(file: bytes) -> list[NoteStart]:
    midi = mido.MidiFile(file=io.BytesIO(file))
    tempo = next(event.tempo for event in midi.tracks[0] if event.type == "set_tempo")
    return [
        (track.name, event.note, mido.tick2second(tick, midi.ticks_per_beat, tempo))
        for track in midi.tracks
        for event, tick in zip(track, accumulate(event.time for event in track), strict=True)
        if event.type == "note_on"
    ]


def _read_by_pretty_midi(file: bytes) -> list[NoteStart]:
    parts = pretty_midi.PrettyMIDI(io.BytesIO(file)).instruments
    return [(part.name, note.pitch, note.start) for part in parts for note in part.notes]


def stems_of(player: Player, latents: FloatArray) -> dict[str, FloatArray]:
    """Audio f32 `[samples, 2]` of each layer of latents `[T, C]`: they sum to the mix."""
    bundle = player.pipeline.bundle
    assert bundle.stems is not None
    layers = layer_latents(bundle, latents)
    decoded = [player.decode(each) for each in layers.values()]
    return dict(zip(layers, summing(decoded, bundle.stems.saturation), strict=True))


def missing_synthesizer() -> str:
    """Why nothing is rendered here; "" where FluidSynth is, and has a SoundFont."""
    if shutil.which(PROGRAM) is None:
        return "FluidSynth is not installed: apt-get install fluidsynth fluidr3mono-gm-soundfont"
    note = Note("bass", 40, 100, 0.0, 0.1)
    with TemporaryDirectory() as scratch:
        has_sound = rendered(Score((Part("bass", (note,)),), 0.1, 0.04), "bass", Path(scratch)).any()
    return "" if has_sound else "FluidSynth finds no SoundFont: apt-get install fluidr3mono-gm-soundfont"


def rendered(score: Score, layer: str, folder: Path) -> FloatArray:
    """Audio f32 `[samples, 2]` that FluidSynth makes of the MIDI file of one layer, in a folder for its files."""
    alone = replace(score, parts=tuple(part for part in score.parts if part.layer == layer))
    midi, sound = folder / f"{layer}.mid", folder / f"{layer}.wav"
    midi.write_bytes(midi_bytes(alone))
    command = [PROGRAM, *_FLUIDSYNTH, "-r", str(SAMPLE_RATE_HZ), "-F", str(sound), str(midi)]
    subprocess.run(command, check=True, capture_output=True)
    with wave.open(str(sound)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return samples.reshape(-1, 2) * np.float32(2**-15)


def correlation_rows(names: Sequence[str], scores: Sequence[Score], stems: Sequence[dict[str, Values]]) -> list[Row]:
    """By piece and layer that it plays: correlation of FluidSynth's onsets with those of its stem, and of another's.

    stems: the onset strength `[frames]` of each layer, by piece.
    """
    played = [(index, part.layer) for index, score in enumerate(scores) for part in score.parts if part.notes]
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        folders = [Path(scratch) / str(index) for index in range(len(scores))]
        for folder in folders:
            folder.mkdir()
        renders = list(
            pool.map(lambda each: onset_strength(rendered(scores[each[0]], each[1], folders[each[0]])), played)
        )
    rows: list[Row] = []
    for (index, layer), render in zip(played, renders, strict=True):
        others = [i for i, other in played if other == layer and i != index]
        same, lag = correlation(stems[index][layer], render)
        row = {"piece": names[index], "layer": layer, "same": round(same, 4), "lag ms": round(lag * 1000 / STRENGTH_HZ)}
        apart = [correlation(stems[other][layer], render)[0] for other in others]
        rows.append({**row, "other": round(float(np.median(apart)), 4) if apart else 0.0})
    return rows


def correlation(stem: Values, render: Values, most: int = MOST_FRAMES) -> tuple[float, int]:
    """Pearson's, of onset strengths `[frames]`, and how many frames the render comes later: what correlates best."""
    found = []
    for lag in range(-most, most + 1):
        one, other = stem[max(0, -lag) :], render[max(0, lag) :]
        count = min(len(one), len(other))
        one, other = one[:count] - one[:count].mean(), other[:count] - other[:count].mean()
        size = float(np.linalg.norm(one) * np.linalg.norm(other))
        found.append((float(one @ other) / size if size else 0.0, lag))
    return max(found)
