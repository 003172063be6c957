"""The effect of each optimization of the tick, and of LoRA adapters: ticks with it and without it, in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from profiling.bench.result import BUSY, NOISY_SPREAD, rounded, shape_of
from profiling.bench.session import BenchSession
from profiling.bench.slow_parts import BATCHED_STEP, EVENT_WAIT, FROZEN_CONDITIONS, TECHNIQUES, parts_without
from profiling.bench.statistics import (
    Quartiles,
    paired_difference,
    paired_ratio,
    percentiles,
    ratios_to_neighbours,
    time_in_turn,
)
from profiling.bench.steady_stream import Latents, SteadyStream, check_equal
from profiling.bench.workload import Workload, with_runtime
from profiling.comparison import thinned
from profiling.provenance import SWITCHES, provenance
from runtime.base.errors import ConfigError
from runtime.commands.terminal import print_table
from runtime.config.deployment import HOST_TARGETS, RuntimeConfig
from runtime.engines.adapters import FACTORS_A, FACTORS_B, Adapter, AdapterCatalog
from runtime.engines.engine import Engine

MOST_ADAPTERS = 2
# Factors of this size change the velocity without ruining the latents.
FACTOR_SIZE = 0.02
ALL_ON = RuntimeConfig().model_dump(include=SWITCHES)


@dataclass(frozen=True, eq=False)
class Ablation:
    """An optimization of the tick and its replacement.

    off: the values of [runtime] that switch it off. without: techniques that slower parts do without (see slow_parts).
    """

    name: str
    instead: str
    off: Mapping[str, Any] = field(default_factory=dict)
    without: frozenset[str] = frozenset()

    def no_effect_because(self, target: str, load: Workload, *, captures: bool) -> str:
        """Why it has no effect in this run; "" where it has. captures: whether ticks of this run became graphs."""
        missing = self.off.keys() | self.without
        if target in HOST_TARGETS and missing <= {EVENT_WAIT, "capture", "ticks_in_flight"}:
            return "on a CPU every launch runs to its end"
        if missing == {"capture"} and not captures:
            return "no tick could be captured"
        if missing == {"fused_guidance"} and load.guidance == 1.0:
            return "guidance is off: add --guidance 3"
        return "there is one slot" if missing == {BATCHED_STEP} and load.depth == 1 else ""


ABLATIONS = (
    Ablation("fused guidance", "two executes", {"fused_guidance": False}),
    Ablation("event wait", "wait for each", without=frozenset({EVENT_WAIT})),
    Ablation("captured graph", "plain enqueue", {"capture": False}),
    Ablation("batched step", "slot by slot", without=frozenset({BATCHED_STEP})),
    Ablation("frozen conditions", "at every tick", without=frozenset({FROZEN_CONDITIONS})),
    Ablation("2 ticks in flight", "1", {"ticks_in_flight": 1}),
)
ALL_OFF = Ablation(
    "all of these",
    "none of them",
    {name: off for each in ABLATIONS for name, off in each.off.items()},
    frozenset(TECHNIQUES),
)


@dataclass(frozen=True)
class AblationResult:
    """Milliseconds of n ticks without an optimization, and of the n + 1 ticks with it around them.

    difference: the largest between the latents with and without. no_effect_because: see Ablation.
    """

    ablation: Ablation
    without_ms: Sequence[float]
    with_ms: Sequence[float]
    difference: float
    no_effect_because: str = ""

    @property
    def saved_ms(self) -> float:
        """Milliseconds that the optimization saves of a tick."""
        return paired_difference(self.without_ms, self.with_ms).median

    @property
    def ratio(self) -> Quartiles:
        """A tick without it over one with it."""
        return paired_ratio(self.without_ms, self.with_ms)


def measure_ablations(session: BenchSession, load: Workload, ticks: int) -> list[AblationResult]:
    """Time ticks with all optimizations on, in turn with ticks without one of them; at last, without all.

    Two loops are open at a time, so that a GPU has to hold the buffers of two only. Raises EngineError where a
    generation has other latents without an optimization.
    """
    with session.stream(load, with_runtime(session.deployment, **ALL_ON)) as base:
        expected = base.play()
        base.warm_up()
        return [_measure(session, ablation, base, expected, ticks) for ablation in (*ABLATIONS, ALL_OFF)]


def _measure(
    session: BenchSession, ablation: Ablation, base: SteadyStream, expected: list[Latents], ticks: int
) -> AblationResult:
    load = base.workload
    off = with_runtime(session.deployment, **{**ALL_ON, **ablation.off})
    parts = parts_without(ablation.without)
    with session.progress.task(f"without {ablation.name}"), session.stream(load, off, parts) as other:
        what = f"with {ablation.name}"
        difference = check_equal("a generation", what, other.play(), expected, session.engines)
        other.warm_up()
        without_ms, (with_ms,) = time_in_turn(
            lambda: other.time_ticks([]),
            [lambda: base.time_ticks([])],
            -(-ticks // base.block),
            session.progress.update,
        )
    captures = base.tick().replayed > 0
    reason = ablation.no_effect_because(session.deployment.target, load, captures=captures)
    return AblationResult(ablation, without_ms, with_ms, difference, reason)


def ablations_result(found: Sequence[AblationResult], session: BenchSession, load: Workload) -> dict[str, Any]:
    """All ablations as one JSON object."""
    return {
        "kind": "ablations",
        **shape_of(load),
        "ticks": len(found[0].without_ms),
        "ablations": {each.ablation.name: _entry(each) for each in found},
        **provenance(session.bundle, with_runtime(session.deployment, **ALL_ON), session.engines.decoder.manifest),
    }


def _entry(found: AblationResult) -> dict[str, Any]:
    ratio = found.ratio
    return {
        "instead": found.ablation.instead,
        "with_ms": rounded(percentiles(found.with_ms)),
        "without_ms": rounded(percentiles(found.without_ms)),
        **rounded(
            {"saved_ms": found.saved_ms, "ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}
        ),
        "is_noisy": ratio.spread > NOISY_SPREAD,
        "no_effect_because": found.no_effect_because,
        "largest_difference": found.difference,
        "samples": {"ratio": [thinned(ratios_to_neighbours(found.without_ms, found.with_ms))]},
    }


def print_ablations(console: Console, result: Mapping[str, Any]) -> None:
    """The ablations as a table."""
    shape = f"{result['depth']} slots x {result['frames']} frames, {result['variant']}"
    title = f"{result['bundle']} on {result['target']}: {shape}; ms per tick (p50)"
    entries = result["ablations"]
    rows = [
        (
            Text(name, "dim" if entry["no_effect_because"] else ""),
            entry["instead"],
            f"{entry['with_ms']['p50']:.2f}",
            f"{entry['without_ms']['p50']:.2f}",
            f"{entry['saved_ms']:.2f}",
            f"{entry['ratio']:.3f} ({entry['ratio_low']:.2f}-{entry['ratio_high']:.2f})",
        )
        for name, entry in entries.items()
    ]
    print_table(console, title, ("optimization", "instead", "with", "without", "saves", "without / with"), rows, 2)
    worst = max(entry["largest_difference"] for entry in entries.values())
    console.print(
        f"latents are the same without them: largest difference {worst:.1e}; commit {result['commit'] or 'unknown'}"
    )
    for reason in sorted({entry["no_effect_because"] for entry in entries.values()} - {""}):
        names = ", ".join(name for name, entry in entries.items() if entry["no_effect_because"] == reason)
        console.print(f"{names}: no effect here, {reason}. The figures are noise.", style="dim")
    if any(entry["is_noisy"] for entry in entries.values()):
        console.print(BUSY, style="yellow")


def measure_adapters(session: BenchSession, load: Workload, ticks: int, rank: int) -> dict[str, Any]:
    """Ticks with 0 to MOST_ADAPTERS random adapters of this rank, which every row uses. Raises ConfigError."""
    adapted, limit = session.engines.adapted, session.deployment.runtime.adapter_rank
    if adapted is None or limit < MOST_ADAPTERS * rank:
        raise ConfigError(
            f"{session.deployment.path}: adapter_rank is {limit}, {MOST_ADAPTERS} adapters of rank {rank} need more",
            fix=f"adapter_rank = {MOST_ADAPTERS * rank} in [runtime], and build",
        )
    found = [random_adapter(adapted, f"adapter-{index}", rank) for index in range(MOST_ADAPTERS)]
    catalog = AdapterCatalog({adapter.id: adapter for adapter in found}, limit)
    session = replace(session, engines=replace(session.engines, adapters=catalog))
    with session.stream(load, with_runtime(session.deployment, adapter_rank=0)) as base:
        base.warm_up()
        numbers = range(MOST_ADAPTERS + 1)
        entries = {
            str(count): _measure_adapters(session, base, [*catalog.adapters][:count], ticks) for count in numbers
        }
    return {
        "kind": "adapters",
        **shape_of(load),
        "rank": rank,
        "ticks": ticks,
        "adapters": entries,
        **provenance(session.bundle, session.deployment, session.engines.decoder.manifest),
    }


def random_adapter(decoder: Engine, id_: str, rank: int) -> Adapter:
    """An adapter of all matrices with small random factors."""
    random = np.random.default_rng(len(id_))
    a, b = (
        FACTOR_SIZE * random.standard_normal((rank, int(decoder.inputs[name].shape[1])), dtype=np.float32)
        for name in (FACTORS_A, FACTORS_B)
    )
    return Adapter(id_, a, b)


def _measure_adapters(session: BenchSession, base: SteadyStream, ids: Sequence[str], ticks: int) -> dict[str, Any]:
    load = replace(base.workload, adapters=tuple(ids))
    with session.progress.task(f"{len(ids)} adapters"), session.stream(load) as other:
        other.warm_up()
        with_ms, (without_ms,) = time_in_turn(
            lambda: other.time_ticks([]),
            [lambda: base.time_ticks([])],
            -(-ticks // base.block),
            session.progress.update,
        )
    ratio = paired_ratio(with_ms, without_ms)
    return {
        "tick_ms": rounded(percentiles(with_ms)),
        "without_ms": rounded(percentiles(without_ms)),
        **rounded({"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}),
        "is_noisy": ratio.spread > NOISY_SPREAD,
    }


def print_adapters(console: Console, result: Mapping[str, Any]) -> None:
    """One line per number of adapters."""
    shape = f"{result['depth']} slots x {result['frames']} frames, {result['variant']}"
    console.print(f"{result['bundle']} on {result['target']}: {shape}; adapters of rank {result['rank']}, ms per tick")
    for count, entry in result["adapters"].items():
        times = f"{entry['tick_ms']['p50']:.2f} ms, without {entry['without_ms']['p50']:.2f}"
        console.print(
            f"  {count} adapters: {times}: ratio {entry['ratio']:.3f} "
            f"({entry['ratio_low']:.2f}-{entry['ratio_high']:.2f})"
        )
    if any(entry["is_noisy"] for entry in result["adapters"].values()):
        console.print(BUSY, style="yellow")
