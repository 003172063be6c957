"""[options]: what a bundle takes of options that are numbers; what is refused when it is loaded, and of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_bundle
from helpers.paths import ROOT

from runtime.base.errors import ConfigError, RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.option_ranges import ANY_MODEL, GUIDANCE_OPTIONS, MEMBERS, NumberRange, OptionRanges
from runtime.requests.options import GenerationOptions, parse_options


def loaded(folder: Path, options: str, more: str = "") -> Bundle:
    path = tiny_bundle(folder, conditions=True) / "bundle.toml"
    path.write_text(f"{path.read_text()}\n[options]\n{options}\n{more}", encoding="utf-8")
    return load_bundle(folder)


def test_the_demo_takes_the_tempos_that_it_was_trained_on() -> None:
    options = load_bundle(ROOT / "configs" / "demo").options
    whole = {name: found.ends for name, found in options.narrowed.items() if found.usual is None}
    assert whole == {"bpm": (60, 180)}
    assert all(found.ends == getattr(ANY_MODEL, name).ends for name, found in options.narrowed.items() if found.usual)


def test_what_a_table_leaves_out_is_as_for_any_model(tmp_path: Path) -> None:
    ranges = loaded(tmp_path, "bpm = { max = 180 }\nsteps = { min = 2 }\nguidance = { usual = [1, 9] }").options
    assert (ranges.bpm.ends, ranges.steps.ends, ranges.guidance.ends) == ((30, 180), (2, 200), (0, 50))
    assert list(ranges.narrowed) == ["bpm", "guidance", "steps"]
    assert ranges.shift == ANY_MODEL.shift


RANGES = OptionRanges.model_validate({"bpm": {"min": 60, "max": 180}, "guidance": {"max": 8}, "steps": {"max": 20}})
WHOLE = OptionRanges.model_validate({"bpm": {"type": "integer"}})


@pytest.mark.parametrize(
    ("ranges", "values", "message", "fix"),
    [
        (RANGES, {"bpm": 300}, "bpm: is 300, this model takes 60 to 180 ([options.bpm] of its bundle)", "give 180"),
        (RANGES, {"bpm": 59.99}, "bpm: is 59.99, this model takes 60 to 180", "give 60"),
        (RANGES, {"bpm": 1e9}, "bpm: is 1e+09, this model takes 60 to 180", "give 180"),
        (RANGES, {"guidance": [2.0, 9.0]}, "guidance: is 9, this model takes 0 to 8", "give 8"),
        (RANGES, {"steps": 21}, "steps: is 21, this model takes 1 to 20", "give 20"),
        (WHOLE, {"bpm": 93.5}, "bpm: is 93.5, this model takes whole numbers from 30 to 300", "give 94"),
    ],
)
def test_a_number_outside_is_refused_with_what_is_taken(
    ranges: OptionRanges, values: dict[str, Any], message: str, fix: str
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_options({"prompt": "", **values}, ranges)
    assert str(caught.value).startswith(message)
    assert caught.value.fix == fix


def test_a_number_inside_is_taken_as_it_is() -> None:
    for values in ({"bpm": 60}, {"bpm": 93.5}, {"bpm": 180, "guidance": [0, 8], "steps": 20}, {"shift": 100.0}):
        assert parse_options({"prompt": "", **values}, RANGES).model_dump(include=set(values)) == values
    assert parse_options({"prompt": "", "bpm": 93.0}, WHOLE).bpm == 93


def test_the_nearest_whole_number_is_inside_as_well() -> None:
    taken = NumberRange(min=60.4, max=180.5, type="integer")
    assert [taken.nearest(value) for value in (1, 60.4, 93.6, 200, 1e30)] == [61, 61, 94, 180, 180]
    assert taken.outside([61, 180]) is None


@pytest.mark.parametrize("ranges", [RANGES, WHOLE])
@pytest.mark.parametrize("value", ["fast", True, [90], {"bpm": 1}, float("nan"), float("inf"), 10**400, -1e300])
def test_what_no_model_takes_is_left_to_the_option_table(ranges: OptionRanges, value: Any) -> None:
    with pytest.raises(RequestError, match=r"bpm: expected (a|a finite) number|bpm: expected at (most 300|least 30)"):
        parse_options({"prompt": "", "bpm": value}, ranges)


def test_the_option_table_is_bounded_by_the_ranges_of_any_model() -> None:
    """So a bundle cannot widen what the table takes, and no bound is written twice."""
    schema = GenerationOptions.model_json_schema()
    for name, taken in ANY_MODEL:
        kind, member = MEMBERS.get(name, ("", name))
        properties = schema["$defs"][kind]["properties"] if kind else schema["properties"]
        number = properties[member]["anyOf"][0]
        assert (number["minimum"], number["maximum"]) == taken.ends, name


def test_what_any_model_takes() -> None:
    """Clients send these: a narrower range refuses what was taken, a wider one has to be one that models can play."""
    assert {name: taken.ends for name, taken in ANY_MODEL} == {
        "bpm": (30, 300), "steps": (1, 200), "shift": (0.01, 100), "guidance": (0, 50), "velocity_scale": (0, 4),
        "momentum": (-1, 1), "ode_noise": (0, 4), "plan_temperature": (0, 2), "plan_guidance": (1, 20),
        "dcw_low": (-0.5, 0.5), "dcw_high": (-0.5, 0.5),
    }  # fmt: skip


def test_a_schema_says_the_bundles_range_of_numbers_and_of_curves() -> None:
    schema = GenerationOptions.model_json_schema()
    properties = schema["properties"]
    OptionRanges.model_validate(
        {
            "bpm": {"min": 60, "type": "integer", "usual": [70, 160]},
            "guidance": {"max": 8},
            "dcw_low": {"usual": [0, 0.02]},
        }
    ).narrow(schema)
    members = schema["$defs"]["DcwOptions"]["properties"]
    assert members["low"]["anyOf"][0]["x-usual"] == [0, 0.02]
    assert "x-usual" not in members["high"]["anyOf"][0]
    assert properties["bpm"]["anyOf"][0] == {
        "type": "integer", "minimum": 60, "maximum": 300, "x-usual": [70, 160]
    }  # fmt: skip
    number, curve, null = properties["guidance"]["anyOf"]
    assert (number["maximum"], curve["items"]["maximum"], null) == (8, 8, {"type": "null"})
    assert properties["steps"]["anyOf"][0]["maximum"] == 200


def test_an_option_of_one_number_is_refused_with_the_reason_and_not_offered(tmp_path: Path) -> None:
    options = loaded(tmp_path, 'ode_noise = { min = 0, max = 0, reason = "it draws none" }').options
    assert options.without_choice == {"ode_noise"}
    options.check({"ode_noise": 0.0})
    with pytest.raises(RequestError, match=r"is 0.5, this model takes 0 alone \(it draws none\)") as error:
        options.check({"ode_noise": [0.0, 0.5]})
    assert (error.value.field, error.value.fix) == ("ode_noise", "give 0")


def test_a_samplers_reason_and_a_table_of_the_same_option_exclude_each_other(tmp_path: Path) -> None:
    sampler = 'schedule = { kind = "logsnr", start = -6.0, end = 2.0 }\nguidance_reason = "distilled"'
    path = tiny_bundle(tmp_path, guidance=1.0, sampler=sampler) / "bundle.toml"
    options = load_bundle(tmp_path).options
    assert (options.guidance.ends, options.shift.ends) == ((1, 1), (1, 1))
    assert options.without_choice == {"guidance", "shift", *GUIDANCE_OPTIONS}
    path.write_text(f"{path.read_text()}\n[options]\nguidance = {{ max = 9 }}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"options.guidance is left out: \[sampler\] says which one is taken"):
        load_bundle(tmp_path)
