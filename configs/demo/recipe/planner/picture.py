"""A picture of a planned song: its sections, what they play, and which bars are alike."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray
from configs.demo.recipe.planner.evaluate import NOTE_CHANNELS
from configs.demo.recipe.planner.pages import StructureCodes
from runtime.base.errors import RequestError

_SIZE_INCHES: Final = (12.0, 13.0)
_DOTS_PER_INCH: Final = 80
_STEPS_PER_BAR: Final = 16


def draw_picture(plan: dict[str, Any], structure: StructureCodes, file: Path, title: str = "") -> None:
    """Write a PNG of a file's plan: layers by section, the piano roll of its codes, similarity of its bars.

    Raises RequestError for a plan without sections or codes.
    """
    if "sections" not in plan or "codes" not in plan:
        raise RequestError("the file says no sections and codes", fix="generate it with --plan")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    levels, sections = structure.decode(np.array(plan["codes"])), plan["sections"]
    figure, axes = pyplot.subplots(
        3, 1, figsize=_SIZE_INCHES, height_ratios=(1, 3, 6), layout="constrained", squeeze=True
    )
    header = [str(value) for name, value in plan.items() if name not in ("sections", "codes")]
    figure.suptitle(", ".join(filter(None, [title, *header])))
    _draw_sections(axes[0], sections)
    _draw_roll(axes[1], levels[:, :NOTE_CHANNELS])
    _draw_similarity(axes[2], bar_similarity(levels, bar_times(sections)), sections)
    for axis in axes[:2]:
        axis.set_xlim(0.0, sections[-1]["end_s"])
    axes[1].set_xlabel("seconds")
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def bar_times(sections: list[dict[str, Any]]) -> FloatArray:
    """Where each bar begins, and where the last ends, in seconds `[B + 1]`."""
    times = [np.linspace(each["start_s"], each["end_s"], each["bars"], endpoint=False) for each in sections[:-1]]
    last, before = sections[-1], sections[-2] if len(sections) > 1 else sections[-1]
    bar_s = (before["end_s"] - before["start_s"]) / before["bars"]  # the last section may be cut
    times.append(np.arange(last["start_s"], last["end_s"] - bar_s / 10, bar_s))
    return np.append(np.concatenate(times), last["end_s"]).astype(np.float32)


def bar_similarity(levels: FloatArray, times: FloatArray) -> FloatArray:
    """Cosines `[B, B]` of the notes in a grid of every bar; 0 of silent ones."""
    notes = np.concatenate([np.zeros((1, NOTE_CHANNELS)), np.cumsum(levels[:, :NOTE_CHANNELS], axis=0)])
    edges = np.concatenate([np.linspace(a, b, _STEPS_PER_BAR + 1) for a, b in pairwise(times)]) * FRAME_RATE_HZ
    at = np.stack([np.interp(edges, np.arange(len(notes)), column) for column in notes.T], axis=1)
    bars = np.diff(at.reshape(len(times) - 1, _STEPS_PER_BAR + 1, -1), axis=1).reshape(len(times) - 1, -1)
    lengths = np.linalg.norm(bars, axis=1)
    return np.asarray(bars @ bars.T / np.maximum(np.outer(lengths, lengths), 1e-9), np.float32)


def _draw_sections(axis: Any, sections: list[dict[str, Any]]) -> None:
    colors = {kind: f"C{index}" for index, kind in enumerate(dict.fromkeys(each["kind"] for each in sections))}
    for section in sections:
        start, length = section["start_s"], section["end_s"] - section["start_s"]
        for layer in section["layers"]:
            axis.broken_barh([(start, length)], (LAYERS.index(layer) - 0.45, 0.9), facecolor=colors[section["kind"]])
        axis.axvline(start, color="black", linewidth=0.5)
        label = f"{section['kind']}\n{section['bars']}"
        axis.text(start + length / 2, len(LAYERS) - 0.4, label, ha="center", va="bottom", fontsize=8)
    axis.set_yticks(range(len(LAYERS)), LAYERS)
    axis.set_ylim(-0.6, len(LAYERS) + 1.2)


def _draw_roll(axis: Any, levels: FloatArray) -> None:
    extent = (0.0, len(levels) / FRAME_RATE_HZ, -0.5, levels.shape[1] - 0.5)
    axis.imshow(levels.T, origin="lower", aspect="auto", extent=extent, vmin=0.0, vmax=1.0, cmap="magma")
    axis.set_ylabel("note channels")


def _draw_similarity(axis: Any, similarity: FloatArray, sections: list[dict[str, Any]]) -> None:
    axis.imshow(similarity, origin="lower", vmin=0.0, vmax=1.0, cmap="magma")
    starts = np.cumsum([0, *[section["bars"] for section in sections[:-1]]])
    axis.set_xticks(starts - 0.5, [section["kind"] for section in sections], rotation=60, ha="left", fontsize=8)
    axis.set_yticks(starts - 0.5, [section["kind"] for section in sections], va="bottom", fontsize=8)
    axis.set_title("similarity of bars", fontsize=9)
