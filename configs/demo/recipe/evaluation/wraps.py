"""Is a loop a circle? Where it begins again, against the bar lines inside of it, denoised as a circle and as a piece.

librosa's onset strength, spectral flux and chroma at each bar line.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import librosa
import numpy as np
import numpy.typing as npt

from configs.demo.recipe.evaluation.beat import drum_onsets_s, on_grid
from configs.demo.recipe.evaluation.evaluate import Scores, held_out_requests, score
from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.evaluation.session_run import SessionRun
from configs.demo.recipe.latents import (
    CANVAS_FRAMES,
    FRAME_RATE_HZ,
    SAMPLE_RATE_HZ,
    FloatArray,
    levels_from_latents,
)
from runtime.live.protocol.messages import LivePrompt
from runtime.music.tempo import best_bars, loop_frames, tempo_of
from runtime.requests.options import parse_options

Values = npt.NDArray[np.float64]

STYLES: Final = {
    "house": ("house, 124 bpm", 4),
    "ambient": ("ambient pads and piano, 96 bpm", 4),
    "rock": ("rock band with guitar, bass and drums, 132 bpm", 4),
    "jazz": ("jazz trio with piano, upright bass and brushes, 112 bpm", 4),
}
LOOPS: Final = 20
FIRST_SEED: Final = 7400
PASSES: Final = 4
BEATS: Final = 4
HOP: Final = 512
NEAR_S: Final = 0.05  # of a bar line
MEASURES: Final = ("onset", "flux", "chroma")


def measure(player: Player, loops: int = LOOPS) -> Measured:
    """All styles, with and without."""
    rows = [style_row(player, style, circular=circular, loops=loops) for circular in (True, False) for style in STYLES]
    figures = wrap_figures(rows) | loop_scores(player).rounded("loops_")
    return Measured(figures, {f"Wraps of loops, seeds from {FIRST_SEED}": rows})


def loop_scores(player: Player) -> Scores:
    """As held-out prompts are scored: of loops of whole bars, denoised as circles in a live session's steps."""
    requests, steps = held_out_requests(), {"steps": player.pipeline.bundle.sampler.live_steps}
    asked = []
    for index, request in enumerate(requests):
        piece = player.begin(Piece(request.prompt, 1000 + index, steps)).next_request()
        assert piece is not None
        tempo = tempo_of(parse_options({"prompt": request.prompt}), player.pipeline.bundle.options.bpm)
        bars = 0 if tempo is None else best_bars(tempo, CANVAS_FRAMES, FRAME_RATE_HZ)
        frames = loop_frames(tempo, bars, FRAME_RATE_HZ) if tempo and bars else CANVAS_FRAMES
        asked.append(replace(piece, loop_frames=frames))
    return score(requests, levels_from_latents(np.stack(player.run(asked))))


def style_row(player: Player, style: str, *, circular: bool, loops: int) -> Row:
    """How often the wrap has more of each measure than a bar line inside of the same loop; 0.5: it is one of them."""
    prompt, bars = STYLES[style]
    shares, turns = list[Values](), list[Values]()
    for seed in range(FIRST_SEED, FIRST_SEED + loops):
        latents, frames = loop_latents(player, prompt, seed, bars, circular=circular)
        found = line_measures(player.decode(latents), frames, bars)
        shares.append((found[0] > found[1:]).mean(axis=0) + (found[0] == found[1:]).mean(axis=0) / 2)
        onsets = drum_onsets_s(latents[frames : 2 * frames])
        turns.append(onsets * FRAME_RATE_HZ / frames * bars * 4 * BEATS)
    grid = on_grid(np.concatenate(turns))
    means = np.mean(shares, axis=0)
    told = {name: round(float(value), 3) for name, value in zip(MEASURES, means, strict=True)}
    return {"style": style, "circular": circular, "frames": frames, **told, "coherence": round(grid.coherence, 4)}


def loop_latents(player: Player, prompt: str, seed: int, bars: int, *, circular: bool) -> tuple[FloatArray, int]:
    """Latents `[frames, C]` of some passes of a session's loop, and how many frames a pass has."""
    controls = {"loop_mode": "circular" if circular else "plain"}
    run = SessionRun(player, mode="loop", prompts=[LivePrompt(text=prompt)], seed=seed, bars=bars, controls=controls)
    run.run(0.1)
    newest = run.session.core.timeline.newest
    assert newest is not None
    assert newest.band is not None
    frames = newest.band[1]
    latents = newest.canvas.rows(range(frames))
    run.close()
    return np.concatenate([latents] * PASSES), frames


def line_measures(audio: FloatArray, frames: int, bars: int) -> Values:
    """`[bars, 3]` of audio `[samples, 2]` of some passes: at each bar line of the second one, the wrap first."""
    mono = librosa.to_mono(audio.T)
    strength = librosa.onset.onset_strength(y=mono, sr=SAMPLE_RATE_HZ, hop_length=HOP)
    level = np.log1p(np.abs(librosa.stft(mono, hop_length=HOP)))
    flux = np.maximum(np.diff(level, axis=1, prepend=level[:, :1]), 0.0).sum(axis=0)
    chroma = librosa.feature.chroma_cqt(y=mono, sr=SAMPLE_RATE_HZ, hop_length=HOP)
    bar = frames / FRAME_RATE_HZ * SAMPLE_RATE_HZ / HOP / bars
    near, beat = round(NEAR_S * SAMPLE_RATE_HZ / HOP), round(bar / BEATS)
    found = []
    for line in (round((bars + index) * bar) for index in range(bars)):
        around = slice(line - near, line + near + 1)
        before, behind = chroma[:, line - beat : line].mean(axis=1), chroma[:, line : line + beat].mean(axis=1)
        found.append((strength[around].max(), flux[around].max(), _distance(before, behind)))
    return np.array(found)


def _distance(one: Values, other: Values) -> float:
    """1 less the cosine."""
    sizes = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return 1.0 - float(one @ other) / max(sizes, 1e-9)


def wrap_figures(rows: Sequence[Row]) -> Figures:
    """The largest share of all styles and measures, or of inner lines where they have more; 0.5 is none."""
    figures: Figures = {}
    for circular in (True, False):
        told = [float(str(row[name])) for row in rows if row["circular"] is circular for name in MEASURES]
        figures[f"wraps_told_max_{'circular' if circular else 'plain'}"] = max(
            *told, *(round(1 - one, 3) for one in told)
        )
    return figures
