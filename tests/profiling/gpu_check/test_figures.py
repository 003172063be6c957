"""Figures of results, against their limits; the summary, whole or as it was; the table in a document."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.storage_faults import faults
from typer.testing import CliRunner

from profiling.gpu_check.__main__ import app
from profiling.gpu_check.figures import BEGIN, END, Figure, Summary, figures, markdown, put_table, read_summary
from profiling.gpu_check.running import CheckOutcome, CheckStep
from runtime.errors import ConfigError

CARD = {
    "name": "A card",
    "memory_bytes": 24_000_000_000,
    "driver_version": "13.0",
    "versions": {"tensorrt-cu13": "11.4"},
}
ABOUT = {"commit": "abc", "date": "2026-01-02 03:04 UTC", "card": CARD}


def summary() -> Summary:
    outcomes = [CheckOutcome("full-ticks", "done", 3.0), CheckOutcome("fp8-build", "failed", 1.0, "no | kernel")]
    return Summary(dict(ABOUT), outcomes, [Figure("full-ticks", "tick, depth 4", 14.25, "ms")])


def step(tmp_path: Path, kind: str, result: object) -> CheckStep:
    path = tmp_path / "step.json"
    path.write_text(json.dumps(result), encoding="utf-8")
    return CheckStep("step", (), 1.0, kind=kind, result=path)


def test_ticks_are_figures_at_every_depth_against_their_budget(tmp_path: Path) -> None:
    tick = {
        "tick_ms": {"p50": 3.0},
        "engine_ms": {"p50": 2.9},
        "overhead_ratio": 1.03,
        "budget": {"overhead_ratio": 1.02},
    }
    found = figures(step(tmp_path, "bench", {"points": [{**tick, "depth": 4}, {**tick, "depth": 8, "budget": {}}]}))
    assert [(each.what, each.value, each.unit, each.verdict) for each in found] == [
        ("tick, depth 4", 3.0, "ms", ""),
        ("bare engine, depth 4", 2.9, "ms", ""),
        ("overhead_ratio, depth 4", 1.03, "", "missed"),
        ("tick, depth 8", 3.0, "ms", ""),
        ("bare engine, depth 8", 2.9, "ms", ""),
    ]


def test_fused_attention_is_found_by_names_of_kernels(tmp_path: Path) -> None:
    layers = [{"name": "_gemm_mha_v2", "medianMs": 1.0}, {"name": "gemm", "medianMs": 3.0}]
    found = figures(step(tmp_path, "profile", [{"tickrt": {"wall_p50_ms": 4.5}}, *layers]))
    assert [(each.what, each.value) for each in found] == [
        ("execute", 4.5),
        ("layers", 2),
        ("in fused attention", 25.0),
    ]


@pytest.mark.parametrize("kind", ["card", "captured", "bench", "live", "profile", "planner"])
def test_a_result_of_another_kind_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"step\.json is not a result of step"):
        figures(step(tmp_path, kind, {"other": 1}))


def test_a_summary_is_read_as_it_was_saved(tmp_path: Path) -> None:
    summary().save(tmp_path)
    assert read_summary(tmp_path / "summary.json") == summary()
    assert not summary().is_good
    text = (tmp_path / "summary.txt").read_text(encoding="utf-8")
    assert "14.25 ms" in text
    assert "no | kernel" in text
    (tmp_path / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a summary"):
        read_summary(tmp_path / "summary.json")


def test_a_full_disk_leaves_the_summary_before(tmp_path: Path) -> None:
    summary().save(tmp_path)
    later, before = summary(), (tmp_path / "summary.json").read_bytes()
    later.outcomes.append(CheckOutcome("later", "done", 1.0))
    with faults(tmp_path, 1, errno.ENOSPC, stay=True), pytest.raises(OSError, match="No space left"):
        later.save(tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "summary.txt"}


def test_the_table_is_put_between_its_marks_again_and_again(tmp_path: Path) -> None:
    document, out = tmp_path / "README.md", tmp_path / "summary.json"
    document.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n", encoding="utf-8")
    summary().save(tmp_path)
    for _ in range(2):
        done = CliRunner().invoke(app, ["table", str(out), "--document", str(document)])
        assert done.exit_code == 0, done.output
    text = document.read_text(encoding="utf-8")
    assert text == f"before\n\n{BEGIN}\n{markdown(summary())}\n{END}\n\nafter\n"
    assert "A card (24 GB), CUDA 13.0, tensorrt-cu13 11.4, commit abc, 2026-01-02 03:04 UTC." in text
    assert "| full-ticks | tick, depth 4 | 14.25 ms |  |  |" in text
    assert "- fp8-build: failed, no | kernel" in text
    document.write_text("none", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no place for the table"):
        put_table(document, "")


def test_our_document_has_a_place_for_it() -> None:
    text = (ROOT / "profiling" / "README.md").read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)
