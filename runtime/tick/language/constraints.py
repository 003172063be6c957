"""Which tokens may come next: the phases of a planner as state machines over token ids.

A constraint's own state is small: `copy.copy` gives another one that goes on by itself, and `state` is plain JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import copy
from typing import Protocol, Self

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.planner import PlannerSpec
from runtime.tick.language.thinking import Mask

Markers = Callable[[int], Sequence[int]]
# A number of codes that is never reached.
ENDLESS = 1 << 62


class Constraint(Protocol):
    """What may come next in one sequence."""

    @property
    def key(self) -> Hashable:
        """Equal keys of one constraint have equal masks."""

    @property
    def is_done(self) -> bool:
        """Whether the phase is complete: nothing may come."""

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken here, also where tokens are sampled."""

    def write_allowed(self, allowed: Mask) -> None:
        """Write which tokens may come into `allowed` `[V]`."""

    def forced(self, limit: int) -> list[int]:
        """The tokens that are each the only one that may come, from here on, at most `limit`."""

    def advance(self, token: int) -> None:
        """Take a token that was allowed."""

    def state(self) -> list[int]:
        """For snapshots."""

    def restore(self, state: Sequence[int]) -> None:
        """Go on from what `state` gave, of a constraint that was made with the same arguments.

        Raises ValueError or IndexError where it is of another kind.
        """


class CodesConstraint:
    """Codes: a token of every group in turn, and before each code the tokens that `markers` gives for its index.

    num_codes: that many, and no end token; None: until the end token comes, which may come between codes. known: the
    first codes, which are given. fixed: for every group the token that is given in all other codes, or None. at_most:
    by token how many codes in a row may have it. without: tokens that may not come where nothing is given.
    onset_frames: by code the frames in which its notes may begin, as `onsets` of [planner.plan] has them by token; ():
    anywhere.
    """

    is_greedy = False

    def __init__(
        self,
        planner: PlannerSpec,
        num_codes: int | None = None,
        markers: Markers | None = None,
        known: Sequence[int] = (),
        fixed: Sequence[int | None] = (),
        at_most: Mapping[int, int] | None = None,
        without: Collection[int] = (),
        onset_frames: Sequence[int] = (),
    ) -> None:
        self._codes, self._end_token, self._at_most = planner.codes, planner.end_token, at_most or {}
        self._num_codes, self._markers, self._known = num_codes, markers, known
        self._without = np.array(list(without), np.int64)  # [tokens]
        self._onset_frames = onset_frames
        # By group the frames of each of its tokens int64 [tokens of the group]; a group without onsets has none.
        onsets = planner.plan.onsets if planner.plan is not None and onset_frames else ()
        self._onsets = [np.array(each, np.int64) for each in onsets]
        self._fixed = tuple(fixed) or (None,) * len(planner.codes.groups)
        # By key what may come, bool [V] each; copies share them.
        self._masks: dict[Hashable, Mask] = {}
        # By group: the token of the last codes, and how many in a row have it.
        self._repeated = tuple((-1, 0) for _ in planner.codes.groups)
        self._code, self._part, self._has_ended = 0, 0, False
        self._given = self._given_tokens()

    def __copy__(self) -> Self:
        """Ticks copy it several times: without the generic way through `__reduce_ex__`."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def key(self) -> Hashable:
        """The token that must come, or the group, the token that came as often as it may and the frames of onsets."""
        token = self._given[self._part]
        return (self._group, self._refused, self._frames) if token is None else ("token", token)

    @property
    def is_done(self) -> bool:
        """Whether all codes or the end token came."""
        return self._has_ended or self._code == self._num_codes

    def write_allowed(self, allowed: Mask) -> None:
        """The given token, or the group's tokens, and between codes the end token where it may come."""
        token = self._given[self._part]
        if token is not None:
            allowed[:] = False
            allowed[token] = True
            return
        if (mask := self._masks.get(key := self.key)) is None:
            mask = self._masks[key] = np.zeros(len(allowed), np.bool_)  # [V]
            self._write_choice(mask)
        allowed[:] = mask

    def _write_choice(self, allowed: Mask) -> None:
        """Of a token that is not given; `allowed` is all False."""
        group = self._codes.groups[self._group]
        allowed[group.first : group.end] = True  # [V]
        allowed[self._without] = False  # [V]
        if self._refused is not None:
            allowed[self._refused] = False
        if self._frames is not None:
            on_steps = (self._onsets[self._group] & ~self._frames) == 0  # [tokens of the group]
            kept = allowed[group.first : group.end] & on_steps  # [tokens of the group]
            if kept.any():
                allowed[group.first : group.end] = kept
        if self._num_codes is None and self._group == 0:
            allowed[self._end_token] = True

    def forced(self, limit: int) -> list[int]:
        """The given tokens that come next."""
        ahead, found = copy(self), list[int]()
        while len(found) < limit and not ahead.is_done and (token := ahead._given[ahead._part]) is not None:
            found.append(token)
            ahead.advance(token)
        return found

    def advance(self, token: int) -> None:
        """The next part of the code, or of the next one."""
        if token == self._end_token:
            self._has_ended = True
            return
        if self._group >= 0:
            last, count = self._repeated[self._group]
            repeated = list(self._repeated)
            repeated[self._group] = (token, count + 1 if token == last else 1)
            self._repeated = tuple(repeated)
        self._part += 1
        if self._part == len(self._given):
            self._code, self._part = self._code + 1, 0
            self._given = self._given_tokens()

    def state(self) -> list[int]:
        """The code's index, the part of it that comes next, whether the end came, what is repeated and how often."""
        return [self._code, self._part, int(self._has_ended), *(number for pair in self._repeated for number in pair)]

    def restore(self, state: Sequence[int]) -> None:
        """As `state` gave."""
        self._code, self._part, self._has_ended = state[0], state[1], bool(state[2])
        pairs = zip(state[3::2], state[4::2], self._codes.groups, strict=True)
        self._repeated = tuple((token, count) for token, count, _ in pairs)
        self._given = self._given_tokens()

    @property
    def _group(self) -> int:
        """The group that comes next; negative where a marker does."""
        return self._part - len(self._given) + len(self._codes.groups)

    @property
    def _frames(self) -> int | None:
        """The frames in which notes of this group of this code may begin; None for anywhere."""
        has_onsets = bool(self._onsets) and len(self._onsets[self._group]) > 0
        return self._onset_frames[self._code] if has_onsets else None

    @property
    def _refused(self) -> int | None:
        """The token that came in the last codes of this group as often as it may."""
        token, count = self._repeated[self._group]
        return token if count >= self._at_most.get(token, ENDLESS) else None

    def _given_tokens(self) -> tuple[int | None, ...]:
        """Of each token of this code: the one that is given, or None."""
        if self.is_done:
            return ()
        known = self._code < len(self._known)
        markers = () if self._markers is None else self._markers(self._code)
        return (*markers, *(self._codes.tokens(self._known[self._code]) if known else self._fixed))


class FormConstraint:
    """A plan in tokens: one of every field of the header, then kind, layers and bars of section after section.

    given: place in the plan -> its token. without: tokens that may not come elsewhere. num_sections: that many, and no
    end token; None: until the end token comes, behind one section or more, at most `most_sections` of them. named: the
    layers that the prompt asks for: sections of the main kinds have them, and all sections together. fewest_layers: of
    every section. The kind that
    begins a song comes first only, with at most `beginning_bars`, and none more often in a row than `most_in_a_row`;
    what is given may differ.
    """

    is_greedy = False

    def __init__(
        self,
        planner: PlannerSpec,
        given: Mapping[int, int] | None = None,
        num_sections: int | None = None,
        without: Collection[int] = (),
        named: frozenset[str] = frozenset(),
        fewest_layers: int = 0,
    ) -> None:
        assert planner.plan is not None
        self._fewest_layers = fewest_layers
        self._spec, self._given, self._end_token = planner.plan, given or {}, planner.end_token
        self._num_sections, self._without, self._named = num_sections, set(without), named
        self._most_sections = num_sections or self._spec.most_sections
        self._last = len(self._spec.header) + len(self._spec.item) * self._most_sections
        self._tokens, self._has_ended = tuple[int, ...](), False
        for place, token in self._given.items():
            if not 0 <= place < self._last or token not in self._spec.field_at(place).tokens:
                raise RequestError(f"the plan has token {token} at place {place}, which cannot stand there")

    @property
    def key(self) -> Hashable:
        """The token that must come, or all that may."""
        given = self._given.get(len(self._tokens))
        return tuple(self._choices()) if given is None else given

    @property
    def is_done(self) -> bool:
        """Whether all sections or the end token came."""
        return self._has_ended or len(self._tokens) == self._last

    def write_allowed(self, allowed: Mask) -> None:
        """The given token, or those of the field that may come, and the end token where it may."""
        given = self._given.get(len(self._tokens))
        allowed[:] = False
        allowed[self._choices() if given is None else given] = True

    def forced(self, limit: int) -> list[int]:
        """The given tokens that come next."""
        place, found = len(self._tokens), list[int]()
        while len(found) < limit and place + len(found) in self._given and not self._has_ended:
            found.append(self._given[place + len(found)])
        return found

    def advance(self, token: int) -> None:
        """The next place."""
        self._has_ended = token == self._end_token
        self._tokens += () if self._has_ended else (token,)

    def state(self) -> list[int]:
        """Whether the end came, and all tokens."""
        return [int(self._has_ended), *self._tokens]

    def restore(self, state: Sequence[int]) -> None:
        """As `state` gave."""
        self._has_ended, self._tokens = bool(state[0]), tuple(state[1:])

    def _choices(self) -> list[int]:
        """The tokens that may come where none is given. Rules that leave none are dropped, the last one first."""
        field = self._spec.field_at(len(self._tokens))
        found = [token for token in field.tokens if token not in self._without]
        rules = {self._spec.kind: self._follows, self._spec.layers: self._has_named, self._spec.bars: self._may_last}
        if len(self._tokens) >= len(self._spec.header) and (rule := rules.get(field)) is not None:
            found = [token for token in found if rule(token)] or found
        return [*found, self._end_token] if self._may_end else found

    def _follows(self, kind: int) -> bool:
        """Whether a section's kind may follow those before."""
        most, kinds = self._spec.most_in_a_row, [item[0] for item in self._items]
        is_first = not kinds or self._spec.kind.value(kind) != self._spec.beginning
        return is_first and not (most and kinds[-most:] == most * [kind])

    def _has_named(self, layers: int) -> bool:
        """Whether a section has the layers that its kind has at least, and the last one those that are missing."""
        kind = self._spec.kind.value(self._tokens[-1])
        needed = self._spec.main_layers(kind, self._named)
        if len(self._items) == self._most_sections - 1:
            needed |= self._missing
        found = self._spec.layers_of((self._tokens[-1], layers))
        return needed <= found and len(found) >= self._fewest_layers

    def _may_last(self, bars: int) -> bool:
        """Whether a section of its kind may have so many bars."""
        kind = self._spec.kind.value(self._tokens[-2])
        return int(self._spec.bars.value(bars)) in self._spec.bars_of_kind(kind)

    @property
    def _items(self) -> list[tuple[int, ...]]:
        """The complete sections."""
        size, tokens = len(self._spec.item), self._tokens[len(self._spec.header) :]
        return [tokens[end - size : end] for end in range(size, len(tokens) + 1, size)]

    @property
    def _missing(self) -> frozenset[str]:
        """The layers that the prompt asks for and no section has."""
        return self._named.difference(*(self._spec.layers_of(item) for item in self._items))

    @property
    def _may_end(self) -> bool:
        sections, rest = divmod(len(self._tokens) - len(self._spec.header), len(self._spec.item))
        return self._num_sections is None and sections > 0 and rest == 0 and not self._missing
