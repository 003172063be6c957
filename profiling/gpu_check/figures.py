"""Figures of the steps' results; the summary of a check, and its table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from profiling.gpu_check.running import CheckOutcome, CheckStep
from runtime.engines.manifest import MANIFEST_SUFFIX, manifest_path, read_manifest, write_atomically
from runtime.errors import ConfigError
from runtime.input_files import MAX_JSON_BYTES, read_file
from runtime.tables import markdown_table, print_table
from runtime.terminal import Terminal
from runtime.untrusted import plain_utf8

BEGIN, END = "<!-- gpu-check: what is between these marks is written by a command -->", "<!-- gpu-check ends -->"
# In names of kernels that compute attention in one piece.
FUSED_ATTENTION = ("fmha", "mha", "flash", "fused_attention")
NOTE_WIDTH = 80


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
    yield "ticks replayed", result["replayed"], "", None


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
    if "snr_db" in (facts := found["codec_decode"].facts if "codec_decode" in found else {}):
        yield "codec, audio over noise", facts["snr_db"], "dB", None


def _rows(result: Any) -> Found:
    """As it was written: what, its value, unit and limit."""
    for what, value, unit, limit in result:
        yield what, float(value), unit, limit


READERS = {
    "card": _card, "captured": _captured, "bench": _bench, "live": _live, "profile": _profile, "planner": _planner,
    "engines": _engines, "rtx": _rows,
}  # fmt: skip


def figures(step: CheckStep) -> list[Figure]:
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
        text = Terminal(width=160, record=True, file=_Nowhere())
        self.show(text)
        write_atomically(folder / "summary.json", json.dumps(found, indent=1).encode() + b"\n")
        write_atomically(folder / "summary.txt", text.export_text().encode())

    def show(self, console: Console) -> None:
        """Print the tables of steps and of figures."""
        console.print(about_text(self.about), highlight=False)
        rows = [
            [each.name, each.status, f"{each.seconds:.0f}", "" if each.status == "done" else each.note[:NOTE_WIDTH]]
            for each in self.outcomes
        ]
        print_table(console, "steps", ("step", "ended", "s", "why"), rows, num_text=1)
        cells = [[each.step, each.what, *_cells(each)] for each in self.figures]
        if cells:
            print_table(console, "figures", ("step", "figure", "value", "limit", ""), cells, num_text=2)


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, text: str) -> int:
        """Nothing."""
        return len(text)

    def flush(self) -> None:
        """Nothing."""


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
    limit = "" if figure.limit is None else f"{figure.limit:g}"
    return f"{figure.value:.4g} {figure.unit}".strip(), limit, figure.verdict


def markdown(summary: Summary) -> str:
    """What was measured, on what and when, and what was not."""
    lines = [f"Measured by `make gpu-check`: {about_text(summary.about)}.", ""]
    rows = ([each.step, each.what, *_cells(each)] for each in summary.figures)
    lines += markdown_table(("step", "figure", "value", "limit", ""), rows, num_text=5)
    lines += ["", *(f"- {each.name}: {each.status}, {each.note}" for each in summary.outcomes if each.status != "done")]
    return "\n".join(lines).rstrip()


def put_table(document: Path, table: str) -> None:
    """Put a table between the marks of a document. Raises ConfigError where it has none, FileError, OSError."""
    text = document.read_bytes().decode()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"{document} has no place for the table", fix=f"lines {BEGIN} and {END} where it belongs")
    write_atomically(document, f"{before}{BEGIN}\n{table}\n{END}{after}".encode())
