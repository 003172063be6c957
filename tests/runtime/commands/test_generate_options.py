"""Flags are drawn from the options' model: names, descriptions, types; their texts become plain values."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from runtime.base.errors import FileError, RequestError
from runtime.commands.generate import app
from runtime.commands.generate_options import file_values, flag_values, merged, named_as_flags, option_flags
from runtime.requests.option_types import DcwOptions
from runtime.requests.options import GenerationOptions


def test_every_option_is_a_flag_with_its_description() -> None:
    result = CliRunner().invoke(app, ["--help"], terminal_width=200)
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for name, field in GenerationOptions.model_fields.items():
        assert f"--{'dcw-low' if name == 'dcw' else name.replace('_', '-')}" in text
        if name not in ("prompt", "repaint", "dcw"):
            assert field.description is not None
            assert field.description.split(".")[0].split("; ")[0] in text


def test_flags_are_the_options_and_the_dcw_parameters() -> None:
    options = set(GenerationOptions.model_fields) - {"prompt", "repaint", "dcw", "adapters", "notes"}
    assert {flag.name for flag in option_flags()} == options | {f"dcw_{name}" for name in DcwOptions.model_fields}


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("steps", "3", 3),
        ("guidance", "2.5", 2.5),
        ("guidance", "1,2,3", [1, 2, 3]),
        ("guidance", ".5", 0.5),
        ("guidance", "1., +2,-.5,1e-2", [1.0, 2, -0.5, 0.01]),
        ("seconds", "+4", 4),
        ("seconds", " 1.", 1.0),
        ("channel_gain", "[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("negative_prompt", "12", "12"),
        ("negative_prompt", "@file", "@file"),
        ("solver", "sde", "sde"),
        ("lyrics", "[verse]\n12", "[verse]\n12"),
        ("bpm", "92", 92),
        ("time_signature", "3", 3),
        ("task", "lego", "lego"),
        ("track_classes", "drums, backing vocals", "drums, backing vocals"),
    ],
)
def test_a_flag_is_text_or_json_by_the_type_of_its_option(flag: str, text: str, value: Any) -> None:
    assert flag_values([], [], {flag: text, "shift": None}) == {flag: value}


@pytest.mark.parametrize(("flag", "value"), [("--finish", True), ("--no-finish", False)])
def test_an_option_that_is_true_or_false_is_a_pair_of_flags(flag: str, value: bool) -> None:
    (option,) = (item for item in option_flags() if item.name == "finish")
    app = typer.Typer()

    def command(**flags: Any) -> None:
        typer.echo(flag_values([], [], flags))

    command.__signature__ = inspect.Signature([option])  # type: ignore[attr-defined]
    app.command()(command)
    assert CliRunner().invoke(app, [flag]).output == f"{ {'finish': value} }\n"
    assert CliRunner().invoke(app, []).output == "{}\n"


@pytest.mark.parametrize(
    ("prompts", "value"),
    [
        (["a"], "a"),
        (["a::2"], [{"text": "a", "weight": 2}]),
        (["a::0,1", "b"], [{"text": "a", "weight": [0, 1]}, {"text": "b"}]),
    ],
)
def test_prompts_are_a_text_or_weighted_texts(prompts: list[str], value: Any) -> None:
    assert flag_values(prompts, [], {}) == {"prompt": value}


def test_repaints_and_adapters_are_texts_that_the_options_read() -> None:
    found = flag_values([], ["0.5:1", "2:3"], {}, ["soft", "hard:.5"])
    assert found == {"repaint": ["0.5:1", "2:3"], "adapters": ["soft", "hard:.5"]}


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "nested.json").write_text('{"a":' * 100_000)
    with pytest.raises(RequestError, match="contains list, expected an object"):
        file_values(tmp_path / "list.json")
    with pytest.raises(RequestError, match="is not JSON"):
        file_values(tmp_path / "damaged.json")
    with pytest.raises(RequestError, match="is not JSON: recursion limit"):
        file_values(tmp_path / "nested.json")
    with pytest.raises(FileError, match=r"none\.json cannot be read"):
        file_values(tmp_path / "none.json")


def test_changes_of_an_object_keep_its_other_members() -> None:
    values = {"steps": 8, "dcw": {"mode": "low", "low": 0.1}, "guidance": 2}
    assert merged(values, {"dcw": {"low": 0.2}, "guidance": [1, 2]}) == {
        "steps": 8, "dcw": {"mode": "low", "low": 0.2}, "guidance": [1, 2],
    }  # fmt: skip
    assert merged({}, {"dcw": {"low": 0.2}}) == {"dcw": {"low": 0.2}}
    assert values["dcw"] == {"mode": "low", "low": 0.1}


@pytest.mark.parametrize(
    ("flag", "text", "says"),
    [
        ("steps", "many", "an integer from 1 to 200, got 'many'"),
        ("seconds", "abc", "a number from 0.1 to 600, got 'abc'"),
        ("seconds", "1,2", "a number from 0.1 to 600, got '1,2'"),
        ("guidance", "1;2", "a number from 0 to 50, numbers over time such as 1,2,1, or @FILE, got '1;2'"),
        ("dcw_low", "nan", "a number from -0.5 to 0.5, numbers over time such as 1,2,1, or @FILE, got 'nan'"),
        ("steps", "1_0", "an integer from 1 to 200, got '1_0'"),
    ],
)
def test_the_hint_of_a_refused_value_follows_the_type_of_its_option(flag: str, text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        flag_values([], [], {flag: text})
    assert (caught.value.field, caught.value.what) == (flag, f"{flag}: expected {says}")


@pytest.mark.parametrize("text", ["drums::x", "drums::", "drums::0.5.", "a::b::c"])
def test_a_prompt_with_something_else_than_a_weight_after_two_colons_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="prompt: expected TEXT::WEIGHT"):
        flag_values([text], [], {})


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("prompt", "--prompt"),
        ("prompt.1.text", "--prompt"),
        ("repaint.0", "--repaint"),
        ("dcw.low", "--dcw-low"),
        ("dcw", "dcw"),
        ("target", "--target-source"),
        ("source", "--source"),
        ("colour", "colour"),
        ("", ""),
    ],
)
def test_errors_name_the_flag(field: str, shown: str) -> None:
    with pytest.raises(RequestError) as caught, named_as_flags():
        raise RequestError("is missing", field=field)
    assert caught.value.field == shown
    assert caught.value.fix == (f"give {shown}" if shown.startswith("--") else "")
