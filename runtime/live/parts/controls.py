"""The controls of a live session: one model of all of them, drawn from the options of a generation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from runtime.base.errors import RequestError
from runtime.live.protocol.actions import CheckedControls, LiveModel
from runtime.live.protocol.messages import MAX_LOOP_BARS, LivePrompt
from runtime.requests.option_types import AdapterOptions, DcwOptions, Share
from runtime.requests.options import (
    COVER_DENOISE,
    NEEDS_SOURCE,
    NEEDS_SOURCE_OR_STRUCTURE,
    NOTE_OPTIONS,
    PLAN_OPTIONS,
    GenerationOptions,
    StepOptions,
    options_error,
)
from runtime.requests.request import NEUTRAL

# Options that are no controls: prompts and notes have messages of their own, a session has no length, a mask says more
# than repaint, steps and shift are controls, a session's structure is a source, nothing of it is planned, and the level
# of live audio is the model's.
_LENGTH = ("seconds", "ending", "finish")
EXCLUDED = ("prompt", "blend", "repaint", "timesteps", "codes", *_LENGTH, *NOTE_OPTIONS, *PLAN_OPTIONS)
STEP_CONTROLS = tuple(StepOptions.model_fields)
MAX_WEIGHT = 10.0


class _LiveOnly(BaseModel):
    """Controls that a single generation does not have."""

    variation: Share = Field(
        default=0.0, description="In a loop: how much new noise each pass mixes in; 0 repeats the canvas as it is."
    )
    loop_bars: Annotated[int, Field(ge=0, le=MAX_LOOP_BARS)] | None = Field(
        default=None,
        description="In a loop: its length in bars, as many as fit, where bpm or a prompt gives a tempo; 0: the whole "
        "canvas. Default: the number that fits the canvas best; without a tempo the whole canvas.",
    )
    loop_mode: Literal["circular", "plain"] | None = Field(
        default="circular",
        description="In a loop: circular generates it as a circle, whose end leads into its beginning; plain as a "
        "piece that begins and ends.",
    )


def _control(info: FieldInfo, kind: Literal["step", "generation"]) -> tuple[Any, FieldInfo]:
    marked = copy(info)
    extra = info.json_schema_extra
    marked.json_schema_extra = {**(extra if isinstance(extra, dict) else {}), "x-kind": kind}
    return info.annotation, marked


def _control_fields() -> dict[str, Any]:
    fields = {**GenerationOptions.model_fields, **_LiveOnly.model_fields}
    return {
        name: _control(info, "step" if name in STEP_CONTROLS else "generation")
        for name, info in fields.items()
        if name not in EXCLUDED
    }


LIVE_ONLY = frozenset(_LiveOnly.model_fields)
LiveControls = create_model(
    "LiveControls",
    __base__=StepOptions,
    __doc__="Everything that a client may change while its session plays. `x-kind`: step controls reach generations in "
    "flight with the next tick, generation controls make a new one. null: the default.",
    **_control_fields(),
)
CONTROL_NAMES = tuple(LiveControls.model_fields)


def _names_with(mark: JsonDict) -> frozenset[str]:
    extras = {name: info.json_schema_extra or {} for name, info in LiveControls.model_fields.items()}
    return frozenset(name for name, extra in extras.items() if not callable(extra) and mark.items() <= extra.items())


NEEDS_SOURCE_NAMES = _names_with(NEEDS_SOURCE)
# Of these, those that a structure is enough for.
STRUCTURE_NAMES = _names_with(NEEDS_SOURCE_OR_STRUCTURE)
# What a step control is when it is not set; a model's own defaults come over these.
STEP_DEFAULTS: dict[str, Any] = {name: getattr(NEUTRAL, name) for name in STEP_CONTROLS} | {
    "sde_curve": 1.0,
    "dcw": DcwOptions(),
    "adapters": [],
}


def default_values(model: LiveModel) -> dict[str, Any]:
    """Name -> the value in force where a control is not set, for all that the model takes."""
    declared = {name: info.default for name, info in LiveControls.model_fields.items()}
    values = {**declared, **STEP_DEFAULTS, "denoise": COVER_DENOISE, **model.defaults}
    return {name: value for name, value in values.items() if name not in model.untaken}


def controls_schema(model: LiveModel) -> dict[str, Any]:
    """JSON schema of the controls, with the model's defaults."""
    schema: dict[str, Any] = json.loads(_schema_text())
    for name, default in plain_values(default_values(model)).items():
        schema["properties"][name]["default"] = default
    model.ranges.narrow(schema)
    for branch in schema["properties"]["solver"]["anyOf"]:
        branch.update({"enum": list(model.solvers)} if "enum" in branch else {})
    for name in model.untaken | model.ranges.without_choice:
        schema["properties"].pop(name, None)  # not all options are controls
    return schema


@cache
def _schema_text() -> str:
    """Making a schema takes as long as decoding seconds of audio."""
    return json.dumps(LiveControls.model_json_schema())


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of controls as JSON."""
    return {name: plain_value(value) for name, value in values.items()}


def plain_value(value: Any) -> Any:
    """A control's value as JSON."""
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return [item.model_dump() for item in value]
    return value.model_dump() if isinstance(value, BaseModel) else value


def check_controls(
    values: Mapping[str, Any], model: LiveModel, field: str = "values", others: Mapping[str, Any] = {}
) -> CheckedControls:
    """A patch's values, checked; None stays None. Raises RequestError that names the member, as in values.guidance.

    others: what holds beside them, by name.
    """
    model.ranges.check(values, f"{field}.")
    try:
        parsed = LiveControls.model_validate(
            {name: value for name, value in values.items() if value is not None or name not in CONTROL_NAMES}
        )
    except ValidationError as error:
        raise _under(options_error(error, LiveControls), field) from None
    checked = {name: None if value is None else getattr(parsed, name) for name, value in values.items()}
    for name in model.untaken & checked.keys():
        raise RequestError("the bundle makes nothing of it", field=f"{field}.{name}", fix="leave it out")
    if (adapters := checked.get("adapters")) is not None:
        _check_adapters(adapters, model, field)
    _check_channel_gain(checked.get("channel_gain"), model, field)
    _check_interval({**others, **checked}, field)
    if checked.get("negative_prompt") and not model.has_text:
        raise RequestError("the bundle takes no text", field=f"{field}.negative_prompt", fix="leave it empty")
    return CheckedControls(checked)


def _under(error: RequestError, field: str) -> RequestError:
    return error.renamed(f"{field}.{error.field}")


def prompt_weights(prompts: Sequence[LivePrompt], model: LiveModel, field: str) -> dict[str, float]:
    """Text -> weight of prompts; equal texts become one. Raises RequestError where the model takes no text."""
    weights: dict[str, float] = {}
    for index, item in enumerate(prompts):
        if item.text and not model.has_text:
            raise RequestError("the bundle takes no text", field=f"{field}.{index}.text", fix="leave the prompts out")
        weights[item.text] = min(weights.get(item.text, 0.0) + item.weight, MAX_WEIGHT)
    return weights


def _check_adapters(adapters: list[AdapterOptions], model: LiveModel, field: str) -> None:
    try:
        model.catalog().uses({item.id: item.strength for item in adapters})
    except RequestError as error:
        raise _under(error, field) from None


def _check_interval(values: Mapping[str, Any], field: str) -> None:
    start, end = values.get("cfg_interval_start"), values.get("cfg_interval_end")
    if start is not None and end is not None and start > end:
        raise RequestError("needs cfg_interval_start <= cfg_interval_end", field=field, fix="set both")


def _check_channel_gain(gain: Any, model: LiveModel, field: str) -> None:
    rows = gain if isinstance(gain, list) and isinstance(gain[0], list) else [gain]
    for row in rows:
        if isinstance(row, list) and len(row) != model.latent_channels:
            raise RequestError(
                f"has {len(row)} channels, latents have {model.latent_channels}", field=f"{field}.channel_gain"
            )
