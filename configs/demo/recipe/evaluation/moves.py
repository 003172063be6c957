"""Do songs move? Builds rise, a chorus is the loudest section, and sections have even numbers of bars."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from configs.demo.recipe.evaluation import sound
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.latents import FRAME_RATE_HZ, SAMPLE_RATE_HZ, FloatArray
from runtime.pipeline.songs.plan import SongPlan

PROMPTS: Final = (
    "synthwave with a big chorus",
    "rock in E minor",
    "epic cinematic strings, build to a climax",
    "house music, 124 bpm",
    "lofi hip hop beats to study",
    "jazz trio with walking bass",
    "trance with arps and drums",
    "pop song with piano and drums",
    "drum and bass",
    "folk guitar and flute",
    "waltz with strings",
    "techno, 131 bpm",
)
FIRST_SEED: Final = 8700
NUM_SEEDS: Final = 2
SONG_S: Final = 90.0
RISE_DB: Final = 3.0
NUM_PARTS: Final = 4


class Section(NamedTuple):
    """A section as it is heard. rise_db: its last quarter beside its first."""

    kind: str
    bars: int
    level_db: float
    rise_db: float


def measure(player: Player) -> Measured:
    """`NUM_SEEDS` songs of each prompt."""
    asked = [(prompt, FIRST_SEED + i) for i, prompt in enumerate(NUM_SEEDS * PROMPTS)]
    songs = {each: song_of(player, *each) for each in asked}
    return Measured(moves_figures(list(songs.values())), {f"Songs of {SONG_S:.0f} s": song_rows(songs)})


def song_of(player: Player, prompt: str, seed: int) -> list[Section]:
    """The sections of a song."""
    piece = Piece(prompt, seed, {"seconds": SONG_S, "plan": True})
    audio = player.finished_audio(piece)
    plan = player.begin(piece).plan
    assert isinstance(plan, SongPlan)
    samples = SAMPLE_RATE_HZ / FRAME_RATE_HZ
    return [
        heard(each.kind, each.bars, audio[round(each.start_frame * samples) : round(each.end_frame * samples)])
        for each in plan.sections
    ]


def heard(kind: str, bars: int, audio: FloatArray) -> Section:
    """A section of audio `[samples, 2]`."""
    parts = [sound.level_db(part) for part in np.array_split(audio, NUM_PARTS)]
    return Section(kind, bars, round(sound.level_db(audio), 2), round(parts[-1] - parts[0], 2))


def moves_figures(songs: Sequence[Sequence[Section]]) -> Figures:
    """Shares of builds, and of songs with a chorus; odd sections: all of odd numbers but the last, that of 3 or 7."""
    rises = [section.rise_db for song in songs for section in song if section.kind == "build"]
    loudest = [
        max(song, key=lambda section: section.level_db).kind == "chorus"
        for song in songs
        if any(section.kind == "chorus" for section in song)
    ]
    odd = [section for song in songs for section in song[:-1] if section.bars % 2]
    odd += [song[-1] for song in songs if song[-1].bars in (3, 7)]
    figures: Figures = {"moves_songs": len(songs), "moves_builds": len(rises), "moves_odd_sections": len(odd)}
    if rises:
        figures["moves_builds_rise"] = round(float(np.mean([rise >= RISE_DB for rise in rises])), 4)
        figures["moves_builds_rise_db"] = round(float(np.mean(rises)), 2)
    if loudest:
        figures["moves_chorus_loudest"] = round(float(np.mean(loudest)), 4)
    return figures


def song_rows(songs: Mapping[tuple[str, int], Sequence[Section]]) -> list[Row]:
    """The sections of every song: kind, bars, level in dB and, of builds, how it rises."""
    return [
        {
            "prompt": prompt,
            "seed": seed,
            "sections": ", ".join(
                f"{kind} {bars}: {level_db:.1f}" + f" ({rise_db:+.1f})" * (kind == "build")
                for kind, bars, level_db, rise_db in song
            ),
        }
        for (prompt, seed), song in songs.items()
    ]
