"""The planner's prompts: layers are those that the text encoder lets sound, words that mean nothing are dropped."""

import numpy as np
import onnxruntime as ort
import pytest
from helpers.paths import ROOT
from tokenizers import Tokenizer

from configs.demo.recipe.corpus.vocabulary import NUM_TOKENS as NUM_CONDITIONS
from configs.demo.recipe.corpus.vocabulary import TOKENS as CONDITIONS
from configs.demo.recipe.planner.prompt import build_prompt_tokenizer
from configs.demo.recipe.planner.tokens import TOKENS
from configs.demo.recipe.text_encoder import build_text_encoder
from configs.demo.recipe.tokenizer import build_tokenizer

PROMPTS = (
    "drums and bass",
    "sad piano chords and flute melody in A minor",
    "house",
    "jazz without drums",
    "jazz piano",
    "piano",
    "calm guitar, strings and violin",
    "techno with bells",
    "rock and reggae",
    "energetic music",
    "no drums",
    "piano and guitar with drums",
    "sad, gloomy, dark drums, more drums and more bass",
    "techno with a big kick",
    "jazz, only drums",
    "smooth jazz saxophone solo",
    "only jazz",
    "reggaeton",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(build_prompt_tokenizer().to_str())


@pytest.fixture(scope="module")
def encoder() -> ort.InferenceSession:
    return ort.InferenceSession(build_text_encoder(np.eye(NUM_CONDITIONS, dtype=np.float32)).SerializeToString())


def test_the_bundles_file_is_written_again_byte_for_byte() -> None:
    assert build_prompt_tokenizer().to_str() == (ROOT / "configs/demo/planner_tokenizer.json").read_text("utf-8")


def names(tokenizer: Tokenizer, prompt: str) -> list[str]:
    return [TOKENS[index] for index in tokenizer.encode(prompt).ids]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_layers_are_those_that_the_decoder_plays(
    tokenizer: Tokenizer, encoder: ort.InferenceSession, prompt: str
) -> None:
    words = np.array([build_tokenizer().encode(prompt).ids])
    condition, mask, _ = encoder.run(None, {"input_ids": words, "attention_mask": np.ones_like(words)})
    meant = {CONDITIONS[index] for index in condition[mask > 0].argmax(axis=1)}
    found = names(tokenizer, prompt)
    assert sorted(n for n in found if n.startswith(("layer:", "no:"))) == sorted(
        n for n in meant if n.startswith(("layer:", "no:"))
    )
    assert len(found) == len(set(found))


def test_tempo_key_meter_mode_genre_and_moods_are_tokens(tokenizer: Tokenizer) -> None:
    found = set(names(tokenizer, "A dark, dreamy trance anthem at 138 bpm in F# minor, waltz time, as never heard"))
    assert {"genre:trance", "bpm:132", "key:f#", "mode:minor", "meter:3/4", "mood:dark", "mood:dreamy"} <= found
    assert {"bpm:68"} <= set(names(tokenizer, "slow jazz"))
    assert {"genre:pop", "bpm:68"} <= set(names(tokenizer, "calm pads")), "the decoder's default, a mood's tempo"
    assert {"genre:drum and bass", "mode:minor pentatonic"} <= set(
        names(tokenizer, "drum and bass, C minor pentatonic")
    )


def test_options_behind_the_prompt_win_and_unknown_words_are_dropped(tokenizer: Tokenizer) -> None:
    found = names(tokenizer, "techno in 3/4 at 120 bpm in D minor <bpm:97> <key:A major> <meter:6>")
    assert {"bpm:92", "key:a", "mode:major", "meter:6/8"} <= set(found)
    assert sum(name.startswith(("bpm:", "key:", "mode:", "meter:")) for name in found) == 4
    assert names(tokenizer, "zxcv qwer <bpm:> <key:> <meter:>") == names(tokenizer, "") == []
    assert "start" not in names(tokenizer, "start the section, plan an end before the recall")
