"""Are layers that a prompt names planned and played, and do plans have form?

Plans of live sessions, without end, and of songs of two minutes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from configs.demo.recipe.evaluation.listening import heard_layers
from configs.demo.recipe.evaluation.measure import PRESENT_SHARE, layer_share
from configs.demo.recipe.evaluation.player import PLANS_AT_ONCE, EndlessPiece, Piece, Player
from configs.demo.recipe.evaluation.report import Figures, Measured, Row
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray, levels_from_latents
from runtime.music.sections import SongSection
from runtime.pipeline.songs.plan import SongPlan
from runtime.requests.options import GenerationOptions

# Prompts and the layers that their words name; a genre names none.
PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "dark bass and drums": ("bass", "drums"),
    "melody and bass in C major": ("bass", "melody"),
    "calm pads and a slow melody": ("pad", "melody"),
    "arps and drums, 124 bpm": ("arp", "drums"),
    "pads, bass and drums": ("pad", "bass", "drums"),
    "piano melody, strings and bass": ("pad", "bass", "melody"),
    "techno with arps": ("arp",),
    "lofi hip hop beats to study": ("drums",),
    "melody, drums, bass and pads, 100 bpm": ("pad", "bass", "melody", "drums"),
    "rock in E minor": (),
}
NUM_SEEDS: Final = 20
SONG_S: Final = 120.0
NUM_SECTIONS: Final = 16
MAIN_KINDS: Final = frozenset({"verse", "chorus"})
MAX_IN_EVERY_MAIN: Final = 3
MAX_RUN: Final = 3
PLAYED_SEEDS: Final = 2
PLAYED_S: Final = 60.0


class Form(NamedTuple):
    """What a plan does with the named layers. run: the longest one of equal sections (kind, layers, bars)."""

    named: frozenset[str]
    in_union: bool
    in_mains: bool
    run: int
    sections: str


def measure(player: Player, seeds: int = NUM_SEEDS) -> Measured:
    """Plans of all prompts and seeds, live and offline, and what is heard of some."""
    figures, tables = Figures(), dict[str, Sequence[Row]]()
    for name, song_s in (("live", None), ("offline", SONG_S)):
        forms = {prompt: _forms(player, prompt, seeds, song_s) for prompt in PROMPTS}
        figures |= {f"named_{name}_{key}": value for key, value in form_figures(forms).items()}
        tables |= {f"Plans, {name}, seeds 0 to {seeds - 1}": [form_row(*item) for item in forms.items()]}
    for name in ("live", "offline"):
        found, rows = _played(player, is_endless=name == "live")
        figures |= {f"named_{name}_{key}": value for key, value in found.items()}
        tables |= {f"Named layers in what is played, {name}, {PLAYED_S:.0f} s": rows}
    return Measured(figures, tables)


def _forms(player: Player, prompt: str, seeds: int, song_s: float | None) -> list[Form]:
    with ThreadPoolExecutor(PLANS_AT_ONCE) as pool:
        plans = pool.map(lambda seed: planned(player, prompt, seed, song_s), range(seeds))
        return [form_of(sections, PROMPTS[prompt]) for sections in plans]


def planned(player: Player, prompt: str, seed: int, song_s: float | None) -> Sequence[SongSection]:
    """The sections of a plan; of one without end (`song_s` None) whole pages with `NUM_SECTIONS` at least."""
    planner = player.pipeline.planner
    assert planner is not None
    frames = None if song_s is None else round(song_s * FRAME_RATE_HZ)
    plan = SongPlan(planner, GenerationOptions(prompt=prompt), seed, frames)
    try:
        plan.plan_sections(NUM_SECTIONS)
        return plan.sections
    finally:
        plan.close()


def form_of(sections: Sequence[SongSection], named: Iterable[str]) -> Form:
    """What sections do with named layers."""
    wanted, union = frozenset(named), frozenset(layer for section in sections for layer in section.layers)
    mains = [frozenset(section.layers) for section in sections if section.kind in MAIN_KINDS]
    items = [(section.kind, section.layers, section.bars) for section in sections]
    run = max((len(list(group)) for _, group in groupby(items)), default=0)
    text = " ".join(f"{kind}{bars}:{'+'.join(layer[0] for layer in layers)}" for kind, layers, bars in items)
    return Form(wanted, wanted <= union, all(wanted <= layers for layers in mains), run, text)


def form_figures(forms: Mapping[str, Sequence[Form]]) -> Figures:
    """Shares of plans, also by the number of layers named; runs."""
    all_forms = [form for found in forms.values() for form in found]
    few = [form for form in all_forms if 0 < len(form.named) <= MAX_IN_EVERY_MAIN]
    figures: Figures = {
        "plans": len(all_forms),
        "union": _share(form.in_union for form in all_forms),
        "mains": _share(form.in_mains for form in few),
        "longest_run": max(form.run for form in all_forms),
        "long_runs": _share(form.run > MAX_RUN for form in all_forms),
    }
    for count in sorted({len(form.named) for form in all_forms} - {0}):
        same = [form for form in all_forms if len(form.named) == count]
        figures |= {f"union_{count}": _share(form.in_union for form in same)}
        figures |= {f"mains_{count}": _share(form.in_mains for form in same)}
    return figures


def _share(values: Iterable[bool]) -> float:
    found = list(values)
    return round(float(np.mean(found)), 4) if found else 1.0


def form_row(prompt: str, forms: Sequence[Form]) -> Row:
    """A prompt's plans; the example is the worst one."""
    worst = min(forms, key=lambda form: (form.in_union, form.in_mains, -form.run))
    return {
        "prompt": prompt,
        "in union": _share(form.in_union for form in forms),
        "in every main": _share(form.in_mains for form in forms),
        "longest run": max(form.run for form in forms),
        "worst": worst.sections,
    }


def _played(player: Player, *, is_endless: bool) -> tuple[Figures, list[Row]]:
    asked = [(prompt, 7000 + seed) for prompt in PROMPTS for seed in range(PLAYED_SEEDS)]
    steps = {"steps": player.pipeline.bundle.sampler.live_steps}
    pieces = [Piece(prompt, seed, {**steps, "seconds": PLAYED_S, "plan": True}) for prompt, seed in asked]
    frames = round(PLAYED_S * FRAME_RATE_HZ)
    generations = [
        EndlessPiece(player.pipeline, piece, frames) if is_endless else player.begin(piece) for piece in pieces
    ]
    latents = player.finish(generations)
    rows = []
    for (prompt, seed), generation, each in zip(asked, generations, latents, strict=True):
        assert isinstance(generation.plan, SongPlan)
        levels, sections = levels_from_latents(each), generation.plan.sections
        rows.append(played_row(prompt, seed, levels, sections, heard_layers(player.decode(each))))
        generation.close()
    return played_figures(rows), rows


def played_row(
    prompt: str,
    seed: int,
    levels: FloatArray,
    sections: Sequence[SongSection],
    heard: Mapping[str, bool | None],
) -> Row:
    """Which named layers sound in levels `[T, C]`: at all, and in its main sections; and what audio says of them.

    A layer sounds where it does in more than `PRESENT_SHARE` of the frames. planned: the share of the frames of
    sections with a layer in which it sounds, of the layer with the smallest.
    """
    named = PROMPTS[prompt]
    parts = [
        levels[s.start_frame : s.end_frame] for s in sections if s.kind in MAIN_KINDS and s.start_frame < len(levels)
    ]
    sounding = [layer for layer in named if layer_share(levels, layer) > PRESENT_SHARE]
    return {
        "prompt": prompt,
        "seed": seed,
        "named": len(named),
        "sounding": len(sounding),
        "in mains": sum(layer_share(part, layer) > PRESENT_SHARE for part in parts for layer in named),
        "of": len(parts) * len(named),
        "planned": planned_shares(levels, sections),
        "librosa misses": [layer for layer in named if heard.get(layer) is False],
    }


def planned_shares(levels: FloatArray, sections: Sequence[SongSection]) -> dict[str, float]:
    """By layer the share of the frames of sections that have it in which it sounds."""
    frames = defaultdict[str, list[FloatArray]](list)
    for section in sections:
        part = levels[section.start_frame : section.end_frame]
        for layer in section.layers if len(part) else ():
            frames[layer].append(part)
    return {layer: round(layer_share(np.concatenate(parts), layer), 3) for layer, parts in sorted(frames.items())}


def played_figures(rows: Sequence[Row]) -> Figures:
    """Shares of pieces and of main sections in which the named layers sound, also by the number of layers named."""
    with_names = [row for row in rows if row["named"]]
    figures: Figures = {"sounding": _share(row["sounding"] == row["named"] for row in with_names)}
    for count in sorted({row["named"] for row in with_names}):
        figures[f"sounding_{count}"] = _share(row["sounding"] == count for row in with_names if row["named"] == count)
    few = [row for row in with_names if row["named"] <= MAX_IN_EVERY_MAIN]
    sounding, wanted = sum(row["in mains"] for row in few), sum(row["of"] for row in few)
    figures["sounding_mains"] = round(sounding / wanted, 4) if wanted else 1.0
    figures["librosa_agrees"] = _share(not row["librosa misses"] for row in with_names)
    shares = [share for row in rows for layer, share in row["planned"].items() if layer == "pad"]
    figures["planned_pad_share"] = round(float(np.mean(shares)), 4) if shares else 1.0
    return figures
