"""What a generation does with its source: a cover, a repaint or a continuation; and the frames whose audio it keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle
from runtime.config.option_ranges import GUIDANCE_OPTIONS
from runtime.pipeline.compose import GenerationInputs, denoise_of, no_timbre
from runtime.pipeline.structure import no_structure
from runtime.requests.option_types import MAX_SECONDS, Span
from runtime.requests.options import TEXT_OPTIONS, GenerationOptions, given_options
from runtime.requests.request import DENOISE_MIN
from runtime.requests.segments import Segment, requested_mask
from runtime.requests.tasks import TRACK_OPTIONS, check_task, has_mask, is_cover, task_of
from runtime.requests.validation import untaken_options

# A generation that is longer than its source by no more than this is a cover, and silence at its end.
MIN_CONTINUATION_S = 1.0


def settled_options(
    options: GenerationOptions, inputs: GenerationInputs, total_frames: int, bundle: Bundle
) -> GenerationOptions:
    """The options of a generation of `total_frames`, a continuation of its source being a repaint of what follows it.

    Raises RequestError for options and inputs that would have no effect.
    """
    _check_effects(options, inputs, bundle)
    _check_text(options, inputs, bundle)
    if inputs.source is None:
        return options
    rate_hz = bundle.latents.frame_rate_hz
    more_s = (options.seconds or 0.0) - len(inputs.source) / rate_hz
    is_free = options.denoise is None and options.task is None and is_cover(options, inputs.source)
    if is_free and more_s > MIN_CONTINUATION_S:
        start_s, end_s = _known_frames(inputs, bundle) / rate_hz, min(total_frames / rate_hz, MAX_SECONDS)
        return options.model_copy(update={"repaint": [Span(start_s=start_s, end_s=end_s)]})
    _check_repaint(options, len(inputs.source) / rate_hz, total_frames / rate_hz)
    return options


def kept_frames(
    options: GenerationOptions, inputs: GenerationInputs, total_frames: int, bundle: Bundle
) -> NDArray[np.bool_]:
    """`[N]`: whether the audio of a frame is the source's own, where the source is audio."""
    kept = np.zeros(total_frames, bool)
    if inputs.source_audio is None:
        return kept
    mask = requested_mask(options, Segment(0, total_frames, 0, total_frames), bundle.latents.frame_rate_hz)
    if options.denoise is not None and options.denoise <= DENOISE_MIN:
        mask = np.zeros(total_frames, np.float32)
    if mask is not None and inputs.source is not None:
        known = len(inputs.source)
        kept[:known] = mask[:known] == 0.0
    return kept


def keeps_end(options: GenerationOptions, inputs: GenerationInputs, bundle: Bundle) -> bool:
    """Whether the end is that of the source: kept, made anew in its place, or a track that is heard with it."""
    if inputs.source is None:
        return False
    if options.task in TRACK_OPTIONS or denoise_of(options, inputs.source, bundle) <= DENOISE_MIN:
        return True
    source_s = len(inputs.source) / bundle.latents.frame_rate_hz
    return has_mask(options) and (options.seconds or 0.0) <= source_s + MIN_CONTINUATION_S


def has_encoded_latents(
    options: GenerationOptions, inputs: GenerationInputs, total_frames: int, bundle: Bundle
) -> bool:
    """Whether latents that were encoded from audio are part of the result: kept, started from, or drawn to.

    What is in which of their channels is the encoder's estimate.
    """
    if "source" in inputs.encoded and inputs.source is not None:
        mask = requested_mask(options, Segment(0, total_frames, 0, total_frames), bundle.latents.frame_rate_hz)
        shares = [mask, denoise_of(options, inputs.source, bundle), options.initial_noise_curve, options.sde_curve]
        if any(share is not None and np.any(np.asarray(share) < 1.0) for share in shares):
            return True
    strengths = (options.target_curve, options.x0_strength)
    is_drawn = any(strength is not None and np.any(strength) for strength in strengths)
    return is_drawn and ("source" if inputs.target is None else "target") in inputs.encoded


def _known_frames(inputs: GenerationInputs, bundle: Bundle) -> int:
    """The source's frames without those at its end that silence may have filled."""
    assert inputs.source is not None
    filled = 0 if inputs.source_audio is None else bundle.latents.frame_multiple
    return max(0, len(inputs.source) - filled)


def _check_repaint(options: GenerationOptions, source_s: float, total_s: float) -> None:
    """Every segment has to begin in the source, or at its end, and to end in the generation."""
    for index, span in enumerate(options.repaint or []):
        if span.start_s >= total_s or span.start_s > source_s or span.end_s > total_s:
            longer = f", the generation {total_s:g} s" if total_s != source_s else ""
            raise RequestError(
                f"{span.start_s:g} to {span.end_s:g} s is outside: the source has {source_s:g} s{longer}",
                field=f"repaint.{index}",
                fix=f"end it at {total_s:g} or before, or give more `seconds`"
                if span.start_s < min(total_s, source_s)
                else f"begin it before {min(total_s, source_s):g}",
            )


def _check_effects(options: GenerationOptions, inputs: GenerationInputs, bundle: Bundle) -> None:
    """Raises RequestError for the first option that another one, or an input, makes ineffective."""
    has_curve, has_strength = options.target_curve is not None, options.x0_strength is not None
    has_target = inputs.target is not None
    is_sde = (options.solver or bundle.sampler.solver) == "sde" or options.sde_curve is not None
    dcw, has_structure = options.dcw, inputs.known is not None or options.codes is not None
    for is_ineffective, field, why in (
        (inputs.condition is not None and bool(options.prompt), "prompt", "beside condition tokens"),
        (has_target and not (has_curve or has_strength), "target", "without target_curve or x0_strength"),
        (options.target_gate > 0 and not has_curve, "target_gate", "without target_curve"),
        (has_curve and has_strength, "x0_strength", "beside target_curve"),
        (is_sde and bool(np.any(options.ode_noise or 0.0)), "ode_noise", "in sde steps"),
        (
            options.structure_strength is not None and not has_structure,
            "structure_strength",
            "without structure to keep",
        ),
        (options.codes is not None and inputs.structure is not None, "structure", "beside codes"),
        (options.notes is not None and options.task in TRACK_OPTIONS, "notes", f"in task {options.task}"),
        (options.notes is None and options.notes_strength is not None, "notes_strength", "without notes"),
        (options.notes is None and options.notes_exact, "notes_exact", "without notes"),
        (options.notes_exact and has_mask(options), "notes_exact", "beside what is kept of a source"),
        (dcw is not None and dcw.model_fields_set == {"mode"}, "dcw.mode", "without dcw.low or dcw.high"),
    ):
        if is_ineffective:
            raise RequestError(f"has no effect {why}", field=field, fix="leave it out")
    _check_guidance(options, bundle)


def _check_text(options: GenerationOptions, inputs: GenerationInputs, bundle: Bundle) -> None:
    """Raises RequestError for text options and a timbre that the bundle, the task or condition tokens leave unused."""
    for name in given_options(options, untaken_options(bundle)):
        if name != "plan" or options.plan:  # No plan is what every bundle can do.
            raise RequestError(f"bundle {bundle.name!r} makes nothing of it", field=name, fix="leave it out")
    if inputs.timbre is not None and bundle.timbre is None:
        raise no_timbre(bundle)
    if inputs.structure is not None and bundle.structure is None:
        raise no_structure()
    if options.timbre_strength is not None and inputs.timbre is None:
        raise RequestError("has no effect without a timbre", field="timbre_strength", fix="give a timbre")
    check_task(options, inputs.known, bundle)
    if options.cover_strength is not None and task_of(options, inputs.known) != "cover":
        raise RequestError("has no effect unless the task is cover", field="cover_strength", fix="leave it out")
    if inputs.condition is None:
        return
    unused = [name for name in given_options(options, TEXT_OPTIONS) if name != "task"]
    for name in unused + (["timbre"] if inputs.timbre is not None else []):
        raise RequestError("has no effect beside condition tokens", field=name, fix="leave it out")


def _check_guidance(options: GenerationOptions, bundle: Bundle) -> None:
    guidance = bundle.sampler.guidance if options.guidance is None else options.guidance
    if options.guidance_mode == "self" and options.negative_prompt:
        raise RequestError("has no effect in guidance mode self, which takes the noise", field="negative_prompt")
    if not np.all(np.asarray(guidance) == 1.0):
        _check_interval(options, bundle)
        return
    reason = bundle.options.guidance.reason
    for name in sorted(GUIDANCE_OPTIONS):
        if getattr(options, name) not in (GenerationOptions.model_fields[name].default, 0.0):
            why = f": this model takes no other ({reason})" if reason else ""
            fix = "leave it out" if reason else "guidance above 1"
            raise RequestError(f"has no effect while guidance is 1{why}", field=name, fix=fix)


def _check_interval(options: GenerationOptions, bundle: Bundle) -> None:
    """Raises RequestError where one end of the guidance interval is given and lies beyond the model's other one."""
    given = {name: getattr(options, name) for name in ("cfg_interval_start", "cfg_interval_end")}
    start, end = (getattr(bundle.sampler, name) if value is None else value for name, value in given.items())
    if start > end:
        field = "cfg_interval_start" if given["cfg_interval_end"] is None else "cfg_interval_end"
        raise RequestError(
            f"needs cfg_interval_start <= cfg_interval_end, they are {start:g} and {end:g}", field=field, fix="set both"
        )
