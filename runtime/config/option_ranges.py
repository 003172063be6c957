"""[options] and [controls] of bundle.toml: the numbers that a model takes, and the musical controls that it offers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from runtime.base.errors import RequestError
from runtime.config.explain import TomlTable
from runtime.config.words import read_tempo

# Greater ones may be too great to be a float.
MAX_JUDGED: Final = 1e9
# Members of options that are objects: their schema's name, and the member. A bundle says their usual numbers alone.
MEMBERS: Final[Mapping[str, tuple[str, str]]] = {"dcw_low": ("DcwOptions", "low"), "dcw_high": ("DcwOptions", "high")}

# Options that act on guidance, and do nothing where it is 1.
GUIDANCE_OPTIONS: Final = frozenset(
    ("negative_prompt", "guidance_mode", "momentum", "rescale", "cfg_interval_start", "cfg_interval_end")
)


class NumberRange(TomlTable):
    """Numbers from `min` to `max`, both included; whole ones where `type` is integer. usual: the range of knobs.

    reason: why it is one number alone, min and max; no choice is offered then.
    """

    min: float
    max: float
    usual: tuple[float, float] | None = None
    type: Literal["float", "integer"] = "float"
    reason: str = ""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        low, high = self.usual or (self.min, self.max)
        if self.reason and self.min == self.max and self.usual is None:
            return self
        if self.reason:
            raise ValueError("a reason belongs to one number, min = max, without usual")
        if not self.min <= low < high <= self.max:
            raise ValueError("expected min < max, and usual = [LOW, HIGH] between them")
        return self

    def __str__(self) -> str:
        if self.reason:
            return f"{self.min:g} alone"
        return f"{'whole numbers from ' * (self.type == 'integer')}{self.min:g} to {self.max:g}"

    @property
    def ends(self) -> tuple[float, float]:
        """The least number and the greatest."""
        return self.min, self.max

    @property
    def usual_part(self) -> NumberRange:
        """The usual numbers, all where none are said to be."""
        low, high = self.usual or self.ends
        return self.model_copy(update={"min": low, "max": high})

    def outside(self, value: Any) -> float | None:
        """The first number that is not taken, of a curve's values, too.

        None for what is no number, not finite or beyond all ranges: the option table says so. A tempo may be a text.
        """
        for number in value if isinstance(value, list) else [read_tempo(value)]:
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and abs(number) <= MAX_JUDGED and self.nearest(number) != number:
                return float(number)
        return None

    def nearest(self, value: float) -> float:
        """The number that is taken in place of another one."""
        if self.type == "integer":
            return min(max(round(value), math.ceil(self.min)), math.floor(self.max))
        return min(max(value, self.min), self.max)

    def narrow(self, schema: dict[str, Any]) -> None:
        """Let the numbers of an option's JSON schema be these; `x-usual` is the range of knobs."""
        if schema.get("type") in ("number", "integer"):
            kind = "integer" if "integer" in (self.type, schema["type"]) else "number"
            schema.update(type=kind, minimum=self.min, maximum=self.max)
            schema.update({} if self.usual is None else {"x-usual": list(self.usual)})
        for branch in (*schema.get("anyOf", ()), *filter(None, [schema.get("items")])):
            self.narrow(branch)


def _numbers(low: float, high: float) -> Any:
    return Field(default=NumberRange(min=low, max=high))


class OptionRanges(TomlTable):
    """Every option that a bundle may narrow. The defaults are those of all models: the option table is bounded by them.

    What a bundle's table leaves out is as in these.
    """

    bpm: NumberRange = _numbers(30, 300)
    steps: NumberRange = _numbers(1, 200)
    shift: NumberRange = _numbers(0.01, 100)
    guidance: NumberRange = _numbers(0, 50)
    velocity_scale: NumberRange = _numbers(0, 4)
    momentum: NumberRange = _numbers(-1, 1)
    ode_noise: NumberRange = _numbers(0, 4)
    plan_temperature: NumberRange = _numbers(0, 2)
    plan_guidance: NumberRange = _numbers(1, 20)
    dcw_low: NumberRange = _numbers(-0.5, 0.5)
    dcw_high: NumberRange = _numbers(-0.5, 0.5)

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        known = {name: info.default.model_dump() for name, info in cls.model_fields.items()}
        return {name: known.get(name, {}) | item if isinstance(item, dict) else item for name, item in table.items()}

    @model_validator(mode="after")
    def _check_inside(self) -> Self:
        for name, found in self.narrowed.items():
            widest: NumberRange = type(self).model_fields[name].default
            if not widest.min <= found.min <= found.max <= widest.max:
                raise ValueError(f"{name} goes from {found.min:g} to {found.max:g}, expected {widest}, or less of it")
        for name in MEMBERS.keys() & self.model_fields_set:
            if getattr(self, name).ends != type(self).model_fields[name].default.ends:
                raise ValueError(f"{name} has no min and max of its own: expected usual = [LOW, HIGH] alone")
        return self

    @property
    def narrowed(self) -> dict[str, NumberRange]:
        """Those that the bundle's table names, members of options apart."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set - MEMBERS.keys())}

    @property
    def without_choice(self) -> frozenset[str]:
        """The options that are not offered: there is one number, or they act on guidance alone and there is none."""
        fixed = frozenset(name for name, found in self.narrowed.items() if found.reason)
        return fixed | (GUIDANCE_OPTIONS if "guidance" in fixed and self.guidance.min == 1.0 else frozenset())

    def check(self, values: Mapping[str, Any], field: str = "") -> None:
        """Raises RequestError, its field behind `field`, for the first number outside of what the bundle's table says.

        What else is wrong with a value is not looked for.
        """
        for name, found in self.narrowed.items():
            if (number := found.outside(values.get(name))) is not None:
                raise RequestError(
                    found_outside(name, found, number), field=f"{field}{name}", fix=f"give {found.nearest(number):g}"
                )

    def narrow(self, schema: Mapping[str, Any]) -> None:
        """Let a JSON schema of options say the bundle's ranges."""
        properties = schema["properties"]
        for name in self.narrowed.keys() & properties.keys():
            getattr(self, name).narrow(properties[name])
        for name in MEMBERS.keys() & self.model_fields_set:
            kind, member = MEMBERS[name]
            if kind in schema.get("$defs", {}):
                getattr(self, name).narrow(schema["$defs"][kind]["properties"][member])


def within(taken: NumberRange) -> Any:
    """What bounds a number of the option table."""
    return Field(ge=taken.min, le=taken.max)


def found_outside(name: str, taken: NumberRange, number: float) -> str:
    """What a number is refused with."""
    source = taken.reason or f"[options.{name}] of its bundle"
    return f"is {number:g}, this model takes {taken} ({source})"


ANY_MODEL: Final = OptionRanges()


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
