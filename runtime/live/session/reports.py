"""What a session reports to its client: the layout, the controls, the state, a picture of the canvas."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from runtime.base.errors import RequestError, TickError
from runtime.config.codec import Latents
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.controls import controls_schema
from runtime.live.parts.core import SessionCore
from runtime.live.parts.outline import SongOutline
from runtime.live.playback.bars import BarLines
from runtime.live.playback.canvas import Canvas, PlacedSource
from runtime.live.playback.playhead import Playhead
from runtime.live.protocol import messages
from runtime.live.protocol.actions import NO_OPTIONS, Action, FindWords, LiveModel
from runtime.live.protocol.messages import Mode
from runtime.live.protocol.server_messages import (
    Applied,
    Beat,
    CanvasLayout,
    CanvasPicture,
    LayerKeys,
    Limits,
    MusicControl,
    Plan,
    Ready,
    ReadyControls,
    SectionMessage,
    State,
    TextWords,
)
from runtime.live.session.changes import Changes
from runtime.live.session.transport import Transport
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import PromptWords

STATE_INTERVAL_S = 0.25
PICTURE_WIDTH = 512


class Reporter:
    """What the client of one session is told."""

    def __init__(self, core: SessionCore, mode: Mode, transport: Transport, changes: Changes) -> None:
        self._core, self._model, self._references, self._mode = core, core.model, core.references, mode
        self._timeline, self._playhead, self._controls = core.timeline, core.playhead, core.controls
        self._transport, self._changes = transport, changes
        self._stated_s = -math.inf  # last `state`, and its beat
        self._told_beat: Beat | None = None
        self._beat_version: Any = None  # What `_has_new_beat` has judged.
        self._sent_song: Any = None  # As the client knows it.
        self._is_picture_wanted = False
        self._asked_words = asked = self._find_words(0)  # What is known of words, or being found.
        self.words = prompt_words(self._model, asked.texts, asked.options, asked.seed)  # As the client knows them.

    @property
    def takes(self) -> tuple[type, ...]:
        """Messages."""
        return (messages.GetCanvas, *([] if self._references.song is None else [messages.GetPlan]))

    def handle(self, message: Any, latents: Latents | None, at_sample: int | None) -> None:
        """Take a message: what it asks for is sent with the next `advance`."""
        if isinstance(message, messages.GetCanvas):
            self._is_picture_wanted = True
        else:
            self._sent_song = None

    def attach(self) -> None:
        """The client does not know the song."""
        self._sent_song = None

    def state_now(self) -> None:
        """With the next `advance`."""
        self._stated_s = -math.inf

    @property
    def due_s(self) -> float:
        """When the next state is due."""
        return self._stated_s + STATE_INTERVAL_S

    def advance(self) -> Iterator[Action]:
        """What is new to the client: state, words, song, and a picture, once for all that have asked for it."""
        yield from self._state()
        yield from self._new_words()
        song, start = self._references.song, self._transport.navigation.picture_start
        if song is not None and song.is_known and song.published != self._sent_song:
            self._sent_song = song.published
            yield plan(song, start, self._model.frame_rate_hz)
        if self._is_picture_wanted:
            self._is_picture_wanted = False
            yield picture(self._model, self._timeline.canvas, start)

    def _state(self) -> Iterator[State]:
        playhead, now_s = self._playhead, self._core.clock.now_s
        is_due = now_s >= self.due_s or self._has_new_beat()
        if not playhead.is_attached or not is_due or not (playhead.is_active or self._stated_s == -math.inf):
            return
        self._stated_s = now_s
        report = state(self._core, self._transport.lines)
        self._told_beat = report.beat
        yield report

    def _has_new_beat(self) -> bool:
        """Whether the bars go on otherwise than the newest `state` says."""
        song = self._references.song
        version = self._timeline.version, None if song is None else song.sections
        if version == self._beat_version:
            return False
        self._beat_version = version
        now, told = beat(self._transport.lines, self._playhead), self._told_beat
        if now is None or told is None:
            return now is not told
        bar = 60.0 * self._model.sample_rate_hz * now.beats / now.bpm
        off = (now.sample - told.sample + bar / 2) % bar - bar / 2
        return (now.bpm, now.beats) != (told.bpm, told.beats) or abs(off) > 1.0

    def _new_words(self) -> Iterator[FindWords]:
        """Ask for the words of texts that have changed, or their options, once for all changes since the last call."""
        if (seq := self._changes.texts_seq) is None:
            return
        self._changes.texts_seq, wanted = None, self._find_words(seq)
        if replace(wanted, seq=self._asked_words.seq) != self._asked_words:
            self._asked_words = wanted
            yield wanted

    def _find_words(self, seq: int) -> FindWords:
        options = NO_OPTIONS if self._model.meaning is None else self._controls.text_options()
        return FindWords(seq, texts(self._model, self._controls), options, int(self._controls.defaults["seed"]))

    def words_found(self, seq: int, words: list[TextWords]) -> None:
        """Which words are understood, as FindWords has asked."""
        self.words = words
        self._core.outbox.append(Applied(seq=seq, prompt_words=words))

    def values(self) -> dict[str, Any]:
        """All that clients may have changed, by name, as in Changed."""
        newest, given = self._timeline.newest, self._references
        band = newest.band if newest is not None and newest.is_chosen else None
        return {
            **self._controls.published,
            "prompts": [prompt.model_dump() for prompt in self._controls.prompts],
            "blend": self._controls.blend,
            "source": _reference(given.source),
            "structure": _reference(given.structure),
            "timbre": _reference(given.timbre),
            "band": None if band is None else [frame / self._model.frame_rate_hz for frame in band],
            "muted": list(self._timeline.muted),
            "playing": self._playhead.is_playing,
            "mode": self._mode,
            "prompt_words": [item.model_dump() for item in self.words],
        }

    def ready(self, *, keep_s: float, **members: Any) -> Ready:
        """The session as its client finds it. members: of Ready, which are not of what is played."""
        model, frames, song = self._model, self._core.frames, self._references.song
        seconds = frames / model.frame_rate_hz
        return Ready(
            mode=self._mode,
            sample_rate_hz=model.sample_rate_hz,
            channels=model.channels,
            canvas=CanvasLayout(
                frames=frames, seconds=seconds, frame_rate_hz=model.frame_rate_hz, channels=model.latent_channels
            ),
            lengths_s=[frames / model.frame_rate_hz for frames in model.lengths_of(self._mode)],
            controls=controls(model, self._controls, self._references.source, self.words),
            epoch=self._transport.audio.epoch,
            next_sample=self._playhead.sent_until,
            limits=Limits(keep_s=keep_s),
            plan=None if song is None else song.facts.choices,
            layers=layers(model),
            muted=list(self._timeline.muted),
            stems=model.has_stems,
            **members,
        )


def layers(model: LiveModel) -> list[LayerKeys]:
    """Those of the model's notes; none where it has none."""
    found = () if model.notes is None else model.notes.spec.layers
    return [
        LayerKeys(name=layer.name, keys=list(layer.keys), rows=list(layer.channels), is_percussion=layer.is_percussion)
        for layer in found
    ]


def controls(
    model: LiveModel, state: ControlState, source: PlacedSource | None, words: list[TextWords]
) -> ReadyControls:
    """The controls with their schema and final values."""
    return ReadyControls(
        schema=controls_schema(model),
        values=state.published,
        prompts=state.prompts,
        prompt_words=words,
        blend=state.blend,
        source_id=None if source is None else source.id,
        source_strength=None if source is None else source.strength,
        seed=state.published["seed"],
        music={
            name: MusicControl(words=list(spec.words), option=spec.option, values=list(spec.values))
            for name, spec in model.music.given.items()
        },
    )


def _reference(source: PlacedSource | None) -> dict[str, Any] | None:
    return None if source is None else {"id": source.id, "strength": source.strength}


def texts(model: LiveModel, state: ControlState) -> tuple[str, ...]:
    """The prompts and the negative prompt; none where the model has no text."""
    found = [prompt.text for prompt in state.prompts] + [state.published["negative_prompt"]]
    return tuple(text for text in found if text and model.words)


def prompt_words(
    model: LiveModel, texts: Iterable[str], options: GenerationOptions = NO_OPTIONS, seed: int = 0
) -> list[TextWords]:
    """Which words of each text are understood, and what of it is played, with the options that its template has.

    Takes as long as tokenizer and text encoder need. A text that these cannot read has none: its generation says so.
    """
    found = [(text, words) for text in texts if text and (words := _understood(model, text)) is not None]
    return [
        TextWords(
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


def state(core: SessionCore, lines: BarLines) -> State:
    """The state now; the host knows the ticks."""
    model, playhead = core.model, core.playhead
    position, hop = playhead.position, model.hop_samples
    here = core.timeline.at(position)
    frame = 0 if here is None else here.canvas_frame_at(position // hop)
    band = None if here is None else here.band
    return State(
        playhead_sample=position,
        sent_until_sample=playhead.sent_until,
        lead_s=playhead.lead_s,
        generations_in_flight=len(core.flights.running),
        generation_s=core.flights.times.estimate_s,
        underruns=playhead.underruns,
        ticks=0,
        tick_ms=0.0,
        canvas_position_s=max(0.0, frame + position % hop / hop) / model.frame_rate_hz,
        playing=playhead.is_playing,
        client_time_s=playhead.client_time_s,
        beat=beat(lines, playhead),
        loop=None if band is None else [frame / model.frame_rate_hz for frame in band],
    )


def beat(lines: BarLines, playhead: Playhead) -> Beat | None:
    """The newest bar line of what was sent, and where in its bar the playhead is; None where no beat is known."""
    position = playhead.position
    newest, here = lines.at(max(position, playhead.sent_until)), lines.at(position)
    if newest is None:
        return None
    played = newest if here is None else here
    phase = (position - played.sample) / (60.0 * playhead.rate_hz * played.beats / played.bpm) % 1.0
    return Beat(phase=phase, **asdict(newest))


def has_plan(model: LiveModel, opened: messages.Open) -> bool:
    """Whether a session plays by a plan. Raises RequestError where it cannot but is to."""
    can_plan = opened.mode == "extend" and model.plan is not None
    if opened.plan and not can_plan:
        why = "a loop has no plan" if model.plan is not None else "the bundle has no [planner.plan]"
        raise RequestError(why, field="plan", fix="leave it out")
    return model.plan is not None and can_plan and (model.plan.is_default if opened.plan is None else opened.plan)


def plan(known: SongOutline, first: int, frame_rate_hz: float) -> Plan:
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


def picture(model: LiveModel, canvas: Canvas, start: int) -> CanvasPicture:
    """The canvas from frame `start` on, at most PICTURE_WIDTH columns.

    Latents are from their 2nd to 98th percentile; levels of notes from 0 to 1, so that what is silent is dark.
    """
    width = min(canvas.end - start, PICTURE_WIDTH)
    start_s, seconds = start / model.frame_rate_hz, (canvas.end - start) / model.frame_rate_hz
    if not width:
        return CanvasPicture(start_s=start_s, seconds=seconds, width=0, height=0, data="", seqs=[])
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
    return CanvasPicture(
        start_s=start_s,
        seconds=seconds,
        width=width,
        height=len(values),
        data=base64.b64encode(pixels.tobytes()).decode(),
        seqs=[part.full_seq for part in parts if part],
    )
