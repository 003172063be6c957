"""Pictures of generated music: a few prompts in one for the README, and pieces of any length in one each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from configs.demo.recipe.evaluation.player import EndlessPiece, Piece, Player
from configs.demo.recipe.latents import FIRST_PITCH, FRAME_RATE_HZ, SAMPLE_RATE_HZ, FloatArray, levels_from_latents
from runtime.music.sections import SongSection
from runtime.pipeline.songs.plan import SongPlan

PROMPTS: Final = (
    "lo-fi in D minor at 78 bpm",
    "jazz with piano chords, upright bass and saxophone melody in B flat",
    "techno in A minor at 130 bpm",
    "waltz with strings chords and violin melody in G major",
    "ambient choir pads in E lydian",
    "funk, electric bass and guitar arpeggios at 104 bpm",
    "bossa nova in F major",
    "ballad, piano chords and flute melody at 66 bpm",
    "trance arpeggios, bass and drums in F sharp minor at 138 bpm",
    "marimba arpeggios and whistle melody, playful",
    "rock in E minor at 140 bpm",
    "bells, harp arpeggios and soft strings pads",
)
SEED: Final = 7
COLUMNS: Final = 4
_SIZE_INCHES: Final = (2.9, 2.6)
_DOTS_PER_INCH: Final = 72
# Pieces of which each has a picture: typed prompts, the song of pages/generate.md, and a session without end.
PIECES: Final = (
    "lofi hip hop beats to study",
    "heavy metal with double kick",
    "sad violin",
    "ambient drone for sleeping",
    "dark bass and drums",
    "melody and bass in C major",
    "calm pads and a slow melody",
    "techno with a big kick",
    "Mozart piano sonata in A major",
    "music",
)
PIECE_S: Final = 20.0
SONG: Final = Piece("house, 124 bpm", 3, {"seconds": 180.0, "plan": True})
ENDLESS: Final = Piece("synthwave, pads, arps, bass and drums, A minor", 5, {})
ENDLESS_S: Final = 900.0
_PIECE_INCHES: Final = (20.0, 11.0)
_COLUMNS: Final = 1600
_WINDOW: Final = 4096


def plot(player: Player, file: Path, prompts: Sequence[str] = PROMPTS, columns: int = COLUMNS) -> None:
    """Generate the prompts and write a PNG: of each the audio's spectrogram above its piano roll."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(prompts) // columns)
    width, height = _SIZE_INCHES
    figure, axes = pyplot.subplots(
        2 * rows, columns, figsize=(columns * width, rows * height), sharex="col", squeeze=False, layout="constrained"
    )
    for index, (prompt, latents) in enumerate(zip(prompts, player.play(prompts, SEED), strict=True)):
        above, below = axes[2 * (index // columns) : 2 * (index // columns) + 2, index % columns]
        above.set_title(prompt, fontsize=7)
        _spectrogram(above, player.decode(latents))
        _roll(below, levels_from_latents(latents))
    for axis in axes.flat:
        axis.tick_params(labelsize=6)
    figure.supylabel("frequency in Hz above, MIDI pitch with drums and timbres on top below", fontsize=7)
    figure.supxlabel("seconds", fontsize=7)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def plot_pieces(player: Player, folder: Path, endless_s: float = ENDLESS_S) -> list[Path]:
    """Generate `PIECES`, the song and the session, and write a PNG of each into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [Piece(prompt, SEED, {"seconds": PIECE_S, "plan": None}) for prompt in PIECES]
    song, endless = player.begin(SONG), EndlessPiece(player.pipeline, ENDLESS, round(endless_s * FRAME_RATE_HZ))
    latents = [*player.generate(pieces), *player.finish([song]), *player.finish([endless])]
    plans: list[tuple[SongSection, ...]] = [
        *([()] * len(pieces)),
        song.plan.sections if isinstance(song.plan, SongPlan) else (),
    ]
    plans.append(endless.sections)
    files = [folder / f"{index:02}.png" for index in range(len(pieces))] + [folder / "song.png", folder / "endless.png"]
    for file, piece, each, parts in zip(files, [*pieces, SONG, ENDLESS], latents, plans, strict=True):
        draw_piece(file, f"{piece.prompt}, seed {piece.seed}", player.decode(each), each, parts)
    endless.close()
    return files


def draw_piece(
    file: Path, title: str, audio: FloatArray, latents: FloatArray, sections: Iterable[SongSection] = ()
) -> None:
    """Write a PNG of audio `[samples, 2]` of any length and its latents `[T, C]`: waveform, spectrogram, piano roll.

    sections: marked where they begin, with the first letters of their layers.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        3, 1, figsize=_PIECE_INCHES, height_ratios=(1, 2, 3), sharex=True, layout="constrained"
    )
    figure.suptitle(title)
    seconds, mono = len(latents) / FRAME_RATE_HZ, audio.mean(axis=1)
    low, high = waveform(mono)
    axes[0].fill_between(np.linspace(0.0, seconds, len(low)), low, high, linewidth=0.0)
    axes[0].set_ylim(-1.0, 1.0)
    power = spectra_db(mono)
    extent = (0.0, seconds, 0.0, SAMPLE_RATE_HZ / 2)
    axes[1].imshow(power.T, origin="lower", aspect="auto", extent=extent, vmin=-90.0, vmax=-25.0, cmap="magma")
    axes[1].set_ylim(0.0, 8000.0)
    _roll(axes[2], levels_from_latents(latents))
    for section in (each for each in sections if each.start_frame < len(latents)):
        start_s, layers = section.start_frame / FRAME_RATE_HZ, "".join(layer[0] for layer in section.layers)
        for axis in axes:
            axis.axvline(start_s, color="tab:green", linewidth=0.7)
        axes[0].text(start_s, 1.0, f"{section.kind} {section.bars} {layers}", fontsize=7, va="bottom", rotation=20)
    axes[2].set_xlim(0.0, seconds)
    axes[2].set_xlabel("seconds")
    for axis, label in zip(axes, ("level", "Hz", "MIDI pitch, drums and timbres on top"), strict=True):
        axis.set_ylabel(label)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def waveform(mono: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The lowest and highest sample of each column of a picture of `[samples]`."""
    starts = np.linspace(0, len(mono), min(_COLUMNS, len(mono)), endpoint=False).astype(int)
    return np.minimum.reduceat(mono, starts), np.maximum.reduceat(mono, starts)


def spectra_db(mono: FloatArray) -> FloatArray:
    """Power in decibels of `_COLUMNS` windows, equally far apart in `[samples]`: `[columns, bins]`."""
    padded = np.pad(mono, (0, max(0, _WINDOW - len(mono))))
    window = np.hanning(_WINDOW).astype(np.float32)
    starts = np.linspace(0, len(padded) - _WINDOW, _COLUMNS).astype(int)
    spectra = np.abs(np.fft.rfft(np.stack([padded[start : start + _WINDOW] for start in starts]) * window, axis=1))
    return np.asarray(20 * np.log10(spectra * 2 / window.sum() + 1e-7), np.float32)


def _spectrogram(axis: Any, audio: FloatArray) -> None:
    """Power in decibels over 0 to 8 kHz of the mono mix of audio f32 `[samples, 2]`."""
    axis.specgram(
        audio.mean(axis=1) + np.float32(1e-7),
        NFFT=4096,
        Fs=SAMPLE_RATE_HZ,
        noverlap=3072,
        scale_by_freq=False,
        vmin=-90.0,
        vmax=-25.0,
        cmap="magma",
    )
    axis.set_ylim(0.0, 8000.0)


def _roll(axis: Any, levels: FloatArray) -> None:
    """Levels f32 `[T, C]` as a picture, time to the right, pitch upwards."""
    extent = (0.0, len(levels) / FRAME_RATE_HZ, FIRST_PITCH - 0.5, FIRST_PITCH + levels.shape[1] - 0.5)
    axis.imshow(levels.T, origin="lower", aspect="auto", extent=extent, vmin=0.0, vmax=1.0, cmap="magma")
