"""The text encoder's graph: a set of concepts, independent of word order."""

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest

from engine_build.demo_model.corpus.vocabulary import ALWAYS_ID, BPM_CONCEPTS, CONCEPT_IDS, NUM_TOKENS, token_ids
from engine_build.demo_model.text_encoder import build_text_encoder
from engine_build.demo_model.tokenizer import build_tokenizer

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
TABLE = np.random.default_rng(0).standard_normal((NUM_TOKENS, 8)).astype(np.float32)
TOKENIZER = build_tokenizer()
BPM_IDS = {CONCEPT_IDS[concept] for concept in BPM_CONCEPTS}


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(build_text_encoder(TABLE).SerializeToString(), providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, ids: list[int], mask: list[int] | None = None) -> Arrays:
    mask = [1] * len(ids) if mask is None else mask
    shape = (1, len(ids))
    feed = {
        "input_ids": np.array(ids, np.int64).reshape(shape),
        "attention_mask": np.array(mask, np.int64).reshape(shape),
    }
    condition, keep = session.run(None, feed)
    return condition[0], keep[0]


def kept(session: ort.InferenceSession, text: str) -> npt.NDArray[np.float32]:
    condition, keep = run(session, TOKENIZER.encode(text).ids)
    return condition[keep > 0]


def named(session: ort.InferenceSession, text: str) -> list[int]:
    _, keep = run(session, TOKENIZER.encode(text).ids)
    return np.flatnonzero(keep).tolist()


def test_word_order_does_not_change_a_bit(session: ort.InferenceSession) -> None:
    first = run(session, TOKENIZER.encode("pads strings slow minor drums bass in A").ids)
    second = run(session, TOKENIZER.encode("in A bass slow strings drums minor pads").ids)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_prompt_is_the_tokens_of_its_concepts(session: ort.InferenceSession) -> None:
    concepts = ["bpm:120", "mode:minor", "key:a", "layer:pad", "layer:bass"]
    assert named(session, "minor pads and bass in A at 120 bpm") == [*token_ids(concepts), ALWAYS_ID]
    assert np.array_equal(
        kept(session, "bass at 90 bpm"), TABLE[[CONCEPT_IDS["bpm:90"], CONCEPT_IDS["layer:bass"], -1]]
    )


def test_synonyms_and_repetitions_are_one_token(session: ort.InferenceSession) -> None:
    assert named(session, "pads") == named(session, "strings") == named(session, "pads strings chords pads")


def test_unknown_words_are_ignored(session: ort.InferenceSession) -> None:
    assert named(session, "pads") == named(session, "some wonderful pads please")
    _, keep = run(session, [1, 10**6, -5, 0, 2])
    assert np.flatnonzero(keep).tolist() == [ALWAYS_ID]


def test_the_empty_prompt_is_the_null_condition(session: ort.InferenceSession) -> None:
    assert np.array_equal(kept(session, ""), TABLE[-1:])
    assert np.flatnonzero(run(session, [])[1]).tolist() == [ALWAYS_ID]


@pytest.mark.parametrize(
    ("text", "bpm"),
    [("slow pads", 70), ("fast pads", 120), ("slow pads at 90 bpm", 90), ("132 bpm fast", 132), ("moderate bass", 100)],
)
def test_a_number_counts_more_than_a_tempo_word(session: ort.InferenceSession, text: str, bpm: int) -> None:
    tempos = [index for index in named(session, text) if index in BPM_IDS]
    assert tempos == [CONCEPT_IDS[f"bpm:{bpm}"]]


def test_every_prompt_has_one_tempo(session: ort.InferenceSession) -> None:
    found = [[index for index in named(session, text) if index in BPM_IDS] for text in ("pads", "bass", "in D", "dark")]
    assert all(len(tempos) == 1 for tempos in found)
    assert len({tempos[0] for tempos in found}) > 1


def test_padding_is_masked(session: ort.InferenceSession) -> None:
    ids = TOKENIZER.encode("pads and bass").ids
    _, keep = run(session, [*ids, 5, 0, 7], [1] * len(ids) + [0, 0, 0])
    assert np.flatnonzero(keep).tolist() == named(session, "pads and bass")


def test_rows_of_a_batch_do_not_mix(session: ort.InferenceSession) -> None:
    ids = np.array([TOKENIZER.encode("pads bass").ids, TOKENIZER.encode("drums fast").ids], np.int64)
    _, together = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert all(np.array_equal(together[row], run(session, ids[row].tolist())[1]) for row in range(2))
