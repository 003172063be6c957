"""Is the tonic heard, and does the music move? A key profile on librosa's chroma of pieces whose keys are named.

A piece of one held note has the clearest tonic: so the layers that hold one are counted beside it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.theory import MODES, NOTE_NAMES, scale_pitch_classes
from configs.demo.recipe.evaluation import listening
from configs.demo.recipe.evaluation.measure import SOUNDING_LEVEL, in_key_energy, layer_share
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.instruments import pitch_channels
from configs.demo.recipe.latents import FloatArray, levels_from_latents

# Prompt, tonic, mode.
PIECES: Final = (
    ("pop song in D major", "D", "major"),
    ("bright piano melody and strings, D major", "D", "major"),
    ("folk in D major", "D", "major"),
    ("classical piano in A major", "A", "major"),
    ("country in G major", "G", "major"),
    ("jazz in B flat major", "A#", "major"),
    ("waltz in F major", "F", "major"),
    ("synthwave in E flat major", "D#", "major"),
    ("house in A minor, 124 bpm", "A", "minor"),
    ("techno in D minor", "D", "minor"),
    ("rock in E minor", "E", "minor"),
    ("hip hop in C minor", "C", "minor"),
    ("sad ballad in F sharp minor", "F#", "minor"),
    ("cinematic strings in G minor", "G", "minor"),
    ("trance in B minor, 138 bpm", "B", "minor"),
    ("calm pads and a slow melody in C minor", "C", "minor"),
    ("funk in E dorian", "E", "dorian"),
    ("lo-fi in A dorian", "A", "dorian"),
    ("rock in A mixolydian", "A", "mixolydian"),
    ("dreamy arpeggios and pads in F lydian", "F", "lydian"),
    ("dark bass and pads, F phrygian", "F", "phrygian"),
    ("tango strings and piano in D harmonic minor", "D", "harmonic minor"),
    ("folk melody in G pentatonic", "G", "pentatonic"),
    ("blues in A", "A", "blues"),
)
FIRST_SEED: Final = 8200
NUM_SEEDS: Final = 3
SECONDS: Final = 20.0
# The mode whose scale holds that of others, for which a profile has no name.
_PARENTS: Final = {"pentatonic": "major", "minor pentatonic": "minor", "blues": "minor", "harmonic minor": "minor"}
# Of these, what sounds in this share of the frames is asked whether it moves.
MOVING: Final = ("pad", "melody", "bass")
_HEARD_SHARE: Final = 0.1
_THREADS: Final = 2


def measure(player: Player) -> Measured:
    """`NUM_SEEDS` pieces of each prompt, of `SECONDS`."""
    asked = NUM_SEEDS * PIECES
    pieces = [Piece(prompt, FIRST_SEED + i, {"seconds": SECONDS, "plan": None}) for i, (prompt, *_) in enumerate(asked)]
    latents = player.generate(pieces)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda each: listening.key_of(player.decode(each)), latents))
    rows = [tonic_row(*each) for each in zip(asked, found, latents, strict=True)]
    return Measured(tonic_figures(rows), {f"Tonic, seeds from {FIRST_SEED}": rows})


def tonic_row(piece: tuple[str, str, str], found: tuple[int, str], latents: FloatArray) -> Row:
    """What is heard of a piece `prompt, tonic, mode`."""
    prompt, name, mode = piece
    tonic, levels = NOTE_NAMES.index(name), levels_from_latents(latents)
    moves = {layer: num_changes(levels, layer) for layer in MOVING if layer_share(levels, layer) > _HEARD_SHARE}
    return {
        "prompt": prompt,
        "asked": f"{name} {mode}",
        "heard": f"{NOTE_NAMES[found[0]]} {found[1]}",
        "is": relation(tonic, mode, *found),
        "in key": round(in_key_energy(levels, tonic, mode), 3),
        "changes": " ".join(f"{layer} {changes}" for layer, changes in moves.items()),
        "still": " ".join(layer for layer, changes in moves.items() if not changes),
    }


def num_changes(levels: FloatArray, layer: str) -> int:
    """How often another key of a layer becomes the loudest one, in levels `[T, C]`."""
    played = levels[:, pitch_channels(layer)]  # [T, K]
    loudest = played.argmax(axis=1)[played.max(axis=1) > SOUNDING_LEVEL]
    return int(np.count_nonzero(np.diff(loudest)))


def relation(tonic: int, mode: str, found_tonic: int, found_mode: str) -> str:
    """What a found key is to the asked one: exact (the tonic), relative (another tonic of the same notes) or other."""
    if found_tonic == tonic:
        return "exact"
    notes = set(scale_pitch_classes(tonic, _PARENTS.get(mode, mode)))
    return "relative" if notes == {(found_tonic + step) % 12 for step in MODES[found_mode]} else "other"


def tonic_figures(rows: Sequence[Row]) -> Figures:
    """Shares of pieces; still: of those that have a layer, in which it holds one note."""
    kinds = [row["is"] for row in rows]
    figures = {f"tonic_{kind}": round(kinds.count(kind) / len(kinds), 4) for kind in ("exact", "relative", "other")}
    for layer in MOVING:
        still = [layer in str(row["still"]).split() for row in rows if f"{layer} " in str(row["changes"])]
        figures |= {f"tonic_still_{layer}": round(sum(still) / len(still), 4)} if still else {}
    return figures
