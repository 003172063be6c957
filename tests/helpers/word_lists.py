"""Prompts that are long lists of known and unknown words, negations, numbers, keys and punctuation."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import thread_time

from configs.demo.recipe.words import COMPOUNDS, FILLERS, NEAREST, WORDS

OPTIONS = (" <bpm:> <key:> <meter:>", " <bpm:120> <key:C major> <meter:4>")
KNOWN = ", ".join(WORDS.values()).split(", ")
KINDS = (
    KNOWN,
    FILLERS.split(),
    ["no", "without", "ohne", "keine", "pas de", "sin", "only", "nothing but"],
    [*NEAREST, *COMPOUNDS, "xyzzy", "quux", "zanzibar", "b", "eine_", "élan", "ß", "中文", "ﷺ", "x" * 30],
    ["120", "120.5 bpm", "93.57bpm", "1" * 20, "4/4", "3 / 4", "90s", "60.", "0.5", "12/8", "7"],
    ["A", "a minor", "C#", "Db major", "fis-moll", "do majeur", "in a", "b flat", "key of A", "<bpm:1>", "<key:"],
)
SEPARATORS = (" ", ", ", ". ", "  ", "-", "_", "!!", "\n", "; ", "/", "’", "&", " & ", "|", "<", ">", "#", ":", "\t")
# Shapes that backtrack in careless rules, to be repeated.
PUMPED = (
    "93. ",
    "90s & 120.5 bpm & ",
    "xyzzy, ",
    "no pads or ",
    "no ",
    "a minor; ",
    "funny_major_",
    "!",
    " ",
    "7",
    "'",
)


def word_list(seed: int, characters: int) -> str:
    """A prompt of that many characters: a unit that is repeated, one separator for most of it, or words at random."""
    rng = random.Random(seed)
    words = [rng.choice(kind) for kind in rng.sample(KINDS, rng.randint(1, 3)) for _ in range(rng.randint(1, 6))]
    separators = rng.sample(SEPARATORS, rng.randint(1, 3))
    unit = "".join(rng.choice(words) + rng.choice(separators) for _ in range(rng.choice((1, 3, characters))))
    if rng.random() < 0.1:
        return (rng.choice(words) + rng.choice(separators) * characters)[: characters - 20] + rng.choice(words)
    return (unit * (characters // len(unit) + 1))[:characters]


def is_linear(work: Callable[[str], object], short: str, long: str) -> bool:
    """Whether twice the text takes less than three times the processor time, in one of some attempts."""
    return any(_time(work, long) < 3.0 * _time(work, short) for _ in range(5))


def _time(work: Callable[[str], object], text: str) -> float:
    started_s = thread_time()
    work(text)
    return thread_time() - started_s
