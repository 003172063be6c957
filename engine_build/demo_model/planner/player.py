"""Plans and codes written by the trained planner: a plan page, then a page for each section, with cached tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_build.demo_model.instruments import LAYERS
from engine_build.demo_model.planner.arrangement import Arrangement, Section
from engine_build.demo_model.planner.model import Cache, Planner
from engine_build.demo_model.planner.pages import (
    Markers,
    Piece,
    StructureCodes,
    recalled_codes,
    section_markers,
    section_prompt,
    section_span,
)
from engine_build.demo_model.planner.tokens import (
    END,
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_GROUPS,
    TEMPERATURE,
    TOKEN_IDS,
    TOKENS,
    TOP_P,
    Codes,
    codes_of,
    section_of,
)

MOST_SECTIONS: Final = 16


class Page:
    """A page that grows: the caches of its tokens and the hidden state `[H]` of the last."""

    def __init__(self, model: Planner, tokens: Sequence[int]) -> None:
        self._model, self._table = model, model.table().detach()
        self._caches, self._length = [Cache(keeps=True) for _ in model.layers], 0
        self.append(tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Read more tokens."""
        with torch.no_grad():
            rows = self._table[torch.tensor([list(tokens)])]
            self._hidden: Tensor = self._model(rows, self._caches, self._length)[0, -1]
        self._length += len(tokens)

    def draw(self, allowed: Sequence[int], rng: np.random.Generator) -> int:
        """One of the tokens that are allowed next; it is not read yet."""
        logits = (self._table[torch.tensor(allowed)] @ self._hidden).double().numpy()
        return allowed[_nucleus(logits, rng)]


def _nucleus(logits: npt.NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw from the likeliest values that together have `TOP_P`, as the runtime's sampler: then the temperature."""
    order = np.argsort(-logits)
    scores = logits[order] - logits[order[0]]
    shares = np.exp(scores) / np.exp(scores).sum()
    kept = np.cumsum(np.exp(scores / TEMPERATURE) * (np.cumsum(shares) - shares < TOP_P))
    return int(order[np.searchsorted(kept, rng.random() * kept[-1], side="right")])


def write_codes(
    model: Planner, prompt: Sequence[int], markers: Markers, silent: Sequence[int | None], count: int, seed: int
) -> Codes:
    """Codes int64 `[Q]` of a section's page, whose markers are given before each. silent: by group a token or None."""
    page, rng = Page(model, prompt[:-1]), np.random.default_rng(seed)
    unread, tokens = list(prompt[-1:]), list[int]()
    for place in range(count):
        unread += markers(place)
        for group in range(NUM_GROUPS):
            given, first = silent[group], FIRST_CODE_ID + group * GROUP_SIZE
            if given is None:
                page.append(unread)
                unread = []
            tokens.append(page.draw(range(first, first + GROUP_SIZE), rng) if given is None else given)
            unread.append(tokens[-1])
    return codes_of(np.array(tokens).reshape(-1, NUM_GROUPS))


def write_piece(
    model: Planner, structure: StructureCodes, arrangement: Arrangement, moods: tuple[str, ...], seed: int
) -> Piece:
    """A piece in a given form, section after section."""
    piece = Piece(arrangement, np.zeros(0, np.int64), moods)
    for index in range(len(arrangement.sections)):
        markers = section_markers(piece, index, recalled_codes(structure, piece, index))
        layers, count = arrangement.sections[index].layers, len(section_span(piece, index))
        silent = [None if layer in layers else token for layer, token in structure.silent.items()]
        codes = write_codes(model, section_prompt(piece, index), markers, silent, count, seed + index)
        piece = replace(piece, codes=np.concatenate([piece.codes, codes]))
    return piece


def write_sections(model: Planner, prompt: Sequence[int], seed: int) -> tuple[Section, ...]:
    """The sections of a plan page, which is given up to them; their layers are those that the prompt leaves."""
    page, rng, sections = Page(model, prompt), np.random.default_rng(seed), list[Section]()
    absent = {layer for layer in LAYERS if TOKEN_IDS[f"no:{layer}"] in prompt}
    options = [
        [TOKEN_IDS[name] for name in TOKENS if name.startswith(kind) and not absent & set(name[len(kind) :].split("+"))]
        for kind in ("section:", "layers:", "bars:")
    ]
    while len(sections) < MOST_SECTIONS:
        tokens = list[int]()
        for allowed in options:
            may_end = bool(sections) and not tokens
            tokens.append(page.draw([*allowed, TOKEN_IDS[END]] if may_end else allowed, rng))
            page.append(tokens[-1:])
            if tokens[-1] == TOKEN_IDS[END]:
                return tuple(sections)
        sections.append(section_of(tokens))
    return tuple(sections)
