"""`moods` and `parts` of bundle.toml: what moods do to single parts of the music, and which words name these."""

from typing import Any, Final

from configs.demo.recipe.corpus.vocabulary import PAIR_CONCEPTS, PLAYED_BY
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.text_encoder import sayings
from configs.demo.recipe.tokenizer import word_concepts

# A mode belongs to the whole song: what is bright or dark beside another part is so by its level alone, as louder notes
# are brighter. What is aggressive or dense is so for the model, too.
MOODS: Final[dict[str, dict[str, Any]]] = {
    "soft": {"level_db": -6.0},
    "loud": {"level_db": 5.0},
    "aggressive": {"level_db": 5.0, "is_read": True},
    "sparse": {"is_sparse": True},
    "dense": {"against": ["sparse"], "is_read": True},
    "calm": {"level_db": -4.0, "against": ["energetic", "aggressive", "loud"]},
    "energetic": {"level_db": 4.0, "against": ["calm", "soft"]},
    "dark": {"level_db": -3.0, "against": ["bright"]},
    "bright": {"level_db": 3.0, "against": ["dark"]},
}


def binding_tables() -> dict[str, Any]:
    """Both, as [text_encoder.meaning] has them."""
    names, words = dict(sayings()["layers"]), dict[str, list[str]]()
    for word, concept in word_concepts().items():
        words.setdefault(concept, []).append(word)
    moods = {name: {"words": words[f"mood:{name}"], **does} for name, does in MOODS.items()}
    of_layer = {layer: [text for token, text in names.items() if layer in token.split(":")] for layer in LAYERS}
    parts = {f"layer:{layer}": {layer: of_layer[layer]} for layer in LAYERS}
    parts |= {
        f"instrument:{name}": {layer: [names[f"{layer}:{name}"]] for layer in PLAYED_BY[name]} for name in PLAYED_BY
    }
    parts |= {pair: {pair.partition(":")[0]: [names[pair]]} for pair in PAIR_CONCEPTS}
    return {"moods": moods, "parts": [{"words": words[part], "names": named} for part, named in parts.items()]}
