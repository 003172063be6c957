"""Songs with form as pages of tokens: drawn, rendered and encoded by the bundle's structure tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.corpus.vocabulary import draw_moods
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import (
    CHANNELS,
    FIRST_PITCH,
    FRAMES_PER_CODE,
    NUM_PITCHES,
    FloatArray,
    latents_from_levels,
    levels_from_latents,
)
from configs.demo.recipe.planner.arrangement import (
    MATERIALS,
    Arrangement,
    Section,
    draw_arrangement,
    render_arrangement,
)
from configs.demo.recipe.planner.tokens import (
    BEFORE,
    END,
    FIRST_CODE_ID,
    GROUP_SIZE,
    NUM_GROUPS,
    PLAN,
    RECALL,
    SECTION,
    START,
    TOKEN_IDS,
    Codes,
    code_tokens,
    codes_of,
    header,
    marked_codes,
    rhythm_of,
    song_tokens,
)
from runtime.music.rhythm import Rhythm

Markers = Callable[[int], Sequence[int]]

MAX_PAGE_TOKENS: Final = 2304
# A code sounds the pitches that are louder than this in its hints. Hints are blurred: of the corpus' codes that are not
# silent, 9 % of pads' sound one outside the scale, at most 0.6 % of other layers'. At a higher level fewer do, and more
# energy outside the key remains in plans.
_SOUNDING_LEVEL: Final = 0.25
# A drum is struck where its level in the hints rises by more than this from one frame to the next.
_STRUCK_RISE: Final = 0.3
_FULL_SHARE: Final = 0.6  # of the songs that have all layers of their genre, so that many can enter and leave


@dataclass(frozen=True)
class Piece:
    """A song with form and its structure codes int64 `[Q]`; moods: what its prompt says of it."""

    arrangement: Arrangement
    codes: Codes
    moods: tuple[str, ...]

    @property
    def rhythm(self) -> Rhythm:
        """Its tempo and meter."""
        return rhythm_of(self.arrangement.song.bpm, self.arrangement.song.meter)


class StructureCodes:
    """The structure graphs of a bundle's folder on one thread: levels `[T, C]` -> codes `[Q]` -> hints' levels."""

    def __init__(self, folder: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._encode = ort.InferenceSession(folder / "structure_encode.onnx", options)
        self._decode = ort.InferenceSession(folder / "structure_decode.onnx", options)

    def encode(self, levels: FloatArray) -> Codes:
        """Codes of whole groups of frames; the rest is cut."""
        latents = latents_from_levels(levels[None, : len(levels) // FRAMES_PER_CODE * FRAMES_PER_CODE])
        return np.asarray(self._encode.run(None, {"latents": latents})[0][0], np.int64)

    @cached_property
    def silent(self) -> dict[str, int]:
        """By layer the token of its silence."""
        (tokens,) = code_tokens(self.encode(np.zeros((FRAMES_PER_CODE, CHANNELS), np.float32))).tolist()
        return dict(zip(LAYERS, tokens, strict=True))

    @cached_property
    def pitches(self) -> list[list[int]]:
        """By layer and its token the pitch classes that it sounds, one bit each, the lowest is C; drums sound none."""
        bits, found = 1 << ((FIRST_PITCH + np.arange(NUM_PITCHES)) % 12), []
        for group in range(NUM_GROUPS):
            # A code's hints depend on its neighbours: here they are the same.
            levels = self._levels(np.repeat(self._codes_of_group(group)[:, None], 3, axis=1))
            loudest = levels[:, FRAMES_PER_CODE : 2 * FRAMES_PER_CODE, :NUM_PITCHES].max(axis=1)
            found.append(np.bitwise_or.reduce(np.where(loudest > _SOUNDING_LEVEL, bits, 0), axis=1).tolist())
        return found

    @cached_property
    def onsets(self) -> list[list[int]]:
        """By layer and its token the frames in which it strikes a drum, one bit each; none for the other layers."""
        group, (silent,) = LAYERS.index("drums"), codes_of(np.array([list(self.silent.values())]))
        levels = self._levels(np.pad(self._codes_of_group(group)[:, None], ((0, 0), (1, 1)), constant_values=silent))
        rises = np.diff(levels[:, FRAMES_PER_CODE - 1 : 2 * FRAMES_PER_CODE, pitch_channels("drums")], axis=1)
        is_struck = (rises > _STRUCK_RISE).any(axis=2)  # [tokens, frames of a code]
        frames = (is_struck @ (1 << np.arange(FRAMES_PER_CODE))).tolist()
        return [frames if each == group else [] for each in range(NUM_GROUPS)]

    def _codes_of_group(self, group: int) -> Codes:
        """The codes `[tokens]` of each token of a group where all other layers are silent."""
        tokens = np.tile(list(self.silent.values()), (GROUP_SIZE, 1))
        tokens[:, group] = FIRST_CODE_ID + GROUP_SIZE * group + np.arange(GROUP_SIZE)
        return codes_of(tokens)

    def _levels(self, codes: Codes) -> FloatArray:
        """Levels `[N, T, C]` of the hints of runs of codes `[N, Q]`."""
        return levels_from_latents(self._decode.run(None, {"codes": codes})[0])

    def decode(self, codes: Codes) -> FloatArray:
        """Levels `[T, C]` of the hints."""
        return np.asarray(self._levels(codes[None])[0], np.float32)


def draw_piece(structure: StructureCodes, seed: int, index: int) -> Piece:
    """Song number `index` of a seed, with form."""
    return played(structure, draw_form(np.random.default_rng([seed, index])))


def draw_opening(structure: StructureCodes, form: Piece, rng: np.random.Generator) -> Piece:
    """A section of a song alone, as if the song began with it."""
    sections = form.arrangement.sections
    section = sections[int(rng.integers(len(sections)))]
    return played(structure, replace(form, arrangement=replace(form.arrangement, sections=(section,))))


def draw_form(rng: np.random.Generator) -> Piece:
    """A song with form that has no codes yet."""
    song = draw_song(rng)
    if rng.random() < _FULL_SHARE:
        song = replace(song, layers=song.layers | song.rule.layer_set)
    arrangement = draw_arrangement(song, rng)
    return Piece(arrangement, np.zeros(0, np.int64), draw_moods(arrangement.song, rng))


def played(structure: StructureCodes, piece: Piece) -> Piece:
    """A piece with its codes."""
    return replace(piece, codes=structure.encode(render_arrangement(piece.arrangement)))


def plan_page(piece: Piece, rng: np.random.Generator) -> list[int]:
    """What a prompt says, more or less of what is true of the song, then everything that it leaves open: the plan."""
    song, share = piece.arrangement.song, rng.random()
    layers = [TOKEN_IDS[f"layer:{layer}" if layer in song.layers else f"no:{layer}"] for layer in LAYERS]
    known = (*song_tokens(song, piece.moods), *layers)
    prompt = sorted(token for token in known if rng.random() < share)
    plan = [token for section in piece.arrangement.sections for token in header(section)]
    return [TOKEN_IDS[START], *prompt, TOKEN_IDS[PLAN], *song_tokens(song), *plan, TOKEN_IDS[END]]


def section_page(piece: Piece, index: int, recalled: Codes | None = None) -> list[int]:
    """The page of a section of a piece, complete; recalled: codes int64 of its span that stand before its own."""
    span = section_span(piece, index)
    markers = section_markers(piece, index, recalled)
    tokens = section_prompt(piece, index)
    for place, groups in enumerate(code_tokens(piece.codes[span.start : span.stop]).tolist()):
        tokens += [*markers(place), *groups]
    return tokens


def section_prompt(piece: Piece, index: int) -> list[int]:
    """The page of a section without its codes: song, the last bar before, header."""
    arrangement = piece.arrangement
    tokens = [TOKEN_IDS[START], *song_tokens(arrangement.song, piece.moods)]
    if index:
        bar, first = arrangement.start_bars[index] - 1, arrangement.start_bars[index - 1]
        span = piece.rhythm.code_range(bar, 1)
        before = piece.codes[span.start : span.stop]
        tokens += [TOKEN_IDS[BEFORE], *marked_codes(piece.rhythm, before, first, span.start)]
    return [*tokens, TOKEN_IDS[SECTION], *header(arrangement.sections[index])]


def section_markers(piece: Piece, index: int, recalled: Codes | None) -> Markers:
    """The tokens that are given before each code of a section: bar, recalled code, place in the bar."""
    first, bar = section_span(piece, index).start, piece.arrangement.start_bars[index]
    tokens = [] if recalled is None else [[TOKEN_IDS[RECALL], *groups] for groups in code_tokens(recalled).tolist()]
    return lambda place: piece.rhythm.markers(first + place, bar, tokens[place] if tokens else ())


def section_span(piece: Piece, index: int) -> range:
    """The codes of a section of a piece."""
    return piece.rhythm.code_range(piece.arrangement.start_bars[index], piece.arrangement.sections[index].bars)


def recalled_codes(structure: StructureCodes, piece: Piece, index: int) -> Codes | None:
    """What a section recalls, int64, moved to the frames of its own codes; None where it recalls nothing.

    A section that is longer than the recalled one reads that over and over.
    """
    recalled = recalled_section(piece.arrangement.sections, index)
    if recalled is None:
        return None
    starts, span, source = piece.arrangement.start_frames, section_span(piece, index), section_span(piece, recalled)
    hints = structure.decode(piece.codes[source.start : source.stop])
    offset = np.arange(FRAMES_PER_CODE * span.start, FRAMES_PER_CODE * span.stop) - starts[index]
    offset = np.where(offset < 0, offset, offset % (starts[recalled + 1] - starts[recalled]))
    frames = starts[recalled] + offset - FRAMES_PER_CODE * source.start
    return structure.encode(hints[frames.clip(0, len(hints) - 1)])


def recalled_section(sections: Sequence[Section], index: int) -> int | None:
    """The section that another one is played after: the first of its kind before it, or else of its material."""
    kind = sections[index].kind
    same = [i for i in range(index) if sections[i].kind == kind]
    related = [i for i in range(index) if MATERIALS[sections[i].kind] == MATERIALS[kind]]
    return next(iter(same or related), None)
