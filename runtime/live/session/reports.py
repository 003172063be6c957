"""What a session reports to its client: the layout, the controls, the state, a picture of the canvas."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from runtime.base.errors import RequestError, TickError
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.controls import controls_schema
from runtime.live.parts.plan import SessionPlan
from runtime.live.parts.references import References
from runtime.live.playback.bars import BarLines
from runtime.live.playback.canvas import Canvas, PlacedSource, Timeline
from runtime.live.playback.playhead import Playhead
from runtime.live.protocol import messages, server_messages
from runtime.live.protocol.actions import NO_OPTIONS, LiveModel
from runtime.live.protocol.server_messages import Plan, SectionMessage
from runtime.live.session.stored import SessionParts
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptWords

PICTURE_WIDTH = 512


def layout(model: LiveModel, frames: int) -> server_messages.CanvasLayout:
    """The size of a canvas of `frames` frames."""
    seconds = frames / model.frame_rate_hz
    return server_messages.CanvasLayout(
        frames=frames, seconds=seconds, frame_rate_hz=model.frame_rate_hz, channels=model.latent_channels
    )


def ready(
    model: LiveModel,
    parts: SessionParts,
    references: References,
    words: list[server_messages.TextWords],
    *,
    resumed: bool,
    keep_s: float,
    **members: Any,
) -> server_messages.Ready:
    """The session as its client finds it."""
    return server_messages.Ready(
        session=parts.id,
        resumed=resumed,
        format=parts.format,
        mode=parts.mode,
        sample_rate_hz=model.sample_rate_hz,
        channels=model.channels,
        canvas=layout(model, parts.frames),
        lengths_s=[frames / model.frame_rate_hz for frames in model.lengths_of(parts.mode)],
        controls=controls(model, parts.controls, references.source, words),
        next_sample=parts.playhead.sent_until,
        limits=server_messages.Limits(keep_s=keep_s),
        plan=None if references.plan is None else references.plan.facts.choices,
        layers=layers(model),
        muted=list(parts.timeline.muted),
        stems=model.has_stems,
        **members,
    )


def layers(model: LiveModel) -> list[server_messages.LayerKeys]:
    """Those of the model's notes; none where it has none."""
    found = () if model.notes is None else model.notes.spec.layers
    return [
        server_messages.LayerKeys(
            name=layer.name, keys=list(layer.keys), rows=list(layer.channels), is_percussion=layer.is_percussion
        )
        for layer in found
    ]


def controls(
    model: LiveModel, state: ControlState, source: PlacedSource | None, words: list[server_messages.TextWords]
) -> server_messages.ReadyControls:
    """The controls with their schema and final values."""
    return server_messages.ReadyControls(
        schema=controls_schema(model),
        values=state.published,
        prompts=state.prompts,
        prompt_words=words,
        blend=state.blend,
        source_id=None if source is None else source.id,
        source_strength=None if source is None else source.strength,
        seed=state.published["seed"],
        music={
            name: server_messages.MusicControl(words=list(spec.words), option=spec.option, values=list(spec.values))
            for name, spec in model.music.given.items()
        },
    )


def values(
    state: ControlState, references: References, timeline: Timeline, playhead: Playhead, frame_rate_hz: float
) -> dict[str, Any]:
    """All that a client may have changed, by name, as in `changed`; prompt_words is the caller's."""
    newest = timeline.newest
    band = newest.band if newest is not None and newest.is_chosen else None
    return {
        **state.published,
        "prompts": [prompt.model_dump() for prompt in state.prompts],
        "blend": state.blend,
        "source": _reference(references.source),
        "structure": _reference(references.structure),
        "timbre": _reference(references.timbre),
        "band": None if band is None else [frame / frame_rate_hz for frame in band],
        "muted": list(timeline.muted),
        "playing": playhead.is_playing,
    }


def _reference(source: PlacedSource | None) -> dict[str, Any] | None:
    return None if source is None else {"id": source.id, "strength": source.strength}


def texts(model: LiveModel, state: ControlState) -> tuple[str, ...]:
    """The prompts and the negative prompt; none where the model has no text."""
    found = [prompt.text for prompt in state.prompts] + [state.published["negative_prompt"]]
    return tuple(text for text in found if text and model.words)


def prompt_words(
    model: LiveModel, texts: Iterable[str], options: GenerationOptions = NO_OPTIONS, seed: int = 0
) -> list[server_messages.TextWords]:
    """Which words of each text are understood, and what of it is played, with the options that its template has.

    Takes as long as tokenizer and text encoder need. A text that these cannot read has none: its generation says so.
    """
    found = [(text, words) for text in texts if text and (words := _understood(model, text)) is not None]
    return [
        server_messages.TextWords(
            text=text,
            understood=list(words.understood),
            unknown=list(words.unknown),
            near={word: list(near) for word, near in words.near.items()},
            **_meaning(model, text, options, seed),
        )
        for text, words in found
    ]


def _understood(model: LiveModel, text: str) -> PromptWords | None:
    try:
        return None if model.words is None else model.words([text])
    except RequestError:
        return None


def _meaning(model: LiveModel, text: str, options: GenerationOptions, seed: int) -> dict[str, Any]:
    """Members of TextWords; none where the model does not tell, or cannot encode the text: its generation says so."""
    if model.meaning is None:
        return {}
    try:
        return model.meaning(text, options, seed).values
    except TickError:
        return {}


def state(
    model: LiveModel,
    timeline: Timeline,
    playhead: Playhead,
    *,
    lines: BarLines,
    generations_in_flight: int,
    generation_s: float,
) -> server_messages.State:
    """The state now; the host knows the ticks."""
    position, hop = playhead.position, model.hop_samples
    here = timeline.at(position)
    frame = 0 if here is None else here.canvas_frame_at(position // hop)
    band = None if here is None else here.band
    return server_messages.State(
        playhead_sample=position,
        sent_until_sample=playhead.sent_until,
        lead_s=playhead.lead_s,
        generations_in_flight=generations_in_flight,
        generation_s=generation_s,
        underruns=playhead.underruns,
        ticks=0,
        tick_ms=0.0,
        canvas_position_s=max(0.0, frame + position % hop / hop) / model.frame_rate_hz,
        playing=playhead.is_playing,
        client_time_s=playhead.client_time_s,
        beat=beat(lines, playhead),
        loop=None if band is None else [frame / model.frame_rate_hz for frame in band],
    )


def beat(lines: BarLines, playhead: Playhead) -> server_messages.Beat | None:
    """The newest bar line of what was sent, and where in its bar the playhead is; None where no beat is known."""
    position = playhead.position
    newest, here = lines.at(max(position, playhead.sent_until)), lines.at(position)
    if newest is None:
        return None
    played = newest if here is None else here
    phase = (position - played.sample) / (60.0 * playhead.rate_hz * played.beats / played.bpm) % 1.0
    return server_messages.Beat(phase=phase, **asdict(newest))


def has_plan(model: LiveModel, opened: messages.Open) -> bool:
    """Whether a session plays by a plan. Raises RequestError where it cannot but is to."""
    can_plan = opened.mode == "extend" and model.plan is not None
    if opened.plan and not can_plan:
        why = "a loop has no plan" if model.plan is not None else "the bundle has no [planner.plan]"
        raise RequestError(why, field="plan", fix="leave it out")
    return model.plan is not None and can_plan and (model.plan.is_default if opened.plan is None else opened.plan)


def plan(known: SessionPlan, first: int, frame_rate_hz: float) -> Plan:
    """The plan's sections that end after canvas frame `first`; none where something else is played."""
    origin = known.origin or 0
    sections = [
        SectionMessage(
            index=section.index,
            first_bar=section.first_bar,
            kind=section.kind,
            layers=list(section.layers),
            bars=section.bars,
            start_s=(origin + section.start_frame) / frame_rate_hz,
            end_s=(origin + section.end_frame) / frame_rate_hz,
            codes=None if section.codes is None else list(section.codes),
        )
        for section in known.sections
        if origin + section.end_frame > first and not known.is_idle
    ]
    return Plan(header={} if known.is_idle else dict(known.header), sections=sections, seq=known.seq)


def picture(model: LiveModel, canvas: Canvas, start: int) -> server_messages.CanvasPicture:
    """The canvas from frame `start` on, at most PICTURE_WIDTH columns.

    Latents are from their 2nd to 98th percentile; levels of notes from 0 to 1, so that what is silent is dark.
    """
    width = min(canvas.end - start, PICTURE_WIDTH)
    start_s, seconds = start / model.frame_rate_hz, (canvas.end - start) / model.frame_rate_hz
    if not width:
        return server_messages.CanvasPicture(start_s=start_s, seconds=seconds, width=0, height=0, data="", seqs=[])
    frames = np.linspace(start, canvas.end - 1, width).round().astype(int).tolist()
    values = canvas.rows(frames).T  # [C, width]
    low, high = np.quantile(values, [0.02, 0.98])
    if model.notes is not None:
        spec, silence = model.notes.spec, model.notes.silence
        channels = [channel for layer in spec.layers for channel in layer.channels]
        low, high = np.full((len(values), 1), low), np.full((len(values), 1), high)  # [C, 1]
        low[channels, 0], high[channels, 0] = silence[channels], silence[channels] + spec.scale
    pixels = np.clip((values - low) / np.maximum(high - low, 1e-6) * 255, 0, 255).astype(np.uint8)  # [C, width]
    parts = (canvas.part_at(frame) for frame in frames)
    return server_messages.CanvasPicture(
        start_s=start_s,
        seconds=seconds,
        width=width,
        height=len(values),
        data=base64.b64encode(pixels.tobytes()).decode(),
        seqs=[part.full_seq for part in parts if part],
    )
