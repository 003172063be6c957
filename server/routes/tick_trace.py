"""Ticks as a Chrome trace, phases on the host and executes on the device, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format", complete events (ph X), counters (C) and names (M); times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from runtime.tick.record import TickRecord

PROCESS = 1
HOST = 1
FIRST_BUCKET = 2


def tick_trace(records: Sequence[TickRecord]) -> dict[str, Any]:
    """The trace of `records`, given in order.

    Host and device have separate clocks. Executes keep their distances on the device's clock and are shifted together,
    by the smallest offset with which none begins before its launch.
    """
    events = [_name("process_name", 0, "tickrt"), _name("thread_name", HOST, "tick thread")]
    lengths = sorted({bucket.frames for record in records for bucket in record.buckets})
    tids = {frames: FIRST_BUCKET + index for index, frames in enumerate(lengths)}
    events += [_name("thread_name", tid, f"decoder, {frames} frames") for frames, tid in tids.items()]
    zero_s = min((record.started_s for record in records), default=0.0)
    begins_ms = [(record.started_s - zero_s) * 1e3 for record in records]
    for record, begin_ms, device_ms in zip(records, begins_ms, device_begins(records, begins_ms), strict=True):
        events += _host_events(record, begin_ms)
        for bucket in record.buckets:
            args = {"tick": record.tick, "slots": bucket.slots, "rows": bucket.rows, "executes": bucket.executes}
            events.append(
                _slice(f"{bucket.rows} rows", tids[bucket.frames], device_ms + bucket.begin_ms, bucket.ms, args)
            )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"ticks": len(records)}}


def device_begins(records: Sequence[TickRecord], begins_ms: Sequence[float]) -> list[float]:
    """When the device began each tick, on the host's clock, given when the host began it; milliseconds."""
    if not records:
        return []
    gaps_ms = list(accumulate(record.device_gap_ms for record in records[1:]))
    device_ms = [0.0, *gaps_ms]
    launched_ms = [begin_ms + _launched_ms(record) for record, begin_ms in zip(records, begins_ms, strict=True)]
    shift_ms = max(launched - device for launched, device in zip(launched_ms, device_ms, strict=True))
    return [device + shift_ms for device in device_ms]


def _launched_ms(record: TickRecord) -> float:
    """Time from the begin of a tick to its first launch."""
    return next((span.begin_ms for span in record.spans if span.phase == "launch"), 0.0)


def _host_events(record: TickRecord, begin_ms: float) -> Iterator[dict[str, Any]]:
    args = {
        "slots": record.slots,
        "rows": record.rows,
        "executes": record.executes,
        "variants": list(record.variants),
        "allocations": record.allocations,
        "replayed": record.replayed,
        "finished": len(record.finished),
    }
    yield _slice(f"tick {record.tick}", HOST, begin_ms, record.tick_ms, args)
    for span in record.spans:
        yield _slice(span.phase, HOST, begin_ms + span.begin_ms, span.ms, {})
    counts = {"slots": record.slots, "waiting": record.queue_depth}
    yield {"ph": "C", "name": "generations", "pid": PROCESS, "ts": _us(begin_ms), "args": counts}


def _slice(name: str, tid: int, begin_ms: float, ms: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": PROCESS, "tid": tid, "ts": _us(begin_ms), "dur": _us(ms), "args": args}


def _name(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": tid, "args": {"name": name}}


def _us(ms: float) -> float:
    return round(ms * 1e3, 3)
