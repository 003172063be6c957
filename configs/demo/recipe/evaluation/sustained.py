"""Do sustained prompts sustain? The share of the time below `listening.QUIET_DB` and the longest gap."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from configs.demo.recipe.evaluation import listening, sound
from configs.demo.recipe.evaluation.measure import layer_share
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.latents import FloatArray, levels_from_latents
from runtime.pipeline.compose import GenerationInputs

PROMPTS: Final = (
    "calm pads",
    "slow strings",
    "ambient drone for sleeping",
    "soft organ chords, legato",
    "slow choir pads in D minor",
    "sustained synth pads, 60 bpm",
    "warm strings and choir, very slow",
    "nappes calmes et lentes",
)
NUM_SEEDS: Final = 3
FIRST_SEED: Final = 8100
SECONDS: Final = 20.0
# README's variation: of the first, a canvas, by the second.
VARIATION: Final = ("house in E minor, drums, bass and piano chords", "slow dark strings")
VARIATION_DENOISE: Final = 0.7


def measure(player: Player) -> Measured:
    """Every prompt and seed, and variations of house into strings."""
    seeds = range(FIRST_SEED, FIRST_SEED + NUM_SEEDS)
    pieces = [
        Piece(prompt, seed, {"seconds": SECONDS, "plan": None, "ending": "cut"}) for prompt in PROMPTS for seed in seeds
    ]
    sources = player.generate([Piece(VARIATION[0], seed, {}) for seed in seeds])
    pieces += [
        Piece(VARIATION[1], seed, {"denoise": VARIATION_DENOISE}, GenerationInputs(source=source))
        for seed, source in zip(seeds, sources, strict=True)
    ]
    latents = player.generate(pieces)
    rows = [
        sustained_row(str(piece.prompt), piece.seed, each, sound.at_loudness(player.decode(each)))
        for piece, each in zip(pieces, latents, strict=True)
    ]
    return Measured(sustained_figures(rows), {"Sustained prompts": rows})


def sustained_row(prompt: str, seed: int, latents: FloatArray, audio: FloatArray) -> Row:
    """Silence of one piece, and the share of the frames in which its pad sounds."""
    quiet, longest_s = listening.gaps(audio)
    share = layer_share(levels_from_latents(latents), "pad")
    return {"prompt": prompt, "seed": seed, "quiet share": quiet, "longest gap s": longest_s, "pad share": share}


def sustained_figures(rows: Sequence[Row]) -> Figures:
    """Mean and worst share of silence, and the longest gap in seconds."""
    shares = [row["quiet share"] for row in rows]
    return {
        "sustained_quiet_share": round(float(np.mean(shares)), 4),
        "sustained_quiet_share_max": round(max(shares), 4),
        "sustained_longest_gap_s": round(max(row["longest gap s"] for row in rows), 3),
    }
