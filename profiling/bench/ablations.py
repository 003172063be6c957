"""What each technique of the tick is worth: ticks with it and without it, in turn, in one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from profiling.bench.result import percentiles, rounded, shape_of
from profiling.bench.session import Rig
from profiling.bench.statistics import Ratio, ratio_between
from profiling.bench.steady_stream import SteadyStream, block_of, check_equal
from profiling.bench.workload import Workload, with_runtime
from profiling.provenance import provenance
from runtime.tick.record import TickRecord

Latents = NDArray[np.float32]
ON: Mapping[str, Any] = {
    "fused_guidance": True, "event_wait": True, "capture": True, "batched_step": True, "frozen_conditions": True,
    "ticks_in_flight": 2,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Technique:
    """Something that the tick does, what it would do instead, and what in [runtime] makes it do that."""

    name: str
    instead: str
    off: Mapping[str, Any]

    def is_idle_because(self, target: str, load: Workload, *, captures: bool) -> str:
        """Why it makes no difference here; "" where it does. captures: whether ticks of this run became graphs."""
        if target == "cpu" and self.off.keys() <= {"event_wait", "capture", "ticks_in_flight"}:
            return "the CPU runs every launch to its end"
        if self.off.keys() == {"capture"} and not captures:
            return "no tick could be captured"
        if self.off.keys() == {"fused_guidance"} and load.guidance == 1.0:
            return "nothing is guided: give --guidance"
        return "one slot" if self.off.keys() == {"batched_step"} and load.depth == 1 else ""


TECHNIQUES = (
    Technique("fused guidance", "two executes", {"fused_guidance": False}),
    Technique("event wait", "wait for each", {"event_wait": False}),
    Technique("captured graph", "plain enqueue", {"capture": False}),
    Technique("batched step", "slot by slot", {"batched_step": False}),
    Technique("frozen conditions", "at every tick", {"frozen_conditions": False}),
    Technique("2 ticks in flight", "1", {"ticks_in_flight": 1}),
)
EVERYTHING = Technique(
    "all of these", "none of them", {name: off for each in TECHNIQUES for name, off in each.off.items()}
)


@dataclass
class Samples:
    """Milliseconds per tick without a technique, and with it right before and right after."""

    without_ms: list[float] = field(default_factory=list)
    before_ms: list[float] = field(default_factory=list)
    after_ms: list[float] = field(default_factory=list)

    @property
    def saved_ms(self) -> float:
        """What the technique saves of a tick: the median of differences to the mean of both neighbours."""
        beside = (np.asarray(self.before_ms) + np.asarray(self.after_ms)) / 2
        return float(np.median(np.asarray(self.without_ms) - beside))

    @property
    def ratio(self) -> Ratio:
        """A tick without it over one with it."""
        return ratio_between(self.without_ms, self.before_ms, self.after_ms)


@dataclass(frozen=True)
class Worth:
    """A technique, ticks with and without it, how far the latents differ, and why it is idle, if it is."""

    technique: Technique
    samples: Samples
    difference: float
    idle_because: str


def measure_worth(rig: Rig, load: Workload, ticks: int) -> list[Worth]:
    """Ticks with everything on, and in turn with them those of a loop without one technique; last, without any.

    Two loops are open at a time: more would want more of a GPU's memory than a server has to have. Raises EngineError
    where a generation has other latents without a technique.
    """
    with closing_stream(rig, load, ON) as base:
        expected = base.play()
        base.warm_up()
        return [_worth(rig, load, technique, base, expected, ticks) for technique in (*TECHNIQUES, EVERYTHING)]


@contextmanager
def closing_stream(rig: Rig, load: Workload, runtime: Mapping[str, Any]) -> Iterator[SteadyStream]:
    """A stream with these values in its [runtime] table."""
    stream = rig.stream(load, with_runtime(rig.deployment, **runtime))
    try:
        yield stream
    finally:
        stream.loop.close()


def _worth(
    rig: Rig, load: Workload, technique: Technique, base: SteadyStream, expected: list[Latents], ticks: int
) -> Worth:
    with closing_stream(rig, load, {**ON, **technique.off}) as other:
        what = f"with {technique.name}"
        difference = check_equal("a generation", what, other.play(), expected, rig.engines)
        other.warm_up()
        samples = time_in_turns(base, other, ticks, block_of(rig.device, load))
    captures = base.tick().replayed > 0
    idle_because = technique.is_idle_because(rig.deployment.target, load, captures=captures)
    return Worth(technique, samples, difference, idle_because)


def time_in_turns(base: SteadyStream, other: SteadyStream, ticks: int, block: int) -> Samples:
    """What the other takes, each between two samples of the base; both are warm."""
    records: list[TickRecord] = []
    samples = Samples()
    last_ms = base.time_ticks(records, block)
    for _ in range(-(-ticks // block)):
        samples.before_ms.append(last_ms)
        samples.without_ms.append(other.time_ticks(records, block))
        last_ms = base.time_ticks(records, block)
        samples.after_ms.append(last_ms)
    return samples


def report_worth(found: Sequence[Worth], rig: Rig, load: Workload) -> dict[str, Any]:
    """The matrix as one JSON object."""
    return {
        "kind": "matrix",
        **shape_of(load),
        "ticks": len(found[0].samples.without_ms),
        "techniques_off": {worth.technique.name: _entry(worth) for worth in found},
        **provenance(rig.bundle, with_runtime(rig.deployment, **ON), rig.engines),
    }


def _entry(worth: Worth) -> dict[str, Any]:
    samples, ratio = worth.samples, worth.samples.ratio
    return {
        "instead": worth.technique.instead,
        "with_ms": percentiles([*samples.before_ms, samples.after_ms[-1]]),
        "without_ms": percentiles(samples.without_ms),
        "saved_ms": round(samples.saved_ms, 4),
        **rounded({"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}),
        "is_noisy": ratio.is_noisy,
        "idle_because": worth.idle_because,
        "largest_difference": worth.difference,
    }


def print_worth(console: Console, card: Mapping[str, Any]) -> None:
    """The matrix for people."""
    shape = f"{card['depth']} slots x {card['frames']} frames, {card['variant']}"
    title = f"{card['bundle']} on {card['target']}: {shape}; ms per tick (p50)"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("technique", "instead"):
        table.add_column(column, no_wrap=True)
    for column in ("with", "without", "saves", "without / with"):
        table.add_column(column, justify="right", no_wrap=True)
    entries = card["techniques_off"]
    for name, entry in entries.items():
        table.add_row(
            f"[dim]{name}[/]" if entry["idle_because"] else name,
            entry["instead"],
            f"{entry['with_ms']['p50']:.2f}",
            f"{entry['without_ms']['p50']:.2f}",
            f"{entry['saved_ms']:.2f}",
            f"{entry['ratio']:.3f} ({entry['ratio_low']:.2f}-{entry['ratio_high']:.2f})",
        )
    console.print(table)
    worst = max(entry["largest_difference"] for entry in entries.values())
    console.print(
        f"same latents without them: largest difference {worst:.1e}; from commit {card['commit'] or 'unknown'}"
    )
    for reason in sorted({entry["idle_because"] for entry in entries.values()} - {""}):
        names = ", ".join(name for name, entry in entries.items() if entry["idle_because"] == reason)
        console.print(f"{names}: no difference here, {reason}. What is shown is the noise of this run.", style="dim")
    if any(entry["is_noisy"] for entry in entries.values()):
        console.print("The machine was busy: quartiles lie far apart. Run it again on a quiet one.", style="yellow")
