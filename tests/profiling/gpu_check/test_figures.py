"""Figures of results, against their limits; the summary, whole or as it was; the table in a document."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from conftest import Built
from helpers.storage_faults import faults
from typer.testing import CliRunner

from profiling.gpu_check.__main__ import DOCUMENTS, app
from profiling.gpu_check.figures import (
    BEGIN,
    BRIEF,
    END,
    SNR,
    TABLES,
    Figure,
    Summary,
    brief,
    figures,
    markdown,
    put_tables,
    read_summary,
    show_times,
)
from profiling.gpu_check.running import CheckOutcome, CheckStep
from profiling.gpu_check.steps import check_steps
from runtime.base.errors import ConfigError
from runtime.commands.terminal import Terminal
from runtime.devices.cuda_calls import Gpu
from runtime.engines.manifest import manifest_path, read_manifest, write_manifest

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
        "free_mib": 900,
        "resident_mib": 90.0,
        "budget": {"overhead_ratio": 1.02},
    }
    found = figures(step(tmp_path, "bench", {"points": [{**tick, "depth": 4}, {**tick, "depth": 8, "budget": {}}]}))
    assert [(each.what, each.value, each.unit, each.verdict) for each in found] == [
        ("tick, depth 4", 3.0, "ms", ""),
        ("bare engine, depth 4", 2.9, "ms", ""),
        ("overhead_ratio, depth 4", 1.03, "", "missed"),
        ("memory of the process, depth 4", 90.0, "MiB", ""),
        ("memory of the card left, depth 4", 900, "MiB", ""),
        ("tick, depth 8", 3.0, "ms", ""),
        ("bare engine, depth 8", 2.9, "ms", ""),
        ("memory of the process, depth 8", 90.0, "MiB", ""),
        ("memory of the card left, depth 8", 900, "MiB", ""),
    ]


def test_fused_attention_is_found_by_names_of_kernels(tmp_path: Path) -> None:
    layers = [{"name": "_gemm_mha_v2", "medianMs": 1.0}, {"name": "gemm", "medianMs": 3.0}]
    found = figures(step(tmp_path, "profile", [{"tickrt": {"wall_p50_ms": 4.5}}, *layers]))
    assert [(each.what, each.value) for each in found] == [
        ("execute", 4.5),
        ("layers", 2),
        ("in fused attention", 25.0),
    ]


@pytest.mark.parametrize("kind", ["card", "captured", "bench", "decodes", "live", "profile", "planner"])
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
    (brief_begin, brief_end), (begin, end) = ((BEGIN.format(name), END.format(name)) for name in TABLES)
    between = f"\n{brief_begin}\nold\n{brief_end}\n"
    document.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n{between}", encoding="utf-8")
    summary().save(tmp_path)
    for _ in range(2):
        done = CliRunner().invoke(app, ["table", str(out), "--document", str(document)])
        assert done.exit_code == 0, done.output
    text = document.read_text(encoding="utf-8")
    between = between.replace("old", brief(summary()))
    assert text == f"before\n\n{begin}\n{markdown(summary())}\n{end}\n\nafter\n{between}"
    assert "A card (24 GB), CUDA 13.0, tensorrt-cu13 11.4, commit abc, 2026-01-02 03:04 UTC." in text
    assert "| full-ticks | tick, depth 4 | 14.25 ms |  |  |" in text
    assert "- fp8-build: failed, no | kernel" in text
    assert "| tick of 60 s at depth 1 / 4 / 8 | – / 14.2 / – ms |" in text
    document.write_text("none", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no place for a table"):
        put_tables(document, summary())


@pytest.mark.parametrize(("path", "name"), [*zip(DOCUMENTS, TABLES, strict=True)])
def test_our_documents_have_a_place_for_one_each(tmp_path: Path, path: Path, name: str) -> None:
    copy = tmp_path / "copy.md"
    shutil.copy(path, copy)
    put_tables(copy, summary())
    once = copy.read_text(encoding="utf-8")
    put_tables(copy, summary())
    assert copy.read_text(encoding="utf-8") == once
    given = path.read_text(encoding="utf-8")
    parts = [text.partition(BEGIN.format(name))[::2] for text in (given, once)]
    assert parts[0][0] == parts[1][0]
    assert parts[0][1].partition(END.format(name))[2] == parts[1][1].partition(END.format(name))[2] != ""
    assert TABLES[name](summary()) in once


def test_what_one_asks_first_is_of_steps_that_there_are(tmp_path: Path) -> None:
    card = Gpu("card", "8.9", 100, 1 << 34, "13.0", "13.0", "")
    steps = {step.name for step in check_steps(tmp_path, tmp_path, card)}
    assert {name for keys in BRIEF.values() for name, _ in keys} <= steps


def test_what_codecs_lose_is_decibels_of_their_manifests(tmp_path: Path, built: Built) -> None:
    manifest = read_manifest(manifest_path(built().engine_folder(), "codec_decode"))
    error = {**manifest.error, "rms_rel": 1e-3}
    assert error.keys() == manifest.error.keys(), "it is measured when an engine is built"
    write_manifest(manifest_path(tmp_path, "codec_decode"), manifest.model_copy(update={"error": error}))
    found = {each.what: each.value for each in figures(CheckStep("step", (), 1.0, kind="engines", result=tmp_path))}
    assert found[SNR] == pytest.approx(60.0)


def test_urgencies_and_what_others_change_are_figures(tmp_path: Path) -> None:
    times = {"playing": {"p95": 2.0}, "background": {"p95": 9.0}}
    result = {"alone": times, "beside": times, "ticks_per_s": 70.0, "difference": 0.1, "allowed": 0.05}
    found = {each.what: each.verdict for each in figures(step(tmp_path, "decodes", result))}
    assert found["decoding, playing, beside ticks, p95"] == ""
    assert found["largest difference to generations alone"] == "missed"


def test_the_times_of_steps_are_told_before_they_run(capsys: pytest.CaptureFixture[str]) -> None:
    show_times([CheckStep("one", (), 30.0), CheckStep("two", (), 60.0)], Terminal())
    assert [line.split() for line in capsys.readouterr().out.splitlines()[3:]] == [
        ["one", "30", "0.5"],
        ["two", "60", "1.5"],
    ]
