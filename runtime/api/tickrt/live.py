"""Live sessions in Python: an iterator without end over audio, and methods that change it while it plays."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import DrainingError
from runtime.base.threads import Process
from runtime.live.hosting.session_client import SessionClient, SessionProvider
from runtime.live.playback.note_stream import NoteEvent
from runtime.live.protocol.messages import Open, ReferenceKind, parse_client_message
from runtime.live.protocol.server_messages import Beat, Plan, State
from runtime.requests.prompt_words import BoundMood, PromptMeaning, PromptWords
from tickrt.audio import Audio
from tickrt.midi import MidiClock, MidiInput, MidiOutput, Played
from tickrt.options import At, Blend, Controls, Prompt, Source, json_values, plain_options, prompt_items
from tickrt.receiver import Receiver

REPLY_TIMEOUT_S = 60.0
CHUNK_S = 0.1
PlayMode = Literal["echo", "hold", "at"]


class ModelSessions(SessionProvider, Protocol):
    """Where the live sessions of a model run, and what it does beside them."""

    sample_rate_hz: int
    channels: int

    def add_source(self, kind: ReferenceKind, source: Source, sample_rate_hz: int | None) -> str:
        """Make a source known that is used as `kind`; returns its id. Raises RequestError."""

    def remove_source(self, source_id: str | None) -> None:
        """The session that was to use a source has it."""

    def words(self, texts: Sequence[str], negative: str) -> PromptWords:
        """Which words of texts are understood."""

    def audio(self, pcm: NDArray[np.float32], seed: int, prompt_words: PromptWords) -> Audio:
        """PCM of a session as an Audio."""


class LiveAudio:
    """What a live session plays: a context manager, an iterator without end over audio."""

    def __init__(self, sessions: ModelSessions, message: Open, chunk_s: float, owner: object) -> None:
        self._sessions, self._owner = sessions, owner
        self._receiver = receiver = Receiver(sessions.sample_rate_hz, sessions.channels)
        self._client = client = SessionClient(sessions, receiver)
        self._played, self._clocks = Played(sessions.sample_rate_hz), list[MidiClock]()
        self._chunk_samples = max(1, round(chunk_s * sessions.sample_rate_hz))
        self._texts = [prompt.text for prompt in message.prompts]
        self._negative_prompt = str(message.controls.get("negative_prompt") or "")
        self._has_notes = "notes" in message.events
        client.open(message)
        self._process = Process()
        self._closing = weakref.finalize(self, self._process.call, client.end)
        client.acknowledge()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session. Again does nothing."""
        for clock in self._clocks:
            clock.close()
        self._closing()
        self._receiver.end_notes()

    @property
    def state(self) -> State | None:
        """Playhead, lead, generations in flight, ticks and more: the newest of those that come 4 times a second."""
        return self._receiver.state

    @property
    def plan(self) -> Plan | None:
        """Its plan: header, and sections with their structure codes; None where it has none, or none yet."""
        return self._receiver.plan

    @property
    def prompt_words(self) -> PromptWords:
        """Which words of the prompts and the negative prompt the model understands."""
        return self._sessions.words(self._texts, self._negative_prompt)

    @property
    def meanings(self) -> tuple[PromptMeaning, ...]:
        """What of each prompt is played, as found last, soon after a change; () where the model does not tell."""
        told = (words for words in self._receiver.words if words.meaning)
        return tuple(
            PromptMeaning(
                words.text,
                {kind: tuple(names) for kind, names in words.meaning.items()},
                next(iter(words.drawn.items()), None),
                bound=tuple(BoundMood(**part.model_dump()) for part in words.bound),
            )
            for words in told
        )

    @property
    def events(self) -> list[NoteEvent]:
        """What begins and ends in the audio that was taken since the last time, in order; [] without events "notes".

        Every note that begins ends, also where the session does.
        """
        return self._receiver.take_events()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> NDArray[np.float32]:
        return self.read(self._chunk_samples)

    def read(self, samples: int) -> NDArray[np.float32]:
        """The next `[samples, channels]`; blocks until they are made.

        Raises what a generation raised while there is nothing to play, and DrainingError after the end.
        """
        parts: list[NDArray[np.float32]] = []
        self._played.note(self._receiver.ring.playhead_sample)
        while samples > 0:
            self._check_open()
            parts.append(self._receiver.read(samples))
            samples -= len(parts[-1])
            self._client.acknowledge()
        return np.concatenate(parts)

    def record(self, seconds: float) -> Audio:
        """The next `seconds` as an Audio; with events "notes" it knows its notes. Raises as read() does."""
        samples = max(1, round(seconds * self._sessions.sample_rate_hz))
        self._receiver.record()
        pcm = self.read(samples)
        audio = self._sessions.audio(pcm, self._receiver.seed, self.prompt_words)
        score = self._receiver.recorded(1 / audio.frame_rate_hz) if self._has_notes else None
        return replace(audio, _score=score)

    @property
    def beat(self) -> Beat | None:
        """The newest bar line of what was received, as `state` has it; None where no beat is known."""
        return None if self.state is None else self.state.beat

    def _check_open(self) -> None:
        self._process.check()
        if not self._closing.alive:
            raise DrainingError("the live session is closed", fix="open another one, or use it inside of the `with`")


class Live(LiveAudio):
    """A live session, made by Model.live() or TickRT.live(); a context manager, an iterator without end over audio.

    Iterating gives PCM float32 `[n, channels]`, full scale -1..1. What was taken counts as played: the session goes on
    as fast as it is read, in real time or faster, and skips nothing. A change is heard in the audio that was not taken
    yet, as soon as the model has made it; until then audio is not given faster than in real time. One thread iterates;
    any thread may change. Methods raise RequestError where an argument is wrong; then nothing has changed. After
    close() they raise DrainingError.
    """

    def set(self, *, ramp_ms: float = 0.0, at: At = None, **controls: Unpack[Controls]) -> None:
        """Change controls; None goes back to the default. ramp_ms: numbers move to their new value in this time.

        at: here and below, the change is heard from this second of the session on, where that is still to be made; or
        "bar": from the first bar on that begins when it can be made; {"bars": 2}: from the second.
        """
        values = plain_options(controls)
        self._send("set", values=values, ramp_ms=float(ramp_ms), at=json_values(at))
        if "negative_prompt" in values:
            self._negative_prompt = str(values["negative_prompt"] or "")

    def prompts(self, prompts: Prompt, *, blend: Blend | None = None, ramp_ms: float = 0.0, at: At = None) -> None:
        """Replace the prompts: one text, or several with weights, which move in `ramp_ms`."""
        items = prompt_items(prompts)
        self._send("prompts", items=items, blend=blend, ramp_ms=float(ramp_ms), at=json_values(at))
        self._texts = [item["text"] for item in items]

    def source(
        self,
        source: Source | None,
        strength: float | None = None,
        *,
        sample_rate_hz: int | None = None,
        at: At = None,
    ) -> None:
        """Generate from a source: a file, an Audio, or PCM; None removes it. strength: 0 ignores it, 1 returns it."""
        self._send_source("source", source, strength, sample_rate_hz, at)

    def timbre(
        self,
        source: Source | None,
        strength: float | None = None,
        *,
        sample_rate_hz: int | None = None,
        at: At = None,
    ) -> None:
        """Take the timbre of a source; None removes it. strength: from that of silence (0) to the source's own (1)."""
        self._send_source("timbre", source, strength, sample_rate_hz, at)

    def structure(
        self,
        source: Source | None,
        strength: float | None = None,
        *,
        sample_rate_hz: int | None = None,
        at: At = None,
    ) -> None:
        """Keep melody and rhythm of a source; None removes it. strength: none of them (0) to all (1)."""
        self._send_source("structure", source, strength, sample_rate_hz, at)

    def _send_source(
        self, type: ReferenceKind, source: Source | None, strength: float | None, sample_rate_hz: int | None, at: At
    ) -> None:
        self._check_open()
        source_id = None if source is None else self._sessions.add_source(type, source, sample_rate_hz)
        try:
            self._send(type, id=source_id, strength=strength, at=json_values(at))
        finally:
            self._sessions.remove_source(source_id)

    def write(self, pcm: NDArray[np.floating[Any]], at_s: float, *, mode: str = "replace") -> None:
        """Write audio `[n, channels]` at the model's rate into the canvas, from its second `at_s` on.

        mode: "replace", or "sum" to add it to what is there.
        """
        audio = np.ascontiguousarray(pcm, np.float32)
        self._send("write", audio, at_s=float(at_s), mode=mode, samples=len(audio), format="f32")

    def band(self, start_s: float | None, end_s: float | None, *, at: At = None) -> None:
        """Play only this part of the canvas, in seconds; None and None: the whole, or the bars of `loop_bars`."""
        self._send("band", start_s=start_s, end_s=end_s, at=json_values(at))

    def mute(self, layers: Iterable[str], *, at: At = None) -> None:
        """Make these layers silent, and all others sound: names of [notes] in bundle.toml. Needs [stems] by layers."""
        self._send("mute", layers=list(layers), at=json_values(at))

    def adapter(self, id: str, strength: float | None, *, ramp_ms: float = 0.0) -> None:
        """Add a LoRA adapter or change its strength, moving there in `ramp_ms`; None removes it."""
        self._send("adapter", id=id, strength=strength, ramp_ms=float(ramp_ms))

    def seek(self, to_s: float, *, at: At = None) -> None:
        """Go on at another position of the canvas, in seconds."""
        self._send("seek", to_s=float(to_s), at=json_values(at))
        for clock in self._clocks:
            clock.jump()

    def follow(self, bpm: float, sample: int | None = None) -> None:
        """Take the tempo of a clock, one beat of which lies on a sample of the session, from the next bar on.

        sample None: it is not known where its beats are; the session's stay. Nothing changes where it differs by 0.3
        beats per minute and 20 ms at most.
        """
        self._send("clock", bpm=float(bpm), sample=None if sample is None else int(sample))

    def midi_clock(
        self, output: str | MidiOutput | None = None, input: str | MidiInput | None = None, *, latency_s: float = 0.0
    ) -> MidiClock:
        """Send MIDI clock to the port `output`, and follow the clock of the port `input`, until closed; or one of them.

        Ports are names, or parts of them, for which python-rtmidi is needed (extra midi), or open ports. What is
        iterated has to be played in real time; latency_s: from when it is read until it is heard. Raises ConfigError.
        """
        clock = MidiClock(self, self._played, self._sessions.sample_rate_hz, output, input, latency_s)
        self._clocks = [*(each for each in self._clocks if not each.is_closed), clock]
        return clock

    def reset(self) -> None:
        """Begin anew: what is generated next does not continue what was heard. For sessions with mode "extend"."""
        self._send("reset")

    def set_plan(
        self,
        start_s: float,
        sections: Iterable[Mapping[str, Any]] | None = None,
        *,
        codes: Sequence[int] | None = None,
    ) -> None:
        """Replace what of the plan is not heard yet: sections from the start of one on, or structure codes.

        start_s: seconds on the canvas. sections: each with kind, layers and bars; the plan goes on after them. codes:
        beside sections those of the first of them.
        """
        chosen = None if sections is None else [dict(section) for section in sections]
        self._send("set_plan", start_s=float(start_s), sections=chosen, codes=None if codes is None else list(codes))

    def notes(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        mode: PlayMode = "echo",
        layer: str | None = None,
        at: float = 0.0,
        bars: int = 1,
        quantize: bool = True,
        exact: bool = True,
    ) -> None:
        """Play notes that the session follows. items: each with pitch, and start_s, seconds and velocity where needed.

        mode: "echo": a bar that was played comes back `bars` bars later; "hold": they are the harmony of all bars from
        the next one on, without items the plan's again; "at": at their times. layer: None: the one that has the pitch.
        at: what start_s counts from, in seconds of the session. quantize: an echo lies on sixteenths. exact: they are
        written into what is generated, too; else it may vary them. Echo and hold need a plan. In a loop notes stay
        where they were played, an echo on the sixteenths of its bars, until a call without any removes those of the
        layer.
        """
        played = [json_values(item) for item in items]
        times: dict[str, Any] = {"mode": mode, "at": float(at), "bars": bars, "quantize": quantize}
        self._send("notes", None, items=played, layer=layer, exact=exact, **times)

    def _send(self, type: str, pcm: NDArray[np.float32] | None = None, **members: Any) -> None:
        """Send a message that changes sound, and wait until it is handled."""
        self._check_open()
        # Until where the session runs has handled the message.
        self._client.change(type, members, pcm).result(REPLY_TIMEOUT_S)


def open_message(prompts: Prompt, controls: Mapping[str, Any], **members: Any) -> Open:
    """The message that opens a session. Raises RequestError."""
    values = plain_options(controls)
    opening = {"type": "open", "prompts": prompt_items(prompts), "controls": values, **members}
    message = parse_client_message(json.dumps(opening))
    assert isinstance(message, Open)
    return message
