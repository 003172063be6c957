"""A bucket's span is a plain tuple, so that records can be written as JSON."""

from __future__ import annotations

import json

from runtime.scheduling.batch import BucketSpan


def test_a_span_is_a_tuple_of_numbers() -> None:
    span = BucketSpan(frames=32, slots=2, rows=4, executes=1, begin_ms=0.5, ms=1.5)
    assert json.loads(json.dumps(span)) == [32, 2, 4, 1, 0.5, 1.5]
