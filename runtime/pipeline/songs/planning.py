"""A generation's plan: metadata that the bundle's planner thinks of, and its structure codes as they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.planner import FieldSpec, PromptSpec, ThinkingSpec
from runtime.music.sections import PromptText, SectionLevel
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.planner import Caller, Planner, Prompts, SequenceOrder, SequenceRun, plan_seed
from runtime.requests.options import PLAN_OPTIONS, GenerationOptions, given_options, parse_options
from runtime.requests.validation import plan_text_options, plans_texts, untaken_options
from runtime.tick.language.constraints import CodesConstraint
from runtime.tick.language.sequence import ENDLESS, room_for
from runtime.tick.language.thinking import ThinkingConstraint, thinking_values


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


def think(planner: Planner, options: GenerationOptions, seed: int, caller: Caller) -> Thinking:
    """Metadata for options, blocking; those that the options give are kept. Raises TickError."""
    phase = planner.spec.thinking
    if phase is None:
        return Thinking()
    given = {field.name: text for field in phase.fields if (text := _given(field, options))}
    prompts = _prompts(planner, phase, options)
    constraint = ThinkingConstraint(planner.grammar, given)
    order = SequenceOrder(prompts, constraint, _room(planner, prompts), plan_seed(seed, 0))
    tokens = planner.start(order, options, caller).wait(ENDLESS)
    text = planner.tokenizer.decode(tokens, skip_special_tokens=False)
    values = thinking_values(text)
    return Thinking(text.removeprefix(phase.start).strip("\n"), values, _filled(planner, phase, values, options))


def _filled(
    planner: Planner, phase: ThinkingSpec, values: Mapping[str, str], options: GenerationOptions
) -> dict[str, Any]:
    """Values of options that were not given, where the bundle takes them and they are valid."""
    filled, bundle = dict[str, Any](), planner.bundle
    for field in phase.fields:
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


def _prompts(planner: Planner, phase: PromptSpec, options: GenerationOptions, thinking: str = "") -> Prompts:
    """Tokens of a phase's prompt and of its negative."""
    texts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
    values = {"caption": ", ".join(texts), "lyrics": options.lyrics, "thinking": thinking}
    prompt, negative = phase.texts(values, options.negative_prompt)
    return planner.tokens(prompt), planner.tokens(negative)


def _room(planner: Planner, prompts: Prompts) -> int:
    """How many tokens may follow. Raises RequestError where a code has no room."""
    longest = max(len(prompt) for prompt in prompts)
    room = room_for(planner.spec, longest)
    if room < len(planner.spec.codes.groups):
        raise RequestError(
            f"prompt and lyrics have {longest} tokens, the planner's cache has {planner.spec.capacity}",
            field="prompt",
            fix="shorten them, or plan false",
        )
    return room


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
        self._prompts = _prompts(planner, planner.spec.codes, options, thinking.text)
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
        room, left = _room(planner, self._prompts), self.num_codes * width - len(self._tokens)
        before = min(room // 2 // width * width, len(self._tokens))
        heard = tuple(self._tokens[len(self._tokens) - before :])
        self._run_tokens = min(left, (room - before) // width * width)
        self._parts += 1
        constraint = CodesConstraint(planner.spec, self._run_tokens // width)
        prompts = (self._prompts[0] + heard, self._prompts[1] + heard)
        order = SequenceOrder(prompts, constraint, self._run_tokens, plan_seed(self._seed, self._parts))
        return planner.start(order, self._options, self._caller)


AnyPlan = SongPlan | CodesPlan


def plan_of(
    planner: Planner, options: GenerationOptions, thinking: Thinking, seed: int, total_frames: int, caller: Caller
) -> AnyPlan:
    """The plan of a generation of `total_frames`, with its sections; its codes are made once they are asked for.

    Blocks while sections are made. Raises RequestError, TickError.
    """
    if planner.spec.plan is None:
        return CodesPlan(planner, options, thinking, seed, planner.structure.spec.num_codes_of(total_frames), caller)
    plan = SongPlan(planner, options, seed, total_frames, caller)
    plan.plan_sections()
    return plan


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
