"""Work of live sessions in other threads: composing generations, and hints of what a planner makes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.base.errors import DrainingError
from runtime.base.threads import Workers
from runtime.live.protocol.actions import MadeHints, MakeHints, SessionJob, SongBeginning
from runtime.music.sections import section_prompts
from runtime.pipeline.compose import GenerationInputs
from runtime.requests.options import GenerationOptions
from runtime.requests.request import GenerationRequest

if TYPE_CHECKING:
    from runtime.pipeline.pipeline import Pipeline
    from runtime.pipeline.songs.plan import SongPlan


def compose_job(pipeline: Pipeline, job: SessionJob, seed: int, client: str = "") -> GenerationRequest:
    """The request of a session's generation. seed: the session's. Raises RequestError, EngineError."""
    inputs = GenerationInputs(
        source=job.source,
        noise=job.noise,
        timbre=job.timbre,
        hints=job.hints,
        phrases=job.phrases,
        loop_frames=job.loop_frames,
        session=job.id,
        client=client,
    )
    options, planner = pipeline.prompts.drawn(job.options, seed), pipeline.planner
    if job.sections and options.blend != "tokens":  # whose weights are no curves
        assert planner is not None
        assert planner.spec.plan is not None
        prompt = section_prompts(planner.spec.plan, options.prompt, job.sections, 0, job.segment.frames)
        options = options.model_copy(update={"prompt": prompt})
    return pipeline.composer.compose(options, job.segment, inputs, job.tail)


def make_part(song: SongPlan, work: MakeHints) -> MadeHints:
    """What a session asks for; blocks until it is made. Raises TickError."""
    if (change := work.change) is not None:
        if change.options is not None:
            song.change(change.options, change.from_frame)
        else:
            song.replace(change.from_frame, change.sections, change.codes)
    hints = song.hints(work.start_frame, work.frames)
    return MadeHints(dict(song.header), tuple(song.sections), hints, song.state())


class HintsWork:
    """Makes hints of a session's song, in a thread that begins with the first of them. The host's thread calls all
    methods.

    open_song: opens a plan; in the thread. with_drawn: what is planned for options; in the thread, too.
    """

    def __init__(
        self,
        open_song: Callable[[SongBeginning], SongPlan],
        with_drawn: Callable[[GenerationOptions], GenerationOptions],
    ) -> None:
        self._open_song, self._with_drawn = open_song, with_drawn
        self._song: SongPlan | None = None
        self._begun: MakeHints | None = None  # What the newest plan begins with.
        self._is_closed = False
        self.thread = Workers(1, "live-plan", waits=True)

    def start(self, work: MakeHints) -> Future[MadeHints]:
        """Make some; in the order of the calls. Where a plan begins, the one before it ends at once."""
        if work.begin is not None:
            self.stop()
            self._begun = work
        return self.thread.submit(self._make, work)

    def stop(self) -> None:
        """End what is being made: it has failed. What comes next begins a plan."""
        self._begun = None
        if self._song is not None:
            self._song.close()

    def close(self) -> None:
        """End what is being made."""
        self._is_closed = True
        self.stop()
        self.thread.shutdown(wait=False)  # what is being made ends by itself: `stop` has closed its plan

    def _make(self, work: MakeHints) -> MadeHints:
        """In the thread."""
        if self._is_closed:
            raise DrainingError("the session has ended")
        begin, change = work.begin, work.change
        if begin is not None:
            self._song = self._open_song(replace(begin, options=self._with_drawn(begin.options)))
            if self._begun is not work:
                self._song.close()
        assert self._song is not None
        if change is not None and change.options is not None:
            work = replace(work, change=replace(change, options=self._with_drawn(change.options)))
        return make_part(self._song, work)
