"""Do pieces end? Silence after the last notes, those on a bar line and of the tonic's chord, and no click."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from configs.demo.recipe.evaluation import sound
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.latents import FRAME_RATE_HZ, SAMPLE_RATE_HZ, FloatArray
from runtime.music.sections import SongSection
from runtime.pipeline.songs.plan import SongPlan

PROMPTS: Final = (
    "jazz trio with walking bass",
    "calm piano in D minor",
    "techno, 131 bpm",
    "waltz with strings",
    "drone of dark pads",
    "rock in E minor",
    "solo violin, 60 bpm",
    "lofi hip hop beats to study",
    "bass and drums, 84 bpm",
    "epic cinematic brass",
)
FIRST_SEED: Final = 8600
# Of every prompt a piece of each length; the shortest has no plan.
SECONDS: Final = (20.0, 12.5, 30.0, 4.0)
SILENT_S, SILENT_DB = 0.1, -50.0
# What is heard of the last notes; they begin within so many frames of a bar line.
CHORD_S, LINE_FRAMES = 0.8, 1.0


def measure(player: Player) -> Measured:
    """All prompts and lengths."""
    asked = [(prompt, FIRST_SEED + i, seconds) for i, seconds in enumerate(SECONDS) for prompt in PROMPTS]
    rows = [ends_row(player, *each) for each in asked]
    return Measured(ends_figures(rows), {f"Ends, seeds from {FIRST_SEED}": rows})


def ends_row(player: Player, prompt: str, seed: int, seconds: float) -> Row:
    """How a piece ends."""
    piece = Piece(prompt, seed, {"seconds": seconds, "plan": None})
    audio = player.finished_audio(piece)
    row: Row = {
        "prompt": prompt,
        "seconds": seconds,
        "last 100 ms dB": round(sound.level_db(audio[-round(SILENT_S * SAMPLE_RATE_HZ) :]), 1),
        "clicks": sound.num_clicks(audio, []),
    }
    generation = player.begin(piece)
    first, plan = generation.ending.ring_frame, generation.plan
    if first is None or not isinstance(plan, SongPlan):
        return row
    chord = chord_share(audio, first / FRAME_RATE_HZ, plan.tonic_chord)
    bars_off = off_line(plan.sections, first)
    return {**row, "sections": len(plan.sections), "chord": round(chord, 3), "frames off": round(bars_off, 2)}


def chord_share(audio: FloatArray, start_s: float, chord: Sequence[int]) -> float:
    """The share of a chord's pitch classes in the chroma of audio `[samples, 2]` from a time on."""
    start = round(start_s * SAMPLE_RATE_HZ)
    energies = sound.chroma(audio[start : start + round(CHORD_S * SAMPLE_RATE_HZ)]).sum(axis=0)
    return float(energies[list(chord)].sum() / max(energies.sum(), 1e-12))


def off_line(sections: Sequence[SongSection], frame: int) -> float:
    """How far a frame is from the nearest bar line of a song."""
    bar = sections[0].beats * 60.0 / sections[0].bpm * FRAME_RATE_HZ
    bars = (frame - sections[0].start_frame - sections[0].offset) / bar
    return abs(bars - round(bars)) * bar


def ends_figures(rows: Sequence[Row]) -> Figures:
    """Shares of pieces; of those with last notes how many begin on a bar line; of 20 s those with two sections."""
    ringing = [row for row in rows if "chord" in row]
    shorter = [row["sections"] >= 2 for row in ringing if row["seconds"] == SECONDS[0]]
    figures: Figures = {
        "ends_silent": round(float(np.mean([row["last 100 ms dB"] < SILENT_DB for row in rows])), 4),
        "ends_clicks": sum(row["clicks"] for row in rows),
        "ends_ringing": round(len(ringing) / len(rows), 4),
    }
    if ringing:
        figures["ends_on_line"] = round(float(np.mean([row["frames off"] <= LINE_FRAMES for row in ringing])), 4)
        figures["ends_chord"] = round(float(np.mean([row["chord"] for row in ringing])), 4)
    if shorter:
        figures["ends_two_sections"] = round(float(np.mean(shorter)), 4)
    return figures
