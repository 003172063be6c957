"""Steps that are complete are not run again; the folder appears when all are. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_build.export.bundle_export import Steps, working_folder
from runtime.base.errors import BuildError


class BrokenStepError(Exception):
    pass


def export(
    folder: Path, values: dict[str, str], *, key: str = "key", fails_in: str = "", force: bool = False
) -> tuple[list[str], list[dict[str, Any]]]:
    """Run one step per value, which writes it to a file; returns the steps that were run, and all results."""
    run, results = [], []

    def writer(working: Path, name: str) -> Callable[[], dict[str, Any]]:
        def write() -> dict[str, Any]:
            run.append(name)
            (working / name).write_text(values[name])
            if name == fails_in:
                raise BrokenStepError
            return {name: values[name], "numbers": (1, 0.1)}

        return write

    with working_folder(folder, force=force) as working:
        steps = Steps(working, key)
        for name in values:
            result, is_new = steps.run(name, writer(working, name))
            assert is_new == (name in run)
            results.append(result)
        steps.close()
    return run, results


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


ABC = {"a": "1", "b": "22", "c": "333"}


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """Complete a and b, an unfinished c."""
    with pytest.raises(BrokenStepError):
        export(tmp_path / "out", ABC, fails_in="c")
    assert not (tmp_path / "out").exists()
    return tmp_path / "out"


def test_a_second_run_goes_on_where_the_first_stopped(interrupted: Path) -> None:
    run, results = export(interrupted, ABC)
    assert run == ["c"]
    assert results == [{name: text, "numbers": [1, 0.1]} for name, text in ABC.items()]
    assert contents(interrupted) == ABC
    assert not interrupted.with_name(".out.partial").exists()


@pytest.mark.parametrize(("again", "runs"), [({"key": "other"}, "abc"), ({"force": True}, "abc"), ({}, "c")])
def test_another_key_or_force_starts_anew(interrupted: Path, again: dict[str, Any], runs: str) -> None:
    assert export(interrupted, ABC, **again)[0] == list(runs)
    assert contents(interrupted) == ABC


@pytest.mark.parametrize(
    ("damage", "runs"),
    [
        (lambda partial: (partial / "b").write_text("2"), "bc"),
        (lambda partial: (partial / "a").unlink(), "abc"),
        (lambda partial: (partial / "a.step.json").write_text("{"), "abc"),
        (lambda partial: (partial / "b.step.json").unlink(), "bc"),
    ],
)
def test_what_is_not_whole_is_made_anew_and_what_comes_after_it(
    interrupted: Path, damage: Callable[[Path], Any], runs: str
) -> None:
    damage(interrupted.with_name(".out.partial"))
    assert export(interrupted, ABC)[0] == list(runs)
    assert contents(interrupted) == ABC


def test_a_step_runs_again_where_a_result_before_it_differs(interrupted: Path) -> None:
    interrupted.with_name(".out.partial").joinpath("a").unlink()
    assert export(interrupted, ABC | {"a": "9"})[0] == ["a", "b", "c"]
    assert contents(interrupted)["a"] == "9"


def test_files_of_steps_that_are_left_out_do_not_remain(interrupted: Path) -> None:
    assert export(interrupted, {"a": "1"})[0] == []
    assert contents(interrupted) == {"a": "1"}


def test_the_folder_is_replaced_at_the_end_only(tmp_path: Path) -> None:
    export(tmp_path / "out", {"a": "old"})
    with pytest.raises(BrokenStepError):
        export(tmp_path / "out", ABC, fails_in="b")
    assert contents(tmp_path / "out") == {"a": "old"}
    export(tmp_path / "out", ABC)
    assert contents(tmp_path / "out") == ABC
    assert {file.name for file in tmp_path.iterdir()} <= {"out", ".out.lock"}


def test_nothing_is_kept_where_nothing_is_complete(tmp_path: Path) -> None:
    with pytest.raises(BrokenStepError):
        export(tmp_path / "out", ABC, fails_in="a")
    assert {file.name for file in tmp_path.iterdir()} <= {".out.lock"}


def test_two_exports_into_one_folder_are_refused(tmp_path: Path) -> None:
    with working_folder(tmp_path / "out"), pytest.raises(BuildError, match=r"another export is writing .*out"):
        export(tmp_path / "out", ABC)
    assert export(tmp_path / "out", ABC)[0] == ["a", "b", "c"]
