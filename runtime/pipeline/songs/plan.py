"""Songs planned in sections, and their structure codes, one section after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runtime.base.errors import TickError
from runtime.config.codec import Latents
from runtime.music.rhythm import Rhythm
from runtime.music.sections import (
    MOST,
    CodedSection,
    PromptText,
    SectionLevel,
    SectionRequest,
    Song,
    SongSection,
    SongState,
    header_options,
    header_values,
    item_of,
    packed,
    recalled_section,
    section_prompts,
    song_of,
    unpacked,
    with_layers,
)
from runtime.pipeline.songs.edits import (
    before,
    code_at,
    continued,
    cut,
    frontier,
    kept,
    num_made,
    section_at,
    with_codes,
    with_items,
)
from runtime.pipeline.songs.pages import (
    OPENINGS,
    SECTION_S,
    TWO_FROM_BARS,
    CodesTask,
    Openings,
    SongWriter,
    layers_of_codes,
)
from runtime.pipeline.songs.planner import Caller, Planner
from runtime.pipeline.songs.prompt import read_prompt
from runtime.requests.options import GenerationOptions
from runtime.tick.language.sequence import ENDLESS

# A prompt may ask that a song gets louder, or quieter, by so much from its beginning to its end; the levels of kinds
# then count by a share.
COURSE_DB, COURSE_SHARE = 12.0, 0.3
# Codes are kept of what ends so long before the newest hints.
KEPT_S = 60.0
# Hints are decoded in this many pieces per canvas.
PIECES = 4
# So many codes behind a piece are taken to be as its last one.
CODES_BEHIND = 2


class SongPlan:
    """Sections and codes of one generation, or without an end where `total_frames` is None. Any thread.

    Codes are made as far as hints are asked for; what is long past is forgotten. A plan page that ends too early is
    followed by others, which begin with the last sections. Frames count from the plan's first.
    """

    def __init__(
        self,
        planner: Planner,
        options: GenerationOptions,
        seed: int,
        total_frames: int | None = None,
        caller: Caller | None = None,
        state: SongState | None = None,
        openings: Openings = OPENINGS,
    ) -> None:
        spec = planner.spec.plan
        assert spec is not None
        self._planner, self._spec, self._structure = planner, spec, planner.structure
        self._total_frames = total_frames
        self._num_codes = None if total_frames is None else planner.structure.spec.num_codes_of(total_frames)
        self._writer = SongWriter(planner, seed, self._num_codes, caller or Caller(), options, openings)
        grid = (planner.bundle.latents.frame_rate_hz, self._structure.spec.frames_per_code, spec.clocks_per_beat)
        self._grid = Rhythm(120.0, 4, *grid, spec.bar_markers.first, spec.clock_markers.first)
        # `_making` is held while codes are made, `_lock` while anything below is read or changed.
        self._making, self._lock = threading.Lock(), threading.Lock()
        self._prompt = read_prompt(planner, options)
        self._song: Song | None = None
        self._sections: list[CodedSection] = []
        self._task: CodesTask | None = None
        self._version, self._asked_frame = 0, 0
        # Of the last change of prompt, tempo or key; up to the second frame sections have one opening each.
        self._changed_frame, self._brief_until = -MOST, -MOST
        if state is not None:
            self._restore(state)

    @property
    def header(self) -> dict[str, Any]:
        """What holds for all sections from here on, by field; {} before they are planned."""
        with self._lock:
            return {} if self._song is None else header_values(self._spec, self._song)

    @property
    def sections(self) -> tuple[SongSection, ...]:
        """Those that are planned; without an end, but for what is long past. Never blocks."""
        with self._lock:
            oldest = self._oldest_frame
            return tuple(
                section.planned(self._spec, self._total_frames, layers_of_codes(self._planner.spec, section))
                for section in self._sections
                if section.end_frame > oldest and (self._total_frames or ENDLESS) > section.start_frame
            )

    def plan_sections(self, num: int = 1) -> None:
        """Make sections where there are none, without an end `num` at least, blocking. Raises TickError."""
        with self._making:
            while not self.sections:
                self._advance(0)
            while self._total_frames is None and len(self.sections) < num:
                self._plan_sections(self._version)

    def hints(self, start_frame: int, frames: int) -> Latents:
        """Hints `[frames, C]`, blocking; codes are made as far as needed. Raises TickError.

        They are decoded in short pieces, each behind the one before, so that little is made ahead.
        """
        with self._lock:
            self._asked_frame = max(self._asked_frame, start_frame)
        size = -(-self._structure.codes_per_piece // PIECES)
        step = size * self._grid.frames_per_code
        first, last = start_frame // step, -(-(start_frame + frames) // step)
        pieces = []
        for index in range(first, last):
            heard = size if index else 0
            codes = self.codes(index * size - heard, (index + 1) * size)
            # What a piece lacks of the codes behind it is not heard as their end.
            known = self._structure.hints_of_codes([*codes, *codes[-1:] * CODES_BEHIND])
            pieces.append(known[heard * self._grid.frames_per_code : len(codes) * self._grid.frames_per_code])
        return np.concatenate(pieces)[start_frame - first * step :][:frames]

    def codes(self, first: int, end: int) -> list[int]:
        """Codes from number `first` to before `end`, or the plan's end, blocking. Raises TickError."""
        if self._num_codes is not None:
            end = min(end, self._num_codes)
        with self._making:
            while self._made < end:
                self._advance(end)
        with self._lock:
            found = [
                code
                for section in self._sections
                for number, code in zip(section.span, section.codes, strict=False)
                if first <= number < end
            ]
        if len(found) < end - first:
            raise TickError(f"codes from {first} on are forgotten")
        return found

    def finish(self) -> list[int]:
        """All codes, blocking. Raises TickError."""
        assert self._num_codes is not None
        return self.codes(0, self._num_codes)

    def prompts(self, prompt: PromptText, played: Iterable[tuple[str, int, int]] = ()) -> PromptText:
        """The prompts of all its frames, with the layers of every section; blended tokens stay as they are.

        played: as `with_layers` takes it.
        """
        assert self._total_frames is not None
        if self._writer.options.blend == "tokens":
            return prompt
        return section_prompts(self._spec, prompt, with_layers(self.sections, played), 0, self._total_frames)

    @property
    def options(self) -> dict[str, Any]:
        """What its header says, by option of a prompt."""
        return header_options(self.header)

    @property
    def tonic_chord(self) -> tuple[int, ...]:
        """Pitch classes of the triad on its tonic, that first, 0 is C; () without a key, or before sections are."""
        with self._lock:
            return () if self._song is None else self._spec.tonic_chord(self._song.header)

    @property
    def levels(self) -> tuple[SectionLevel, ...]:
        """How loud its sections are beside each other, in order; () where the model does not say."""
        dynamics = self._spec.dynamics
        if not dynamics:
            return ()
        sections, rise = self.sections, self._prompt.course.rise
        share = COURSE_SHARE if rise else 1.0
        frames = max((each.end_frame for each in sections), default=1)
        return tuple(
            SectionLevel(
                each.start_frame,
                each.end_frame,
                *(
                    share * level_db + rise * COURSE_DB * frame / frames
                    for level_db, frame in zip(
                        dynamics.get(each.kind, (0.0, 0.0)), (each.start_frame, each.end_frame), strict=True
                    )
                ),
            )
            for each in sections
        )

    @property
    def summary(self) -> dict[str, Any]:
        """Header, sections with their times, why there is but one, and the codes once there are all."""
        rate_hz, made = self._grid.frame_rate_hz, self._made
        sections = [section.values(rate_hz) for section in self.sections]
        values = {**self.header, "sections": sections} if sections else {}
        if len(sections) == 1 and sections[0]["bars"] < TWO_FROM_BARS and sections[0]["end_s"] >= SECTION_S:
            values["one_section"] = f"{sections[0]['bars']} bars: two sections take {TWO_FROM_BARS}"
        if self._num_codes is None or made < self._num_codes:
            return values
        return {**values, "codes": self.finish()}

    def replace(
        self, from_frame: int, sections: Sequence[SectionRequest] | None = None, codes: Sequence[int] | None = None
    ) -> None:
        """Other sections from the start of one on, or other codes from one on, or both; what follows goes on by itself.

        Who waits for hints gets those of the new plan. Raises RequestError; nothing has changed then.
        """
        with self._lock:
            known, song = [each for each in self._sections if each.end_frame > self._oldest_frame], self._song
            earlier = before(self._sections, known[0]) if known else []
            if sections is not None:
                items = [item_of(self._spec, section) for section in sections]
                first = section_at(known, from_frame)
                known_before, from_frame = before(self._sections, first), first.span.start * self._grid.frames_per_code
                song = continued(first, known_before)
                known = with_items(self._spec, song, items, known_before)[len(earlier) :]
            if codes is not None:
                number = code_at(known, from_frame, self._grid.frames_per_code)
                num_codes = min(self._structure.spec.num_codes, self._planner.spec.codes.count)
                known = with_codes(known, number, codes, made=num_made(known), num_codes=num_codes)
            self._set([*earlier, *known])
            self._song = song

    def change(self, options: GenerationOptions, from_frame: int) -> None:
        """Another prompt, tempo or key, from the first bar on that begins at `from_frame` or behind it.

        The section that is then played keeps its kind; its beat goes on. Where the change before is less than an
        opening away, as much is written with one opening per section: more changes will follow. Raises RequestError.
        """
        prompt = read_prompt(self._planner, options)
        opening_frames = round(self._writer.openings.seconds * self._grid.frame_rate_hz)
        with self._lock:
            if from_frame < self._changed_frame + opening_frames:
                self._brief_until = from_frame + opening_frames
            self._changed_frame = from_frame
            song, self._song = self._song, None
            self._writer.options, self._prompt = options, prompt
            if not self._sections:
                self._grid = self._grid if song is None else replace(self._grid, first_frame=song.rhythm.first_frame)
                self._set([])  # Those that are being planned are for the options before.
                return
            section = next((each for each in self._sections if each.end_frame > from_frame), self._sections[-1])
            shorter = cut(section, from_frame)
            self._set([*before(self._sections, section), *([shorter] if shorter.bars else [])])
            self._grid = replace(self._grid, first_frame=section.song.rhythm.exact_frame(shorter.next_bar))
            self._prompt = replace(prompt, kinds=prompt.kinds or section.item[:1])

    def state(self) -> SongState:
        """What another plan of the same options goes on from. Never blocks."""
        with self._lock:
            others = {"first_frame": self._grid.first_frame, "asked_frame": self._asked_frame}
            others |= {"changed_frame": self._changed_frame, "brief_until": self._brief_until}
            return packed(self._sections, self._song, kinds=list(self._prompt.kinds), **others)

    def close(self) -> None:
        """Make no more: who waits for codes gets a TickError."""
        self._writer.caller.leave()

    @property
    def _made(self) -> int:
        """How many codes there are, all told."""
        with self._lock:
            return num_made(self._sections)

    @property
    def _oldest_frame(self) -> int:
        """What ends before it is forgotten; nothing of a plan of known length."""
        if self._total_frames is not None:
            return 0
        return self._asked_frame - round(KEPT_S * self._grid.frame_rate_hz)

    def _advance(self, end: int) -> None:
        """Plan sections, or wait for codes up to number `end` of the section that is being made."""
        with self._lock:
            version, task = self._version, self._task
            is_short = self._needs_sections()
            section, others = (None, []) if is_short else (frontier(self._sections), list(self._sections))
        try:
            if section is None:
                self._plan_sections(version)
                return
            task = task or self._start(section, others, version)
            first = task.page.first
            # Codes that are known come again, as tokens that are given: all of them are waited for.
            last = min(max(end - section.span.start - first, len(section.codes) - first, 1), len(task.page.ends))
            # Until the planner has written so many tokens; `_making` is held meanwhile, `_lock` is not.
            tokens = task.run.wait(task.page.ends[last - 1])
        except TickError:
            if version == self._version or self._writer.caller.has_left:
                raise
            return  # the plan was changed: this is not needed any more
        with self._lock:
            if version == self._version:
                self._take(section, task, tokens)

    def _needs_sections(self) -> bool:
        """Whether the last planned section is being made, or they do not reach the plan's end."""
        if not self._sections or self._song is None:
            return True
        if self._num_codes is not None:
            return self._sections[-1].span.stop < self._num_codes
        return frontier(self._sections) is self._sections[-1]

    def _plan_sections(self, version: int) -> None:
        """Write plan pages. The first sections of a plan of known length are made to fit it."""
        with self._lock:
            prompt, song, is_first = self._prompt, self._song, not self._sections
            earlier = [section.item for section in self._sections if section.song is song]
            number = 0 if is_first else self._sections[-1].index + 1
        header, items = self._writer.sections(prompt, song, earlier, number)
        if song is None:
            style = [] if self._spec.style is None else sorted(set(prompt.tokens) & set(self._spec.style.tokens))
            song = song_of(self._spec, header, style, prompt.bpm, self._grid)
        bars: list[int] | None = None
        if self._num_codes is not None and is_first:
            fitting = self._writer.fitted(prompt, song, items, self._num_codes)
            items, bars = [item for item, _ in fitting], [num_bars for _, num_bars in fitting]
        with self._lock:
            if version == self._version:
                self._song = song
                self._sections = with_items(self._spec, song, items, self._sections, bars)

    def _start(self, section: CodedSection, others: Sequence[CodedSection], version: int) -> CodesTask:
        """The sequence of a section's next codes."""
        is_new, task, codes = not section.codes and recalled_section(self._spec, others, section) is None, None, None
        if is_new and self._spec.openings > 1 and section.start_frame >= self._brief_until:
            task, codes = self._writer.best_opening(section, others, lambda: version == self._version)
        if codes is not None:
            with self._lock:
                section.codes[:] = codes
        task = task or self._writer.codes(section, others)
        with self._lock:
            if version == self._version:
                self._task = task
            else:
                task.run.cancel()
        return task

    def _take(self, section: CodedSection, task: CodesTask, tokens: Sequence[int]) -> None:
        """Note the codes that are complete, and forget what is long past."""
        codes = task.page.read(tokens)
        section.codes[task.page.first :] = codes
        if len(codes) == len(task.page.ends):
            self._task = None
        if self._total_frames is None:
            self._sections = kept(self._sections, section, self._oldest_frame)

    def _set(self, sections: list[CodedSection]) -> None:
        """Go on from these sections."""
        self._sections, self._version = sections, self._version + 1
        if self._task is not None:
            self._task.run.cancel()
            self._task = None

    def _restore(self, state: SongState) -> None:
        values = state.values
        self._sections, self._song = unpacked(state, self._grid)
        self._grid = replace(self._grid, first_frame=values["first_frame"])
        self._prompt = replace(self._prompt, kinds=tuple(values["kinds"]))
        self._asked_frame = values["asked_frame"]
        # A plan that was stored before there were these has not changed lately.
        self._changed_frame, self._brief_until = values.get("changed_frame", -MOST), values.get("brief_until", -MOST)
