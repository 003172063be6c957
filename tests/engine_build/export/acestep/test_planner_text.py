from __future__ import annotations

import tomllib

from helpers.tiny_planner import CONFIG

from engine_build.export.acestep.planner_text import chat_prompts, plain_chat, planner_tables
from engine_build.export.toml_text import table_text
from engine_build.graphs.planner_graph import Qwen3Sizes
from runtime.config.explain import validated
from runtime.config.planner import PlannerSpec

SYSTEM = (
    "<|im_start|>system\n# Instruction\nGenerate audio semantic tokens based on the given conditions:\n\n<|im_end|>\n"
)


def spec() -> PlannerSpec:
    sizes, codes = Qwen3Sizes.of(CONFIG), {"first": 260, "count": 10}
    tables = planner_tables(sizes, 64, codes, 259, chat_prompts(plain_chat), tokenizer="tokenizer.json")
    text = "\n".join(table_text(name, values) for name, values in tables.items())
    return validated(PlannerSpec, tomllib.loads(text)["planner"], "planner")


def test_the_tables_are_a_planner_with_the_published_fields_and_defaults() -> None:
    found = spec()
    assert found.thinking is not None
    assert [field.name for field in found.thinking.fields] == [
        "bpm", "caption", "duration", "keyscale", "language", "timesignature",
    ]  # fmt: skip
    assert [len(field.choices) for field in found.thinking.fields] == [271, 0, 591, 70, 51, 4]
    assert (found.sampler.guidance, found.sampler.temperature, found.sampler.top_p) == (2.0, 0.85, 0.9)
    assert (found.codes.count, found.codes.number([265]), found.end_token) == (10, 5, 259)


def test_the_prompts_are_those_of_the_published_pipeline() -> None:
    found = spec()
    assert found.thinking is not None
    values = {"caption": "calm piano", "lyrics": "la la", "thinking": "bpm: 95"}
    prompt, negative = found.thinking.texts(values)
    user = "<|im_start|>user\n# Caption\ncalm piano\n\n# Lyric\nla la\n<|im_end|>\n"
    assert prompt == f"{SYSTEM}{user}<|im_start|>assistant\n"
    assert negative == f"{SYSTEM}<|im_start|>user\n# Lyric\nla la\n<|im_end|>\n<|im_start|>assistant\n"
    assert found.thinking.texts(values, "noise")[1] == prompt.replace("calm piano", "noise")
    prompt, negative = found.codes.texts(values)
    assert prompt == f"{SYSTEM}{user}<|im_start|>assistant\n<think>\nbpm: 95\n</think>\n"
    assert negative == f"{SYSTEM}{user}<|im_start|>assistant\n<think>\n</think>\n"
    assert found.codes.texts(values, "noise")[1] == negative.replace("calm piano", "noise")
