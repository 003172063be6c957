"""Ticks as a Chrome trace: phases on the host and executes on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from runtime.tick.record import TickRecord
from runtime.trace_events import Event, counter_event, slice_event, trace_document

HOST = 1
FIRST_BUCKET = 2


def tick_trace(records: Sequence[TickRecord]) -> Event:
    """The trace of `records`, given in order.

    Host and device have separate clocks. Executes keep their distances on the device's clock and are shifted together,
    by the smallest offset with which none begins before its launch.
    """
    lengths = sorted({bucket.frames for record in records for bucket in record.buckets})
    tids = {frames: FIRST_BUCKET + index for index, frames in enumerate(lengths)}
    threads = {HOST: "tick thread", **{tid: f"decoder, {frames} frames" for frames, tid in tids.items()}}
    events: list[Event] = []
    zero_s = min((record.started_s for record in records), default=0.0)
    begins_ms = [(record.started_s - zero_s) * 1e3 for record in records]
    for record, begin_ms, device_ms in zip(records, begins_ms, device_begins(records, begins_ms), strict=True):
        events += _host_events(record, begin_ms)
        for bucket in record.buckets:
            args = {"tick": record.tick, "slots": bucket.slots, "rows": bucket.rows, "executes": bucket.executes}
            tid, begin = tids[bucket.frames], device_ms + bucket.begin_ms
            events.append(slice_event(f"{bucket.rows} rows", tid, begin, bucket.ms, args))
    return trace_document("tickrt", threads, events, {"ticks": len(records)})


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


def _host_events(record: TickRecord, begin_ms: float) -> Iterator[Event]:
    args = {
        "slots": record.slots,
        "rows": record.rows,
        "executes": record.executes,
        "variants": list(record.variants),
        "allocations": record.allocations,
        "replayed": record.replayed,
        "finished": len(record.finished),
        "frozen": len(record.frozen),
        "resumed": len(record.resumed),
    }
    yield slice_event(f"tick {record.tick}", HOST, begin_ms, record.tick_ms, args)
    for span in record.spans:
        yield slice_event(span.phase, HOST, begin_ms + span.begin_ms, span.ms, {})
    counts = {"slots": record.slots, "waiting": record.queue_depth}
    yield counter_event("generations", begin_ms, counts)
