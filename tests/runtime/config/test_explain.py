"""Validation errors as sentences of our own: keys, expectations, similar names, and what is not repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from runtime.base.errors import ConfigError
from runtime.config.explain import MAX_KEY_NAMES, explain, full_sentence, key_of, read_toml, validated


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    margin_frames: int = Field(default=1, ge=0, le=2**64 - 1)
    rate_hz: float = Field(default=1.0, gt=0, le=600.0, allow_inf_nan=False)
    name: str = Field(default="a", min_length=1, max_length=3, pattern="^[a-z]*$")


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner = Inner()
    items: tuple[Inner, ...] = Field(default=(Inner(),), min_length=1, max_length=2)
    either: tuple[float, ...] | str = ""
    target: Literal["cpu", "cuda"] = "cpu"
    flag: bool = False
    needed: int = 1

    @field_validator("needed")
    @classmethod
    def _is_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("is even")
        return value


def refused(values: dict[str, Any]) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    return caught.value


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"inner": {"margin_frame": 1}}, "inner.margin_frame: is not a known name; did you mean margin_frames?"),
        ({"iner": {}}, "iner: is not a known name; did you mean inner?"),
        ({"colour": 1}, "colour: is not a known name"),
        ({"items": []}, "items: expected at least 1 item(s) (found [])"),
        ({"items": [{}] * 3}, f"items: expected at most 2 items (found {[{}] * 3})"),
        ({"items": [{"margin_frames": -1}]}, "items.0.margin_frames: expected at least 0 (found -1)"),
        ({"items": [{}, {"margin_frames": -1}]}, "items.1.margin_frames: expected at least 0 (found -1)"),
        ({"inner": {"margin_frames": 2**64}}, f"inner.margin_frames: expected at most {2**64 - 1} (found {2**64})"),
        ({"inner": {"margin_frames": 1.5}}, "inner.margin_frames: expected an integer (found 1.5)"),
        ({"inner": {"rate_hz": "x"}}, "inner.rate_hz: expected a number (found 'x')"),
        ({"inner": {"rate_hz": 0}}, "inner.rate_hz: expected more than 0 (found 0)"),
        ({"inner": {"rate_hz": 601.5}}, "inner.rate_hz: expected at most 600 (found 601.5)"),
        ({"inner": {"rate_hz": float("inf")}}, "inner.rate_hz: expected a finite number (found inf)"),
        ({"inner": {"name": ""}}, "inner.name: expected at least 1 character(s) (found '')"),
        ({"inner": {"name": "abcd"}}, "inner.name: expected at most 3 characters (found 'abcd')"),
        ({"inner": {"name": "A"}}, "inner.name: expected text that matches ^[a-z]*$ (found 'A')"),
        ({"inner": 3}, "inner: expected a table of names and values (found 3)"),
        ({"either": 3}, "either: expected a list or a text (found 3)"),
        ({"target": "gpu"}, "target: expected 'cpu' or 'cuda' (found 'gpu')"),
        ({"flag": "maybe"}, "flag: expected true or false (found 'maybe')"),
        ({"needed": 2}, "needed: is even"),
        (
            {"needed": "x", "flag": "x"},
            "flag: expected true or false (found 'x'); needed: expected an integer (found 'x')",
        ),
    ],
)
def test_an_error_is_a_sentence_with_key_and_expectation(values: dict[str, Any], says: str) -> None:
    assert explain(refused(values), Outer) == says


def test_a_missing_value_is_named_by_its_key() -> None:
    class File(BaseModel):
        inner: Outer
        path: str

    with pytest.raises(ValidationError) as caught:
        File.model_validate({"inner": {}})
    assert explain(caught.value, File) == "path: is missing"


def test_no_more_than_a_few_keys_are_listed_and_secrets_are_not_repeated() -> None:
    error = refused({f"name_{index}": "secret" for index in range(20)})
    assert explain(error, Outer).endswith("name_7: is not a known name; and 12 more")
    hidden = explain(refused({"flag": "secret"}), Outer, with_values=False)
    assert hidden == "flag: expected true or false"


def test_one_error_has_a_sentence_and_a_key_without_alternatives_of_a_union() -> None:
    first = refused({"either": [1.0, "x"]}).errors()[0]
    assert (key_of(first, Outer), full_sentence(first, Outer)) == ("either", "expected a number")


def test_a_file_that_is_no_toml_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(ConfigError, match=r"a\.toml cannot be read"):
        read_toml(path)
    for content in (b"[a", b"\xff", b"a = " + b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"a\.toml is not TOML"):
            read_toml(path)
    path.write_text("a." * MAX_KEY_NAMES + "a = 1")
    with pytest.raises(ConfigError, match=rf"a\.toml has a key of {MAX_KEY_NAMES} names or more"):
        read_toml(path)
    path.write_text("flag = true")
    assert validated(Outer, read_toml(path), "a.toml").flag
    with pytest.raises(ConfigError, match=r"^a\.toml: flag: expected true or false"):
        validated(Outer, {"flag": 3}, "a.toml")
