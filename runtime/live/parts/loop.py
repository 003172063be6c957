"""Generations of a canvas that repeats: the whole canvas each time, several in flight, the newest is played."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.controls import STEP_CONTROLS
from runtime.live.parts.core import SessionCore
from runtime.live.parts.pieces import Pieces
from runtime.live.parts.running import Key, Running
from runtime.live.playback.bars import loop_grid
from runtime.live.playback.canvas import Band, Canvas, CanvasPart, Piece, PlacedSource, Placement
from runtime.live.protocol.actions import StopHints
from runtime.live.protocol.messages import PlayNotes
from runtime.live.storage.document import StoredGenerations, damaged
from runtime.music.envelopes import HEARD_FRAMES, Breath, Marks
from runtime.music.part_moods import PartMoods
from runtime.music.tempo import best_bars, loop_frames, most_bars, sixteenths_of_bar, tempo_of
from runtime.requests.options import GenerationOptions
from runtime.requests.seeds import segment_seed
from runtime.requests.segments import Segment
from runtime.requests.timesteps import noise

DRAFT_DENOISE = 0.5


@dataclass(frozen=True, eq=False)
class PassNoise:
    """The noise of a loop after `index` passes with variation; piece None: the seed's own noise."""

    seed: int
    index: int = 0
    piece: Piece | None = None


class LoopMode:
    """Without variation all passes have the same noise, so a control changes the music that is there.

    After a change of step controls alone a draft comes first: from the canvas and the same noise, only the last half of
    the steps, which is ready in half the time. The complete generation follows.

    `placed_noise`: that of the canvas.
    """

    is_ending = is_pending = False
    song, due_s = None, math.inf  # nothing waits for the time

    def __init__(self, core: SessionCore) -> None:
        self.takes: tuple[type, ...] = () if core.references.notes is None else (PlayNotes,)
        self.placed_noise: PassNoise | None = None
        self._core, self._model, self._frames = core, core.model, core.frames
        self._controls, self._timeline, self._playhead = core.controls, core.timeline, core.playhead
        self._references, self._flights = core.references, core.flights
        self._newest_noise: PassNoise | None = None
        self._noises: dict[int, PassNoise] = {}
        self._placed_number = -1

    def stop(self) -> list[StopHints]:
        """What is in flight is forgotten, also its noise."""
        self._newest_noise = self.placed_noise
        return []

    def note(self) -> None:
        """What was played may change in the next pass. Its length is that of its bars, unless the client has chosen."""
        newest = self._timeline.newest
        if newest is None or newest.is_chosen or (band := self.own_band(newest.canvas)) == newest.band:
            return
        from_sample = max(self._playhead.reach, self._controls.from_sample, newest.from_sample)
        frame = from_sample // self._model.hop_samples
        self._timeline.move(from_sample, frame, newest.canvas_frame_at(frame) % band[1], band)

    @property
    def is_dirty(self) -> bool:
        """Whether no generation has what holds now."""
        return self._flights.is_changed

    @property
    def ready_s(self) -> float:
        """Generations in flight are spread evenly over the time that one takes."""
        flights = self._flights
        if not flights.running:
            return flights.retry_s
        return max(flights.retry_s, flights.running[-1].started_s + flights.times.estimate_s / flights.slots)

    @property
    def is_wanted(self) -> bool:
        """Whether one more generation is wanted."""
        return len(self._flights.running) < self._flights.slots and (self.is_dirty or self._variation() > 0.0)

    @property
    def lead_time_s(self) -> float:
        """How long a change takes until it is generated, at most, as far as is known."""
        return self._flights.times.estimate_s

    def _variation(self) -> float:
        return float(self._controls.value("variation"))

    def new(self, job_id: str, may_draft: bool) -> Running:
        """The next generation: of the whole canvas."""
        options = self._flights.key()[0]
        state = self._newest_noise = self._next_noise()
        running = self._flights.new(
            job_id,
            Segment(0, self._frames),
            tail=None,
            noise=None if state.piece is None else state.piece.latents,
            seed=state.seed,
            is_refresh=self._timeline.newest is not None,
            loop_frames=self._loop_frames(options) if self._controls.value("loop_mode") == "circular" else None,
        )
        self._noises[running.number] = state
        return self._draft(running) if may_draft and self._can_draft(running.basis.key) else running

    def _can_draft(self, key: Key) -> bool:
        """Whether only step controls have changed since the canvas was made, and nothing is in flight."""
        latest, steps = self._flights.latest, key[0].steps
        if latest is None or latest.is_mixed or self._flights.running or self._references.source is not None:
            return False
        if (steps or 1) < 2 or self._variation() > 0.0:
            return False
        before = key[0].model_copy(update={name: getattr(latest.key[0], name) for name in STEP_CONTROLS})
        return (before, *key[1:]) == latest.key != key

    def _draft(self, running: Running) -> Running:
        latest = self._flights.latest
        assert latest is not None
        job, options = running.job, running.job.options
        # Its canvas is no source to cover: the condition is that of the complete generation.
        task = options.task or ("text2music" if self._references.structure is None else "cover")
        steps = {"denoise": DRAFT_DENOISE, "steps": (options.steps or 1) // 2, "task": task}
        source = self._timeline.canvas.rows(range(self._frames))  # [T, C]
        running.job = replace(job, options=options.model_copy(update=steps), source=source)
        running.basis.full_seq, running.basis.is_mixed = latest.full_seq, True
        running.is_draft = True
        return running

    def _next_noise(self) -> PassNoise:
        """n_k = sqrt(1 - v^2) n_(k-1) + v e_k, with e_k from (seed, k): the noise stays standard normal."""
        seed, variation = int(self._controls.value("seed")), self._variation()
        state = self._newest_noise
        if state is None or state.seed != seed:
            state = PassNoise(seed)
            if self._flights.latest is None and self._timeline.newest is None:
                return state
        if variation == 0.0:
            return state
        shape = (self._frames, self._model.latent_channels)
        last = noise(*shape, seed) if state.piece is None else state.piece.latents  # [T, C]
        fresh = noise(*shape, segment_seed(seed, state.index + 1))  # [T, C]
        mixed = (math.sqrt(1.0 - variation**2) * last + variation * fresh).astype(np.float32)  # [T, C]
        return PassNoise(seed, state.index + 1, Piece(f"noise/{self._flights.num_started}", mixed))

    def shaped(self, breath: Breath, done: Running, latents: Latents, marks: Marks) -> Latents:
        """Behind its own end: it repeats."""
        end = self._loop_frames(done.basis.key[0])
        first = max(0, end - HEARD_FRAMES)
        breath.shaped(latents[first:end], marks.part(first, end))
        breath.repeat()
        if marks.beats is not None:
            marks.beats[0] = True
        return breath.shaped(latents, marks)

    def place(self, done: Running, piece: Piece, moods: PartMoods) -> bool:
        """The whole canvas, unless a newer one is there already."""
        if done.number < self._placed_number:
            return False
        self._placed_number, self.placed_noise = done.number, self._noises[done.number]
        self._noises = {number: state for number, state in self._noises.items() if number > done.number}
        part = CanvasPart(piece, 0, 0, self._frames, done.basis.first_seq, done.basis.full_seq)
        canvas = Canvas((part,), tempo_of(done.basis.key[0], self._model.ranges.bpm), moods)
        if self._timeline.newest is None:
            self._core.place_first(canvas, self.own_band(canvas))
        else:
            self._place_canvas(max(self._playhead.reach, done.from_sample), canvas)
        return True

    def _place_canvas(self, from_sample: int, canvas: Canvas) -> None:
        """At the position that was to be played there; at another tempo at the same place of the same bar."""
        here, band, rate_hz = self._timeline.at(from_sample), self.own_band(canvas), self._model.frame_rate_hz
        assert here is not None
        assert here.band is not None
        old, new = here.canvas.tempo, canvas.tempo
        if here.is_chosen or old is None or new is None or old == new:
            self._timeline.place_canvas(from_sample, canvas)
            return
        before, after = loop_grid(old, here.band, rate_hz), loop_grid(new, band, rate_hz)
        frame, rest = divmod(from_sample, self._model.hop_samples)
        share = rest / self._model.hop_samples
        bars = (here.canvas_frame_at(frame) + share - before.first_frame) / before.bar_frames
        position = round(bars * after.bar_frames - share) % band[1]
        self._timeline.place(Placement(from_sample, canvas, frame, position, band))

    def _loop_frames(self, options: GenerationOptions) -> int:
        """Those of the loop that a generation with these options is."""
        return self.own_band(Canvas((), tempo_of(options, self._model.ranges.bpm)))[1]

    def own_band(self, canvas: Canvas) -> Band:
        """As many bars as `loop_bars` says and as fit; the whole canvas where it has no tempo."""
        bars = self._controls.value("loop_bars")
        if canvas.tempo is None or bars == 0:
            return (0, self._frames)
        rate_hz = self._model.frame_rate_hz
        if bars is None:
            bars = best_bars(canvas.tempo, self._frames, rate_hz)
        bars = min(bars, most_bars(canvas.tempo, self._frames, rate_hz))
        return (0, loop_frames(canvas.tempo, bars, rate_hz) or self._frames)

    def check_bars(self, values: Mapping[str, Any], field: str) -> None:
        """Bars need a tempo, and have to fit on the canvas."""
        if not (bars := values.get("loop_bars")):
            return
        given = {name: values[name] for name in ("bpm", "time_signature") if name in values}
        tempo = tempo_of(self._controls.final_options().model_copy(update=given), self._model.ranges.bpm)
        if tempo is None:
            fix = 'set bpm, or name it in a prompt, such as "120 bpm"'
            raise RequestError("a loop of bars needs a tempo", field=field, fix=fix)
        most = most_bars(tempo, self._frames, self._model.frame_rate_hz)
        if bars > most:
            text = f"{most} bars of {tempo.beats} beats fit on the canvas at {tempo.bpm:g} bpm"
            raise RequestError(text, field=field, fix="give a smaller number, or open a longer canvas")

    def handle(self, message: PlayNotes) -> None:
        """Notes stay where they were played in the loop, an echo on the sixteenths of its bars where it is quantized.

        A message without any removes those of its layer. Raises RequestError; then nothing has changed.
        """
        notes = self._references.notes
        assert notes is not None
        notes.check_room(len(message.items), "are in the loop", "remove those of a layer: send none of it")
        if message.mode == "hold":
            raise RequestError("a loop has no harmony to hold", field="mode", fix="open the session with mode extend")
        placed = []
        newest = self._timeline.newest
        begin, end = (0, self._frames) if newest is None or newest.band is None else newest.band
        for index, item in enumerate(message.items):
            frame = self._core.canvas_frame(message.at + item.start_s)
            if message.mode == "echo" and message.quantize:
                frame = self._quantized(frame)
            note = notes.placed(message, item, index, frame)
            start = begin + (note.start_frame - begin) % (end - begin)
            placed.append(note._replace(start_frame=start, num_frames=min(note.num_frames, end - start)))
        if placed:
            notes.add(placed, is_exact=message.exact)
        else:
            notes.remove(message.layer)
        self._references.version += 1

    def _quantized(self, frame: float) -> float:
        """The nearest sixteenth of the loop's bars; a canvas frame where it has none."""
        newest = self._timeline.newest
        if newest is None or newest.canvas.tempo is None or newest.band is None:
            return frame
        grid = loop_grid(newest.canvas.tempo, newest.band, self._model.frame_rate_hz)
        sixteenth = grid.bar_frames / sixteenths_of_bar(self._controls.final_options())
        return grid.first_frame + round((frame - grid.first_frame) / sixteenth) * sixteenth

    def region(self, start: int, frames: int) -> int:
        """A write may go over the end of the canvas and on at its beginning."""
        if self._timeline.newest is None:
            raise RequestError("there is no canvas yet", field="at_s", fix="wait for the first audio")
        if frames > self._frames:
            raise RequestError(f"has {frames} frames, the canvas has {self._frames}", field="samples")
        return start % self._frames

    def write(self, start: int, piece: Piece, seq: int) -> None:
        """Put latents from frame `start` on into the canvas, which is the source then."""
        canvas, n = self._timeline.canvas, len(piece.latents)
        head = min(n, self._frames - start)
        canvas = canvas.with_part(CanvasPart(piece, 0, start, start + head, seq, seq))
        if n > head:
            canvas = canvas.with_part(CanvasPart(piece, head, 0, n - head, seq, seq))
        self._timeline.place_canvas(self._playhead.reach, canvas)
        source = Piece(f"source/{seq}", canvas.rows(range(self._frames)))
        self._references.put("source", PlacedSource(None, None, source))

    def stored(self, pieces: Pieces) -> dict[str, Any]:
        """Members of StoredGenerations, which `restore` takes."""
        noise = self.placed_noise
        return {"noise": noise and (noise.seed, noise.index, noise.piece and pieces.store(noise.piece))}

    def restore(self, stored: StoredGenerations, pieces: Pieces) -> None:
        """Go on with the noise of a canvas. Raises StoreError."""
        if stored.noise is None:
            return
        seed, index, name = stored.noise
        piece = None if name is None else pieces.load(name)
        if piece is not None and piece.latents.shape != (self._frames, self._model.latent_channels):
            raise damaged("generations.noise is not that of the canvas")
        self.placed_noise = self._newest_noise = PassNoise(seed, index, piece)
