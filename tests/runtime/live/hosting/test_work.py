"""Work in other threads: decoding and encoding, and what a planner makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from conftest import Built
from helpers.panics import Panic, panic
from helpers.simulated_form import SimulatedForm

from runtime.audio.codec import Codec
from runtime.base.errors import DrainingError, ShapeError, TickError
from runtime.config.codec import Pcm
from runtime.live.hosting.services import BEGIN_S, CodecWork
from runtime.live.hosting.work import HintsWork, compose_job
from runtime.live.protocol.actions import DecodeWindow, MadeHints, MakeHints, SessionJob, SongBeginning, SongEdit
from runtime.live.protocol.messages import WriteAudio
from runtime.music.sections import SongSection
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.planner import Planner
from runtime.requests.options import GenerationOptions
from runtime.requests.segments import Segment


class Work(CodecWork):
    """Decodes windows of one value, and notes in which order they are done."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self.codec, self.done = codec, list[str]()

    def window(
        self, name: str, lead_s: float, *, is_wanted: bool = True, frames: int = 4, value: float = 0.1, **flags: Any
    ) -> Future[Pcm]:
        values = np.full((frames, self.codec.latent_channels), value, np.float32)
        window = DecodeWindow(0, 0, values, 7, 10, 300, 0, 0, 0, **flags)
        decoding = self.decode(window, lead_s, lambda: is_wanted)
        decoding.add_done_callback(lambda ended: None if ended.cancelled() else self.done.append(name))
        return decoding


@pytest.fixture
def work(pipeline: Pipeline) -> Iterator[Work]:
    assert pipeline.codec is not None
    made = Work(pipeline.codec)
    yield made
    made.close()


def test_what_continues_the_audio_is_decoded_before_replacements_and_the_earliest_first(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work.codec.queue, "size", 1)
    go = threading.Event()
    work.codec.queue.submit(lambda: go.wait(60))
    windows = [work.window("replacement", -0.5, is_replacing=True), work.window("beginning", 0.0, is_first=True)]
    windows += [work.window(name, lead_s) for name, lead_s in (("late", 3.0), ("soon", BEGIN_S - 0.1), ("now", -1.0))]
    outdated = work.window("outdated", 0.0, is_wanted=False)
    go.set()
    wait(windows, 60)
    assert work.done == ["now", "soon", "beginning", "late", "replacement"]
    assert outdated.cancelled()


def test_audio_is_trimmed_has_the_gain_of_the_bundle_and_no_peak_above_the_ceiling(work: Work) -> None:
    codec = copy(work.codec)
    codec.spec = codec.spec.model_copy(update={"gain_db": 6.0})
    louder = Work(codec)
    quiet, loud = (louder.window("", 0.0, value=value).result(60) for value in (0.002, 1.0))
    louder.close()
    plain = work.codec.decode(np.full((4, work.codec.latent_channels), 0.002, np.float32), 7)[10:300]
    np.testing.assert_array_equal(work.window("", 0.0, value=0.002).result(60), plain)
    np.testing.assert_allclose(quiet, plain * 10 ** (6 / 20), rtol=1e-5)
    assert np.abs(loud).max() <= 10 ** (-1 / 20)


def test_an_error_is_the_result(work: Work) -> None:
    assert isinstance(work.window("wrong", 0.0, frames=0).exception(60), ShapeError)
    assert isinstance(work.encode(panic).exception(60), Panic)


@pytest.mark.parametrize("mode", ["replace", "sum"])
def test_writing_changes_only_the_samples_of_the_audio(mode: str, work: Work) -> None:
    codec, generator = work.codec, np.random.default_rng(0)
    latents = generator.standard_normal((6, codec.latent_channels)).astype(np.float32)
    pcm = (0.1 * generator.standard_normal((500, codec.channels))).astype(np.float32)
    message = WriteAudio(seq=1, at_s=0.0, mode=mode, samples=len(pcm))  # type: ignore[arg-type]
    audio = codec.decode(latents)
    audio[100:600] = pcm if mode == "replace" else pcm + audio[100:600]
    written = work.write(message, pcm, 100, latents)
    np.testing.assert_array_equal(written, codec.encode(audio))


BEGIN = SongBeginning(GenerationOptions(prompt=""), 1)
TIMEOUT_S = 60.0


class WaitingForm(SimulatedForm):
    """Hints come once it is closed, as an error."""

    def __init__(self, begin: SongBeginning) -> None:
        super().__init__(begin)
        self.is_waiting, self._closed = threading.Event(), threading.Event()

    def hints(self, start_frame: int, frames: int) -> Any:
        self.is_waiting.set()
        assert self._closed.wait(TIMEOUT_S)
        raise TickError("the plan was cancelled")

    def close(self) -> None:
        self._closed.set()


class Songs(HintsWork):
    """Hints of songs of these kinds, one after the other; `opened`: what has begun, with its songs."""

    def __init__(self, *kinds: type[SimulatedForm]) -> None:
        self.begun: list[SongBeginning] = []
        self.songs: list[SimulatedForm] = []
        self.is_opened = threading.Semaphore(0)
        self._kinds = iter(kinds)
        super().__init__(cast(Any, self._open), self._drawn)

    def _open(self, begin: SongBeginning) -> SimulatedForm:
        self.begun.append(begin)
        self.songs.append(next(self._kinds)(begin))
        self.is_opened.release()
        return self.songs[-1]

    @staticmethod
    def _drawn(options: GenerationOptions) -> GenerationOptions:
        assert threading.current_thread().name.startswith("live-plan")
        return options.model_copy(update={"prompt": f"{options.prompt}, drawn".lstrip(", ")})

    def make(self, begin: SongBeginning | None, change: SongEdit | None = None) -> Future[MadeHints]:
        return self.start(MakeHints(1, begin, change, 0, 50))

    def wait_until_opened(self) -> None:
        assert self.is_opened.acquire(timeout=TIMEOUT_S)


@pytest.fixture
def songs() -> Iterator[Callable[..., Songs]]:
    with ExitStack() as closing:

        def make(*kinds: type[SimulatedForm]) -> Songs:
            made = Songs(*kinds)
            closing.callback(made.close)
            return made

        yield make


def test_what_the_seed_draws_stands_before_the_words_of_the_sections(built: Built) -> None:
    sections = (
        SongSection(0, "verse", ("drums",), 1, -20, 10, None),
        SongSection(1, "break", ("bass",), 1, 10, 40, None),
    )
    with open_pipeline(built(planner={"capacity": 1024, "plan": True}, meaning=True, words=("chant", "no"))) as opened:
        words = {"drums": ("drums", "no drums"), "bass": ("bass", "no bass")}
        plan = opened.planner.spec.plan.model_copy(update={"layer_words": words})
        spec = opened.planner.spec.model_copy(update={"plan": plan})
        pipeline = replace(opened, planner=Planner(opened.bundle, spec, opened.loop, opened.planner.structure))
        chant, blended = (GenerationOptions(prompt="chant", blend=blend, steps=1) for blend in ("velocity", "tokens"))
        job = SessionJob("j", chant, Segment(0, 32), None, None, None, 0, False, sections=sections)
        played = pipeline.prompts.meanings(chant, 5)[0].played_text
        request = compose_job(pipeline, job, 5)
        expected = [pipeline.text_encoder.encode(f"{played}, {said}") for said in ("drums, no bass", "no drums, bass")]
        assert [np.array_equal(one.tokens, each) for one, each in zip(request.conditions, expected, strict=True)] == [
            True,
            True,
        ]
        assert [np.asarray(one.weight).tolist() for one in request.conditions] == [
            [1.0] * 10 + [0.0] * 22,
            [0.0] * 10 + [1.0] * 22,
        ]
        (plain,) = compose_job(pipeline, replace(job, options=blended), 5).conditions
        assert np.array_equal(plain.tokens, pipeline.text_encoder.encode(played))


def test_hints_are_made_in_order_for_prompts_with_what_the_seed_draws(songs: Callable[..., Songs]) -> None:
    made = songs(SimulatedForm)
    asked = made.make(BEGIN), made.make(None, SongEdit(0, codes=(7,)))
    first, second = (each.result(TIMEOUT_S) for each in asked)
    assert (len(first.hints), second.hints[0, 0], second.hints[5, 0]) == (50, 7.0, first.hints[5, 0])
    assert second.state.codes.tolist() == [7]
    third = made.make(None, SongEdit(25, options=GenerationOptions(prompt="calm"))).result(TIMEOUT_S)
    assert made.begun[0].options.prompt == "drawn"
    other = SimulatedForm(made.begun[0])
    other.hints(0, 50)
    other.replace(0, codes=(7,))
    other.change(GenerationOptions(prompt="calm, drawn"), 25)
    assert np.array_equal(third.hints, other.hints(0, 50))


def test_what_fails_is_reported(songs: Callable[..., Songs]) -> None:
    SimulatedForm.fails_next, made = True, songs(SimulatedForm, SimulatedForm)
    assert str(made.make(BEGIN).exception(TIMEOUT_S)) == "failed"
    assert isinstance(made.make(BEGIN).result(TIMEOUT_S), MadeHints)


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_another_song_ends_the_one_that_is_made_or_opened_and_so_does_a_stop(
    is_opened: bool, is_stopped: bool, songs: Callable[..., Songs]
) -> None:
    may_open = threading.Event()

    class LateForm(WaitingForm):
        def __init__(self, begin: SongBeginning) -> None:
            super().__init__(begin)
            assert may_open.wait(TIMEOUT_S)

    made = songs(LateForm, SimulatedForm)
    ended = made.make(BEGIN)
    if is_opened:
        may_open.set()
        made.wait_until_opened()
        waiting = made.songs[0]
        assert isinstance(waiting, WaitingForm)
        assert waiting.is_waiting.wait(TIMEOUT_S)
    if is_stopped:
        made.stop()
        may_open.set()
        assert isinstance(ended.exception(TIMEOUT_S), TickError)
    following = made.make(BEGIN)
    may_open.set()
    assert isinstance(ended.exception(TIMEOUT_S), TickError)
    assert isinstance(following.result(TIMEOUT_S), MadeHints)


def test_the_end_ends_what_is_made_and_what_waits(songs: Callable[..., Songs]) -> None:
    made = songs(WaitingForm)
    asked = made.make(BEGIN), made.make(BEGIN)
    made.wait_until_opened()
    made.close()
    assert [type(each.exception(TIMEOUT_S)) for each in asked] == [TickError, DrainingError]
