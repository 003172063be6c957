"""A generation's plan: metadata that the bundle's planner thinks of, and its structure codes as they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.planner import FieldSpec, PlannerSpec, PromptSpec
from runtime.music.plan_state import SongState
from runtime.music.section_prompts import PromptText
from runtime.music.sections import SectionLevel
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.sequences import Caller, Prompts, SequenceOrder, SequenceRun, Sequences, plan_seed
from runtime.pipeline.structure import StructureCodec
from runtime.requests.options import PLAN_OPTIONS, GenerationOptions, given_options, parse_options
from runtime.requests.validation import plan_text_options, plans_texts, untaken_options
from runtime.tick.language.constraints import CodesConstraint
from runtime.tick.language.sequence import ENDLESS, room_for
from runtime.tick.language.thinking import ThinkingConstraint, ThinkingGrammar, thinking_values

if TYPE_CHECKING:
    from runtime.tick.loop.tick_loop import TickLoop


def is_planned(options: GenerationOptions, inputs: GenerationInputs, bundle: Bundle) -> bool:
    """Whether a generation of known length gets a plan: of its texts, where nothing else says its structure.

    Raises RequestError for options of a plan where there is none.
    """
    has_structure = inputs.known is not None or options.codes is not None
    is_new = options.task in (None, "text2music") and not has_structure and inputs.condition is None
    is_asked = options.plan
    if is_asked is None and bundle.planner is not None:
        seconds = options.seconds or bundle.latents.canvas_frames / bundle.latents.frame_rate_hz
        is_default = bundle.planner.default and seconds >= bundle.planner.default_from_s
        is_asked = is_default or bool(given_options(options, plan_text_options(bundle)))
    if is_asked and is_new and plans_texts(bundle):
        return True
    for name in given_options(options, (*PLAN_OPTIONS, *plan_text_options(bundle))):
        if name != "plan":
            raise RequestError("has no effect without a plan", field=name, fix="leave it out")
    return False


class Thinking(NamedTuple):
    """What the planner makes of a prompt. text: as the codes' prompt has it. values: field -> value, also given ones.

    filled: values by option, of options that were not given.
    """

    text: str = ""
    values: Mapping[str, str] = {}
    filled: Mapping[str, Any] = {}


class AnyPlan(Protocol):
    """The plan of one generation, made ahead of its segments. One thread asks for it, any thread may close it."""

    def hints(self, start_frame: int, frames: int) -> Latents:
        """Hints `[frames, C]`, blocking. Raises TickError."""

    def finish(self) -> list[int]:
        """All codes, blocking. Raises TickError."""

    def prompts(self, prompt: PromptText, played: Iterable[tuple[str, int, int]] = ()) -> PromptText:
        """The prompts that its frames are generated with, of those that have hints.

        played: layer, first frame and the one behind it of notes that sound beside the plan.
        """

    @property
    def options(self) -> dict[str, Any]:
        """What it plays, by option of a prompt, beside what the generation's options say."""

    @property
    def tonic_chord(self) -> tuple[int, ...]:
        """The pitch classes of the chord that it ends on, the tonic first, 0 is C; () where it names no key."""

    @property
    def levels(self) -> tuple[SectionLevel, ...]:
        """How loud its sections are beside each other, in order; () where that is not planned."""

    @property
    def summary(self) -> dict[str, Any]:
        """What is planned, by name, and the codes once there are all."""

    def close(self) -> None:
        """End what is being made: who waits for it gets a TickError."""


class Planner:
    """The planner of one bundle: thinking, and plans. Any thread. Raises ConfigError."""

    def __init__(self, bundle: Bundle, spec: PlannerSpec, loop: TickLoop, structure: StructureCodec) -> None:
        self.spec, self.structure = spec, structure
        self.sequences = Sequences(bundle, spec, loop, structure)

    def think(self, options: GenerationOptions, seed: int, caller: Caller) -> Thinking:
        """Metadata for options, blocking; those that the options give are kept. Raises TickError."""
        if self.spec.thinking is None:
            return Thinking()
        given = {field.name: text for field in self.spec.thinking.fields if (text := _given(field, options))}
        constraint = ThinkingConstraint(self._grammar, given)
        prompts = self.prompts(self.spec.thinking, options)
        order = SequenceOrder(prompts, constraint, self.room(prompts), plan_seed(seed, 0))
        text = self.sequences.tokenizer.decode(
            self.sequences.start(order, options, caller).wait(ENDLESS), skip_special_tokens=False
        )
        values = thinking_values(text)
        return Thinking(text.removeprefix(self.spec.thinking.start).strip("\n"), values, self._filled(values, options))

    def plan(
        self, options: GenerationOptions, thinking: Thinking, seed: int, total_frames: int, caller: Caller
    ) -> AnyPlan:
        """The plan of a generation of `total_frames`, with its sections; its codes are made once they are asked for.

        Blocks while sections are made. Raises RequestError, TickError.
        """
        if self.spec.plan is not None:
            plan = SongPlan(self.sequences, options, seed, total_frames, caller)
            plan.plan_sections()
            return plan
        return CodesPlan(self, options, thinking, seed, self.structure.spec.num_codes_of(total_frames), caller)

    def song_plan(
        self,
        options: GenerationOptions,
        seed: int,
        total_frames: int | None = None,
        client: str = "",
        state: SongState | None = None,
    ) -> SongPlan:
        """A plan with sections, of a bundle with [planner.plan]; without an end where `total_frames` is None.

        state: what it goes on from. Raises RequestError.
        """
        return SongPlan(self.sequences, options, seed, total_frames, Caller(client), state)

    def prompts(self, phase: PromptSpec, options: GenerationOptions, thinking: str = "") -> Prompts:
        """Tokens of a phase's prompt and of its negative."""
        texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
        values = {"caption": ", ".join(texts), "lyrics": options.lyrics, "thinking": thinking}
        prompt, negative = phase.texts(values, options.negative_prompt)
        return self.sequences.tokens(prompt), self.sequences.tokens(negative)

    def room(self, prompts: Prompts) -> int:
        """How many tokens may follow. Raises RequestError where a code has no room."""
        longest = max(len(prompt) for prompt in prompts)
        room = room_for(self.spec, longest)
        if room < len(self.spec.codes.groups):
            raise RequestError(
                f"prompt and lyrics have {longest} tokens, the planner's cache has {self.spec.capacity}",
                field="prompt",
                fix="shorten them, or plan false",
            )
        return room

    @cached_property
    def _grammar(self) -> ThinkingGrammar:
        return ThinkingGrammar(self.spec, self.sequences.tokenizer)

    def _filled(self, values: Mapping[str, str], options: GenerationOptions) -> dict[str, Any]:
        """Values of options that were not given, where the bundle takes them and they are valid."""
        assert self.spec.thinking is not None
        filled, bundle = dict[str, Any](), self.sequences.bundle
        for field in self.spec.thinking.fields:
            name, text = field.option, values.get(field.name, "")
            if name is None or is_given(options, name) or name in untaken_options(bundle):
                continue
            try:
                value = int(text) if text.isdecimal() else text
                parsed = parse_options({"prompt": "", name: value}, bundle.options)
            except RequestError:
                continue
            filled[name] = getattr(parsed, name)
        return filled


class CodesPlan:
    """The codes of one generation, made ahead of its segments. One thread asks for them, any thread may close it.

    A sequence goes on while segments are generated. Where the cache has no room for all codes, another sequence follows
    it, whose prompt ends with the last of its codes.
    """

    def __init__(
        self,
        planner: Planner,
        options: GenerationOptions,
        thinking: Thinking,
        seed: int,
        num_codes: int,
        caller: Caller,
    ) -> None:
        self.thinking, self.num_codes = thinking, num_codes
        self._planner, self._structure, self._options = planner, planner.structure, options
        self._seed, self._caller, self._parts = seed, caller, 0
        self._prompts = planner.prompts(planner.spec.codes, options, thinking.text)
        self._run: SequenceRun | None = None
        self._run_tokens = 0
        self._tokens: list[int] = []  # of sequences that have ended

    def hints(self, start_frame: int, frames: int) -> Latents:
        """Hints `[frames, C]`, fewer behind the last code, blocking. Raises TickError.

        They are decoded in the pieces that codes of a request are decoded in.
        """
        size = self._structure.codes_per_piece
        step = size * self._structure.spec.frames_per_code
        first, last = start_frame // step, -(-(start_frame + frames) // step)
        codes = self.codes(min(last * size, self.num_codes))
        pieces = [
            self._structure.hints_of_codes(codes[place : place + size])
            for place in range(first * size, min(last * size, len(codes)), size)
        ]
        return np.concatenate(pieces)[start_frame - first * step :][:frames]

    def codes(self, count: int) -> list[int]:
        """At least the first `count` codes, blocking. Raises TickError."""
        width = len(self._planner.spec.codes.groups)
        while (missing := count * width - len(self._tokens)) > 0:
            run = self._run = self._run or self._next_run()
            tokens = run.wait(min(missing, self._run_tokens))
            if len(tokens) < self._run_tokens:
                return self._planner.spec.codes.numbers([*self._tokens, *tokens])
            self._tokens += tokens
            self._run = None
        return self._planner.spec.codes.numbers(self._tokens)

    def finish(self) -> list[int]:
        """All codes, blocking. Raises TickError."""
        return self.codes(self.num_codes)

    def prompts(self, prompt: PromptText, played: Iterable[tuple[str, int, int]] = ()) -> PromptText:
        """As they are."""
        return prompt

    @property
    def options(self) -> dict[str, Any]:
        """None: the generation's options have those that were thought of."""
        return {}

    @property
    def tonic_chord(self) -> tuple[int, ...]:
        """None: codes are not said to be in a key."""
        return ()

    @property
    def levels(self) -> tuple[SectionLevel, ...]:
        """None: it has no sections."""
        return ()

    @property
    def summary(self) -> dict[str, Any]:
        """The thinking's values by field, and the codes once there are all."""
        width, values = len(self._planner.spec.codes.groups), dict(self.thinking.values)
        if len(self._tokens) < self.num_codes * width:
            return values
        return {**values, "codes": self._planner.spec.codes.numbers(self._tokens)}

    def close(self) -> None:
        """End the sequence that is running: who waits for it gets a TickError."""
        self._caller.leave()

    def _next_run(self) -> SequenceRun:
        planner, width = self._planner, len(self._planner.spec.codes.groups)
        room, left = planner.room(self._prompts), self.num_codes * width - len(self._tokens)
        before = min(room // 2 // width * width, len(self._tokens))
        heard = tuple(self._tokens[len(self._tokens) - before :])
        self._run_tokens = min(left, (room - before) // width * width)
        self._parts += 1
        constraint = CodesConstraint(planner.spec, self._run_tokens // width)
        prompts = (self._prompts[0] + heard, self._prompts[1] + heard)
        order = SequenceOrder(prompts, constraint, self._run_tokens, plan_seed(self._seed, self._parts))
        return planner.sequences.start(order, self._options, self._caller)


def open_planner(bundle: Bundle, loop: TickLoop, structure: StructureCodec | None) -> Planner | None:
    """The bundle's planner; None where generations are not planned from their texts."""
    if bundle.planner is None or structure is None or not plans_texts(bundle):
        return None
    return Planner(bundle, bundle.planner, loop, structure)


def is_given(options: GenerationOptions, name: str) -> bool:
    """Whether the user set an option, to another value than none."""
    return name in options.model_fields_set and getattr(options, name) is not None


def _given(field: FieldSpec, options: GenerationOptions) -> str:
    """What the user says of a field, as its text; "" where that is nothing, or nothing that the field can have."""
    if field.option is None or not is_given(options, field.option):
        return ""
    value = getattr(options, field.option)
    if field.kind == "integer":
        return str(min(max(round(value), field.minimum), field.maximum))
    return str(value) if str(value) in field.choices else ""
