"""Figures of the steps' results; the summary of a check, and its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from itertools import accumulate
from math import log10
from pathlib import Path
from typing import Any

from rich.console import Console

from profiling.gpu_check.running import CheckOutcome, CheckStep
from runtime.base.errors import ConfigError
from runtime.base.files import MAX_JSON_BYTES, read_file
from runtime.base.untrusted import plain_utf8
from runtime.commands.terminal import Terminal, markdown_table, print_line, print_table
from runtime.engines.manifest import MANIFEST_SUFFIX, manifest_path, read_manifest, write_atomically

# Around the table NAME in a document.
BEGIN, END = "<!-- gpu-check {}: what is between these marks is written by a command -->", "<!-- gpu-check {} ends -->"
# Tables are not cut to terminals that are narrower.
WIDTH = 120
SNR = "codec, audio over noise on the card"
DEPTHS, CODECS = (1, 4, 8), ("fp32", "tf32", "fp16")
# What one asks first, and the steps with their figures that say it.
BRIEF: Mapping[str, Sequence[tuple[str, str]]] = {
    "tick of 60 s at depth 1 / 4 / 8": [("full-ticks", f"tick, depth {depth}") for depth in DEPTHS],
    "tick at depth 8, products in fp16": [("hybrid-ticks", "tick, depth 8")],
    "codec, its longest window, float32 / TF32 / fp16": [(f"codec-{name}-time", "execute") for name in CODECS],
    "audio over the codec's noise, the same": [(f"codec-{name}-build", SNR) for name in CODECS],
    "half a second of live audio, p95, without / beside ticks": [
        ("full-decodes", f"decoding, playing, {where} ticks, p95") for where in ("without", "beside")
    ],
    "a control to its sound, 4 sessions, p95, step / generation parameter": [
        ("full-live", "step parameter to sound, first, p95"),
        ("full-live", "generation parameter to sound, full, p95"),
    ],
    "planner of 0.6 B, 4 sequences": [("planner-ticks", "4 sequences, tokens")],
}
# In names of kernels that compute attention in one piece.
FUSED_ATTENTION = ("fmha", "mha", "flash", "fused_attention")
# Of an engine that gives what its graph gives: 180 dB.
LEAST_NOISE = 1e-9


@dataclass(frozen=True)
class Figure:
    """One measured figure of a step, its unit, and its limit where it has one."""

    step: str
    what: str
    value: float
    unit: str = ""
    limit: float | None = None

    @property
    def verdict(self) -> str:
        """Whether it keeps its limit; "" where it has none."""
        return "" if self.limit is None else "kept" if self.value <= self.limit else "missed"


Found = Iterator[tuple[str, float, str, float | None]]


def _card(result: Any) -> Found:
    yield "memory", result["memory_bytes"] / 1e9, "GB", None
    yield "priorities of streams", result["priorities"], "", None


def _captured(result: Any) -> Found:
    yield "largest difference to plain launches", result["difference"], "", 0.0
    yield "runs without a replayed tick", float(not result["replayed"]), "", 0.0
    yield "graphs captured", result["captured"], "", None
    yield "a graph, creation", result["graph_ms"], "ms", None
    yield "a graph, memory of the card", result["graph_mib"], "MiB", None


def _bench(result: Any) -> Found:
    """Ticks at each depth, against their budget."""
    for point in result.get("points") or [result]:
        where = f"depth {point.get('depth', result.get('depth'))}"
        yield f"tick, {where}", point["tick_ms"]["p50"], "ms", None
        yield f"bare engine, {where}", point["engine_ms"]["p50"], "ms", None
        for name, limit in point.get("budget", {}).items():
            yield f"{name}, {where}", point[name], "", limit
        if "resident_mib" in point:
            yield f"memory of the process, {where}", point["resident_mib"], "MiB", None
            yield f"memory of the card left, {where}", point["free_mib"], "MiB", None


def _decodes(result: Any) -> Found:
    """By urgency: the level of the device's priority."""
    for where in ("alone", "beside"):
        for urgency, times_ms in result[where].items():
            text = "beside ticks" if where == "beside" else "without ticks"
            yield f"decoding, {urgency}, {text}, p95", times_ms["p95"], "ms", None
    yield "ticks beside", result["ticks_per_s"], "1/s", None
    yield "largest difference to generations alone", result["difference"], "", result["allowed"]


def _live(result: Any) -> Found:
    budget = result.get("budget", {})
    for kind, parts in result["control_to_sound_ms"].items():
        for part, times_ms in parts.items():
            if "p95" in times_ms:
                limit = budget.get(f"{kind}_{part}")
                yield f"{kind.replace('_', ' ')} to sound, {part}, p95", times_ms["p95"], "ms", limit
        decoded = result["stages_ms"][kind]["full"]
        if {"finished", "decoded"} <= decoded.keys():
            yield f"{kind.replace('_', ' ')}, decoding", decoded["decoded"] - decoded["finished"], "ms", None
    yield "underruns", result["underruns"], "", 0.0
    yield "generations beside", result.get("background_generations", 0), "", None


def _profile(result: Any) -> Found:
    about, layers = result[0]["tickrt"], result[1:]
    whole = sum(layer["medianMs"] for layer in layers)
    fused = sum(layer["medianMs"] for layer in layers if any(word in layer["name"].lower() for word in FUSED_ATTENTION))
    yield "execute", about["wall_p50_ms"], "ms", None
    yield "layers", len(layers), "", None
    yield "in fused attention", 100 * fused / whole if whole else 0.0, "%", None


def _planner(result: Any) -> Found:
    for name, timed in {**result["alone"], **result["beside"]}.items():
        yield f"{name}, tick", timed["tick_ms"]["p50"], "ms", None
        if timed["tokens"]:
            yield f"{name}, tokens", timed["tokens_per_s"], "1/s", None
    yield "memory of a sequence", result["sequence_mib"], "MiB", None


def _engines(folder: Path) -> Found:
    """What manifests of built engines have: times, errors, memory, the codec's noise."""
    names = [path.name.removesuffix(MANIFEST_SUFFIX) for path in sorted(folder.glob(f"*{MANIFEST_SUFFIX}"))]
    found = {name: read_manifest(manifest_path(folder, name)) for name in names}
    yield "built", sum(each.build_s for each in found.values()), "s", None
    memory = sum(each.facts.get("memory_bytes", 0) for each in found.values())
    yield "memory of contexts", memory / (1 << 20), "MiB", None
    for name in ("decoder", "codec_decode", "planner"):
        if name in found and found[name].is_measured:
            tolerance = found[name].build.get("tolerance")
            yield f"{name}, error", found[name].error["max_rel"], "", tolerance
    if (codec := found.get("codec_decode")) and "rms_rel" in codec.error:
        yield SNR, -20 * log10(max(codec.error["rms_rel"], LEAST_NOISE)), "dB", None
    if codec and "snr_db" in codec.facts:
        yield "codec, audio over noise, emulated", codec.facts["snr_db"], "dB", None


def _rows(result: Any) -> Found:
    """As it was written: what, its value, unit and limit."""
    for what, value, unit, limit in result:
        yield what, float(value), unit, limit


READERS = {
    "card": _card, "captured": _captured, "bench": _bench, "decodes": _decodes, "live": _live, "profile": _profile,
    "planner": _planner, "engines": _engines, "rtx": _rows,
}  # fmt: skip


def step_figures(step: CheckStep) -> list[Figure]:
    """The figures of a step that is done. Raises ConfigError where its result is not what such a step writes."""
    if not step.kind:
        return []
    try:
        result = step.result if step.kind == "engines" else read_json(step.result)
        return [Figure(step.name, *found) for found in READERS[step.kind](result)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{step.result} is not a result of {step.name}: {error!r}", fix="run the step again"
        ) from error


def read_json(path: Path) -> Any:
    """A file that a step has written. Raises FileError, ValueError."""
    return json.loads(plain_utf8(read_file(path, MAX_JSON_BYTES)))


@dataclass
class Summary:
    """What a check has found so far; `save` writes it as a whole. about: the card, versions, commit and date."""

    about: dict[str, Any]
    outcomes: list[CheckOutcome]
    figures: list[Figure]

    @property
    def is_good(self) -> bool:
        """Whether every step is done, and every figure keeps its limit."""
        return all(each.status == "done" for each in self.outcomes) and all(
            each.verdict != "missed" for each in self.figures
        )

    def save(self, folder: Path) -> None:
        """Write summary.json and summary.txt; each is complete, or as it was. Raises OSError."""
        found = {
            "about": self.about,
            "steps": [asdict(each) for each in self.outcomes],
            "figures": [asdict(each) for each in self.figures],
        }
        text = wide_terminal(record=True, file=StringIO())
        self.show(text)
        write_atomically(folder / "summary.json", json.dumps(found, indent=1).encode() + b"\n")
        write_atomically(folder / "summary.txt", text.export_text().encode())

    def show(self, console: Console) -> None:
        """Print the tables of steps and of figures."""
        console.print(about_text(self.about), highlight=False)
        rows = [[each.name, f"{each.seconds:.0f}", each.status] for each in self.outcomes]
        print_table(console, "steps", ("step", "s", "ended"), rows)
        for each in self.outcomes:
            if each.status != "done":
                print_line(f"{each.name}: {each.status}, {each.note}", console)
        cells = [[each.step, each.what, *_cells(each)] for each in self.figures]
        if cells:
            print_table(console, "figures", ("step", "figure", "value", "limit", ""), cells, num_text=2)


def read_summary(path: Path) -> Summary:
    """A summary as it was saved. Raises ConfigError, FileError."""
    try:
        found = read_json(path)
        outcomes = [CheckOutcome(**each) for each in found["steps"]]
        return Summary(found["about"], outcomes, [Figure(**each) for each in found["figures"]])
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a summary: {error!r}", fix="python -m profiling.gpu_check") from error


def about_text(about: Mapping[str, Any]) -> str:
    """The card, the versions, the commit and the date in a line."""
    card = about.get("card", {})
    gpu = f"{card['name']} ({card['memory_bytes'] / 1e9:.0f} GB), CUDA {card['driver_version']}" if card else "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in card.get("versions", {}).items())
    return ", ".join(filter(None, [gpu, versions, f"commit {about.get('commit') or 'unknown'}", about["date"]]))


def _cells(figure: Figure) -> Sequence[str]:
    limit = "" if figure.limit is None else f"{figure.limit:.3g}"
    return f"{figure.value:.4g} {figure.unit}".strip(), limit, figure.verdict


def wide_terminal(**settings: Any) -> Terminal:
    """A terminal, or what WIDTH columns show where it is narrower."""
    return Terminal(width=max(WIDTH, Terminal().width), **settings)


def show_times(steps: Sequence[CheckStep], console: Console) -> None:
    """Print how long every step may take, and when it ends at the latest, in minutes."""
    ends = accumulate(step.limit_s / 60 for step in steps)
    rows = [[step.name, f"{step.limit_s:.0f}", f"{end:.1f}"] for step, end in zip(steps, ends, strict=True)]
    print_table(console, "planned", ("step", "s", "until, min"), rows)


def figures_markdown(summary: Summary) -> str:
    """What was measured, on what and when, and what was not."""
    rows = ([each.step, each.what, *_cells(each)] for each in summary.figures)
    table = markdown_table(("step", "figure", "value", "limit", ""), rows, num_text=5)
    missing = (f"- {each.name}: {each.status}, {each.note}" for each in summary.outcomes if each.status != "done")
    return "\n".join([_measured(summary), "", *table, "", *missing]).rstrip()


def brief(summary: Summary) -> str:
    """The figures of BRIEF, on what and when."""
    found = {(each.step, each.what): each for each in summary.figures}
    rows = ([label, _together([found.get(key) for key in keys])] for label, keys in BRIEF.items())
    return "\n".join([_measured(summary), "", *markdown_table(("", "measured"), rows)])


def _measured(summary: Summary) -> str:
    return f"Measured by `make gpu-check`: {about_text(summary.about)}."


def _together(figures: Sequence[Figure | None]) -> str:
    """ "14.2 / 28.1 ms"; a dash where one was not measured."""
    unit = next((each.unit for each in figures if each is not None), "")
    return f"{' / '.join('–' if each is None else f'{each.value:.3g}' for each in figures)} {unit}".strip()


TABLES: Mapping[str, Callable[[Summary], str]] = {"brief": brief, "figures": figures_markdown}


def put_tables(document: Path, summary: Summary) -> None:
    """Put tables between their marks in a document. Raises ConfigError where it has none, FileError, OSError."""
    text, has_place = document.read_bytes().decode(), False
    for name, make in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if found:
            text, has_place = f"{before}{begin}\n{make(summary)}\n{end}{after}", True
    if not has_place:
        marks = f"lines {BEGIN.format('brief')} and {END.format('brief')} where it belongs"
        raise ConfigError(f"{document} has no place for a table", fix=marks)
    write_atomically(document, text.encode())
