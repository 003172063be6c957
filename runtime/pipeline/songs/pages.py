"""The pages of a plan with sections, which the planner writes: of the plan itself, and of a section's codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import NamedTuple

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.plan_spec import PlanSpec
from runtime.config.planner import PlannerSpec
from runtime.music.sections import (
    CodedSection,
    Item,
    Song,
    given_header,
    last_bar,
    plan_prompt,
    recalled_frames,
    recalled_section,
    section_prompt,
)
from runtime.music.tracker import still_layers, tonic_lead
from runtime.pipeline.songs.fitting import bars_of, fitted
from runtime.pipeline.songs.planner import Caller, Planner, SequenceOrder, SequenceRun, plan_seed
from runtime.pipeline.songs.prompt import SongPrompt
from runtime.pipeline.structure import StructureCodec
from runtime.requests.options import GenerationOptions
from runtime.tick.language.constraints import CodesConstraint, FormConstraint
from runtime.tick.language.sequence import room_for

# Sections that a further plan page begins with, those that it adds, and those of the first page of a plan without end:
# what goes on behind a song's end, as the planner has learned it, repeats itself.
PAGE_SECTIONS, NEW_SECTIONS, FIRST_SECTIONS = 2, 5, 6
# So much of a section says whether its tonic is heard, and by so much it has to be ahead of others.
OPENING_S, CLEAR_LEAD = 15.0, 0.1
# A generation of known length gets at most a section for each of these, but two where it has so many bars.
SECTION_S, TWO_FROM_BARS = 16.0, 6
# The number of a plan page's seed, where sections have their index.
_PLAN_PAGE = -1


@dataclass(frozen=True)
class SectionsPage:
    """A page of a plan; `begun` sections begin it."""

    order: SequenceOrder
    begun: int
    spec: PlannerSpec

    def read(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], list[Item]]:
        """Header and new sections of a complete page."""
        assert self.spec.plan is not None
        width, size = len(self.spec.plan.header), len(self.spec.plan.item)
        new = [token for token in tokens if token != self.spec.end_token][width + size * self.begun :]
        return tuple(tokens[:width]), [(new[i], new[i + 1], new[i + 2]) for i in range(0, len(new), size)]


@dataclass(frozen=True)
class CodesPage:
    """Codes of a section from its number `first` on; ends: how many tokens there are with each of them."""

    order: SequenceOrder
    first: int
    ends: tuple[int, ...]
    spec: PlannerSpec

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The codes that are complete."""
        codes = self.spec.codes
        return [codes.number(tokens[end - len(codes.groups) : end]) for end in self.ends if end <= len(tokens)]


def sections_page(
    planner: PlannerSpec,
    prompt: SongPrompt,
    song: Song | None,
    earlier: Sequence[Item],
    *,
    number: int,
    seed: int,
    has_end: bool,
) -> SectionsPage:
    """A page that begins with the last of `earlier` sections; what begins or ends a song only comes on a first page.

    song: whose header is given. number: of its first section. Raises RequestError.
    """
    spec = _plan(planner)
    width, begun, may_end = len(spec.header), earlier[-PAGE_SECTIONS:], has_end and not earlier
    given = given_header(spec, prompt.tokens, prompt.bpm) if song is None else dict(enumerate(song.header))
    given |= {width + place: token for place, token in enumerate(token for item in begun for token in item)}
    num_sections = len(begun) + NEW_SECTIONS if begun else None
    if not begun:
        given |= {width + place: token for place, token in prompt.given.items()}
        fewest = 0 if has_end else FIRST_SECTIONS
        num_sections = max(len(prompt.kinds), min(fewest, spec.most_sections)) or None
    kinds = (spec.beginning if earlier else "", "" if may_end else spec.ending)
    without = [spec.kind.token(kind) for kind in kinds if kind] + spec.layers_without(prompt.tokens)
    without += spec.tempos_without(prompt.tokens) if prompt.bpm is None and song is None else []
    order = SequenceOrder(
        (plan_prompt(spec, prompt.tokens), plan_prompt(spec, prompt.negative)),
        FormConstraint(planner, given, num_sections, without, spec.layers_named(prompt.tokens), prompt.voices),
        width + len(spec.item) * (num_sections or spec.most_sections) + 1,
        plan_seed(seed, _PLAN_PAGE, number),
        temperature=spec.temperature,
        top_p=spec.top_p,
    )
    return SectionsPage(order, len(begun), planner)


def codes_page(
    planner: PlannerSpec,
    structure: StructureCodec,
    section: CodedSection,
    others: Sequence[CodedSection],
    *,
    seed: int,
    most_codes: int | None,
) -> CodesPage:
    """The page that goes on with a section's codes; those that it has are given. others: what it follows.

    most_codes: of the whole plan. Raises RequestError.
    """
    codes, spec, rhythm = planner.codes, _plan(planner), section.song.rhythm
    numbers = section.span if most_codes is None else range(section.span.start, min(section.span.stop, most_codes))
    recalled = _recalled_codes(spec, structure, section, others)
    markers = [
        rhythm.markers(number, section.first_bar, (spec.recall, *codes.tokens(code)) if recalled else ())
        for number, code in zip(numbers, recalled or numbers, strict=False)
    ]
    before = next((each for each in others if each.index == section.index - 1 and each.song is section.song), None)
    known = {} if before is None else dict(zip(before.span, before.codes, strict=False))
    bar = [] if before is None else [number for number in last_bar(before) if number in known]
    prompt = section_prompt(spec, section, before, {number: codes.tokens(known[number]) for number in bar})
    part = _part(planner, len(prompt), [len(each) for each in markers], len(section.codes))
    for place in range(part.heard, part.first):
        prompt += (*markers[place], *codes.tokens(section.codes[place]))
    markers, given = markers[part.first : part.end], section.codes[part.first : part.end]
    ends = tuple(accumulate(len(each) + len(codes.groups) for each in markers))
    constraint = CodesConstraint(
        planner,
        len(markers),
        markers.__getitem__,
        given,
        _silent(planner, section),
        _rests(spec, section),
        _out_of_scale(planner, section),
        _onset_frames(spec, section, numbers[part.first : part.end]),
    )
    order = SequenceOrder(
        (prompt, ()), constraint, ends[-1], plan_seed(seed, section.index, part.first), is_guided=False
    )
    return CodesPage(order, part.first, ends, planner)


class CodesTask(NamedTuple):
    """Codes in the making."""

    page: CodesPage
    run: SequenceRun


class Opening(NamedTuple):
    """How well a section begins; the greater the better. lead: of its tonic, moving: minus the layers that do not."""

    is_clear: bool
    moving: int
    lead: float

    @property
    def is_good(self) -> bool:
        """Whether no other has to be drawn."""
        return self.is_clear and self.moving == 0


def judge_opening(planner: Planner, section: CodedSection, codes: Sequence[int]) -> Opening:
    """How well codes begin a section of its song."""
    bundle, spec = planner.bundle, _plan(planner.spec)
    assert bundle.notes is not None
    silence, hints = bundle.silence(1)[0], planner.structure.hints_of_codes(codes)
    lead = tonic_lead(bundle.notes, silence, hints, spec.tonic(section.song.header))
    still = still_layers(bundle.notes, silence, hints, bundle.latents.frame_rate_hz)
    return Opening(lead >= CLEAR_LEAD, -len(still), lead)


class Openings(NamedTuple):
    """How long a section's beginning is, by which it is chosen, and what judges it."""

    seconds: float = OPENING_S
    judge: Callable[[Planner, CodedSection, Sequence[int]], Opening] = judge_opening


OPENINGS = Openings()


@dataclass
class SongWriter:
    """Writes sections and codes of one plan, by sequences of the planner; it keeps none of them. Methods block.

    num_codes: of the whole plan; None without an end. options: may be replaced. Raises RequestError, TickError.
    """

    planner: Planner
    seed: int
    num_codes: int | None
    caller: Caller
    options: GenerationOptions
    openings: Openings

    def sections(
        self, prompt: SongPrompt, song: Song | None, earlier: Sequence[Item], number: int
    ) -> tuple[tuple[int, ...], list[Item]]:
        """Header and new sections of a plan page; number: of the first of them."""
        spec, has_end = self.planner.spec, self.num_codes is not None
        page = sections_page(spec, prompt, song, earlier, number=number, seed=self.seed, has_end=has_end)
        run = self.planner.start(page.order, self.options, self.caller)
        # Until the page has ended.
        return page.read(run.wait(page.order.max_tokens))

    def fitted(self, prompt: SongPrompt, song: Song, items: list[Item], num_codes: int) -> list[tuple[Item, int]]:
        """The first page's sections with their bars, and more before the end where they are too few."""
        spec, rhythm = _plan(self.planner.spec), song.rhythm
        bars = next(bar for bar in count(1) if rhythm.code_range(0, bar).stop >= num_codes)
        ending = items[-1:] if spec.ending and spec.kind.value(items[-1][0]) == spec.ending else []
        body = items[: len(items) - len(ending)]
        while sum(bars_of(spec, item) for item in (*body, *ending)) < bars:
            body += self.sections(prompt, song, body, len(body))[1]
        most = round(num_codes * rhythm.frames_per_code / rhythm.frame_rate_hz / SECTION_S)
        most = max(most, 1 if bars < TWO_FROM_BARS else 2)
        return fitted(spec, [*body, *ending], bars, None if prompt.kinds else most, prompt.num_given)

    def codes(self, section: CodedSection, others: Sequence[CodedSection], draw: int = 0) -> CodesTask:
        """The sequence of a section's next codes; draw: the number of another opening."""
        planner = self.planner
        page = codes_page(planner.spec, planner.structure, section, others, seed=self.seed, most_codes=self.num_codes)
        codes = min(self._opening_codes, len(page.ends) - 1)  # A page has one code to make at least.
        tokens = page.ends[codes - 1] if draw and codes else 0
        order = replace(page.order, opening_tokens=tokens, opening_seed=page.order.seed ^ draw)
        return CodesTask(page, planner.start(order, self.options, self.caller))

    def best_opening(
        self, section: CodedSection, others: Sequence[CodedSection], is_wanted: Callable[[], bool]
    ) -> tuple[CodesTask | None, list[int] | None]:
        """The sequence of the best of a section's openings, None where another one goes on behind it, and its codes.

        Openings with a clear tonic come first, then those in which the fewest layers stand still, then by their tonics.
        No more are drawn once one has a clear tonic and no such layer, or is not wanted any more; without codes the
        first one goes on.
        """
        task, drawn = self.codes(section, others), list[tuple[Opening, list[int]]]()
        while True:
            end = task.page.ends[: self._opening_codes][-1]
            # Until the planner has written the opening.
            codes = task.page.read(task.run.wait(end)[:end])
            drawn.append((self.openings.judge(self.planner, section, codes), codes))
            is_good = drawn[-1][0].is_good
            if not is_wanted() or (len(drawn) == 1 and is_good):
                return task, None
            if is_good or len(drawn) == _plan(self.planner.spec).openings:
                break
            task.run.cancel()
            task = self.codes(section, others, len(drawn))
        best = drawn[-1] if is_good else max(drawn)
        kept = best[1][: len(task.page.ends) - 1]  # A page has one code to make at least.
        if best is drawn[-1]:
            return task, kept  # What follows an opening does not depend on which draw it is.
        task.run.cancel()
        return None, kept

    @property
    def _opening_codes(self) -> int:
        rate_hz, frames_per_code = (
            self.planner.bundle.latents.frame_rate_hz,
            self.planner.structure.spec.frames_per_code,
        )
        return round(self.openings.seconds * rate_hz / frames_per_code)


def _plan(planner: PlannerSpec) -> PlanSpec:
    assert planner.plan is not None
    return planner.plan


def _silent(planner: PlannerSpec, section: CodedSection) -> list[int | None]:
    """By group the token of its silence, where the section lacks its layer."""
    spec = _plan(planner)
    layers = spec.layers.value(section.item[1]).split("+")
    silent = {token for layer, token in spec.silent.items() if layer not in layers}
    return [next((token for token in silent if token in group.tokens), None) for group in planner.codes.groups]


def layers_of_codes(planner: PlannerSpec, section: CodedSection) -> tuple[str, ...]:
    """The layers that a section lacks and that its codes sound: made codes are silent there, given ones may not be."""
    layers, silent = {token: layer for layer, token in _plan(planner).silent.items()}, _silent(planner, section)
    if all(token is None for token in silent):
        return ()
    tokens = {token for code in set(section.codes) for token in planner.codes.tokens(code)}
    groups = zip(planner.codes.groups, silent, strict=True)
    return tuple(layers[token] for group, token in groups if token is not None and tokens & {*group.tokens} - {token})


def _rests(spec: PlanSpec, section: CodedSection) -> dict[int, int]:
    """By token of silence of the section's layers how many codes in a row may have it: a bar of them."""
    layers = spec.layers.value(section.item[1]).split("+")
    bar = len(section.song.rhythm.code_range(section.first_bar, 1))
    return {token: bar for layer, token in spec.silent.items() if layer in layers}


def _out_of_scale(planner: PlannerSpec, section: CodedSection) -> list[int]:
    """The code tokens that sound a pitch outside the scale of the section's song.

    A group keeps all of them where fewer than two others are left: silence may come for a bar at most.
    """
    spec, found = _plan(planner), list[int]()
    scale = spec.scale(section.song.header)
    for group, pitches in zip(planner.codes.groups, spec.pitches, strict=False):
        outside = [token for token, sounded in zip(group.tokens, pitches, strict=True) if sounded & ~scale]
        if group.count - len(outside) > 1:
            found += outside
    return found


def _onset_frames(spec: PlanSpec, section: CodedSection, numbers: range) -> list[int]:
    """Of each code the frames in which its notes may begin; [] for anywhere."""
    rhythm, steps = section.song.rhythm, spec.steps_of(section.song.header)
    return [rhythm.step_frames(number, steps) for number in numbers] if steps else []


def _recalled_codes(
    spec: PlanSpec, structure: StructureCodec, section: CodedSection, others: Sequence[CodedSection]
) -> list[int]:
    """The codes that a section plays again, moved to where it begins; [] where there are none."""
    recalled = recalled_section(spec, others, section)
    if recalled is None or not recalled.codes:
        return []
    hints = structure.hints_of_codes(recalled.codes)
    found: list[int] = structure.codes(hints[np.minimum(recalled_frames(recalled, section), len(hints) - 1)]).tolist()
    return found


class _Part(NamedTuple):
    """Codes `first` to before `end` of a section; its prompt has those from `heard` on."""

    heard: int
    first: int
    end: int


def _part(spec: PlannerSpec, prompt_tokens: int, num_markers: Sequence[int], made: int) -> _Part:
    """The sequence that makes code number `made`: as many codes as the cache has room for, behind the last half of it.

    Raises RequestError where there is no room.
    """
    tokens = [0, *accumulate(number + len(spec.codes.groups) for number in num_markers)]
    room, part = room_for(spec, prompt_tokens), _Part(0, 0, 0)
    while part.end <= made:
        first = part.end
        heard = next((place for place in range(first) if tokens[first] - tokens[place] <= room // 2), first)
        used = tokens[first] - tokens[heard]
        end = max(place for place in range(first, len(tokens)) if used + tokens[place] - tokens[first] <= max(room, 0))
        if end == first:
            raise RequestError(
                f"a section's page has {prompt_tokens} tokens, the planner's cache has {spec.capacity}",
                field="plan",
                fix="plan false",
            )
        part = _Part(heard, first, end)
    return part
