"""Differences between two profiles, which of them stand out of the noise, and the limit on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.recorded_profiles import FOLDER, recorded
from rich.console import Console
from typer.testing import CliRunner

from profiling.comparison import Difference, conclusion
from profiling.layers.origins import KERNEL_SUFFIX
from profiling.layers.timings import Profile, Wall
from profiling.output import write_json
from profiling.profile_cli import app
from profiling.reports.diff import (
    SUM,
    WALL,
    Saved,
    Times,
    compare_profiles,
    print_diff,
    read_saved,
    slower_than,
)
from profiling.reports.json_files import profile_records
from runtime.base.errors import ConfigError


def times(**values_ms: float) -> Mapping[str, Times]:
    return {name.replace("_", " "): Times(value_ms) for name, value_ms in values_ms.items()}


OLD = Saved(
    {SUM: Times(16.01), WALL: Times(16.0)},
    times(gemm=15.0, norm=1.01),
    {"layers.0.mlp": Times(16.01)},
    times(a=10.0, b=5.0, gone=1.0, tiny=0.01),
    {"target": "cpu", "threads": 2},
)
NEW = Saved(
    {SUM: Times(19.03), WALL: Times(18.0)},
    times(gemm=17.0, norm=2.03),
    {"layers.0.mlp": Times(14.0), "layers.1.mlp": Times(5.03)},
    times(a=12.0, b=5.0, new=2.0, tiny=0.03),
    {"target": "cuda", "threads": 2},
)


def changes() -> dict[str, Difference]:
    return {change.name: change for change in compare_profiles(OLD, NEW)}


def test_changes_by_scope() -> None:
    scopes = [change.scope for change in compare_profiles(OLD, NEW)]
    assert scopes == sorted(scopes, key=["whole", "kind", "module", "layer"].index)
    found = changes()
    assert found[SUM].delta == pytest.approx(3.02)
    assert found[WALL].percent == pytest.approx(12.5)
    assert found["gemm"].percent == pytest.approx(100 * 2 / 15)
    assert (found["gone"].after, found["new"].before) == (0.0, 0.0)
    assert found["new"].percent is None
    assert [change.name for change in compare_profiles(OLD, NEW) if change.scope == "layer"][:2] == ["a", "new"]


def test_slower_is_more_than_a_percentage_and_more_than_a_share_of_the_sum() -> None:
    slower = {change.name for change in slower_than(compare_profiles(OLD, NEW), 10)}
    assert slower == {SUM, WALL, "gemm", "norm", "layers.1.mlp", "a", "new"}
    assert {change.name for change in slower_than(compare_profiles(OLD, NEW), 30)} == {"norm", "layers.1.mlp", "new"}
    assert slower_than(compare_profiles(OLD, OLD), 0) == []
    assert "gone" in {change.name for change in slower_than(compare_profiles(NEW, OLD), 10)}


def test_differences_of_machine_target_or_threads_are_named() -> None:
    for other, expected in ((NEW, "target: cpu before, cuda now"), (replace(OLD, about={"threads": 1}), "threads: 2 ")):
        console = Console(record=True, width=100)
        print_diff(OLD, other, 15, None, console)
        assert f"the two differ in {expected}" in (text := console.export_text())
        assert text.count("the two differ") == 1


def test_without_samples_nothing_is_judged() -> None:
    assert {change.verdict for change in compare_profiles(OLD, NEW)} == {""}
    assert conclusion(compare_profiles(OLD, NEW), "why") == ["not judged: why"]


def test_layers_of_one_name_are_summed_and_medians_come_before_means(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    row = {"name": "b", "timeMs": 9.0, "averageMs": 3.0, "medianMs": 1.0, "percentage": 100.0}
    write_json(path, [{"count": 1}, {"name": "a", "averageMs": 1.0}, {"name": "a", "averageMs": 2.0}, row])
    saved = read_saved(path)
    assert saved.layers == times(a=3.0, b=1.0)
    assert saved.whole == {SUM: Times(4.0)}
    assert sum(each.ms for each in saved.kinds.values()) == 4.0
    assert not saved.is_sampled


ROUNDS = (4, 4, 4, 4, 4)


def test_rounds_are_cut_to_the_shortest_and_summed_execute_by_execute() -> None:
    first, second = Times.of([[1.0, 2.0, 9.0], [3.0, 4.0]], 2.0), Times.of([[1.0, 1.0], [1.0, 5.0]], 1.0)
    assert first.samples is not None
    assert first.samples.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    both = first + second
    assert both.samples is not None
    assert (both.ms, both.samples.tolist()) == (3.5, [[2.0, 3.0], [4.0, 9.0]])
    share = second.over(both)
    assert share.samples is not None
    assert share.samples[0].tolist() == [1 / 2, 1 / 3]
    for known, unknown in ((first, Times(3.0)), (Times(3.0), first)):
        assert (known + unknown) == Times(known.ms + unknown.ms)
        assert known.over(unknown) is known


def measured(folder: Path, seed: int, slower: Mapping[str, float] | None = None) -> Saved:
    """The recorded profile with noise of 2 % in rounds, written and read; layers slower by these factors."""
    random = np.random.default_rng(seed)
    profile = recorded("10", folder)
    common = np.exp(random.normal(0.0, 0.01, 5).repeat(4) + random.normal(0.0, 0.01, 20))
    layers = tuple(
        replace(
            layer,
            runs_ms=tuple(
                layer.median_ms
                * (slower or {}).get(KERNEL_SUFFIX.sub("", layer.name), 1.0)
                * common
                * np.exp(random.normal(0.0, 0.02, 20))
            ),
        )
        for layer in profile.layers
    )
    wall = Wall(tuple(sum(layer.median_ms for layer in layers) * common))
    path = folder / f"{seed}.json"
    write_json(path, profile_records(Profile("decoder", 20, layers, wall, rounds=ROUNDS)))
    return read_saved(path)


def test_equal_profiles_have_no_difference(tmp_path: Path) -> None:
    for seed in range(0, 6, 2):
        found = compare_profiles(measured(tmp_path, seed), measured(tmp_path, seed + 1))
        assert {change.verdict for change in found} == {"no difference"}
        assert conclusion(found, "") == ["no difference: no change stands out of the spread of the samples"]
        assert slower_than(found, 0.0) == []


def test_a_slower_layer_is_found(tmp_path: Path) -> None:
    before = measured(tmp_path, 1)
    hottest = max(before.layers, key=lambda name: before.layers[name].ms)
    found = compare_profiles(before, measured(tmp_path, 2, {hottest: 1.3}))
    (layer,) = (change for change in found if change.name == hottest)
    assert layer.verdict == "slower"
    assert layer.interval is not None
    assert layer.interval.low < 1.3 < layer.interval.high
    assert layer in slower_than(found, 10)
    assert "slower: 1 by layer" in conclusion(found, "")
    assert {change.verdict for change in found if change.scope == "layer"} == {"slower", "no difference"}


def test_a_layer_of_one_profile_alone_is_new_or_gone(tmp_path: Path) -> None:
    before, after = measured(tmp_path, 1), measured(tmp_path, 2)
    hottest = max(before.layers, key=lambda name: before.layers[name].ms)
    fewer = replace(after, layers={name: found for name, found in after.layers.items() if name != hottest})
    for pair, verdict in (((before, fewer), "gone"), ((fewer, before), "new")):
        found = {change.name: change.verdict for change in compare_profiles(*pair) if change.scope == "layer"}
        assert found.pop(hottest) == verdict
        assert set(found.values()) == {"no difference"}


def test_the_same_engine_at_another_speed_is_the_machines(tmp_path: Path) -> None:
    before, after = measured(tmp_path, 1), measured(tmp_path, 2, dict.fromkeys(measured(tmp_path, 1).layers, 3.0))
    before, after = (replace(saved, about={"engine_sha256": "ab"}) for saved in (before, after))
    found = compare_profiles(before, after)
    assert {change.verdict for change in found} == {"no difference", "machine"}
    assert {change.scope for change in found if change.verdict == "machine"} == {"whole"}
    assert [line.partition(":")[0] for line in conclusion(found, "")] == ["no difference", "machine"]
    assert slower_than(found, 10) == []
    hottest = max(before.layers, key=lambda name: before.layers[name].ms)
    changed = replace(measured(tmp_path, 3, {hottest: 2.0}), about={"engine_sha256": "ab"})
    assert "slower: 1 by layer" in conclusion(compare_profiles(before, changed), "")


def test_a_profile_that_is_slower_everywhere_is_found(tmp_path: Path) -> None:
    before = measured(tmp_path, 1)
    found = compare_profiles(before, measured(tmp_path, 2, dict.fromkeys(before.layers, 1.1)))
    first, second = conclusion(found, "")[:2]
    assert first.startswith(f"slower: {SUM}, +")
    assert second.startswith(f"slower: {WALL}, +")


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diff", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_command_fails_past_its_limit(tmp_path: Path) -> None:
    """The two recordings differ in one product, which takes twice as long in the second."""
    paths = []
    for version in ("10", "11"):
        paths.append(tmp_path / f"{version}.json")
        write_json(paths[-1], profile_records(recorded(version, tmp_path)))
    assert run(*paths)[0] == 0
    assert run(*paths, "--fail-over", "101")[0] == 0
    code, text = run(*paths, "--fail-over", "20")
    assert code == 1
    # Kernels have other numbers in the other build, and are the same layers.
    assert "slower by 100.0 %: layer up_1" in text
    assert "module layers.1.mlp" in text
    assert "0 new, 0 gone" in text
    assert run(paths[0], paths[0], "--fail-over", "0")[0] == 0


def test_trtexec_files_are_compared_by_layer() -> None:
    path = FOLDER / "profile_10.json"
    code, text = run(path, path)
    assert code == 0
    assert "sum of layers" in text
    assert "by module" not in text
    assert "before: a profile of trtexec's" in text


WRONG = [None, 1, -1e999, "x", [], [1], [[1, [2]]], [["a"]], [[[1]]], {}, {"a": 1}, [None]]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_profile_with_another_value_anywhere_is_compared_or_refused(wrong: object, tmp_path: Path) -> None:
    """In place of any value, the whole among them, at the first element of each list."""
    path, records, num_refused = tmp_path / "p.json", profile_records(recorded("10", tmp_path)), 0
    records = json.loads(json.dumps(records[:3] + records[-1:]))
    records[0]["tickrt"]["layers"] = records[0]["tickrt"]["layers"][:3]
    for place in places(records):
        path.write_text(json.dumps(changed(records, place, wrong)))
        try:
            saved = read_saved(path)
        except ConfigError as error:
            num_refused += "is not a profile" in error.what
        else:
            print_diff(saved, saved, 15, 1.0, Console(quiet=True))
    assert num_refused > 5


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is something in a JSON value."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*here, key))


def changed(value: Any, place: tuple[Any, ...], wrong: object) -> Any:
    """A copy of a JSON value with another one at a place."""
    if not place:
        return wrong
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], wrong)
    return copy


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\xff", b"null", b"3", b"[1]", b"{}", b"[[]]", b'[{"x": 1}]', b'[{"count": "x"}]', b'[{"count": 1}]',
     b'[{"count": 1}, {"averageMs": "x"}]', b'"' + b"[" * 10_000, b"[" * 100_000, None],
)  # fmt: skip
def test_another_file_or_a_folder_is_an_error(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path
    if data is not None:
        path = tmp_path / "file"
        path.write_bytes(data)
    code, text = run(path, path)
    assert code == 2
    assert "is not a profile" in text
    assert "tickrt-profile CONFIG --json FILE writes one" in text
