"""JSON with trtexec's fields, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.recorded_profiles import FOLDER, RUNS, VERSIONS, recorded, recorded_rows

from profiling.layers.roofline import Ceilings
from profiling.layers.timings import LayerTiming, Profile, Wall
from profiling.output import write_json
from profiling.reports.trtexec_json import (
    EXTRA_KEY,
    ROUND_SAMPLES,
    layer_info,
    profile_records,
    read_records,
    stored_rounds,
)
from runtime.base.errors import ConfigError

FIELDS = ["name", "timeMs", "averageMs", "medianMs", "percentage"]


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_have_trtexec_fields(version: str, tmp_path: Path) -> None:
    head, *rows = profile_records(recorded(version, tmp_path))
    _, *expected = recorded_rows(version)
    assert head["count"] == RUNS
    # Readers tell rows by their number of fields: four or five.
    assert all(list(row) == FIELDS for row in rows)
    assert len(head) not in (4, 5)
    for row, wanted in zip(rows, expected, strict=True):
        assert row["name"] == wanted["name"]
        assert row["timeMs"] == pytest.approx(wanted["timeMs"], abs=1e-5)
        assert row["percentage"] == pytest.approx(wanted["percentage"], abs=1e-3)


@pytest.mark.parametrize("version", VERSIONS)
def test_layer_info_keeps_tensorrt_records(version: str, tmp_path: Path) -> None:
    info = layer_info(recorded(version, tmp_path))
    theirs = json.loads((FOLDER / f"layers_{version}.json").read_text())
    assert info["Layers"] == theirs["Layers"]
    assert set(info) == set(theirs)
    inputs = {"10": ["x"], "11": [{"Name": "x", "IOMode": "Input", "Dimensions": [2, 8, 16]}]}
    assert info["Bindings" if version == "10" else "I/O Tensors"] == inputs[version]


def test_layer_info_of_onnxruntime_has_the_same_fields() -> None:
    facts = {
        "provider": "CPUExecutionProvider",
        "input_type_shape": [{"float": [2, 4]}],
        "output_type_shape": [{"float": [2]}],
    }
    layer = LayerTiming("sum", "ReduceSum", "reduction", (1.0,), 1.0, nodes=("a", "b"), facts=facts)
    (record,) = layer_info(Profile("e", 1, (layer,), Wall((1.0,))))["Layers"]
    assert (record["Name"], record["LayerType"], record["TacticName"]) == ("sum", "ReduceSum", "CPUExecutionProvider")
    assert record["Inputs"] == [{"Name": "sum:in0", "Dimensions": [2, 4], "Format/Datatype": "float"}]
    assert record["Metadata"] == "[ONNX Layer: a]\x1e[ONNX Layer: b]"


def test_extra_properties_are_read_back(tmp_path: Path) -> None:
    profile = recorded("11", tmp_path, Ceilings(1e11, 1e12, "given"))
    write_json(tmp_path / "p.json", profile_records(profile))
    count, extras, rows = read_records(tmp_path / "p.json")
    assert (count, len(rows)) == (RUNS, len(profile.layers))
    assert [row["kind"] for row in extras["layers"]] == [layer.kind for layer in profile.layers]
    assert [row["module"] for row in extras["layers"]] == [layer.module for layer in profile.layers]
    assert extras["wall_p50_ms"] == profile.wall.p50_ms
    assert extras["layer_sum_p50_ms"] + extras["gap_ms"] == pytest.approx(extras["wall_p50_ms"])
    assert any(row["bound"] == "compute" for row in extras["layers"])


def test_times_of_rounds_are_stored_and_bounded(tmp_path: Path) -> None:
    assert stored_rounds((1.0, 2.0, 3.0), (2, 1)) == [[1.0, 2.0], [3.0]]
    assert stored_rounds((1.0,), ()) == []
    profile = replace(recorded("10", tmp_path), rounds=(RUNS,))
    stored = profile_records(profile)[0][EXTRA_KEY]["layers"][0]["rounds_ms"]
    assert [len(times) for times in stored] == [ROUND_SAMPLES]


def test_trtexec_files_have_no_extra_properties() -> None:
    count, extras, rows = read_records(FOLDER / "profile_10.json")
    assert (count, extras) == (RUNS, {})
    assert all("averageMs" in row for row in rows)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[1]", "[" * 100_000, '[{"count": "x"}]', '[{"x": 1}]', '[{"count": 1}, {"averageMs": "x"}]'],
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"is not a profile[\s\S]*fix: tickrt-profile"):
        read_records(path)


@pytest.mark.parametrize("change", [{"schema": 2}, {"layers": []}])
def test_another_schema_or_a_truncated_profile_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    records = profile_records(recorded("10", tmp_path))
    records[0][EXTRA_KEY] |= change
    write_json(tmp_path / "p.json", records)
    with pytest.raises(ConfigError, match=r"is not a profile[\s\S]*schema"):
        read_records(tmp_path / "p.json")


def test_extra_properties_are_in_the_first_record_only(tmp_path: Path) -> None:
    head = profile_records(recorded("10", tmp_path))[0]
    assert set(head) == {"count", EXTRA_KEY}
