"""Work in other threads: decoding and encoding, and what a planner makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.simulated_form import SimulatedForm

from runtime.audio.codec import Codec
from runtime.base.errors import EngineError, ShapeError, TickError
from runtime.live.hosting.work import BEGIN_S, CodecWork, HintsWork, compose_job
from runtime.live.protocol.actions import DecodeWindow, MadeHints, MakeHints, SessionJob, SongBeginning, SongEdit
from runtime.live.protocol.messages import WriteAudio
from runtime.music.sections import SongSection
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.planning import Planner
from runtime.requests.options import GenerationOptions
from runtime.requests.segments import Segment


class Work:
    """A CodecWork whose calls the test carries out."""

    def __init__(self, codec: Codec) -> None:
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.codec = codec
        self.codec_work = CodecWork(codec, self.calls.put)
        self.done: list[tuple[Any, Any]] = []

    def decode(
        self,
        name: str,
        lead_s: float,
        *,
        is_wanted: bool = True,
        is_replacing: bool = False,
        is_first: bool = False,
        frames: int = 4,
        value: float = 0.1,
    ) -> None:
        values = np.full((frames, self.codec.latent_channels), value, np.float32)
        window = DecodeWindow(0, 0, values, 7, 10, 300, 0, 0, 0, is_replacing, is_first=is_first)
        self.codec_work.decode(window, lead_s, lambda: is_wanted, lambda pcm: self.done.append((name, pcm)))

    def finish(self, number: int) -> None:
        """Carry out `number` results."""
        for _ in range(number):
            self.calls.get(timeout=60)()


@pytest.fixture
def work(pipeline: Pipeline) -> Iterator[Work]:
    assert pipeline.codec is not None
    made = Work(pipeline.codec)
    yield made
    made.codec_work.close()


def test_what_continues_the_audio_is_decoded_before_replacements_and_the_earliest_first(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work.codec.queue, "size", 1)
    go = threading.Event()
    work.codec.queue.submit(lambda: go.wait(60))
    work.decode("replacement", -0.5, is_replacing=True)
    work.decode("beginning", 0.0, is_first=True)
    for name, lead_s in (("late", 3.0), ("soon", BEGIN_S - 0.1), ("now", -1.0)):
        work.decode(name, lead_s)
    go.set()
    work.finish(5)
    assert [name for name, _ in work.done] == ["now", "soon", "beginning", "late", "replacement"]


def test_windows_that_are_not_wanted_are_not_decoded(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, starts = work.codec._decode, []
    monkeypatch.setattr(work.codec, "_decode", lambda *given: starts.append(given[1]) or decode(*given))
    work.decode("outdated", 0.0, is_wanted=False)
    work.decode("wanted", 1.0)
    work.finish(1)
    assert [name for name, _ in work.done] == ["wanted"]
    assert work.calls.empty()
    assert starts == [7]


def test_a_window_is_decoded_at_its_frame_and_trimmed(work: Work) -> None:
    work.decode("a", 0.0, value=0.02)
    work.finish(1)
    values = np.full((4, work.codec.latent_channels), 0.02, np.float32)
    np.testing.assert_array_equal(work.done[0][1], work.codec.decode(values, 7)[10:300])


def test_audio_has_the_gain_of_the_bundle_and_no_peak_above_the_ceiling(work: Work) -> None:
    codec = copy(work.codec)
    codec.spec = codec.spec.model_copy(update={"gain_db": 6.0})
    louder = Work(codec)
    for name, value in (("quiet", 0.002), ("loud", 1.0)):
        louder.decode(name, 0.0, value=value)
    louder.finish(2)
    louder.codec_work.close()
    quiet, loud = (dict(louder.done)[name] for name in ("quiet", "loud"))
    plain = work.codec.decode(np.full((4, work.codec.latent_channels), 0.002, np.float32), 7)[10:300]
    np.testing.assert_allclose(quiet, plain * 10 ** (6 / 20), rtol=1e-5)
    assert np.abs(loud).max() <= 10 ** (-1 / 20)


def test_an_error_is_the_result(work: Work) -> None:
    work.decode("wrong", 0.0, frames=0)
    work.decode("right", 1.0)
    work.finish(2)
    assert isinstance(dict(work.done)["wrong"], ShapeError)
    assert isinstance(dict(work.done)["right"], np.ndarray)


def test_encoding_gives_latents_or_the_error_in_the_order_of_the_calls(work: Work) -> None:
    def fail() -> Any:
        raise EngineError("no memory")

    results: list[Any] = []
    for task in (lambda: np.zeros((1, 1), np.float32), fail):
        work.codec_work.encode(task, results.append)
    for _ in range(2):
        work.calls.get(timeout=60)()
    assert isinstance(results[0], np.ndarray)
    assert isinstance(results[1], TickError)


@pytest.mark.parametrize("mode", ["replace", "sum"])
def test_writing_changes_only_the_samples_of_the_audio(mode: str, work: Work) -> None:
    codec, generator = work.codec, np.random.default_rng(0)
    latents = generator.standard_normal((6, codec.latent_channels)).astype(np.float32)
    pcm = (0.1 * generator.standard_normal((500, codec.channels))).astype(np.float32)
    message = WriteAudio(seq=1, at_s=0.0, mode=mode, samples=len(pcm))  # type: ignore[arg-type]
    audio = codec.decode(latents)
    audio[100:600] = pcm if mode == "replace" else pcm + audio[100:600]
    written = work.codec_work.write(message, pcm, 100, latents)
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


class PlanHost:
    """The thread of a host, and the forms that it has opened."""

    def __init__(self, kinds: Iterator[type[SimulatedForm]]) -> None:
        self.forms: list[SimulatedForm] = []
        self.begun: list[SongBeginning] = []
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.made: list[MadeHints | TickError] = []
        self.is_opened = threading.Semaphore(0)
        self._kinds = kinds
        self.work = HintsWork(self._open, self._with_drawn, self.calls.put)

    def _open(self, begin: SongBeginning) -> SimulatedForm:
        self.begun.append(begin)
        self.forms.append(next(self._kinds)(begin))
        self.is_opened.release()
        return self.forms[-1]

    @staticmethod
    def _with_drawn(options: GenerationOptions) -> GenerationOptions:
        assert threading.current_thread().name.startswith("live-plan")
        return options.model_copy(update={"prompt": f"{options.prompt}, drawn".lstrip(", ")})

    def start(self, begin: SongBeginning | None, change: SongEdit | None = None) -> None:
        self.work.start(MakeHints(1, begin, change, 0, 50), self.made.append)

    def take(self) -> MadeHints | TickError:
        self.calls.get(timeout=TIMEOUT_S)()
        return self.made[-1]


@pytest.fixture
def plan_host() -> Iterator[PlanHost]:
    opened = PlanHost(iter([SimulatedForm, SimulatedForm]))
    yield opened
    opened.work.close()


def test_what_the_seed_draws_stands_before_the_words_of_the_sections(built: Built) -> None:
    sections = (
        SongSection(0, "verse", ("drums",), 1, -20, 10, None),
        SongSection(1, "break", ("bass",), 1, 10, 40, None),
    )
    with open_pipeline(built(planner={"capacity": 1024, "plan": True}, meaning=True, words=("chant", "no"))) as opened:
        assert opened.planner is not None
        words = {"drums": ("drums", "no drums"), "bass": ("bass", "no bass")}
        plan = opened.planner.spec.plan.model_copy(update={"layer_words": words})
        spec = opened.planner.spec.model_copy(update={"plan": plan})
        pipeline = replace(opened, planner=Planner(opened.bundle, spec, opened.loop, opened.planner.structure))
        chant, blended = (GenerationOptions(prompt="chant", blend=blend, steps=1) for blend in ("velocity", "tokens"))
        job = SessionJob("j", chant, Segment(0, 32), None, None, None, 0, False, sections=sections)
        played = pipeline.meanings(chant, 5)[0].played_text
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


def test_parts_are_made_in_order_and_reported_on_the_hosts_thread(plan_host: PlanHost) -> None:
    plan_host.start(BEGIN)
    plan_host.start(None, SongEdit(0, codes=(7,)))
    first, second = plan_host.take(), plan_host.take()
    assert isinstance(first, MadeHints)
    assert isinstance(second, MadeHints)
    assert (len(first.hints), second.hints[0, 0], second.hints[5, 0]) == (50, 7.0, first.hints[5, 0])
    assert second.state.codes.tolist() == [7]


def test_a_plan_is_for_prompts_with_what_the_seed_draws(plan_host: PlanHost) -> None:
    plan_host.start(BEGIN)
    plan_host.start(None, SongEdit(25, options=GenerationOptions(prompt="calm")))
    first, second = plan_host.take(), plan_host.take()
    assert isinstance(first, MadeHints)
    assert isinstance(second, MadeHints)
    assert plan_host.begun[0].options.prompt == "drawn"
    other = SimulatedForm(plan_host.begun[0])
    other.change(GenerationOptions(prompt="calm, drawn"), 25)
    assert np.array_equal(second.hints, other.hints(0, 50))


def test_what_fails_is_reported(plan_host: PlanHost) -> None:
    SimulatedForm.fails_next = True
    plan_host.start(BEGIN)
    assert str(plan_host.take()) == "failed"
    plan_host.start(BEGIN)
    assert isinstance(plan_host.take(), MadeHints)


def test_another_plan_ends_the_one_that_is_being_made() -> None:
    plan_host = PlanHost(iter([WaitingForm, SimulatedForm]))
    plan_host.start(BEGIN)
    assert plan_host.is_opened.acquire(timeout=TIMEOUT_S)
    waiting = plan_host.forms[0]
    assert isinstance(waiting, WaitingForm)
    assert waiting.is_waiting.wait(TIMEOUT_S)
    plan_host.start(BEGIN)
    assert isinstance(plan_host.take(), TickError)
    assert isinstance(plan_host.take(), MadeHints)
    plan_host.work.close()


def test_another_plan_ends_one_that_is_still_being_opened() -> None:
    begins = threading.Event()

    class LateForm(WaitingForm):
        def __init__(self, begin: SongBeginning) -> None:
            super().__init__(begin)
            assert begins.wait(TIMEOUT_S)

    plan_host = PlanHost(iter([LateForm, SimulatedForm]))
    plan_host.start(BEGIN)
    plan_host.start(BEGIN)
    begins.set()
    assert isinstance(plan_host.take(), TickError)
    assert isinstance(plan_host.take(), MadeHints)
    plan_host.work.close()


@pytest.mark.parametrize("is_opened", [False, True])
def test_what_is_stopped_fails_and_another_plan_begins(is_opened: bool) -> None:
    may_open = threading.Event()

    class LateForm(WaitingForm):
        def __init__(self, begin: SongBeginning) -> None:
            super().__init__(begin)
            assert may_open.wait(TIMEOUT_S)

    plan_host = PlanHost(iter([LateForm, SimulatedForm]))
    plan_host.start(BEGIN)
    if is_opened:
        may_open.set()
        assert plan_host.is_opened.acquire(timeout=TIMEOUT_S)
    plan_host.work.stop()
    may_open.set()
    assert isinstance(plan_host.take(), TickError)
    plan_host.start(BEGIN)
    assert isinstance(plan_host.take(), MadeHints)
    plan_host.work.close()


def test_nothing_is_reported_after_the_end() -> None:
    plan_host = PlanHost(iter([WaitingForm]))
    plan_host.start(BEGIN)
    assert plan_host.is_opened.acquire(timeout=TIMEOUT_S)
    plan_host.work.close()
    plan_host.work._thread.shutdown()
    assert plan_host.calls.empty()
