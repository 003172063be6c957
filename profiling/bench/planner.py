"""The planner in the tick loop: tokens per second alone and beside the flow model, what each technique is worth, and
the first audio of a song with a plan and without one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import prod
from typing import Any

import numpy as np
from rich.console import Console

from profiling.bench.in_place_caches import LENGTHS, measure_in_place
from profiling.bench.result import resident_bytes, shape_of
from profiling.bench.session import BenchSession
from profiling.bench.statistics import percentiles
from profiling.bench.workload import Workload, at_depth, make_request, with_runtime
from profiling.provenance import provenance
from runtime.base.errors import ConfigError
from runtime.commands.terminal import print_table
from runtime.config.deployment import Deployment
from runtime.config.planner import PlannerSpec
from runtime.pipeline.generation import LongGeneration, generate_audio
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.tick.language.constraints import CodesConstraint
from runtime.tick.language.sequence import ENDLESS, SequenceRequest, room_for
from runtime.tick.loop.events import Event, Finished
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

SETTLED = 8
PROMPT = 20
RING_TOKENS = 20_000
TEMPERATURE = 0.85
PLAIN: Mapping[str, Any] = {"speculation": False, "planner_steps": 1}
SECONDS = (10.0, 30.0)
REPEATS = 7
SONG = "house, 124 bpm"


@dataclass
class SequenceStream:
    """A loop with sequences of random prompts, and generations of `load` that follow each other, between two ticks.

    tokens: how many came so far.
    """

    session: BenchSession
    load: Workload | None = None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    loop: TickLoop = field(init=False)
    _numbers: Any = field(default_factory=count)
    _open: int = 0

    def __post_init__(self) -> None:
        deployment = with_runtime(self.session.deployment, **self.runtime)
        deployment = deployment if self.load is None else at_depth(deployment, self.load.depth)
        self.loop = TickLoop(self.session.engines, self.session.bundle, deployment, self.session.device)

    def begin(self, sequences: int, *, is_guided: bool) -> None:
        """Submit sequences, and tick until their prompts are read. Raises TickError."""
        spec = spec_of(self.session)
        for index in range(sequences):
            request = _request(spec, index, is_guided=is_guided)
            self.loop.submit_sequence(replace(request, on_tokens=self._count), lambda event: None)
        for record in iter(self.tick, None):
            if record.variants and "prefill" not in record.variants:
                break

    def tick(self) -> TickRecord | None:
        """One tick, with as many generations in flight as the workload has."""
        while self.load is not None and self._open < self.load.depth:
            request = make_request(self.load, self.session.bundle, self.session.engines, next(self._numbers))
            self.loop.submit(request, self._finished)
            self._open += 1
        return self.loop.tick()

    def time(self, ticks: int) -> Timed:
        """`ticks` ticks, after some that settle. Raises TickError, also where sequences end before."""
        for _ in range(SETTLED):
            self.tick()
        before, times_ms, verified = self.tokens, [], [0, 0]
        for _ in range(ticks):
            start_s, tokens = time.perf_counter(), self.tokens
            record = self.tick()
            times_ms.append((time.perf_counter() - start_s) * 1e3)
            if record is not None and "verify" in record.variants:
                verified = [verified[0] + 1, verified[1] + self.tokens - tokens]
        return Timed(times_ms, self.tokens - before, *verified)

    def close(self) -> None:
        """Close the loop; the session keeps the engines."""
        self.loop.close()

    def _count(self, tokens: Sequence[int]) -> None:
        self.tokens += len(tokens)

    def _finished(self, event: Event) -> None:
        self._open -= isinstance(event, Finished)


@dataclass(frozen=True)
class Timed:
    """Ticks: their times, the tokens that they brought, how many verified drafts, and the tokens of those."""

    times_ms: list[float]
    tokens: int
    verifies: int
    verified_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Over all ticks."""
        return self.tokens / sum(self.times_ms) * 1e3

    def figures(self) -> dict[str, Any]:
        """For a result."""
        times = {name: round(value, 3) for name, value in percentiles(self.times_ms).items()}
        return {"tick_ms": times, "tokens_per_s": round(self.tokens_per_s, 1), "tokens": self.tokens}


def spec_of(session: BenchSession) -> PlannerSpec:
    """The bundle's planner. Raises ConfigError where it has none."""
    if session.bundle.planner is None:
        raise ConfigError(f"the bundle {session.bundle.name!r} has no planner", fix="add [planner] to it")
    return session.bundle.planner


def measure_planner(
    session: BenchSession,
    load: Workload,
    ticks: int,
    lengths: Sequence[int] = LENGTHS,
    ring_tokens: int = RING_TOKENS,
) -> dict[str, Any]:
    """Everything, as one result. lengths: those that are measured in place. Raises ConfigError, TickError."""
    spec, many = spec_of(session), session.deployment.runtime.planner_sequences
    if not spec.window:
        ticks = min(ticks, room_for(spec, PROMPT) // spec.verify_tokens - SETTLED - 1)
    if ticks < 1:
        raise ConfigError(f"a cache of {spec.capacity} tokens is too short to measure", fix="choose another bundle")
    resident_mib = _resident_mib(session, many)  # first: memory that was used before is in RAM already
    alone = {
        "one sequence": _timed(session, PLAIN, 1, ticks),
        f"{many} sequences": _timed(session, PLAIN, many, ticks),
        f"{many} guided sequences": _timed(session, PLAIN, many, ticks, is_guided=True),
        f"{many} guided sequences, 3 tokens per tick": _timed(
            session, {**PLAIN, "planner_steps": 3}, many, ticks, is_guided=True
        ),
    }
    return {
        **provenance(session.bundle, session.deployment, session.engines.decoder.manifest),
        **shape_of(load),
        "kind": "planner",
        "ticks": ticks,
        "sequences": many,
        "capacity": spec.capacity,
        "window": spec.window,
        "alone": {name: timed.figures() for name, timed in alone.items()},
        "beside": _beside(session, load, many, ticks),
        "speculation": _speculation(session, ticks, alone["one sequence"]),
        "in_place": measure_in_place(session, ticks, lengths),
        "ring": _ring(session, ring_tokens) if spec.window else None,
        "sequence_mib": _sequence_mib(session),
        "resident_mib": resident_mib,
    }


def _timed(
    session: BenchSession, runtime: Mapping[str, Any], sequences: int, ticks: int, *, is_guided: bool = False
) -> Timed:
    with closing(SequenceStream(session, runtime=runtime)) as stream:
        stream.begin(sequences, is_guided=is_guided)
        return stream.time(ticks)


def _beside(session: BenchSession, load: Workload, many: int, ticks: int) -> dict[str, Any]:
    """Ticks of the flow model without and with guided sequences, 3 tokens of each per tick."""
    found = {}
    for name, sequences in (("flow model alone", 0), (f"with {many} guided sequences", many)):
        with closing(SequenceStream(session, load, {**PLAIN, "planner_steps": 3})) as stream:
            if sequences:
                stream.begin(sequences, is_guided=True)
            found[name] = stream.time(ticks).figures()
    return found


def _speculation(session: BenchSession, ticks: int, without: Timed) -> dict[str, Any]:
    """One sequence whose codes have markers, if the bundle has some: with drafts, and without."""
    timed = _timed(session, {**PLAIN, "speculation": True}, 1, ticks)
    drafts = timed.verifies * (spec_of(session).verify_tokens - 1)
    return {
        **timed.figures(),
        "verifies": timed.verifies,
        "accepted_share": round((timed.verified_tokens - timed.verifies) / drafts, 3) if drafts else None,
        "gain": round(timed.tokens_per_s / without.tokens_per_s, 3),
    }


def _cache_rows(session: BenchSession) -> list[tuple[tuple[int, ...], str]]:
    """Shape `[H,M,J]` and dtype of each of the caches."""
    engines = session.engines.planner
    assert engines is not None
    infos = [engines.planner.inputs[name] for name in spec_of(session).inputs.past]
    return [(tuple(int(size) for size in info.shape[1:]), info.dtype) for info in infos]


def _ring(session: BenchSession, tokens: int) -> dict[str, Any]:
    """One sequence for so many tokens: time per token and resident memory at its begin and at its end."""
    part = tokens // 10
    with closing(SequenceStream(session, runtime=PLAIN)) as stream:
        stream.begin(1, is_guided=False)
        stream.time(2 * spec_of(session).capacity)
        first_bytes, first = resident_bytes(), stream.time(part)
        stream.time(tokens - 2 * part)
        last, last_bytes = stream.time(part), resident_bytes()
    return {
        "tokens": stream.tokens,
        "first_ms": round(float(np.median(first.times_ms)), 3),
        "last_ms": round(float(np.median(last.times_ms)), 3),
        "grown_mib": round((last_bytes - first_bytes) / 2**20, 2),
    }


def _resident_mib(session: BenchSession, many: int) -> float | None:
    """What a guided sequence takes of the RAM: a loop that has `many` of them, less one that has one."""
    grown = []
    with ExitStack() as streams:
        for sequences in (1, many):
            before = resident_bytes()
            other = SequenceStream(session, runtime={**PLAIN, "planner_sequences": sequences})
            stream = streams.enter_context(closing(other))
            stream.begin(sequences, is_guided=True)
            grown.append(resident_bytes() - before)
    return round((grown[1] - grown[0]) / (many - 1) / 2**20, 3) if many > 1 else None


def _sequence_mib(session: BenchSession) -> float:
    """The caches of a guided sequence."""
    sizes = [prod(shape) * np.dtype(dtype).itemsize for shape, dtype in _cache_rows(session)]
    return round(2 * sum(sizes) / 2**20, 3)


def _request(spec: PlannerSpec, index: int, *, is_guided: bool) -> SequenceRequest:
    random = np.random.default_rng(index)
    group = spec.codes.groups[0]
    prompt = tuple(random.integers(group.first, group.end, PROMPT).tolist())
    return SequenceRequest(
        f"sequence {index}",
        prompt,
        room_for(spec, PROMPT),
        negative=prompt[: PROMPT // 2 + 1] if is_guided else (),
        guidance=2.0 if is_guided else 1.0,
        seed=index,
        temperature=TEMPERATURE,
        constraint=CodesConstraint(spec, ENDLESS, partial(given_tokens, spec)),
    )


def given_tokens(spec: PlannerSpec, code: int) -> tuple[int, ...]:
    """Those before a code: its marker, if codes have some; in the pages of a plan behind a code that it recalls."""
    if spec.plan is None:
        markers = spec.codes.markers
        return () if markers is None else (markers.first + code % markers.count,)
    recalled = (group.first + (31 * code + place) % group.count for place, group in enumerate(spec.codes.groups))
    clocks = spec.plan.clock_markers
    return (spec.plan.recall, *recalled, clocks.first + code % clocks.count)


def print_planner(console: Console, result: Mapping[str, Any]) -> None:
    """The result as tables."""
    title = (
        f"{result['bundle']} on {result['target']}: the planner, cache {result['capacity']}, window {result['window']}"
    )
    found = {**result["alone"], "one sequence, with drafts": result["speculation"], **result["beside"]}
    rows = [
        (name, *(f"{each['tick_ms'][part]:.2f}" for part in ("p50", "p95")), f"{each['tokens_per_s']:.0f}")
        for name, each in found.items()
    ]
    print_table(console, title, ("", "tick p50", "p95", "tokens/s"), rows)
    drafts, ring = result["speculation"], result["ring"]
    share = "none" if drafts["accepted_share"] is None else f"{drafts['accepted_share']:.0%}"
    console.print(f"drafts: {share} accepted, {drafts['gain']:.2f}x tokens per second", highlight=False)
    for point in result["in_place"]:
        text = f"{point['length']} tokens in place: {point['ms']:.2f} ms, concatenated {point['concat_ms']:.2f} ms"
        console.print(f"{text}: {point['ratio']:.2f}x", highlight=False)
    if ring is not None:
        grown = f"{ring['grown_mib']:+.1f} MiB after {ring['tokens']} tokens"
        console.print(f"ring: {ring['first_ms']:.2f} then {ring['last_ms']:.2f} ms per token, {grown}", highlight=False)
    for point in result.get("first_audio", ()):
        text = f"first audio of {point['seconds']:g} s: {point['planned_ms']:.0f} ms with a plan (its sections after"
        text = f"{text} {point['sections_ms']:.0f} ms, codes after {point['codes_ms']:.0f}), {point['without_ms']:.0f}"
        console.print(f"{text} without: {point['ratio']:.2f}x", highlight=False)
    resident = "" if result["resident_mib"] is None else f", {result['resident_mib']:.1f} MiB of RAM with its buffers"
    console.print(f"caches: {result['sequence_mib']:.1f} MiB per guided sequence{resident}", highlight=False)


def measure_first_audio(
    deployment: Deployment, lengths: Sequence[float] = SECONDS, repeats: int = REPEATS
) -> list[dict[str, Any]]:
    """One point per length: medians in ms, and their ratio; [] where songs are not planned, have no audio, or no text.

    sections_ms: until the sections are there; codes_ms: until the codes of the first segment are. Raises TickError.
    """
    with open_pipeline(deployment) as pipeline:
        if pipeline.planner is None or pipeline.codec is None or pipeline.text_encoder is None:
            return []
        return [_point(pipeline, seconds, repeats) for seconds in lengths]


def _point(pipeline: Pipeline, seconds: float, repeats: int) -> dict[str, Any]:
    """The first pair of songs warms up and is not counted."""
    pairs = [
        [_first_audio(pipeline, seconds, seed, plan=plan) for plan in (False, True)] for seed in range(repeats + 1)
    ]
    without, planned = zip(*pairs[1:], strict=True)

    def median(name: str) -> float:
        return float(np.median([times[name] for times in planned]))

    without_ms = float(np.median([times["first_ms"] for times in without]))
    return {
        "seconds": seconds,
        "without_ms": round(without_ms, 1),
        "planned_ms": round(median("first_ms"), 1),
        "sections_ms": round(median("sections_ms"), 1),
        "codes_ms": round(median("codes_ms"), 1),
        "ratio": round(float(np.median([b["first_ms"] / a["first_ms"] for a, b in pairs[1:]])), 3),
    }


def _first_audio(pipeline: Pipeline, seconds: float, seed: int, *, plan: bool) -> Mapping[str, float]:
    """Milliseconds from the request on. What goes on behind the first audio ends before this returns."""
    options = parse_options({"prompt": SONG, "seconds": seconds, "seed": seed, "plan": plan})
    begin_s = time.perf_counter()
    generation = LongGeneration(pipeline, options)
    times_s = {"sections_ms": time.perf_counter()}
    if generation.plan is not None:
        generation.plan.hints(0, min(pipeline.lengths.canvas_frames, generation.total_frames or 0))
    times_s["codes_ms"] = time.perf_counter()
    with closing(generate_audio(pipeline, generation)) as audio:
        next(audio)
        times_s["first_ms"] = time.perf_counter()
    while not pipeline.loop.is_empty:
        time.sleep(0.001)
    return {name: 1e3 * (at_s - begin_s) for name, at_s in times_s.items()}
