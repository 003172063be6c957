"""`[planner]` of an exported ACE-Step: its thinking's fields, its prompts, its defaults. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names

PLANNER: Final = "planner.onnx"
DRAFT: Final = "planner_draft.onnx"
TOKENIZER: Final = "planner_tokenizer.json"
# Of the published pipeline, whose context is 4096 tokens.
CAPACITY: Final = 4096
SAMPLER: Final = {"guidance": 2.0, "temperature": 0.85, "top_p": 0.9}
LANGUAGES: Final = (
    "ar", "az", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hr", "ht", "hu",
    "id", "is", "it", "ja", "ko", "la", "lt", "ms", "ne", "nl", "no", "pa", "pl", "pt", "ro", "ru", "sa", "sk", "sr",
    "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "yue", "zh", "unknown",
)  # fmt: skip
KEYS: Final = [
    f"{note}{accidental} {mode}"
    for note in "ABCDEFG"
    for accidental in ("", "#", "b", "♯", "♭")
    for mode in ("major", "minor")
]
# As acestep/constants.py has it: captions and the planner say whole beats per minute.
BPM: Final = {"min": 30, "max": 300, "usual": [60, 180], "type": "integer"}
FIELDS: Final[Sequence[Mapping[str, Any]]] = (
    {"name": "bpm", "option": "bpm", "kind": "integer", "minimum": BPM["min"], "maximum": BPM["max"]},
    {"name": "caption", "kind": "text", "max_tokens": 512, "without": ["`"]},
    {"name": "duration", "option": "seconds", "kind": "integer", "minimum": 10, "maximum": 600},
    {"name": "keyscale", "option": "key", "kind": "choice", "values": KEYS},
    {"name": "language", "option": "language", "kind": "choice", "values": LANGUAGES, "is_greedy": True},
    {"name": "timesignature", "option": "time_signature", "kind": "choice", "values": ["2", "3", "4", "6"]},
)
INSTRUCTION: Final = "# Instruction\nGenerate audio semantic tokens based on the given conditions:\n\n"
CAPTION: Final = "# Caption\n{caption}\n\n# Lyric\n{lyrics}\n"
LYRICS: Final = "# Lyric\n{lyrics}\n"
THINKING, NO_THINKING = "<think>\n{thinking}\n</think>", "<think>\n</think>"


def planner_tables(
    sizes: Qwen3Sizes,
    capacity: int,
    codes: Mapping[str, int],
    end_token: int,
    prompts: Mapping[str, Mapping[str, str]],
    *,
    tokenizer: str | None = None,
) -> dict[str, Any]:
    """The tables of `[planner]`. codes: first and count of the code tokens. prompts: of thinking and of codes."""
    tables = _graph_tables("planner", PLANNER, sizes, capacity)
    tables["planner"] |= {"vocabulary": sizes.vocabulary, "end_token": end_token}
    tables |= {
        "planner.sampler": SAMPLER,
        "planner.codes": {**prompts["codes"], "groups": [codes]},
    }
    if tokenizer is not None:
        tables["planner"]["tokenizer"] = tokenizer
        tables["planner.thinking"] = {**prompts["thinking"], "fields": FIELDS}
    return tables


def draft_tables(sizes: Qwen3Sizes, capacity: int) -> dict[str, Any]:
    """The tables of `[planner.draft]`."""
    return _graph_tables("planner.draft", DRAFT, sizes, capacity)


def _graph_tables(name: str, graph: str, sizes: Qwen3Sizes, capacity: int) -> dict[str, Any]:
    past, present = cache_names(sizes.layers)
    return {
        name: {"graph": graph, "capacity": capacity},
        f"{name}.inputs": {"past": past},
        f"{name}.outputs": {"present": present},
    }


def chat_prompts(chat: Any) -> dict[str, dict[str, str]]:
    """Templates of both phases. `chat(user, assistant)`: the chat as the tokenizer's template writes it.

    Without a caption the thinking's negative drops it, that of the codes keeps it and has no thinking.
    """
    return {
        "thinking": {
            "prompt": chat(CAPTION, None),
            "negative": chat(LYRICS, None),
            "user_negative": chat(CAPTION, None),
        },
        "codes": {"prompt": chat(CAPTION, THINKING), "negative": chat(CAPTION, NO_THINKING)},
    }


def plain_chat(user: str, assistant: str | None) -> str:
    """A chat in Qwen3's form; where the assistant has begun, its turn goes on."""
    turns = [("system", INSTRUCTION), ("user", user)]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return f"{text}<|im_start|>assistant\n" + (f"{assistant}\n" if assistant else "")
