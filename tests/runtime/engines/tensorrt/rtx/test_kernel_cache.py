"""The file of compiled kernels: read at the start, written when engines close, and dropped where it does not fit."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from helpers.engine_behaviour import Bench, written
from simulator.fixture import Machine, simulated

from runtime.engines.loading import settle_kernels

RELEASE = "1.7.1.116"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def start(folder: Path, **options: Any) -> Machine:
    """One process: it opens an engine and warms up one shape."""
    with simulated(rtx=True, **options) as machine:
        if not folder.is_dir():
            written(folder)
        play(folder)
    return machine


def play(folder: Path) -> None:
    bench = Bench(folder)
    warm_up(bench, bench.open(), 2)
    bench.close()


def warm_up(bench: Bench, engine: Any, *rows: int) -> None:
    for count in rows:
        execution = engine.bind(bench.tensors(count))
        execution.warm_up(bench.stream)
        bench.stream.record().wait()
        execution.release()


def file_of(folder: Path, release: str = RELEASE, card: str = "sm89-simulated-gpu-2048") -> Path:
    return folder.with_name(f"engines.{release}-{card}.kernels")


def test_the_next_start_compiles_nothing(folder: Path) -> None:
    first = start(folder)
    assert [when for when, _ in first.compiled] == ["context", "execute"]
    stored = file_of(folder).read_bytes()
    second = start(folder)
    assert second.compiled == []
    assert second.counters["kernels_loaded"] >= 2
    assert file_of(folder).read_bytes() == stored


def test_a_shape_that_is_new_is_added(folder: Path) -> None:
    start(folder)
    with simulated(rtx=True) as machine:
        bench = Bench(folder)
        engine = bench.open()
        warm_up(bench, engine, 3)
        assert [when for when, _ in machine.compiled] == ["execute"]
        settle_kernels("tensorrt-rtx")
        bench.close()
    assert start(folder).compiled == []


def two_processes(folder: Path, first: Sequence[int], second: Sequence[int], *, replaces: bool = False) -> Machine:
    """Two devices stand for two processes: each has a cache of its own, which is saved when its engine closes.

    Each warms up shapes of so many rows.
    """
    with simulated(rtx=True) as machine:
        machine.faults["replacing_caches"] = replaces
        if not folder.is_dir():
            written(folder)
        benches = Bench(folder), Bench(folder)
        engines = [bench.open() for bench in benches]
        for bench, engine, rows in zip(benches, engines, (first, second), strict=True):
            warm_up(bench, engine, *rows)
        for bench in benches:
            bench.close()
    return machine


def test_what_another_process_has_added_stays(folder: Path) -> None:
    two_processes(folder, [2], [3])
    two_processes(folder, [4], [1])
    assert two_processes(folder, [1, 2, 3, 4], [1, 2, 3, 4]).compiled == []


def test_where_kernels_cannot_be_put_together_the_most_stay(folder: Path) -> None:
    """The documentation does not say that a cache keeps what it has when it deserializes more."""
    two_processes(folder, [2, 3, 4], [1], replaces=True)
    again = two_processes(folder, [2, 3, 4], [1], replaces=True)
    assert [when for when, _ in again.compiled] == ["execute"]


def test_kernels_that_the_library_does_not_give_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with simulated(rtx=True) as machine:
        bench = Bench(folder)
        bench.build()
        machine.faults["serialize_cache_none"] = True
        bench.close()
    assert "compiled kernels are not kept for the next start" in caplog.text
    assert not file_of(folder).exists()


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_a_damaged_file_is_dropped(damage: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(folder)
    stored = file_of(folder).read_bytes()
    changed = {"truncated": stored[:-3], "changed": stored[:50] + b"X" + stored[51:], "empty": b""}[damage]
    file_of(folder).write_bytes(changed)
    again = start(folder)
    assert [when for when, _ in again.compiled] == ["context", "execute"]
    assert again.counters["refused_caches"] == 0, "the library is given no damaged bytes"
    assert ("are dropped, and compiled again" in caplog.text) == (damage != "empty")
    assert file_of(folder).read_bytes() == stored
    assert start(folder).compiled == []


def test_each_release_and_each_capability_has_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start(folder)
    stored = file_of(folder).read_bytes()
    other_card = start(folder, cc="12.0")
    assert len(other_card.compiled) == 2
    monkeypatch.setenv("SIMULATED_TENSORRT_RTX", "1.8.0.20")
    (folder / "decoder.plan").unlink()
    with simulated(rtx=True):
        written(folder)
    other_release = start(folder)
    assert len(other_release.compiled) == 2
    monkeypatch.delenv("SIMULATED_TENSORRT_RTX")
    assert file_of(folder).read_bytes() == stored
    assert {path.name for path in folder.parent.glob("*.kernels")} == {
        file_of(folder).name, file_of(folder, card="sm120-simulated-gpu-2048").name, file_of(folder, "1.8.0.20").name,
    }  # fmt: skip
    assert other_card.counters["refused_caches"] == other_release.counters["refused_caches"] == 0
    assert "dropped" not in caplog.text


def test_a_file_of_another_machine_under_this_name_is_dropped(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(folder, cc="8.6")
    file_of(folder, card="sm86-simulated-gpu-2048").replace(file_of(folder))
    again = start(folder)
    assert again.counters["refused_caches"] == 0
    assert len(again.compiled) == 2
    assert "belongs to another machine or release" in caplog.text


@pytest.mark.parametrize("other", [{"gpu_name": "NVIDIA GeForce RTX 4090 D (laptop)"}, {"memory_bytes": 3 << 30}])
def test_cards_of_one_capability_share_a_folder_and_both_keep_their_kernels(
    folder: Path, other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert len(start(folder).compiled) == len(start(folder, **other).compiled) == 2
    for options in ({}, other):
        again = start(folder, **options)
        assert (again.compiled, again.counters["refused_caches"]) == ([], 0)
    assert len(list(folder.parent.glob("*.kernels"))) == 2
    assert "dropped" not in caplog.text


def test_what_the_library_refuses_is_dropped(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may compare more than is known of it: here the model of a card whose name is not in the file's."""
    with simulated(rtx=True):
        cache = importlib.import_module("runtime.engines.tensorrt.rtx.kernel_cache")
        monkeypatch.setattr(cache, "sku", lambda gpu: "sm89")
    start(folder)
    again = start(folder, gpu_name="Another card with this capability")
    assert again.counters["refused_caches"] == 1
    assert len(again.compiled) == 2
    assert "are dropped" in caplog.text


def test_a_file_that_cannot_be_written_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    file_of(folder).mkdir(parents=True)
    start(folder)
    assert "compiled kernels are not kept for the next start" in caplog.text


def test_a_file_that_another_process_locks_is_left_alone(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(folder)
    with simulated(rtx=True):
        from runtime.engines.tensorrt.rtx import kernel_cache

        monkeypatch.setattr(kernel_cache, "LOCK_TIMEOUT_S", 0.01)
        with FileLock(f"{file_of(folder)}.lock"):
            bench = Bench(folder)
            bench.open()
            bench.close()
    assert "cannot be read" in caplog.text
    assert "are not kept" in caplog.text
