"""Drums: the genre's groove with ghost notes, fills at phrase ends, thinned out in breaks, rolls in builds."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.form import PHRASE_BARS, Bar, Hit, Note, accents, grid_of, groove_of, hits_of
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.latents import HAT, KICK, SNARE

# What the snare plays in the last steps of a phrase; 4/4 and 3/4 share their last beats.
_FILLS: Final = ("x-x-xxXx", "X.x.XxXX", "..x.x.XX", "x.xxX.x.")


def write_drums(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    """Kick, snare and hat."""
    groove, weights = groove_of(song), accents(song.meter)
    fill, has_fills = _FILLS[int(rng.integers(len(_FILLS)))], rng.random() < 0.75
    grid = grid_of(song)
    for bar in bars:
        for channel, hit in _bar_hits(song, bar, groove.kick, groove.snare, groove.hat, fill if has_fills else ""):
            accent = weights[hit.step] if channel == HAT and hit.letter != "O" else 1.0
            start = bar.start_beat + grid[hit.step]
            yield Note(channel, start, start, min(bar.velocity * hit.weight * accent, 1.0), _ENVELOPES[channel])


_ENVELOPES: Final = {KICK: "kick", SNARE: "snare", HAT: "hat"}


def _bar_hits(song: Song, bar: Bar, kick: str, snare: str, hat: str, fill: str) -> Iterator[tuple[int, Hit]]:
    """Channel and hit of everything that is struck in a bar."""
    if bar.is_final:
        kick, snare, hat = (part.ljust(len(kick), ".") for part in ("X", "X", "O"))
    elif song.section == "break":
        kick, snare, hat = "X".ljust(len(kick), "."), "", "X..." * (len(hat) // 4)
    elif song.section == "build" and bar.index % 8 >= 4:
        snare = _roll(bar.index % 8, len(snare))
    elif bar.position == PHRASE_BARS - 1 and bar.density > 0:
        snare = snare[: -len(fill)] + fill if fill else snare
    for channel, pattern in ((KICK, kick), (SNARE, snare), (HAT, hat)):
        yield from ((channel, hit) for hit in hits_of(pattern, bar.density))


def _roll(place: int, num_steps: int) -> str:
    """A snare roll: beats in bar 5 of a build, eighths up to bar 7, sixteenths in bar 8."""
    return {4: "X...", 7: "Xoxo"}.get(place, "X.x.") * (num_steps // 4)
