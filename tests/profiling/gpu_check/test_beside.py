"""Windows are decoded by urgency, without ticks and beside them, and generations in these are what they are alone."""

from __future__ import annotations

from conftest import Built

from profiling.gpu_check.beside import measure_decodes
from runtime.pipeline.pipeline import open_pipeline

SECONDS = 0.05


def test_windows_are_decoded_by_urgency_without_ticks_and_beside_full_batches(built: Built) -> None:
    with open_pipeline(built(text_encoder=False, null=True)) as pipeline:
        found = measure_decodes(pipeline, SECONDS)
    for where in ("alone", "beside"):
        assert found[where].keys() == {"playing", "background"}
        assert all(0 < times["p50"] <= times["p95"] for times in found[where].values())
    assert found["ticks_per_s"] >= pipeline.bundle.sampler.steps / SECONDS
    assert found["difference"] <= found["allowed"]
