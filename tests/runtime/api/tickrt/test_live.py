"""Live sessions in Python on the tiny bundle: what is read is what counts as played."""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import eventually
from helpers.live_clients import ready
from mido import MidiFile

import tickrt
from runtime.audio.finishing import KNEE
from runtime.live.playback.note_stream import NoteEvent
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import Ack, Open
from runtime.live.protocol.server_messages import LayerKeys
from tickrt import model as model_module
from tickrt.live import open_message
from tickrt.receiver import PACE_SLACK_S, Receiver


def take(live: tickrt.Live, chunks: int) -> np.ndarray:
    return np.concatenate(list(islice(live, chunks)))


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_change_is_heard(mode: str, model: tickrt.Model) -> None:
    """Two sessions of one seed are equal until one of them is changed."""
    with model.live("a", mode=mode, seed=3) as one, model.live("a", mode=mode, seed=3) as other:  # type: ignore[arg-type]
        np.testing.assert_allclose(take(one, 3), take(other, 3), atol=1e-4)
        one.set(velocity_scale=0.3)
        one.prompts([{"text": "a"}, {"text": "b", "weight": 0.5}], ramp_ms=50)
        for _ in range(1000):
            if np.abs(take(one, 1) - take(other, 1)).max() > 1e-3:
                return
    raise AssertionError("the change was never heard")


def test_a_change_is_heard_soon_by_a_fast_reader(model: tickrt.Model) -> None:
    with model.live("a", mode="extend", seed=3) as live:
        take(live, 50)
        begin_s, begin = time.monotonic(), live._receiver.ring.playhead_sample
        live.prompts("b")
        while live._receiver._pending_seq:
            take(live, 1)
        heard_s = (live._receiver.ring.playhead_sample - begin) / model.sample_rate_hz
        assert heard_s <= time.monotonic() - begin_s + 2 * PACE_SLACK_S


def test_errors_are_raised_where_they_are_made(model: tickrt.Model) -> None:
    with pytest.raises(tickrt.RequestError, match="mode"):
        model.live("a", mode="reverse")  # type: ignore[arg-type]
    with pytest.raises(tickrt.RequestError, match="guidance"):
        model.live("a", guidance=-3.0)
    with model.live("a") as live:
        with pytest.raises(tickrt.RequestError, match="guidance"):
            live.set(guidance=-3.0)
        with pytest.raises(tickrt.RequestError, match="did you mean guidance"):
            live.set(guidence=3.0)  # type: ignore[call-arg]
        with pytest.raises(tickrt.RequestError, match=r"audio|samples"):
            live.write(np.zeros((0, 2), np.float32), 0.2)
        live.set(guidance=3.0)
        live.set(guidance=None)
        take(live, 2)


def test_text_that_does_not_fit_is_an_error_of_the_first_read(model: tickrt.Model) -> None:
    with model.live("a" * 500) as live, pytest.raises(tickrt.TickError, match="tokens"):
        next(live)


def test_what_a_bundle_lacks_is_refused_without_a_look_at_what_is_given(model: tickrt.Model, tmp_path: Path) -> None:
    with pytest.raises(tickrt.RequestError, match="events: the bundle has no"):
        model.live("a", events=["notes"])
    with model.live("a") as live:
        with pytest.raises(tickrt.RequestError, match=r"has no \[structure\]"):
            live.structure(np.zeros((800, 2), np.float32))
        with pytest.raises(tickrt.RequestError, match=r"the bundle has no \[timbre\]"):
            live.timbre(tmp_path / "no such file")


def test_a_structure_and_a_timbre_change_the_sound(built: Built) -> None:
    with tickrt.open(built(conditions=True, structure=True, more=FEW_VARIANTS).path) as model:
        audio = model.generate("a", seconds=1.28, seed=5)
        with model.live("a", seed=1) as live, model.live("a", seed=1) as other:
            for set_reference in (live.structure, live.timbre):
                set_reference(audio, 0.5)
                assert any(np.abs(take(live, 1) - take(other, 1)).max() > 1e-3 for _ in range(1000))
                set_reference(None)
                assert any(np.abs(take(live, 10) - take(other, 10)).max() < 1e-3 for _ in range(100))


def test_live_audio_has_the_gain_of_the_bundle(model: tickrt.Model, built: Built) -> None:
    path = built(gain_db=-18.0, more=FEW_VARIANTS).path
    with tickrt.open(path) as quieter, model.live("a", seed=4) as live, quieter.live("a", seed=4) as quiet:
        pcm, found = take(live, 5), take(quiet, 5)
    is_unlimited = np.abs(pcm) < KNEE
    assert is_unlimited.mean() > 0.2
    np.testing.assert_allclose(found[is_unlimited], pcm[is_unlimited] * 10 ** (-18 / 20), rtol=0, atol=1e-4)


def test_it_says_which_words_are_understood(built: Built) -> None:
    with tickrt.open(built(words=("calm", "drums"), more=FEW_VARIANTS).path) as model, model.live("calm jazz") as live:
        assert live.prompt_words == tickrt.PromptWords(("calm",), ("jazz",))
        live.prompts([{"text": "drums"}, {"text": "trio"}])
        live.set(negative_prompt="calm noise")
        assert live.prompt_words == tickrt.PromptWords(("drums", "calm"), ("trio", "noise"))
        assert live.record(0.1).prompt_words == live.prompt_words


def test_it_says_what_prompts_mean_and_the_session_draws_once(built: Built) -> None:
    path = built(meaning=True, words=("calm", "chant"), more=FEW_VARIANTS).path
    with tickrt.open(path) as model, model.live("chant", seed=5) as live:
        eventually(lambda: len(live.meanings) == 1)
        (first,) = live.meanings
        assert [first] == [*model.generate("chant", seed=5, seconds=0.5, steps=1).meanings], "the seed draws the same"
        assert first.drawn is not None
        assert (first.text, first.names) == ("chant", {"genre": (first.drawn[1],)})
        live.set(seed=6)
        live.prompts([{"text": "calm drums"}, {"text": "chant"}])
        eventually(lambda: live.read(800) is not None and len(live.meanings) == 2)
        assert [each.drawn for each in live.meanings] == [first.drawn, first.drawn]
        assert live.meanings[0].names == {"layers": ("drums",), "genre": (first.drawn[1],)}


def test_a_session_keeps_no_clock_that_was_closed(model: tickrt.Model) -> None:
    class Output:
        def send_message(self, message: bytes) -> None:
            pass

    with model.live("a") as live:
        closed = []
        for _ in range(3):
            with live.midi_clock(Output()) as clock:
                closed.append(weakref.ref(clock))
        clock = live.midi_clock(Output())
        gc.collect()
        assert [each() for each in closed] == [None, None, None]
        assert not clock.is_closed
    assert clock.is_closed


def test_a_closed_session_gives_no_audio(model: tickrt.Model) -> None:
    live = model.live("a")
    next(live)
    while live._receiver.ring.end_sample <= live._receiver.ring.playhead_sample:
        time.sleep(0.01)
    live.close()
    live.close()
    assert live._receiver.ring.end_sample > live._receiver.ring.playhead_sample, "there is audio that was received"
    for use in (
        lambda: next(live),
        lambda: live.read(1),
        lambda: live.record(0.01),
        lambda: live.set(guidance=2.0),
        lambda: live.seek(0.0),
        lambda: live.source("no such file"),
    ):
        with pytest.raises(tickrt.DrainingError, match=r"the live session is closed\n  fix: open another one"):
            use()


def test_a_session_ends_with_its_last_reference(model: tickrt.Model) -> None:
    live = model.live("a")
    next(live)
    host = live._sessions
    before = host.stats().open
    del live
    gc.collect()
    ended = threading.Event()
    while host.stats().open >= before:
        ended.wait(0.01)


def test_a_closed_model_leaves_no_thread(built: Built) -> None:
    before = set(threading.enumerate())
    model = tickrt.open(built().path)
    live = model.live("a")
    next(live)
    model.close()
    assert not set(threading.enumerate()) - before
    with pytest.raises(tickrt.TickError):
        take(live, 1000)
    with pytest.raises(tickrt.DrainingError):
        model.live("a")


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_session_in_this_process_tells_and_records_its_notes(mode: str, built: Built) -> None:
    with tickrt.open(built(notes=True).path) as model:
        with model.live("a", mode=mode, seed=1, events=["notes"]) as live:  # type: ignore[arg-type]
            events: list[NoteEvent] = []
            for _ in range(20):
                next(live)
                events += live.events
                assert all(event.sample < live._receiver.ring.playhead_sample for event in events)
            audio = live.record(2.0)
            events += live.events
        events += live.events
        begun = np.array([(event.velocity > 0) for event in events])
        assert begun.sum() == (~begun).sum() > 10
        assert [event.sample for event in events] == sorted(event.sample for event in events)
        assert audio.score.seconds == pytest.approx(2.0)
        assert 0 < len(audio.notes) <= begun.sum()
        tracks = [track.name for track in MidiFile(file=io.BytesIO(audio.midi())).tracks]
        assert {"bass", "drums"} & set(tracks)
        with model.live("a", seed=1) as silent:
            next(silent)
            assert silent.events == []
            with pytest.raises(tickrt.RequestError, match="notes"):
                _ = silent.record(0.1).notes


def test_threads_take_turns_at_opening_the_host(model: tickrt.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there is one."""

    def made(*arguments: object) -> SimpleNamespace:
        held.append(model._opening.locked())
        return SimpleNamespace(close=lambda reason: None)

    held: list[bool] = []
    monkeypatch.setattr(model, "_live", None)
    monkeypatch.setattr(model, "_resources", ExitStack())
    monkeypatch.setattr(model_module, "LiveSessions", made)
    with model._resources:
        assert model._live_sessions() is model._live_sessions()
    assert held == [True]


class Posted:
    """Sessions that keep what is posted; they answer with `error`. One channel at 1000 samples per second."""

    sample_rate_hz, channels, error = 1000, 1, None

    def __init__(self) -> None:
        self.opened: Any = None
        self.receiver: Any = None
        self.messages: list[dict[str, Any]] = []
        self.acks: list[int] = []
        self.pcm: list[Any] = []
        self.sources: list[Any] = []
        self.ended: list[str] = []

    def open(self, message: Open, receiver: Receiver, *_: Any) -> str:
        self.opened, self.receiver = message, receiver
        return "s1"

    def post(self, session_id: str, message: Any, pcm: Any = None, reply: Any = None) -> None:
        assert session_id == "s1"
        if isinstance(message, Ack):
            self.acks.append(message.playhead_sample)
            return
        self.messages.append(message.model_dump(exclude={"seq"}, by_alias=True))
        self.pcm.append(pcm)
        reply(self.error)

    def end(self, session_id: str, reason: str) -> None:
        self.ended.append(session_id)

    def add_source(self, kind: str, source: Any, sample_rate_hz: int | None) -> str:
        self.sources.append((kind, source, sample_rate_hz))
        return f"{kind} id"

    def remove_source(self, source_id: str | None) -> None:
        self.sources.append(source_id)

    def words(self, texts: Any, negative: str) -> Any:
        return [*texts, negative]

    def audio(self, pcm: Any, seed: int, prompt_words: Any) -> tickrt.Audio:
        values = {"latents": pcm, "frame_rate_hz": 25.0, "sample_rate_hz": 1000, "seed": seed}
        return tickrt.Audio(**values, options={}, bundle=("", ""), _pcm=pcm)


@pytest.fixture
def posted() -> tuple[tickrt.Live, Posted]:
    """A session without a model, of which two seconds of audio are there."""
    sessions = Posted()
    message = open_message([{"text": "a"}], {"negative_prompt": "b"}, events=["notes"])
    live = tickrt.Live(sessions, message, 0.25, None)
    sessions.receiver.on_audio(AudioChunk(1, 0, np.ones((2000, 1), np.float32)))
    return live, sessions


def test_every_change_is_the_message_of_its_values(posted: tuple[tickrt.Live, Posted]) -> None:
    live, sessions = posted
    assert sessions.opened.events == ["notes"]
    at: dict[str, Any] = {"bars": 2}
    live.set(guidance=2.0, shift=None, ramp_ms=5, at="bar")
    live.prompts([{"text": "c", "weight": 2.0}], blend="tokens", ramp_ms=6, at=at)
    live.source(Path("x"), 0.5, sample_rate_hz=8000, at=1.5)
    live.timbre(None, 0.25)
    live.structure(Path("y"))
    live.write(np.ones((3, 1)), 0.5, mode="sum")
    live.band(0.5, 1.0, at="bar")
    live.mute(("bass",), at="bar")
    live.adapter("soft", 0.5, ramp_ms=7)
    live.seek(2.0, at=3.0)
    live.follow(120.0, 48)
    live.reset()
    live.set_plan(4.0, [{"kind": "verse", "layers": ["bass"], "bars": 2}], codes=(1, 2))
    live.set_plan(5.0, codes=[3])
    live.notes([{"pitch": 60}], mode="at", layer="bass", at=2.5, bars=3, quantize=False, exact=False)
    note = {"pitch": 60, "start_s": 0.0, "seconds": 0.5, "velocity": 100}
    section = {"kind": "verse", "layers": ["bass"], "bars": 2}
    played = {"mode": "at", "items": [note], "layer": "bass", "at": 2.5, "bars": 3, "quantize": False, "exact": False}
    assert sessions.messages == [
        {"type": "set", "values": {"guidance": 2.0, "shift": None}, "ramp_ms": 5.0, "at": "bar"},
        {"type": "prompts", "items": [{"text": "c", "weight": 2.0}], "blend": "tokens", "ramp_ms": 6.0, "at": at},
        {"type": "source", "id": "source id", "strength": 0.5, "at": 1.5},
        {"type": "timbre", "id": None, "strength": 0.25, "at": None},
        {"type": "structure", "id": "structure id", "strength": None, "at": None},
        {"type": "write", "at_s": 0.5, "mode": "sum", "samples": 3, "format": "f32"},
        {"type": "band", "start_s": 0.5, "end_s": 1.0, "at": "bar"},
        {"type": "mute", "layers": ["bass"], "at": "bar"},
        {"type": "adapter", "id": "soft", "strength": 0.5, "ramp_ms": 7.0},
        {"type": "seek", "to_s": 2.0, "at": 3.0},
        {"type": "clock", "bpm": 120.0, "sample": 48},
        {"type": "reset"},
        {"type": "set_plan", "start_s": 4.0, "sections": [section], "codes": [1, 2]},
        {"type": "set_plan", "start_s": 5.0, "sections": None, "codes": [3]},
        {"type": "notes", **played},
    ]
    assert sessions.pcm[5].dtype == np.float32
    assert [pcm is None for pcm in sessions.pcm] == [number != 5 for number in range(15)]
    source, structure = [("source", Path("x"), 8000), "source id"], [("structure", Path("y"), None), "structure id"]
    assert sessions.sources == [*source, None, *structure]


def test_a_change_that_is_refused_is_not_waited_for(posted: tuple[tickrt.Live, Posted]) -> None:
    live, sessions = posted
    sessions.error = tickrt.RequestError("wrong", field="values")
    with pytest.raises(tickrt.RequestError, match="wrong"):
        live.set(guidance=2.0)
    assert sessions.receiver._pending_seq == 0


def test_the_words_are_those_of_the_texts_that_were_taken(posted: tuple[tickrt.Live, Posted]) -> None:
    live, sessions = posted
    found = [live.prompt_words]
    live.prompts("c")
    live.set(negative_prompt="d")
    found.append(live.prompt_words)
    live.set(guidance=2.0)
    live.set(negative_prompt=None)
    found.append(live.prompt_words)
    sessions.error = tickrt.RequestError("wrong", field="items")
    for change in (lambda: live.prompts("e"), lambda: live.set(negative_prompt="f")):
        with pytest.raises(tickrt.RequestError):
            change()
    assert [*found, live.prompt_words] == [["a", "b"], ["c", "d"], ["c", ""], ["c", ""]]
    none = tickrt.Live(Posted(), open_message("a", {}), 0.1, None)
    assert none.prompt_words == ["a", ""]


def test_what_is_read_is_acknowledged_and_recorded(posted: tuple[tickrt.Live, Posted]) -> None:
    live, sessions = posted
    assert (len(next(live)), len(live.read(10)), live.beat) == (250, 10, None)
    assert sessions.acks == [0, 250, 260]
    layers = [LayerKeys(name="bass", is_percussion=False, keys=[36], rows=[0])]
    sessions.receiver.on_message(ready(next_sample=260, resumed=True, layers=layers))
    audio = live.record(0.5)
    assert (audio.pcm.shape, audio.seed, live._receiver.ring.playhead_sample) == ((500, 1), 1, 760)
    assert audio.score.frame_s == 1 / 25
    short = tickrt.Live(sessions, open_message("a", {}), 1e-6, None)
    sessions.receiver.on_audio(AudioChunk(1, 0, np.ones((2000, 1), np.float32)))
    assert len(next(short)) == 1
    assert short.record(0.5)._score is None


def test_clocks_jump_where_it_seeks_and_close_with_it(posted: tuple[tickrt.Live, Posted]) -> None:
    live, sessions = posted
    calls: list[str] = []
    clock = SimpleNamespace(jump=lambda: calls.append("jump"), close=lambda: calls.append("close"))
    live._clocks.append(clock)  # type: ignore[arg-type]
    live.seek(1.0)
    live.close()
    assert (calls, sessions.ended) == (["jump", "close"], ["s1"])
