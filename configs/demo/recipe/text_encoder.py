"""The text encoder as an ONNX graph: word ids -> the tokens that a prompt means, independent of word order.

The rules: named layers sound, and beside them those of a named genre, but for a prompt that says "only". Without a
genre the named layers are all. Where no layer is named, those of the genre are; an instrument plays those of these
layers that it can play, else its home layers sound, too. Of two instruments in one layer the one with fewer home layers
plays. Where a prompt rules out an instrument of its genre, another one is named in that layer. A prompt that names
layers or instruments and no genre has `DEFAULT_GENRE`; one that names neither has none of them. Every prompt that is
not empty has one tempo (a number, else a tempo word, a mood or the genre, else a pseudorandom one) and one meter
(named, else the genre's, else 4/4).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from configs.demo.recipe.corpus.genres import GENRES, METERS
from configs.demo.recipe.corpus.songs import BPM_RANGE
from configs.demo.recipe.corpus.theory import NOTE_NAMES
from configs.demo.recipe.corpus.vocabulary import (
    BPM_CONCEPTS,
    FIRST_TEMPO_ID,
    FRACTION_CONCEPTS,
    GENRE_CONCEPTS,
    INSTRUMENT_CONCEPTS,
    KEY_CONCEPTS,
    LAYER_CONCEPTS,
    MAX_CONDITION_TOKENS,
    METER_CONCEPTS,
    MODE_CONCEPTS,
    MOOD_CONCEPTS,
    NO_INSTRUMENT_CONCEPTS,
    NO_LAYER_CONCEPTS,
    NUM_TOKENS,
    ONLY,
    PAIR_CONCEPTS,
    PLAYED_BY,
    PLAYERS,
    SCALES,
    SECTION_CONCEPTS,
    TEMPO_WORDS,
    TOKEN_IDS,
    WORD_CONCEPTS,
    WORD_IDS,
)
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS
from configs.demo.recipe.latents import FloatArray
from configs.demo.recipe.tokenizer import vocabulary, word_to_concept_ids
from engine_build.graphs.graph_writer import GraphWriter

# The layers in which an instrument plays where the prompt names none that it can play; others play in all they can.
HOME_LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "piano": ("pad", "melody"),
    "electric piano": ("pad",),
    "synth": ("pad", "melody"),
    "guitar": ("arp", "melody"),
    "bells": ("arp",),
}
# By instrument and layer, 0 or 1, f32 [K, 5].
_CAN_PLAY: Final = np.array([[layer in layers for layer in LAYERS] for layers in PLAYED_BY.values()], np.float32)
_AT_HOME: Final = np.array(
    [[layer in HOME_LAYERS.get(name, layers) for layer in LAYERS] for name, layers in PLAYED_BY.items()], np.float32
)
DEFAULT_GENRE: Final = "pop"
# Tempo ranges where no genre is named, by tempo word; the last where there is no word either.
_BPM_RANGES: Final = ((60, 66), (66, 80), (92, 112), (128, 148), (156, 176), (84, 124))
MOOD_TEMPOS: Final = {
    "mood:sad": "tempo:slow",
    "mood:calm": "tempo:slow",
    "mood:dreamy": "tempo:slow",
    "mood:romantic": "tempo:slow",
    "mood:happy": "tempo:medium",
    "mood:energetic": "tempo:fast",
    "mood:aggressive": "tempo:fast",
}
_NOTHING: Final = len(WORD_CONCEPTS)


def build_text_encoder(token_table: FloatArray) -> onnx.ModelProto:
    """Graph `input_ids [B, L], attention_mask [B, L]` int64 -> condition, its mask and the meaning.

    These are f32 `condition [B, N, D], condition_mask [B, N], meaning [B, M]`. The condition is the rows of the table
    that the prompt means, N = `MAX_CONDITION_TOKENS`; the mask is 1 for them and 0 for the rows that fill up. A tempo
    between two whole numbers is between their rows. So the result does not depend on word order, on repeated words or
    on unknown ones. Row `vocabulary.ALWAYS_ID` is always kept: alone it is the empty prompt. The meaning is 1 for each
    of `meaning_names` that the prompt means, in their order.

    Args:
        token_table: f32 `[NUM_TOKENS, D]`.
    """
    graph = GraphWriter("text_encoder")
    input_ids = graph.input("input_ids", ("batch", "tokens"), np.int64)
    attention_mask = graph.input("attention_mask", ("batch", "tokens"), np.int64)
    meaning = _Meaning(graph, _named(graph, _concept_ids(graph, input_ids, attention_mask)))
    token_mask = meaning.token_mask()
    ids, mask = _kept(graph, token_mask)
    table, above = graph.constant(token_table), graph.op("Gather", graph.constant(_ids_above(), np.int64), ids, axis=0)
    condition, higher = (graph.op("Gather", table, found, axis=0) for found in (ids, above))
    more = graph.op("Mul", meaning.fraction(), graph.op("Sub", higher, condition))
    condition = graph.op("Add", condition, more)
    graph.output("condition", condition, ("batch", MAX_CONDITION_TOKENS, token_table.shape[1]))
    graph.output("condition_mask", mask, ("batch", MAX_CONDITION_TOKENS))
    said = graph.constant(_said(), np.int64)
    is_said = graph.op("Gather", graph.op("Mul", token_mask, _uncovered(graph, token_mask)), said, axis=1)
    graph.output("meaning", is_said, ("batch", len(_said())))
    return graph.model()


def meaning_names() -> dict[str, list[str]]:
    """By kind, as they are said, the names of the columns of the graph's meaning."""
    return {kind: [text for _, text in names] for kind, names in sayings().items()}


def _said() -> list[int]:
    """The tokens of the columns of the meaning."""
    return [TOKEN_IDS[token] for names in sayings().values() for token, _ in names]


def sayings() -> dict[str, list[tuple[str, str]]]:
    """By kind the tokens that are said, and how: a layer with its player where it has one, no meter where it is 4/4."""
    spoken = {"pad": "pads", "arp": "arps", "bass": "bass", "melody": "melody", "drums": "drums"}
    parts = []
    for layer in ("drums", "bass", "pad", "arp", "melody"):
        behind = "" if layer in ("drums", "bass") else f" {spoken[layer]}"
        parts += [(f"layer:{layer}", spoken[layer])]
        parts += [(f"{layer}:{name}", f"{name}{behind}") for name in INSTRUMENTS[layer]]
    notes = list(zip(KEY_CONCEPTS, NOTE_NAMES, strict=True))
    modes = [(concept, concept.partition(":")[2]) for concept in MODE_CONCEPTS]
    return {
        "layers": parts,
        "genre": [(f"genre:{genre}", genre) for genre in GENRES],
        "tempo": [(concept, f"{concept.partition(':')[2]} bpm") for concept in BPM_CONCEPTS],
        "meter": [(f"meter:{meter}", meter) for meter in METERS if meter != "4/4"],
        "key": [*((f"{key}/{mode}", f"{note} {name}") for key, note in notes for mode, name in modes), *notes, *modes],
        "section": [(concept, concept.partition(":")[2]) for concept in SECTION_CONCEPTS],
        "mood": [(concept, concept.partition(":")[2]) for concept in MOOD_CONCEPTS],
    }


def _uncovered(graph: GraphWriter, token_mask: str) -> str:
    """`[B, NUM_TOKENS]`, 0 for what another token says better: a layer's player, or the scale of a key and a mode."""
    covering = [*PLAYERS, *SCALES]
    covers = np.zeros((len(covering), NUM_TOKENS), np.float32)
    for row, name in enumerate(covering):
        covered = name.split("/") if name in SCALES else [f"layer:{name.partition(':')[0]}"]
        covers[row, [TOKEN_IDS[token] for token in covered]] = 1.0
    columns = graph.constant([TOKEN_IDS[name] for name in covering], np.int64)
    hits = graph.op("MatMul", graph.op("Gather", token_mask, columns, axis=1), graph.constant(covers))
    return graph.op("Sub", graph.constant(1.0), graph.op("Min", hits, graph.constant(1.0)))


def _concept_ids(graph: GraphWriter, input_ids: str, attention_mask: str) -> str:
    """Concept per word, int64 `[B, L]`; `_NOTHING` for padding, special words and ids outside the vocabulary."""
    concepts = [index if index >= 0 else _NOTHING for index in word_to_concept_ids()]
    zero, num_words = graph.constant(0, np.int64), graph.constant(len(vocabulary()), np.int64)
    in_vocabulary = graph.op("And", graph.op("GreaterOrEqual", input_ids, zero), graph.op("Less", input_ids, num_words))
    is_word = graph.op("And", in_vocabulary, graph.op("Greater", attention_mask, zero))
    safe_ids = graph.op("Where", is_word, input_ids, zero)  # word 0 is padding and means nothing
    return graph.op("Gather", graph.constant(concepts, np.int64), safe_ids, axis=0)


def _named(graph: GraphWriter, concept_ids: str) -> str:
    """f32 `[B, number of word concepts]`, 1 for each that is named at least once."""
    hits = graph.op("OneHot", concept_ids, graph.constant(_NOTHING + 1, np.int64), graph.constant([0.0, 1.0]), axis=-1)
    counts = graph.op("ReduceSum", hits, graph.constant([1], np.int64), keepdims=0)
    named = graph.op("Min", counts, graph.constant(1.0))
    return graph.op("Gather", named, graph.constant(list(range(_NOTHING)), np.int64), axis=1)


def _kept(graph: GraphWriter, token_mask: str) -> tuple[str, str]:
    """Ids int64 and mask f32 `[B, N]` of the first tokens of a mask f32 `[B, NUM_TOKENS]`."""
    order = graph.constant(2.0 - np.arange(NUM_TOKENS) / NUM_TOKENS)
    values, ids = graph.ops(
        "TopK", 2, graph.op("Mul", token_mask, order), graph.constant([MAX_CONDITION_TOKENS], np.int64)
    )
    return ids, graph.op("Cast", graph.op("Greater", values, graph.constant(0.0)), to=TensorProto.FLOAT)


def _ids_above() -> list[int]:
    """Per token, the one of the tempo that is 1 bpm higher; all others, and the highest tempo, have themselves."""
    last = FIRST_TEMPO_ID + len(BPM_CONCEPTS) - 1
    return [number + (FIRST_TEMPO_ID <= number < last) for number in range(NUM_TOKENS)]


class _Meaning:
    """Writes the rules: which tokens follow from the concepts that a prompt names, f32 `[B, W]`, 0 or 1."""

    def __init__(self, graph: GraphWriter, named: str) -> None:
        self._graph = graph
        self._named = named
        self._any = self._most(named)

    def token_mask(self) -> str:
        """f32 `[B, NUM_TOKENS]`, in the order of `vocabulary.TOKENS`."""
        genre = self._first(self._columns(GENRE_CONCEPTS))
        layers, players = self._layers_and_players(genre)
        parts = [
            self._add(self._not(self._any), self._any),
            self._tempo(genre),
            self._meter(),
            *layers,
            players,
            self._or_default(genre),
            self._scales(),
            self._columns((*KEY_CONCEPTS, *MODE_CONCEPTS, *SECTION_CONCEPTS, *MOOD_CONCEPTS)),
        ]
        return self._graph.op("Concat", *parts, axis=1)

    def fraction(self) -> str:
        """`[B, 1, 1]`: how far the tempo is above a whole number, in bpm."""
        parts = self._matmul(self._columns(tuple(FRACTION_CONCEPTS)), [[part] for part in FRACTION_CONCEPTS.values()])
        return self._unsqueeze(parts, 2)

    def _or_default(self, genre: str) -> str:
        """One-hot of the named genre, else of the default; all 0 where no layer or instrument is named either."""
        default = self._constant([[name == DEFAULT_GENRE for name in GENRES]])
        is_open = self._multiply(self._names_parts(), self._not(self._most(genre)))
        return self._add(genre, self._multiply(is_open, default))

    def _names_parts(self) -> str:
        """`[B, 1]`: whether a layer or an instrument is named."""
        return self._most(self._columns((*LAYER_CONCEPTS, *INSTRUMENT_CONCEPTS, *PAIR_CONCEPTS)))

    def _layers_and_players(self, genre: str) -> tuple[tuple[str, str], str]:
        """Layers that sound and layers that do not, `[B, 5]` each, and which instruments play in them.

        genre: one-hot of the named one `[B, G]`, all 0 where none is.
        """
        excluded = self._columns(NO_LAYER_CONCEPTS)
        allowed = self._not(excluded)
        pairs = self._multiply(self._pairs(), self._unsqueeze(allowed, 1))
        paired = self._most(pairs, axis=1, keepdims=0)
        named = self._graph.op("Max", self._multiply(self._columns(LAYER_CONCEPTS), allowed), paired)
        is_open = self._multiply(self._not(self._most(named)), allowed)
        genre_layers = [[layer in rule.layer_set for layer in LAYERS] for rule in GENRES.values()]
        is_alone = self._multiply(self._columns((ONLY,)), self._names_parts())
        band = self._multiply(self._matmul(genre, genre_layers), self._not(is_alone))
        asked = self._graph.op("Max", named, self._multiply(band, allowed))
        wants = self._instruments_in_layers(asked, self._multiply(allowed, self._not(paired)))
        wants = self._graph.op("Max", wants, pairs)
        plays = self._best(wants)
        taken = self._graph.op("Max", asked, self._most(wants, axis=1, keepdims=0))
        plays = self._add(plays, self._left_over(plays, self._multiply(is_open, self._not(taken))))
        layers = self._graph.op("Max", taken, self._most(plays, axis=1, keepdims=0))
        silent = self._graph.op("Max", self._multiply(self._most(layers), self._not(layers)), excluded)
        return (layers, silent), self._players(self._add(plays, self._instead(genre, plays, layers)))

    def _instead(self, genre: str, plays: str, layers: str) -> str:
        """`[B, K, 5]`: what plays in layers `[B, 5]` without a player whose genre has an instrument that is ruled out.

        One of the genre, else any that can play there.
        """
        names = list(PLAYED_BY)
        table = [[[name in rule.instruments[layer] for layer in LAYERS] for name in names] for rule in GENRES.values()]
        flat = self._matmul(self._or_default(genre), np.reshape(table, (len(GENRES), -1)))
        usual = self._graph.op("Reshape", flat, self._graph.constant([-1, *_CAN_PLAY.shape], np.int64))
        places = [[f"not:{name}" == concept for name in names] for concept in NO_INSTRUMENT_CONCEPTS]
        ruled_out = self._unsqueeze(self._matmul(self._columns(NO_INSTRUMENT_CONCEPTS), places), 2)
        is_open = self._multiply(layers, self._not(self._most(plays, axis=1, keepdims=0)))
        is_open = self._multiply(is_open, self._most(self._multiply(usual, ruled_out), axis=1, keepdims=0))
        free = self._multiply(self._not(ruled_out), self._unsqueeze(is_open, 1))
        first = self._best(self._multiply(usual, free))
        rest = self._multiply(free, self._not(self._most(first)))
        return self._add(first, self._best(self._multiply(self._constant(_CAN_PLAY), rest)))

    def _instruments_in_layers(self, asked: str, allowed: str) -> str:
        """`[B, K, 5]`, 1 where a named instrument wants to play: in the layers that are asked for, else at home."""
        named = self._multiply(self._unsqueeze(self._columns(INSTRUMENT_CONCEPTS), 2), self._unsqueeze(allowed, 1))
        in_asked = self._multiply(self._multiply(named, self._constant(_CAN_PLAY)), self._unsqueeze(asked, 1))
        in_home = self._multiply(named, self._constant(_AT_HOME))
        return self._add(in_asked, self._multiply(in_home, self._not(self._most(in_asked, axis=2))))

    def _pairs(self) -> str:
        """`[B, K, 5]`, 1 for an instrument and a layer that are named together."""
        table = np.zeros((len(PAIR_CONCEPTS), *_CAN_PLAY.shape), np.float32)
        for index, pair in enumerate(PAIR_CONCEPTS):
            layer, instrument = pair.split(":")
            table[index, list(PLAYED_BY).index(instrument), LAYERS.index(layer)] = 1.0
        flat = self._matmul(self._columns(PAIR_CONCEPTS), table.reshape(len(PAIR_CONCEPTS), -1))
        return self._graph.op("Reshape", flat, self._graph.constant([-1, *_CAN_PLAY.shape], np.int64))

    def _left_over(self, plays: str, free: str) -> str:
        """`[B, K, 5]`: a named instrument that lost its layers to others plays in layers `[B, 5]` that are free."""
        lost = self._multiply(
            self._unsqueeze(self._columns(INSTRUMENT_CONCEPTS), 2), self._not(self._most(plays, axis=2))
        )
        return self._best(self._multiply(self._multiply(lost, self._constant(_CAN_PLAY)), self._unsqueeze(free, 1)))

    def _best(self, wants: str) -> str:
        """`[B, K, 5]`: one instrument for each layer, that with the fewest home layers."""
        rank = 100.0 - 10.0 * _AT_HOME.sum(axis=1) - 0.1 * np.arange(len(_AT_HOME))
        scores = self._multiply(wants, self._constant(rank[:, None]))
        return self._multiply(self._equal(scores, self._most(scores, axis=1)), wants)

    def _players(self, plays: str) -> str:
        """`[B, 33]` of `[B, K, 5]`: the pairs of an instrument and a layer that there are."""
        flat = self._graph.op("Reshape", plays, self._graph.constant([-1, _CAN_PLAY.size], np.int64))
        instruments = list(PLAYED_BY)
        pairs = [player.split(":") for player in PLAYERS]
        columns = [instruments.index(name) * len(LAYERS) + LAYERS.index(layer) for layer, name in pairs]
        return self._graph.op("Gather", flat, self._graph.constant(columns, np.int64), axis=1)

    def _meter(self) -> str:
        """`[B, 3]`: the named meter, else that of a named genre, else 4/4; the less common one of several."""
        by_genre = [
            [(1 + METERS.index(genre.meter)) * (genre.meter == meter) for meter in METERS] for genre in GENRES.values()
        ]
        genres = self._unsqueeze(self._columns(GENRE_CONCEPTS), 2)
        genre_scores = self._most(self._multiply(genres, self._constant(by_genre)), axis=1, keepdims=0)
        scores = self._multiply(self._columns(METER_CONCEPTS), self._constant([10.0, 20.0, 30.0]))
        scores = self._add(self._add(scores, genre_scores), self._constant([0.5, 0.0, 0.0]))
        return self._multiply(self._equal(scores, self._most(scores)), self._any)

    def _tempo(self, genre: str) -> str:
        """`[B, 121]`: a number, else one in the range of the tempo word and the genre; equal words, equal tempos."""
        numbers = self._first(self._columns(BPM_CONCEPTS))
        words = self._multiply(self._columns(TEMPO_WORDS), self._constant(2.0))
        implied = [[MOOD_TEMPOS.get(mood) == word for word in TEMPO_WORDS] for mood in MOOD_CONCEPTS]
        word = self._first(self._add(words, self._matmul(self._columns(MOOD_CONCEPTS), implied)))
        low, span = (self._by_word_and_genre(word, genre, table) for table in _tempo_tables())
        places = self._matmul(self._named, np.arange(len(WORD_CONCEPTS))[:, None])
        offset = self._graph.op("Mod", places, span, fmod=1)
        index = self._graph.op("Cast", self._add(low, offset), to=TensorProto.INT64)
        index = self._graph.op("Squeeze", index, self._graph.constant([1], np.int64))
        off_on = self._constant([0.0, 1.0])
        drawn = self._graph.op("OneHot", index, self._graph.constant(len(BPM_CONCEPTS), np.int64), off_on, axis=-1)
        drawn = self._multiply(drawn, self._not(self._most(numbers)))
        return self._multiply(self._add(numbers, drawn), self._any)

    def _by_word_and_genre(self, word: str, genre: str, table: FloatArray) -> str:
        """`[B, 1]`: the entry of a table `[6, G + 1]`; its last row and column are for no word and no genre."""
        word, genre = (
            self._graph.op("Concat", one_hot, self._not(self._most(one_hot)), axis=1) for one_hot in (word, genre)
        )
        row = self._graph.op("MatMul", word, self._constant(table))
        return self._graph.op("ReduceSum", self._multiply(row, genre), self._graph.constant([1], np.int64), keepdims=1)

    def _scales(self) -> str:
        """`[B, 12 * modes]`, 1 where both the key and the mode of a scale are named."""
        keys, modes = self._unsqueeze(self._columns(KEY_CONCEPTS), 2), self._unsqueeze(self._columns(MODE_CONCEPTS), 1)
        shape = self._graph.constant([-1, len(KEY_CONCEPTS) * len(MODE_CONCEPTS)], np.int64)
        return self._graph.op("Reshape", self._multiply(keys, modes), shape)

    def _first(self, scores: str) -> str:
        """One-hot of the highest positive of scores `[B, N]`, the first of equal ones; all 0 where none is positive."""
        index = self._graph.op("ArgMax", scores, axis=1, keepdims=0)
        depth = self._graph.op("Gather", self._graph.op("Shape", scores), self._graph.constant(1, np.int64), axis=0)
        one_hot = self._graph.op("OneHot", index, depth, self._constant([0.0, 1.0]), axis=-1)
        is_positive = self._graph.op("Greater", self._most(scores), self._constant(0.0))
        return self._multiply(one_hot, self._graph.op("Cast", is_positive, to=TensorProto.FLOAT))

    def _columns(self, concepts: Sequence[str]) -> str:
        columns = [WORD_IDS[concept] for concept in concepts]
        return self._graph.op("Gather", self._named, self._graph.constant(columns, np.int64), axis=1)

    def _most(self, values: str, axis: int = 1, keepdims: int = 1) -> str:
        return self._graph.op("ReduceMax", values, self._graph.constant([axis], np.int64), keepdims=keepdims)

    def _matmul(self, values: str, table: object) -> str:
        return self._graph.op("MatMul", values, self._constant(table))

    def _equal(self, values: str, others: str) -> str:
        return self._graph.op("Cast", self._graph.op("Equal", values, others), to=TensorProto.FLOAT)

    def _not(self, values: str) -> str:
        return self._graph.op("Sub", self._constant(1.0), values)

    def _multiply(self, values: str, others: str) -> str:
        return self._graph.op("Mul", values, others)

    def _add(self, values: str, others: str) -> str:
        return self._graph.op("Add", values, others)

    def _unsqueeze(self, values: str, axis: int) -> str:
        return self._graph.op("Unsqueeze", values, self._graph.constant([axis], np.int64))

    def _constant(self, values: object) -> str:
        return self._graph.constant(np.asarray(values, np.float32))


def _tempo_tables() -> tuple[FloatArray, FloatArray]:
    """First index and number of tempos, f32 `[6, G + 1]` each, by tempo word and genre."""
    ranges = [[_bpm_range(index, genre.bpm) for genre in GENRES.values()] for index in range(len(_BPM_RANGES))]
    table = np.array([[*row, alone] for row, alone in zip(ranges, _BPM_RANGES, strict=True)], np.float32)
    return table[..., 0] - BPM_RANGE[0], table[..., 1] - table[..., 0] + 1.0


def _bpm_range(word_index: int, genre_bpm: tuple[int, int]) -> tuple[int, int]:
    """Lowest and highest tempo of a genre with a tempo word: around the ends of its range or its middle."""
    low, high = genre_bpm
    middle = (low + high) // 2
    ranges = (
        (low - 25, low - 12),
        (low - 12, min(low + 2, middle - 5)),
        (middle - 4, middle + 4),
        (max(high - 2, middle + 5), min(high + 12, BPM_RANGE[1] - 2)),
        (high + 12, high + 25),
    )
    first, last = (*ranges, genre_bpm)[word_index]
    return min(max(first, BPM_RANGE[0]), BPM_RANGE[1] - 1), min(max(last, BPM_RANGE[0] + 1), BPM_RANGE[1])
