"""Songs with form as pages of tokens: drawn, rendered and encoded by the bundle's structure tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from engine_build.demo_model.corpus.songs import draw_song
from engine_build.demo_model.corpus.vocabulary import MOOD_SHARE, moods_of
from engine_build.demo_model.instruments import LAYERS
from engine_build.demo_model.latents import FRAMES_PER_CODE, FloatArray, latents_from_levels, levels_from_latents
from engine_build.demo_model.planner.arrangement import (
    MATERIALS,
    Arrangement,
    Section,
    draw_arrangement,
    render_arrangement,
)
from engine_build.demo_model.planner.tokens import (
    BEFORE,
    END,
    PLAN,
    RECALL,
    SECTION,
    START,
    TOKEN_IDS,
    Codes,
    header,
    marked_codes,
    rhythm_of,
    song_tokens,
)
from runtime.pipeline.form.rhythm import Rhythm

MAX_PAGE_TOKENS: Final = 2304
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

    def decode(self, codes: Codes) -> FloatArray:
        """Levels `[T, C]` of the hints."""
        return levels_from_latents(self._decode.run(None, {"codes": codes[None]})[0][0])


def draw_piece(structure: StructureCodes, seed: int, index: int) -> Piece:
    """Song number `index` of a seed, with form."""
    rng = np.random.default_rng([seed, index])
    song = draw_song(rng)
    if rng.random() < _FULL_SHARE:
        song = replace(song, layers=song.layers | song.rule.layer_set)
    arrangement = draw_arrangement(song, rng)
    moods = tuple(mood for mood in moods_of(arrangement.song) if rng.random() < MOOD_SHARE)
    return Piece(arrangement, structure.encode(render_arrangement(arrangement)), moods)


def plan_page(piece: Piece, rng: np.random.Generator) -> list[int]:
    """What a prompt says, more or less of what is true of the song, then everything that it leaves open: the plan."""
    song, share = piece.arrangement.song, rng.random()
    layers = [TOKEN_IDS[f"layer:{layer}" if layer in song.layers else f"no:{layer}"] for layer in LAYERS]
    known = (*song_tokens(song, piece.moods), *layers)
    prompt = sorted(token for token in known if rng.random() < share)
    plan = [token for section in piece.arrangement.sections for token in header(section)]
    return [TOKEN_IDS[START], *prompt, TOKEN_IDS[PLAN], *song_tokens(song), *plan, TOKEN_IDS[END]]


def section_page(piece: Piece, index: int) -> list[int]:
    """The page of a section of a piece, complete."""
    sections = piece.arrangement.sections
    tokens = section_prompt(piece, index)
    return [*tokens, *_codes_of_section(piece, index, sections[index])]


def section_prompt(piece: Piece, index: int) -> list[int]:
    """The page of a section without its codes: song, first occurrence, the last bar before, header."""
    arrangement = piece.arrangement
    tokens = [TOKEN_IDS[START], *song_tokens(arrangement.song, piece.moods)]
    recalled = recalled_section(arrangement.sections, index)
    if recalled is not None:
        section = arrangement.sections[recalled]
        tokens += [TOKEN_IDS[RECALL], *header(section), *_codes_of_section(piece, recalled, section)]
    if index:
        bar = arrangement.start_bars[index] - 1
        span = piece.rhythm.code_range(bar, 1)
        first = arrangement.start_bars[index - 1]
        tokens += [
            TOKEN_IDS[BEFORE],
            *marked_codes(piece.rhythm, piece.codes[span.start : span.stop], first, span.start),
        ]
    return [*tokens, TOKEN_IDS[SECTION], *header(arrangement.sections[index])]


def _codes_of_section(piece: Piece, index: int, section: Section) -> list[int]:
    bar = piece.arrangement.start_bars[index]
    span = piece.rhythm.code_range(bar, section.bars)
    return marked_codes(piece.rhythm, piece.codes[span.start : span.stop], bar, span.start)


def recalled_section(sections: Sequence[Section], index: int) -> int | None:
    """The section that another one is played after: the first of its kind before it, or else of its material."""
    kind = sections[index].kind
    same = [i for i in range(index) if sections[i].kind == kind]
    related = [i for i in range(index) if MATERIALS[sections[i].kind] == MATERIALS[kind]]
    return next(iter(same or related), None)
