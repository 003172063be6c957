"""[controls] of bundle.toml: the musical controls that a bundle offers, and what each is for prompts and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable

# The least and the greatest value of those that do not go from 0 to 1. false and true are 0 and 1, a scale is a key.
RANGES: Final[Mapping[str, tuple[float, float]]] = {"bpm": (60, 200), "temperature": (0, 3), "top_k": (1, 1000)}
TextOption = Literal["bpm", "key", "time_signature"]
Option = Literal[TextOption, "guidance", "velocity_scale", "momentum", "rescale", "ode_noise"]
TEXT_OPTIONS: Final = get_args(TextOption)
MAX_VALUES: Final = 200


class ControlSpec(TomlTable):
    """What one control does: it adds words to every prompt, or sets an option, or both.

    words: for equal parts of the control's range, from its least value to its greatest, what is added to prompts; "" is
    nothing, {value} the value. option: takes the value. range: what the least and the greatest value become there.
    values: those that a player is offered to choose from.
    """

    words: tuple[str, ...] = Field(default=(), max_length=100)
    option: Option | None = None
    range: tuple[float, float] | None = None
    values: tuple[str | int, ...] = Field(default=(), max_length=MAX_VALUES)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.words and self.option is None:
            raise ValueError("expected words or an option")
        if self.range is not None and self.option in (None, "key", "time_signature"):
            raise ValueError("range belongs to an option that is a number")
        if self.values and self.option not in ("key", "time_signature"):
            raise ValueError("values belong to the options key and time_signature")
        return self

    def added_words(self, name: str, value: Any) -> str:
        """What a value of the control `name` adds to prompts."""
        if not self.words:
            return ""
        part = 0 if name in ("scale", "meter") else min(int(_share(name, value) * len(self.words)), len(self.words) - 1)
        return self.words[part].replace("{value}", str(value))

    def option_value(self, name: str, value: Any) -> Any:
        """What a value of the control `name` is in its option."""
        if self.range is not None:
            low, high = self.range
            value = low + _share(name, value) * (high - low)
        return round(value) if self.option == "bpm" else value


class ControlsSpec(TomlTable):
    """Every control, and what it does; None: nothing."""

    bpm: ControlSpec | None = None
    scale: ControlSpec | None = None
    meter: ControlSpec | None = None
    density: ControlSpec | None = None
    brightness: ControlSpec | None = None
    mute_bass: ControlSpec | None = None
    mute_drums: ControlSpec | None = None
    only_bass_and_drums: ControlSpec | None = None
    temperature: ControlSpec | None = None
    top_k: ControlSpec | None = None

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        """A scale is a text, a meter one of a few numbers, all others are numbers of a range."""
        for name, spec in self.given.items():
            if spec.option is not None and (name == "scale") != (spec.option == "key"):
                raise ValueError(f"{name} cannot set {spec.option}: a scale sets key, all others set numbers")
            if spec.option is not None and (name == "meter") != (spec.option == "time_signature"):
                raise ValueError(f"{name} cannot set {spec.option}: a meter sets time_signature, no other control does")
        for name in ("scale", "meter"):
            if name in self.given and len(self.given[name].words) > 1:
                raise ValueError(f'{name} has one text, such as words = ["in {{value}}"]')
        return self

    @property
    def given(self) -> dict[str, ControlSpec]:
        """The controls that do something."""
        return {name: spec for name, spec in self if spec is not None}

    def heard(self, values: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
        """What values of controls are for the bundle: words that every prompt gets, and options.

        Every option that a control sets is there, None where the control has no value.
        """
        words: list[str] = []
        options: dict[str, Any] = {}
        for name, spec in self.given.items():
            value = values.get(name)
            if value is not None:
                words += filter(None, [spec.added_words(name, value)])
            if spec.option is not None:
                options[spec.option] = None if value is None else spec.option_value(name, value)
        return words, options


def _share(name: str, value: float) -> float:
    """Where in the range of the control `name` a value lies, 0 to 1."""
    low, high = RANGES.get(name, (0.0, 1.0))
    return min(max((value - low) / (high - low), 0.0), 1.0)
