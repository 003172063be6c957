"""Reports of checks: limits decide, one failing check leaves the others, and nothing of the machine is told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from engine_build.export.check_report import (
    Check,
    CheckFigure,
    CheckReport,
    answered,
    measured,
    skipped,
    this_machine,
    versions_of,
    without_paths,
)
from runtime.base.errors import ConfigError


@pytest.mark.parametrize(
    ("figure", "limits", "result"),
    [
        (1e-4, {"at_most": 1e-3}, "pass"),
        (1e-3, {"at_most": 1e-3}, "pass"),
        (2e-3, {"at_most": 1e-3}, "fail"),
        (math.nan, {"at_most": 1e-3}, "fail"),
        (math.nan, {}, "fail"),
        (5.0, {}, "pass"),
        (0.4, {"at_least": 0.5, "at_most": 2.0}, "fail"),
        (1.0, {"at_least": 0.5, "at_most": 2.0}, "pass"),
        (-70.0, {"at_least": -60.0}, "fail"),
    ],
)
def test_a_figure_passes_within_its_limits(figure: float, limits: dict[str, float], result: str) -> None:
    assert measured("it", figure, **limits).result == result


def report(*checks: Check) -> CheckReport:
    figures = [CheckFigure("a generation", 1.2345, "s"), CheckFigure("nothing", math.inf)]
    return CheckReport("a family", {"decoder": "2 layers"}, this_machine("cpu"), versions_of("cpu"), checks, figures)


def test_a_report_says_each_check_with_its_limit() -> None:
    found = report(
        measured("latents", 1.25e-5, at_most=1e-3, detail="of two"),
        measured("level", -3.5, at_least=-3.0, at_most=3.0, unit="dB"),
        skipped("text", "no | tokenizer"),
    )
    lines = found.markdown().splitlines()
    assert lines[0] == "# TickRT: a check of a family"
    assert "3 checks: 1 passed, 1 failed, 1 skipped." in lines
    assert "| latents | 1.25e-05 | at most 0.001 | pass | of two |" in lines
    assert "| level | -3.5 dB | at least -3 dB, at most 3 dB | fail |  |" in lines
    assert "| text |  |  | skipped | no \\| tokenizer |" in lines
    assert "| a generation | 1.23 s |" in lines
    assert any(line.startswith("| numpy | ") for line in lines)


def test_a_report_is_json_with_the_same_content() -> None:
    found = report(measured("latents", math.nan, at_most=1e-3))
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (content["report"], content["schema_version"], content["family"]) == ("tickrt-check", 1, "a family")
    assert content["counts"] == {"pass": 0, "fail": 1, "skipped": 0}
    (check,) = content["checks"]
    assert (check["name"], check["result"], check["figure"], check["at_most"]) == ("latents", "fail", None, 1e-3)
    assert content["figures"][0] == {"name": "a generation", "figure": 1.2345, "unit": "s"}
    assert content["machine"]["cores"].isdigit()
    assert {"python", "tickrt", "onnxruntime"} <= content["versions"].keys()


def test_a_check_that_cannot_run_fails_and_names_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "Jane Doe" / "weights"

    def ask() -> Check:
        raise ConfigError(f"{folder}/vae/config.json is missing", fix="copy it")

    found = answered("codec", ask, [folder])
    assert (found.name, found.result, found.figure) == ("codec", "fail", None)
    assert found.detail == "it did not run: ... is missing"


@pytest.mark.parametrize(
    "text",
    [
        "/home/jane/model.safetensors is cut off",
        "cannot open 'models/jane/vae'",
        r"C:\Users\jane\model.onnx failed",
        "~/jane: no such file",
        f"{Path.home()} is full",
    ],
)
def test_paths_are_left_out(text: str) -> None:
    found = without_paths(text)
    assert "jane" not in found
    assert str(Path.home()) not in found
    assert "..." in found


def test_sentences_without_paths_stay() -> None:
    text = "the vae has 8 channels, expected 64: export a transformer and a vae that belong together"
    assert without_paths(text) == text
