"""A plan that is made by counting: sections of a few frames, codes that tell what they were made for."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import EngineError, RequestError
from runtime.config.plan_spec import PlanField, PlanSpec, TokenRange
from runtime.live.protocol.actions import SongBeginning, SongFacts
from runtime.music.sections import SectionRequest, SongSection, SongState
from runtime.requests.options import GenerationOptions

FRAMES_PER_CODE, NUM_CODES, FRAMES_PER_BAR, CHANNELS = 5, 5000, 12, 5
# That of such bars at 25 frames a second.
BPM = 500.0
KINDS = ("verse", "chorus", "break")
SPEC = PlanSpec(
    start=0,
    plan=1,
    before=2,
    section=3,
    recall=4,
    header=(PlanField(name="bpm", first=5, values=("100",)), PlanField(name="meter", first=6, values=("4/4",))),
    kind=PlanField(name="kind", first=7, values=KINDS),
    layers=PlanField(name="layers", first=10, values=("drums", "bass", "drums+bass")),
    bars=PlanField(name="bars", first=13, values=("1", "2", "4")),
    bar_markers=TokenRange(first=16, count=4),
    clock_markers=TokenRange(first=20, count=96),
    clocks_per_beat=24,
    beats=(4,),
    materials=(0, 1, 2),
    layer_words={"drums": ("drums", "no drums")},
)
FACTS = SongFacts(SPEC, FRAMES_PER_CODE, NUM_CODES, is_default=False)


class SimulatedForm:
    """Sections of 1, 2, 4 bars in turn, none of whose codes follows from another.

    A code follows from what the plan is for, from the section's place and kind, and from its own place. fails_next:
    the next hints are an error.
    """

    fails_next = False

    def __init__(self, begin: SongBeginning) -> None:
        self.header = {"bpm": 100}
        self._options, self._seed = [[0, _label(begin.options)]], begin.seed
        self._requests: list[list[Any]] = []  # index, kind, layers, bars, start_frame
        self._given: dict[int, int] = {}
        self._made = 0
        if begin.state is not None:
            values = begin.state.values
            self._options, self._requests = list(values["options"]), [list(request) for request in values["requests"]]
            self._made = values["made"][0]
            self._given = dict(zip(values["given"], begin.state.codes.tolist(), strict=True))

    @property
    def sections(self) -> Sequence[SongSection]:
        return tuple(self._section(request) for request in self._requests)

    def hints(self, start_frame: int, frames: int) -> NDArray[np.float32]:
        """`[frames, CHANNELS]`: the code that each frame is of."""
        if SimulatedForm.fails_next:
            SimulatedForm.fails_next = False
            raise EngineError("failed")
        while not self._requests or self._end < start_frame + frames:
            index = self._requests[-1][0] + 1 if self._requests else 0
            self._add(index, KINDS[index % 3], ("drums", "bass")[: 1 + index % 2], 2 ** (index % 3))
        self._made = max(self._made, start_frame + frames)
        numbers = [self._code(frame // FRAMES_PER_CODE) for frame in range(start_frame, start_frame + frames)]
        return np.repeat(np.array(numbers, np.float32)[:, None], CHANNELS, axis=1)

    def replace(
        self, from_frame: int, sections: Sequence[SectionRequest] | None = None, codes: Sequence[int] | None = None
    ) -> None:
        if sections is not None:
            self._replace_sections(from_frame, sections)
        if codes is not None:
            first, made = from_frame // FRAMES_PER_CODE, self._made // FRAMES_PER_CODE
            if first > made or first + len(codes) > self._end // FRAMES_PER_CODE:
                raise RequestError("codes that are not made yet", field="codes")
            self._given = {place: code for place, code in self._given.items() if place < first}
            self._given |= {first + index: code for index, code in enumerate(codes)}

    def change(self, options: GenerationOptions, from_frame: int) -> None:
        self._options.append([from_frame, _label(options)])
        here = [request for request in self._requests if request[4] <= from_frame]
        self._requests = here

    def state(self) -> SongState:
        values = {
            "options": self._options,
            "requests": self._requests,
            "given": list(self._given),
            "made": [self._made],
        }
        codes = np.array(list(self._given.values()), np.int64)
        return SongState({name: list(value) for name, value in values.items()}, codes)

    def close(self) -> None:
        """Nothing waits."""

    def _replace_sections(self, from_frame: int, sections: Sequence[SectionRequest]) -> None:
        kept = [request for request in self._requests if request[4] < from_frame]
        if from_frame not in [request[4] for request in self._requests]:
            raise RequestError("no section begins there", field="start_s")
        self._requests, first = kept, from_frame // FRAMES_PER_CODE
        self._made = min(self._made, from_frame)
        self._given = {place: code for place, code in self._given.items() if place < first}
        index = kept[-1][0] + 1 if kept else 0
        for request in sections:
            self._add(index, *request)
            index += 1

    @property
    def _end(self) -> int:
        *_, bars, start = self._requests[-1]
        return int(start + bars * FRAMES_PER_BAR)

    def _add(self, index: int, kind: str, layers: Sequence[str], bars: int) -> None:
        start = self._end if self._requests else 0
        self._requests.append([index, kind, list(layers), bars, start])

    def _section(self, request: Sequence[Any]) -> SongSection:
        index, kind, layers, bars, start = request
        end = start + bars * FRAMES_PER_BAR
        codes = tuple(self._code(place) for place in range(start // FRAMES_PER_CODE, end // FRAMES_PER_CODE))
        return SongSection(index, kind, tuple(layers), bars, start, end, codes, bpm=BPM, beats=4, first_bar=start // 12)

    def _code(self, place: int) -> int:
        if place in self._given:
            return self._given[place]
        frame = place * FRAMES_PER_CODE
        label = [label for start, label in self._options if start <= frame][-1]
        kind = next((request[:3] for request in reversed(self._requests) if request[4] <= frame + 4), None)
        return zlib.crc32(repr((self._seed, label, kind, place)).encode()) % NUM_CODES


def _label(options: GenerationOptions) -> str:
    texts = [options.prompt] if isinstance(options.prompt, str) else sorted(item.text for item in options.prompt)
    return f"{texts} {options.bpm}"
