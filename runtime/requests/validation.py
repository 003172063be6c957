"""Whether a request fits the bundle and the engines: checked before anything is allocated for it."""

from __future__ import annotations

import numpy as np

from runtime.base.errors import NoNotesError, RequestError, ShapeError
from runtime.config.bundle import Bundle
from runtime.config.conditions import placeholders
from runtime.config.deployment import Deployment, build_command
from runtime.config.notes import NotesSpec
from runtime.requests.options import NOTE_OPTIONS, PLAN_OPTIONS, TEXT_OPTIONS
from runtime.requests.request import MAX_CONDITIONS, Condition, GenerationRequest


def untaken_options(bundle: Bundle) -> frozenset[str]:
    """Options that a bundle can make nothing of: its templates have no placeholder for them, or it lacks the part.

    A cover's strength is that of its instruction.
    """
    heard = frozenset() if bundle.text_encoder is None else bundle.text_encoder.placeholders
    lacking = frozenset(TEXT_OPTIONS) - heard - {"task"} - plan_text_options(bundle)
    parts = {
        "timbre_strength": bundle.timbre is not None,
        "structure_strength": bundle.structure is not None,
        "codes": bundle.structure is not None,
        "cover_strength": "instruction" in heard,
        **dict.fromkeys(PLAN_OPTIONS, plans_texts(bundle)),
        **dict.fromkeys(NOTE_OPTIONS, takes_notes(bundle)),
    }
    return lacking | {name for name, is_there in parts.items() if not is_there}


def takes_notes(bundle: Bundle) -> bool:
    """Whether its generations follow notes: its latents have them, and its decoder takes such latents as hints."""
    return bundle.notes is not None and bundle.structure is not None and bundle.context is not None


def note_spec(bundle: Bundle) -> NotesSpec:
    """What a bundle says of the notes that its generations follow. Raises NoNotesError where they follow none."""
    if bundle.notes is None or not takes_notes(bundle):
        part = "[notes]" if bundle.notes is None else "[structure], by which it would follow them"
        raise NoNotesError(f"bundle {bundle.name!r} has no {part}", field="notes", fix="leave them out")
    return bundle.notes


def plans_texts(bundle: Bundle) -> bool:
    """Whether its planner makes structure codes of a request's texts."""
    return bundle.structure is not None and bundle.planner is not None and bundle.planner.tokenizer is not None


def plan_text_options(bundle: Bundle) -> frozenset[str]:
    """Options that become text for its planner alone: those of its plan's template, and sections in lyrics."""
    if not plans_texts(bundle) or bundle.planner is None or bundle.planner.plan is None:
        return frozenset()
    heard = frozenset() if bundle.text_encoder is None else bundle.text_encoder.placeholders
    return (placeholders(bundle.planner.plan.prompt) | {"lyrics"}) & frozenset(TEXT_OPTIONS) - heard


def check_request(request: GenerationRequest, bundle: Bundle, deployment: Deployment, condition_width: int) -> None:
    """Check shapes against the bundle and the engines, whose condition tokens are `[L, condition_width]`.

    Raises RequestError or ShapeError: which tensor, which dimension, what is allowed.
    """
    if request.solver == "jump" and bundle.decoder.inputs.time_end is None:
        raise RequestError("the decoder has no jumps", field="solver", fix="ode or ab2")
    _check_frames(request, bundle, deployment)
    _check_channels(request, bundle)
    _check_context(request, bundle)
    for group in ("conditions", "negatives"):
        conditions = getattr(request, group)
        if len(conditions) > MAX_CONDITIONS:
            raise RequestError(f"has {len(conditions)}, at most {MAX_CONDITIONS} are allowed", field=group)
        for index, condition in enumerate(conditions):
            _check_condition(condition, f"{group}.{index}", condition_width, request.frames, deployment)


def _check_frames(request: GenerationRequest, bundle: Bundle, deployment: Deployment) -> None:
    multiple = bundle.latents.frame_multiple
    if request.frames % multiple:
        raise ShapeError(f"frames is {request.frames}, the decoder takes multiples of {multiple}")
    if not any(shape.frames.holds(request.frames) for shape in deployment.shapes):
        allowed = ", ".join(f"{shape.frames.min}..{shape.frames.max}" for shape in deployment.shapes)
        raise ShapeError(f"frames is {request.frames}, the engines take {allowed}", fix=_rebuild("frames", deployment))


def _check_channels(request: GenerationRequest, bundle: Bundle) -> None:
    channels = bundle.latents.channels
    fields = {"source": request.source, "noise": request.noise}
    if request.mask is not None:
        fields |= {"mask.original": request.mask.original, "mask.noise": request.mask.noise}
    if request.target is not None:
        fields["target.latents"] = request.target.latents
    for name, value in fields.items():
        if value is not None and value.shape[1] != channels:
            raise RequestError(f"has {value.shape[1]} channels, latents have {channels}", field=name)
    gain = request.parameters.channel_gain
    if isinstance(gain, np.ndarray) and gain.shape[-1] != channels:
        raise RequestError(f"has {gain.shape[-1]} channels, latents have {channels}", field="channel_gain")


def _check_context(request: GenerationRequest, bundle: Bundle) -> None:
    expected = bundle.context_channels
    if expected and request.context is None:
        raise RequestError(f"the decoder needs a context [T, {expected}]", field="context")
    if request.context is not None and request.context.shape[1] != expected:
        raise RequestError(f"has {request.context.shape[1]} channels, the decoder takes {expected}", field="context")


def _check_condition(condition: Condition, name: str, width: int, frames: int, deployment: Deployment) -> None:
    tokens, found = condition.tokens.shape
    if width == 0 and found:
        raise RequestError("the decoder takes no condition", field=name, fix="leave it out")
    if found != width:
        raise RequestError(f"has width {found}, the decoder takes {width}", field=f"{name}.tokens")
    if deployment.rows_limit(frames, tokens) == 0 and not _can_pad(frames, tokens, deployment):
        allowed = ", ".join(
            f"{shape.tokens.min}..{shape.tokens.max}" for shape in deployment.shapes if shape.frames.holds(frames)
        )
        raise ShapeError(
            f"{name} has {tokens} tokens, the engines take {allowed} at {frames} frames",
            fix=_rebuild("tokens", deployment),
        )


def _can_pad(frames: int, tokens: int, deployment: Deployment) -> bool:
    """A condition shorter than every range's minimum is padded where the decoder has a mask."""
    return any(shape.frames.holds(frames) and tokens < shape.tokens.min for shape in deployment.shapes)


def _rebuild(dimension: str, deployment: Deployment) -> str:
    command = build_command(deployment.path, deployment.target)
    return f"widen {dimension} in [[shapes]] of {deployment.path.name}, then {command}"
