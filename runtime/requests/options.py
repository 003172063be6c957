"""Every public parameter of a generation, once: the HTTP body, the command line's flags and /v1/schema are this model.

Numbers are bounded and lists are counted here, before anything is allocated by what a caller asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from runtime.base.errors import RequestError
from runtime.config.conditions import Task
from runtime.config.explain import key_of, sentence, similar_name
from runtime.config.notes import MAX_NOTES
from runtime.config.option_ranges import ANY_MODEL, OptionRanges, within
from runtime.config.words import is_instrumental
from runtime.requests.option_types import (
    MAX_SECONDS,
    MIN_SECONDS,
    Adapters,
    Codes,
    DcwOptions,
    Gain,
    NoiseScale,
    NoteOptions,
    OptionModel,
    Prompt,
    Share,
    Spans,
    Text,
    TextOptions,
    Time,
    Track,
    Tracks,
    UnitCurve,
    Values,
    bounded,
)
from runtime.requests.request import MAX_SEED, MAX_STEPS

# Share of the steps that a cover takes by default.
COVER_DENOISE = 0.7
# Marks in the published schema: the option needs a source; or a source or a structure.
NEEDS_SOURCE: JsonDict = {"x-needs-source": True}
NEEDS_SOURCE_OR_STRUCTURE: JsonDict = {**NEEDS_SOURCE, "x-or-structure": True}


class StepOptions(OptionModel):
    """Parameters that every step reads anew: for one generation, or for all of a session's generations in flight.

    A curve is a list of any length; it is stretched linearly over the generation. What is left out stays as it is.
    """

    guidance: Annotated[Values, bounded(*ANY_MODEL.guidance.ends)] | None = Field(
        default=None, description="How hard to push away from the negative prompt; 1 is off. Default: the model's."
    )
    velocity_scale: Annotated[Values, bounded(*ANY_MODEL.velocity_scale.ends)] | None = Field(
        default=None, description="Multiplies every step's velocity; 1 is neutral."
    )
    momentum: Annotated[Values, bounded(*ANY_MODEL.momentum.ends)] | None = Field(
        default=None, description="Momentum of the guidance over steps, where its rule has one. Default: the model's."
    )
    rescale: UnitCurve | None = Field(
        default=None,
        description="Pulls the guided velocity back to the size of the unguided one; 0 is off. Default: the model's.",
    )
    x0_strength: UnitCurve | None = Field(
        default=None,
        description="Draws the second half of the steps to the target (or the source); 0 is off.",
        json_schema_extra=NEEDS_SOURCE,
    )
    sde_curve: UnitCurve | None = Field(
        default=None,
        description="With a source: sde steps that keep the generation (1) or the source (0).",
        json_schema_extra=NEEDS_SOURCE,
    )
    ode_noise: NoiseScale | None = Field(
        default=None, description="Fresh noise after each ode step, times the noise left."
    )
    channel_gain: Gain | None = Field(
        default=None, description="Gain on what the model sees: a number, one per latent channel, or frames of those."
    )
    dcw: DcwOptions | None = Field(default=None, description="Wavelet-domain correction. Default: the model's.")
    adapters: Adapters | None = Field(
        default=None, description='LoRA adapters, each with its strength, also as "soft:0.7".'
    )
    cfg_interval_start: Share | None = Field(
        default=None,
        description="Guidance acts only where 1 - t is at least this: 0 is the first step, 1 the end. Default: the "
        "model's.",
    )
    cfg_interval_end: Share | None = Field(
        default=None, description="Guidance acts only where 1 - t is at most this. Default: the model's."
    )

    @model_validator(mode="after")
    def _interval_is_ordered(self) -> Self:
        start, end = self.cfg_interval_start, self.cfg_interval_end
        if start is not None and end is not None and start > end:
            raise PydanticCustomError("range", "needs cfg_interval_start <= cfg_interval_end")
        return self


class GenerationOptions(TextOptions, StepOptions):
    """One generation. Only `prompt` is needed; the rest has the model's defaults."""

    prompt: Prompt = Field(description="Text that describes the audio, or several with weights. Empty: unconditional.")
    blend: Literal["velocity", "tokens"] = Field(
        default="velocity",
        description="Several prompts: blend the velocity of each (velocity), or their tokens, which costs no more than "
        "one prompt (tokens: weights are numbers, without start and end).",
    )
    negative_prompt: Text = Field(default="", description="What guidance pushes away from. Empty: the null condition.")
    seconds: float | None = Field(
        default=None,
        ge=MIN_SECONDS,
        le=MAX_SECONDS,
        description="Length; beyond one canvas it is made in segments. Default: one canvas, or the source's length. "
        "A longer source is cut; one that is more than a second shorter is continued, unless another option uses it.",
    )
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="Same seed, same options: same music. Default: drawn at random."
    )
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS, description="Denoising steps. Default: the model's.")
    shift: Annotated[float, within(ANY_MODEL.shift)] | None = Field(
        default=None, description="Above 1 the steps dwell on noise. Default: the model's."
    )
    timesteps: Annotated[list[Time], Field(min_length=1, max_length=MAX_STEPS, fail_fast=True)] | None = Field(
        default=None,
        description="The time of each step, descending, 1 = noise: in place of steps, shift and denoise. 0 follows.",
    )
    noise: Literal["tickrt", "torch"] = Field(
        default="tickrt",
        description="What a seed means: tickrt, or the noise that torch's CPU generator has for it (torch), so that "
        "seeds of other tools carry over.",
    )
    denoise: Share | None = Field(
        default=None,
        description=f"1 starts from noise; the lower, the closer a cover stays to its source. Default: {COVER_DENOISE} "
        "with a source that no mask, repaint, curve or strength uses, else, and with structure codes, the model's.",
        json_schema_extra=NEEDS_SOURCE,
    )
    guidance_mode: Literal["full", "alternate", "self", "initialize"] | None = Field(
        default=None,
        description="The negative: computed each step (full), every second one, between which the difference is kept "
        "(alternate), the initial noise (self), the first step's (initialize). Default: the model's.",
    )
    solver: Literal["ode", "sde", "ab2", "jump"] | None = Field(
        default=None,
        description="ode: Euler; sde: fresh noise in each step; ab2: second order, by the velocity of the step before "
        "(Adams-Bashforth); jump: the model's mean velocity over the step, guidance built in, where it has one. "
        "Default: the model's.",
    )
    initial_noise_curve: UnitCurve | None = Field(
        default=None,
        description="With a source: how much of each moment starts as noise (1) or as the source (0).",
        json_schema_extra=NEEDS_SOURCE,
    )
    mask: UnitCurve | None = Field(
        default=None,
        description="With a source: 1 generates a moment anew, 0 keeps the source there.",
        json_schema_extra=NEEDS_SOURCE,
    )
    repaint: Spans | None = Field(
        default=None,
        description='With a source: only these segments of time are generated anew, also as "8:12".',
        json_schema_extra=NEEDS_SOURCE,
    )
    target_curve: UnitCurve | None = Field(
        default=None,
        description="With a target or a source: how strongly each moment is drawn to it.",
        json_schema_extra=NEEDS_SOURCE,
    )
    target_gate: Share = Field(default=0.0, description="The share of the steps before target_curve sets in.")
    task: Task | None = Field(
        default=None,
        description="What is made of a source: a cover, a repaint, one of its tracks (extract), a new track for it "
        "(lego), or what it lacks (complete). Default: what the other options say.",
        json_schema_extra=NEEDS_SOURCE,
    )
    track: Track | None = Field(
        default=None, description="The track of extract and lego, such as drums.", json_schema_extra=NEEDS_SOURCE
    )
    track_classes: Tracks | None = Field(
        default=None,
        description="The tracks of complete, such as drums and bass.",
        json_schema_extra=NEEDS_SOURCE,
    )
    timbre_strength: UnitCurve | None = Field(
        default=None,
        description="With a timbre: how much of it, from that of silence (0) to its own (1). A curve costs twice the "
        "rows: it blends the velocities of both. Default: 1.",
    )
    structure_strength: UnitCurve | None = Field(
        default=None,
        description="How much of its source's melody and rhythm a cover keeps, from none (0) to all (1). Default: 1. "
        "For models with structure codes.",
        json_schema_extra=NEEDS_SOURCE_OR_STRUCTURE,
    )
    cover_strength: UnitCurve | None = Field(
        default=None,
        description="How much a cover follows the instruction for covers (1) or that for new music (0). Between them "
        "it takes two rows. Default: 1.",
        json_schema_extra=NEEDS_SOURCE_OR_STRUCTURE,
    )
    codes: Codes | None = Field(
        default=None,
        description="Structure codes in place of a source's: a text <|audio_code_12|><|audio_code_7|>, or numbers.",
    )
    notes: Annotated[list[NoteOptions], Field(min_length=1, max_length=MAX_NOTES, fail_fast=True)] | None = Field(
        default=None,
        description="Notes to play: from its first to its last one each layer plays these, all else is generated with "
        "them. Over the plan's structure where there is one. For models with notes.",
    )
    notes_strength: UnitCurve | None = Field(
        default=None, description="How closely notes are followed, from not at all (0) to as given (1). Default: 1."
    )
    notes_exact: bool = Field(
        default=False, description="Write the notes into what was generated, too: they sound exactly as given."
    )
    plan: bool | None = Field(
        default=None,
        description="Let the model's planner fill in what is not given of tempo, key, time signature, language and "
        "length, and make the structure codes; not with a source, a structure, codes or condition tokens. Default: the "
        "model's.",
    )
    plan_temperature: Annotated[float, within(ANY_MODEL.plan_temperature)] | None = Field(
        default=None, description="How freely the planner chooses; 0 is the likeliest. Default: the model's."
    )
    plan_guidance: Annotated[float, within(ANY_MODEL.plan_guidance)] | None = Field(
        default=None, description="How closely the planner follows the prompt; 1 is off. Default: the model's."
    )
    plan_top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        default=None, description="The share of likely choices that the planner draws from. Default: the model's."
    )
    ending: Literal["auto", "ring", "fade", "cut"] = Field(
        default="auto",
        description="How it ends. ring: the tonic on a bar line, whose notes ring out, for plans of models with notes; "
        "fade: finished audio fades from a bar line on; cut: in the middle of what is played. auto: ring where that is "
        "possible, else fade; cut where the end of a source is kept.",
    )
    finish: bool = Field(
        default=True,
        description="Finish the audio: -16 LUFS, or as loud as what is kept of a source; no true peak above -1 dBTP; "
        "fades at both ends. false: as the codec decodes it.",
    )

    @model_validator(mode="after")
    def _tokens_can_be_blended(self) -> Self:
        if self.blend == "velocity" or isinstance(self.prompt, str):
            return self
        if any(isinstance(item.weight, list) or (item.start, item.end) != (0.0, 1.0) for item in self.prompt):
            raise PydanticCustomError(
                "blend", "blend tokens has one weight per prompt for all frames and steps: no curves, no start or end"
            )
        if not any(item.weight for item in self.prompt):
            raise PydanticCustomError("blend", "blend tokens needs a prompt with a weight above 0")
        return self

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.timesteps is None:
            return self
        if any(later >= earlier for earlier, later in pairwise(self.timesteps)):
            raise PydanticCustomError("timesteps", "timesteps descend: every one is smaller than the one before it")
        for name in ("steps", "shift", "denoise"):
            if getattr(self, name) is not None:
                raise PydanticCustomError("exclusive", f"timesteps and {name} say the same thing: give one of them")
        return self

    @model_validator(mode="after")
    def _one_mask(self) -> Self:
        if self.mask is not None and self.repaint is not None:
            raise PydanticCustomError("exclusive", "mask and repaint say the same thing: give one of them")
        return self


# Options that become text for the model besides the prompts.
TEXT_OPTIONS = (*TextOptions.model_fields, "task", "track", "track_classes")
PLAN_OPTIONS = ("plan", "plan_temperature", "plan_guidance", "plan_top_p")
NOTE_OPTIONS = ("notes", "notes_strength", "notes_exact")


def given_options(options: GenerationOptions, names: Iterable[str]) -> list[str]:
    """Those of `names` whose option is not its default, and does not say the same."""
    given = [name for name in names if getattr(options, name) != GenerationOptions.model_fields[name].default]
    return [name for name in given if name != "lyrics" or not is_instrumental(options.lyrics)]


def parse_options(values: Mapping[str, Any], ranges: OptionRanges = ANY_MODEL) -> GenerationOptions:
    """Options from plain values (parsed JSON). ranges: those of the bundle.

    Raises RequestError that names the first field and what it takes.
    """
    ranges.check(values)
    try:
        return GenerationOptions.model_validate(dict(values))
    except ValidationError as error:
        raise options_error(error) from None


def options_error(error: ValidationError, model: type[BaseModel] = GenerationOptions) -> RequestError:
    """A RequestError for the first error of a validation by `model`; the value itself is not repeated."""
    first = error.errors(include_url=False, include_input=False)[0]
    field, fix = key_of(first, model), ""
    if first["type"] == "extra_forbidden":
        similar = similar_name(first, model)
        fix = f"leave {field} out" + (f", or {similar}" if similar else "")
    return RequestError(sentence(first), field=field, fix=fix)
