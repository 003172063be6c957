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

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.http_harness import eventually
from mido import MidiFile

import tickrt
from runtime.audio.finishing import KNEE
from runtime.sessions.playback.note_stream import NoteEvent
from runtime.sessions.protocol.messages import CLIENT_MESSAGES
from tickrt import live as live_module
from tickrt import model as model_module
from tickrt.receiver import PACE_SLACK_S

WAIT_S = 60.0


def take(live: tickrt.Live, chunks: int) -> np.ndarray:
    return np.concatenate(list(islice(live, chunks)))


def test_a_loop_repeats_without_a_change(model: tickrt.Model) -> None:
    with model.live("a", seed=1, seconds=1.28) as live:
        pcm = take(live, 40)
    samples = round(1.28 * model.sample_rate_hz)
    assert pcm.dtype == np.float32
    assert pcm.shape == (40 * model.sample_rate_hz // 10, 2)
    assert np.abs(pcm).max() > 0.0
    assert len(pcm) > 2 * samples


def test_an_extension_does_not_end(model: tickrt.Model) -> None:
    with model.live("a", mode="extend", seed=1) as live:
        pcm = live.read(10 * model.sample_rate_hz)
        windows = np.abs(pcm).reshape(100, -1).max(axis=1)
        assert windows.min() > 0.0
        assert live.state is not None
        assert live.state.underruns == 0


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


def test_every_change_of_what_is_generated_is_waited_for() -> None:
    changes = {name for name, message in CLIENT_MESSAGES.items() if "seq" in message.model_fields}
    assert set(live_module.PACED) == changes - {"write", "band", "seek", "clock", "set_plan", "notes"}


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
        live.set(guidance=3.0)
        live.set(guidance=None)
        take(live, 2)


def test_text_that_does_not_fit_is_an_error_of_the_first_read(model: tickrt.Model) -> None:
    with model.live("a" * 500) as live, pytest.raises(tickrt.TickError, match="tokens"):
        next(live)


def test_a_source_and_written_audio_change_the_sound(model: tickrt.Model) -> None:
    audio = model.generate("a", seconds=1.28, seed=5)
    with model.live("a", seed=1, source=audio, source_strength=1.0) as live:
        take(live, 3)
        live.source(None)
        live.source(audio.pcm, 0.5)
        take(live, 3)
        live.write(np.zeros((800, 2), np.float32), 0.2)
        live.write(audio.pcm[:800], 0.4, mode="sum")
        with pytest.raises(tickrt.RequestError):
            live.write(np.zeros((0, 2), np.float32), 0.2)
        live.band(0.2, 0.6)
        live.seek(0.4)
        live.band(None, None)
        take(live, 3)


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


def test_a_model_without_structure_takes_none(model: tickrt.Model) -> None:
    with model.live("a") as live, pytest.raises(tickrt.RequestError, match=r"has no \[structure\]"):
        live.structure(np.zeros((800, 2), np.float32))


def test_a_recording_is_an_audio(model: tickrt.Model) -> None:
    with model.live("a", seed=4) as live:
        audio = live.record(0.5)
    assert (audio.seconds, audio.seed) == (0.5, 4)
    assert len(audio.latents) == 13


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


def test_a_source_is_not_read_for_a_part_that_the_bundle_lacks(model: tickrt.Model, tmp_path: Path) -> None:
    with model.live("a") as live, pytest.raises(tickrt.RequestError, match=r"the bundle has no \[timbre\]"):
        live.timbre(tmp_path / "no such file")


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
    host = live._sessions.host
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


def test_a_model_without_notes_refuses_to_tell_them(model: tickrt.Model) -> None:
    with pytest.raises(tickrt.RequestError, match="events: the bundle has no"):
        model.live("a", events=["notes"])


def test_threads_take_turns_at_opening_the_host(model: tickrt.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there is one."""

    def made(*arguments: object) -> SimpleNamespace:
        held.append(model._opening.locked())
        return SimpleNamespace(close=lambda: None)

    held: list[bool] = []
    monkeypatch.setattr(model, "_live", None)
    monkeypatch.setattr(model, "_resources", ExitStack())
    monkeypatch.setattr(model_module, "LiveSessions", made)
    with model._resources:
        assert model._live_sessions() is model._live_sessions()
    assert held == [True]
