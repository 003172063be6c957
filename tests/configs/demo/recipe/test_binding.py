"""Tables of moods and parts: each word is a token, each name is one of the meaning."""

from helpers.paths import DEMO_BUNDLE

from configs.demo.recipe.binding import binding_tables
from configs.demo.recipe.bundle_text import read_bundle_file
from configs.demo.recipe.corpus.vocabulary import MOODS as CONCEPTS
from configs.demo.recipe.text_encoder import meaning_names
from configs.demo.recipe.tokenizer import vocabulary


def test_words_are_tokens_and_names_are_said() -> None:
    tables, words, names = binding_tables(), vocabulary(), set(meaning_names()["layers"])
    assert tables["moods"].keys() <= CONCEPTS.keys()
    assert all(word in words for each in (*tables["moods"].values(), *tables["parts"]) for word in each["words"])
    assert {name for part in tables["parts"] for named in part["names"].values() for name in named} == names


def test_a_word_is_of_one_part() -> None:
    words = [word for part in binding_tables()["parts"] for word in part["words"]]
    assert len(words) == len(set(words))


def test_the_shipped_bundle_has_them() -> None:
    meaning = read_bundle_file(DEMO_BUNDLE)["text_encoder"]["meaning"]
    assert {name: meaning[name] for name in ("moods", "parts")} == binding_tables()
