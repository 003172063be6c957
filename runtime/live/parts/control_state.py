"""The values of a session's controls over time: what is set, ramps, changes for later, and the seqs of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.live.parts.controls import (
    CONTROL_NAMES,
    LIVE_ONLY,
    NEEDS_SOURCE_NAMES,
    STEP_CONTROLS,
    STRUCTURE_NAMES,
    check_controls,
    default_values,
    plain_value,
    plain_values,
    prompt_weights,
)
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.actions import NO_OPTIONS, CheckedControls, LiveModel
from runtime.live.protocol.client_seqs import ClientSeqs
from runtime.live.protocol.messages import Blend, LivePrompt
from runtime.live.storage.document import StoredControls, StoredRamp, StoredSchedule, StoredWeightRamp, damaged
from runtime.requests.option_types import MAX_PROMPTS, AdapterOptions, WeightedPrompt
from runtime.requests.options import TEXT_OPTIONS, GenerationOptions, given_options

# A session's options have these always; numbers without ramps are these and the metadata.
WHOLE_NUMBERS = ("seed", "steps")
WITHOUT_RAMP = (*WHOLE_NUMBERS, "bpm", "time_signature", "loop_bars")
NO_PROMPT, NO_ADAPTER = WeightedPrompt(text=""), AdapterOptions(id="none")


class ControlState:
    """The values of a session's controls and prompts by its clock, and the seqs that they include.

    While some are `moving`, values change with time. `accepted_seq`: the newest change; `seq`: the newest that has
    begun; `from_sample`: what has begun has no effect before it; `scheduled`: what has not, in order. `client_seqs`:
    which seqs are the client's. Raises RequestError for controls and prompts that do not fit the model.
    """

    def __init__(
        self,
        model: LiveModel,
        clock: SessionClock,
        controls: Mapping[str, Any],
        prompts: Sequence[LivePrompt],
        blend: Blend,
        seed: int,
    ) -> None:
        self._model, self.clock, self.blend = model, clock, blend
        self.seq = self.accepted_seq = 0
        self.from_sample = 0
        self.client_seqs = ClientSeqs()
        self.defaults = {**default_values(model), "seed": seed}
        checked = check_controls(controls, model, "controls")
        self._values = {name: value for name, value in checked.items() if value is not None}
        self._weights = prompt_weights(prompts, model, "prompts")
        self._ramps: dict[str, StoredRamp] = {}  # by times of the clock
        self._weight_ramps: dict[str, StoredRamp] = {}
        self.scheduled: list[StoredSchedule] = []
        # As of `_made_s`, and from then on where nothing moves.
        self._options: dict[tuple[bool, bool], GenerationOptions] = {}
        self._steps: CheckedControls | None = None
        self._final_options: GenerationOptions | None = None
        self._made_s = clock.now_s

    @property
    def prompts(self) -> list[LivePrompt]:
        """The prompts with their final weights."""
        return [LivePrompt(text=text, weight=weight) for text, weight in self._weights.items()]

    @property
    def final_values(self) -> dict[str, Any]:
        """Every control's final value."""
        return {**self.defaults, **self._values}

    @property
    def published(self) -> dict[str, Any]:
        """Every control's final value as JSON, defaults where nothing is set."""
        values = self.final_values
        return plain_values({name: values[name] for name in CONTROL_NAMES if name in values})

    def accept(self, seq: int) -> None:
        """Take a change that is none of a control."""
        self.seq, self.accepted_seq = max(self.seq, seq), max(self.accepted_seq, seq)
        self._forget_options()

    def change(self, patch: CheckedControls, seq: int, ramp_s: float = 0.0) -> None:
        """Merge checked values; None goes back to the default. Single numbers move linearly in `ramp_s`."""
        self._merge(patch, self.clock.now_s, ramp_s, self.accepted_seq)
        self.accept(seq)

    def schedule(self, at_sample: int, patch: CheckedControls, seq: int, ramp_s: float = 0.0) -> None:
        """As `change`, but from a sample on: it begins with `begin_scheduled`."""
        change = StoredSchedule(at_sample=at_sample, seq=seq, seq_before=self.accepted_seq, patch=patch, ramp_s=ramp_s)
        self.scheduled = sorted([*self.scheduled, change], key=lambda each: each.at_sample)
        self.accepted_seq = seq

    def begin_scheduled(self, before_sample: float, playhead: Playhead) -> int | None:
        """Begin the changes of samples before this one; ramps begin when the playhead gets there.

        Returns the `seq` of the last one that begins, None where none does.
        """
        begun = None
        while self.scheduled and self.scheduled[0].at_sample < before_sample:
            change = self.scheduled.pop(0)
            start_s = playhead.reaches_s(change.at_sample)
            self._merge(CheckedControls(change.patch), start_s, change.ramp_s, change.seq_before)
            self.from_sample = max(self.from_sample, change.at_sample)
            self.seq, begun = max(self.seq, change.seq), change.seq
            self._forget_options()
        return begun

    def change_prompts(
        self,
        weights: Mapping[str, float],
        blend: Blend | None,
        seq: int,
        ramp_s: float = 0.0,
        start_s: float | None = None,
    ) -> None:
        """Replace the prompts, text -> weight; with a ramp, texts that go away fade out, from `start_s` on."""
        now_s = self.clock.now_s
        start_s, before = now_s if start_s is None else start_s, self._weights_at(now_s)
        for text in {**before, **weights}:
            ends = before.get(text, 0.0), weights.get(text, 0.0)
            _set_ramp(self._weight_ramps, text, *ends, start_s, start_s + ramp_s, min(self.accepted_seq, seq - 1))
        self._weights = dict(weights)
        self.blend = blend or self.blend
        self.accept(seq)

    def value(self, name: str) -> Any:
        """A control's value now."""
        return self._value_at(name, self.clock.now_s)

    def _value_at(self, name: str, at_s: float) -> Any:
        if name in self._ramps:
            return _at(self._ramps[name], at_s)
        return self._values.get(name, self.defaults[name])

    @property
    def moving(self) -> list[StoredRamp]:
        """The ramps that have not ended."""
        ramps = (*self._ramps.values(), *self._weight_ramps.values())
        return [ramp for ramp in ramps if self.clock.now_s < ramp.end_s]

    @property
    def full_seq(self) -> int:
        """The newest seq such that every change up to it has reached its final value."""
        changes: list[StoredRamp | StoredSchedule] = [*self.moving, *self.scheduled]
        return min((change.seq_before for change in changes), default=self.seq)

    def step_values(self) -> CheckedControls:
        """Every step control's value now; the same object while nothing moves or changes."""
        self._forget_earlier()
        if self._steps is None:
            self._steps = CheckedControls({name: self.value(name) for name in STEP_CONTROLS})
        return self._steps

    def options(self, *, has_source: bool, has_structure: bool = False) -> GenerationOptions:
        """Options of a generation that starts now. What needs a source has no effect where there is none.

        has_structure: there are hints, which some of these options need no source beside.
        """
        given = (has_source, has_structure)
        self._forget_earlier()
        if not self.moving:
            self._ramps, self._weight_ramps = {}, {}
        if given not in self._options:
            self._options[given] = self._options_at(self.clock.now_s, *given)
        return self._options[given]

    def _forget_earlier(self) -> None:
        """Forget options that were made at another time, where something moves."""
        if self._made_s != self.clock.now_s and (self._ramps or self._weight_ramps):
            self._options.clear()
            self._steps = None
        self._made_s = self.clock.now_s

    def _forget_options(self) -> None:
        self._options.clear()
        self._steps = self._final_options = None

    def _options_at(self, at_s: float, has_source: bool, has_structure: bool) -> GenerationOptions:
        lacking = frozenset() if has_source else NEEDS_SOURCE_NAMES - (STRUCTURE_NAMES if has_structure else set())
        names = (self._values.keys() | self._ramps.keys()) - LIVE_ONLY - lacking
        values = {name: self._value_at(name, at_s) for name in names}
        changed = {name: value for name, value in values.items() if name == "denoise" or value != self.defaults[name]}
        always = {name: self.defaults[name] for name in WHOLE_NUMBERS}
        texts = {"prompt": self._prompt_at(at_s), "blend": self.blend}
        options = NO_OPTIONS.model_copy(update=texts | always | changed)
        if self._model.steps_of is None or "steps" in changed:
            return options
        usual = self._model.steps_of(options.model_copy(update={"steps": None}))
        return options.model_copy(update={"steps": usual})

    def final_options(self) -> GenerationOptions:
        """Options of a generation with hints, once nothing moves."""
        if self._final_options is None:
            self._final_options = self._options_at(math.inf, has_source=False, has_structure=True)
        return self._final_options

    def text_options(self) -> GenerationOptions:
        """Options with those alone that fill the prompts' templates, once nothing moves."""
        final = self.final_options()
        return NO_OPTIONS.model_copy(update={name: getattr(final, name) for name in given_options(final, TEXT_OPTIONS)})

    def stored(self) -> StoredControls:
        """What `restore` takes, without ramps that have ended; times are relative to now."""
        now_s = self.clock.now_s
        return StoredControls(
            seed=self.defaults["seed"],
            values=plain_values(self._values),
            weights=dict(self._weights),
            blend=self.blend,
            seqs=(self.seq, self.accepted_seq),
            client_seqs=(self.client_seqs.num_older, list(self.client_seqs.others)),
            from_sample=self.from_sample,
            ramps={
                name: replace(_later(ramp, -now_s), start=plain_value(ramp.start), end=plain_value(ramp.end))
                for name, ramp in self._ramps.items()
                if now_s < ramp.end_s
            },
            weight_ramps={
                text: StoredWeightRamp(**vars(_later(each, -now_s)))
                for text, each in self._weight_ramps.items()
                if now_s < each.end_s
            },
            scheduled=[replace(change, patch=plain_values(change.patch)) for change in self.scheduled],
        )

    @classmethod
    def restore(cls, stored: StoredControls, model: LiveModel, clock: SessionClock) -> ControlState:
        """Go on with a state. Raises RequestError where it does not fit the model, StoreError where it is damaged."""
        prompts = [LivePrompt(text=text, weight=weight) for text, weight in stored.weights.items()]
        state, now_s = cls(model, clock, stored.values, prompts, stored.blend, stored.seed), clock.now_s
        state.seq, state.accepted_seq = stored.seqs
        state.client_seqs = ClientSeqs(*stored.client_seqs)
        state.from_sample = stored.from_sample
        state._ramps = {name: _later(_checked(name, ramp, model), now_s) for name, ramp in stored.ramps.items()}
        state._weight_ramps = {
            text: _later(StoredRamp(**vars(ramp)), now_s) for text, ramp in stored.weight_ramps.items()
        }
        state.scheduled = [replace(each, patch=check_controls(each.patch, model)) for each in stored.scheduled]
        return state

    def _prompt_at(self, at_s: float) -> str | list[WeightedPrompt]:
        weights = sorted(self._weights_at(at_s).items(), key=lambda item: -item[1])[:MAX_PROMPTS]
        if not weights:
            return ""
        return [NO_PROMPT.model_copy(update={"text": text, "weight": weight}) for text, weight in weights]

    def _weights_at(self, at_s: float) -> dict[str, float]:
        """Text -> weight at a time, without those that have none."""
        weights = dict(self._weights) | {text: _at(ramp, at_s) for text, ramp in self._weight_ramps.items()}
        return {text: weight for text, weight in weights.items() if weight > 0.0}

    def _merge(self, patch: CheckedControls, start_s: float, ramp_s: float, seq_before: int) -> None:
        for name, value in patch.items():
            before, after = self._value_at(name, start_s), self.defaults[name] if value is None else value
            end_s = start_s if name in WITHOUT_RAMP else start_s + ramp_s
            _set_ramp(self._ramps, name, before, after, start_s, end_s, seq_before)
            if value is None:
                self._values.pop(name, None)
            else:
                self._values[name] = value


def _set_ramp(
    ramps: dict[str, StoredRamp], name: str, start: Any, end: Any, start_s: float, end_s: float, seq_before: int
) -> None:
    """Let a number, or the strengths of adapters, move from `start` to `end`; everything else is there at once."""
    ramps.pop(name, None)
    if end_s > start_s and _can_move(name, start, end) and start != end:
        ramps[name] = StoredRamp(start=start, end=end, start_s=start_s, end_s=end_s, seq_before=seq_before)


def _at(ramp: StoredRamp, at_s: float) -> Any:
    """The value of a ramp at a time."""
    if at_s >= ramp.end_s:
        return ramp.end
    if at_s <= ramp.start_s:
        return ramp.start
    share = (at_s - ramp.start_s) / (ramp.end_s - ramp.start_s)
    if isinstance(ramp.start, list):
        return _mixed(ramp.start, ramp.end, share)
    return ramp.start + share * (ramp.end - ramp.start)


def _later(ramp: StoredRamp, seconds: float) -> StoredRamp:
    return replace(ramp, start_s=ramp.start_s + seconds, end_s=ramp.end_s + seconds)


def _checked(name: str, stored: StoredRamp, model: LiveModel) -> StoredRamp:
    """A ramp of a control. Raises RequestError for values that it cannot have, StoreError where none are between."""
    start, end = (check_controls({name: value}, model)[name] for value in (stored.start, stored.end))
    if name in WITHOUT_RAMP or not _can_move(name, start, end):
        raise damaged(f"controls.ramps.{name:.60} has no values between")
    return replace(stored, start=start, end=end)


def _can_move(name: str, start: Any, end: Any) -> bool:
    return (_is_number(start) and _is_number(end)) or (name == "adapters" and None not in (start, end))


def _mixed(start: list[AdapterOptions], end: list[AdapterOptions], share: float) -> list[AdapterOptions]:
    """Adapters between two lists of them; one that a list does not have has strength 0 there."""
    first, last = ({item.id: item.strength for item in items} for items in (start, end))
    return [
        NO_ADAPTER.model_copy(
            update={"id": id_, "strength": (1.0 - share) * first.get(id_, 0.0) + share * last.get(id_, 0.0)}
        )
        for id_ in {**first, **last}
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
