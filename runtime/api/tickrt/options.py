"""The options of a generation as types: the fields of GenerationOptions, for type checkers and editors."""

from collections.abc import Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.config.conditions import Task
from runtime.config.words import read_adapters
from runtime.music.score import Note
from runtime.requests.options import GenerationOptions
from tickrt.audio import Audio

Curve = float | Sequence[float] | NDArray[np.floating[Any]]
Source = str | Path | Audio | NDArray[np.floating[Any]]
Documented = TypeVar("Documented")


class WeightedPrompt(TypedDict, total=False):
    """One of several prompts."""

    text: Required[str]
    weight: Curve
    start: float
    end: float


class NoteOptions(TypedDict, total=False):
    """A note to play, in seconds."""

    layer: str | None
    pitch: Required[int]
    start_s: Required[float]
    seconds: Required[float]
    velocity: int


class Span(TypedDict):
    """A part of the generation, in seconds."""

    start_s: float
    end_s: float


class DcwOptions(TypedDict, total=False):
    """Wavelet-domain correction."""

    mode: Literal["low", "high", "double", "pix"]
    low: Curve
    high: Curve


class AdapterOptions(TypedDict, total=False):
    """One LoRA adapter."""

    id: Required[str]
    strength: float


# A text, or several with weights: ("calm pads", 0.7).
Prompt = str | Sequence[WeightedPrompt | tuple[str, Curve]]
# One id, as "soft" or "soft:0.7", strengths by id, or a list of either kind.
Adapters = str | Mapping[str, float] | Sequence[str | AdapterOptions]
# Notes as Audio.notes has them, objects, or the path of a MIDI or JSON file.
Notes = str | Path | Sequence[Note | NoteOptions]
Blend = Literal["velocity", "tokens"]
# Seconds of the session, its next bar, or a later one: {"bars": 2}.
At = float | Literal["bar"] | Mapping[str, int] | None


class _Common(TypedDict, total=False):
    negative_prompt: str
    lyrics: str
    language: str
    bpm: float | str | None
    key: str | None
    time_signature: Literal[2, 3, 4, 6] | str | None
    instruction: str | None
    task: Task | None
    track: str | None
    track_classes: str | Sequence[str] | None
    timbre_strength: Curve | None
    seed: int | None
    steps: int | None
    shift: float | None
    denoise: float | None
    guidance: Curve | None
    guidance_mode: Literal["full", "alternate", "self", "initialize"] | None
    momentum: Curve | None
    rescale: Curve | None
    velocity_scale: Curve | None
    solver: Literal["ode", "sde", "ab2", "jump"] | None
    sde_curve: Curve | None
    ode_noise: Curve | None
    initial_noise_curve: Curve | None
    mask: Curve | None
    target_curve: Curve | None
    target_gate: float
    structure_strength: Curve | None
    cover_strength: Curve | None
    x0_strength: Curve | None
    channel_gain: Curve | Sequence[Sequence[float]] | None
    dcw: DcwOptions | None
    adapters: Adapters | None
    cfg_interval_start: float | None
    cfg_interval_end: float | None
    noise: Literal["tickrt", "torch"]


class Options(_Common, total=False):
    """Options besides the prompt. A curve is a number, or a list or array that is stretched over the generation."""

    blend: Blend
    seconds: float | None
    repaint: str | Sequence[str] | Sequence[Span] | None
    codes: str | Sequence[int] | None
    notes_strength: Curve | None
    notes_exact: bool
    timesteps: Sequence[float] | NDArray[np.floating[Any]] | None
    plan: bool | None
    plan_temperature: float | None
    plan_guidance: float | None
    plan_top_p: float | None
    ending: Literal["auto", "ring", "fade", "cut"]
    finish: bool


class Controls(_Common, total=False):
    """The controls of a live session. A curve is a number, or a list or array that is stretched over the canvas."""

    variation: float
    loop_bars: int | None
    loop_mode: Literal["circular", "plain"] | None


class Arguments(Options, total=False):
    """Options and inputs: what Model.generate() takes besides the prompt."""

    source: Source | None
    target_source: Source | None
    timbre: Source | None
    structure: Source | None
    notes: Notes | None
    condition: NDArray[np.float32] | None
    sample_rate_hz: int | None


class Generation(Arguments, total=False):
    """One item of Model.generate_many()."""

    prompt: Prompt


INPUTS = {
    "source": "What a cover, a repaint or a continuation starts from: the path of an audio or latents file, an Audio, "
    "or float PCM [n, channels].",
    "target_source": "What x0_strength and target_curve draw to, in the same forms. Default: the source.",
    "timbre": "A reference whose timbre the generation takes, in the same forms. Default: that of silence.",
    "structure": "What a cover keeps melody and rhythm of, in the same forms. Default: the source.",
    "notes": "Notes to play, as Audio.notes has them, as objects, or the path of a MIDI or JSON file.",
    "condition": "Tokens [L, D], float32, in place of the prompt.",
    "sample_rate_hz": "Samples per second of PCM that is given as a source. Default: the model's.",
}


def documented(item: Documented) -> Documented:
    """Append every argument besides the prompt, with its description, to a docstring."""
    options = {name: field.description for name, field in GenerationOptions.model_fields.items() if name != "prompt"}
    lines = [f"    {name}: {text}" for name, text in {**INPUTS, **options}.items()]
    item.__doc__ = "\n".join([cleandoc(item.__doc__ or ""), "", "Arguments:", *lines])
    return item


documented(Arguments)


def plain_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Options or controls as parsed JSON has them: adapters as objects, and plain values."""
    values = {name: json_values(value) for name, value in arguments.items()}
    if "adapters" in values:
        values["adapters"] = read_adapters(values["adapters"])
    return values


def prompt_items(prompts: Prompt) -> list[Any]:
    """One text, or several prompts with weights, as parsed JSON has them."""
    if isinstance(prompts, str):
        return [{"text": prompts}]
    return [
        json_values({"text": item[0], "weight": item[1]} if isinstance(item, tuple) and len(item) == 2 else item)
        for item in prompts
    ]


def json_values(value: Any) -> Any:
    """Arrays as lists, tuples as lists, mappings as dicts: what parsed JSON consists of."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: json_values(item) for name, item in value.items()}
    return [json_values(item) for item in value] if isinstance(value, (list, tuple)) else value
