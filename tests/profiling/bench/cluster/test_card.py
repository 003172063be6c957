"""The cluster bench's tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from profiling.bench.cluster.capacity import SessionCost
from profiling.bench.cluster.card import print_cluster
from profiling.bench.cluster.failover import Loss, loss_figures

RUN = {
    **{name: {"p50": 0.25, "p95": 1.5} for name in ("get_ms", "ping_ms", "audio_ms")},
    "edge_cores": 0.034, "kbit_per_s_per_session": 1620.0, "store_bytes_per_s_per_session": 5500.0,
    "server_cpu": 0.52, "ticks_share": 0.25, "underruns": 1,
}  # fmt: skip
RESULT: dict[str, Any] = {
    "bundle": "demo", "target": "cpu", "replicas": 2, "sessions": 4, "mode": "loop",
    "transport": {"direct": RUN, "edge": {**RUN, "audio_ms": {}}},
    "failover": {"killed": loss_figures([Loss(12.0, 30.0, 90.0)]), "store away": loss_figures([Loss(3.0)])},
    "capacity": {"s16": SessionCost(0.0699, 0.0034, 1620.0, 5500.0).as_json()},
}  # fmt: skip


def text_of(result: dict[str, Any]) -> str:
    console = Console(record=True, width=120)
    print_cluster(console, result)
    return console.export_text()


def test_underruns_say_that_the_machine_was_busy() -> None:
    quiet = {name: {**run, "underruns": 0} for name, run in RESULT["transport"].items()}
    assert "too busy for these figures" in text_of(RESULT)
    assert "too busy" not in text_of({**RESULT, "transport": quiet})


def test_every_run_has_a_column_every_event_and_number_of_listeners_a_line() -> None:
    text = text_of(RESULT)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "demo on cpu: 2 replicas, 4 live sessions, mode loop" in text
    assert "GET, ms 0.25 / 1.50 0.25 / 1.50" in lines
    assert "a control and its audio, ms 0.25 / 1.50 -" in lines
    assert "HAProxy, % of a core 3.4 3.4" in lines
    assert "killed 30 / 30 90 / 90 12 / 12 1" in lines
    assert "store away - - 3 / 3 1" in lines
    assert "s16: 10 listeners per replica, each 7.0% of it; one replica is spare" in text
    assert "1,000 101 4.86 1,620.0 5.5" in lines
