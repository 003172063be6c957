"""A tiny planner with random weights, its lines of bundle.toml, and what it computes, in numpy."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names, planner_graph
from runtime.config.explain import validated
from runtime.config.plan_spec import KEYS
from runtime.config.planner import PlannerSpec

# Tokens: 256 bytes, then the special ones, then two groups of code tokens, then markers.
SPECIAL = ("<think>", "</think>", "<|im_start|>", "<|im_end|>")
FIRST_GROUP, SECOND_GROUP, MARKERS = (260, 5), (265, 5), (270, 3)
VOCABULARY = 280
END_TOKEN = 259
CONFIG: Mapping[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# A smaller model with the same tokens.
DRAFT_CONFIG: Mapping[str, Any] = {
    **CONFIG,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
# A plan with sections in the places of bytes.
PLAN: Mapping[str, Any] = {
    "prompt": "{prompt} bpm:{bpm} meter:{time_signature}",
    "start": 1,
    "plan": 2,
    "before": 3,
    "section": 4,
    "recall": 5,
    "header": [
        {"name": "bpm", "first": 8, "values": ["96", "120", "144"]},
        {"name": "meter", "first": 12, "values": ["4/4", "3/4"]},
    ],
    "kind": {"name": "kind", "first": 16, "values": ["verse", "chorus", "break", "outro"]},
    "layers": {"name": "layers", "first": 20, "values": ["drums", "bass", "drums+bass"]},
    "bars": {"name": "bars", "first": 24, "values": ["1", "2", "4"]},
    "style": {"first": 28, "count": 2},
    "bar_markers": {"first": 32, "count": 4},
    "clock_markers": {"first": 40, "count": 16},
    "clocks_per_beat": 4,
    "beats": [4, 3],
    "materials": [0, 1, 0, 0],
    "ending": "outro",
    "tags": {"drop": "chorus"},
    "silent": {"drums": 261, "bass": 267},
    "most_sections": 6,
}
# The same with a key and a mode, and codes that sound: of the first group C, none, E, E flat, or C with E flat; of the
# second B or none.
KEYED_PLAN: Mapping[str, Any] = {
    **PLAN,
    "header": [
        *PLAN["header"],
        {"name": "key", "first": 100, "values": list(KEYS)},
        {"name": "mode", "first": 120, "values": ["major", "minor"]},
    ],
    "scales": [[0, 4, 7], [0, 3, 7]],
    "pitches": [[1 << 0, 0, 1 << 4, 1 << 3, 1 << 0 | 1 << 3], [1 << 11, 1 << 11, 0, 0, 1 << 11]],
}
THINKING = """[planner.thinking]
prompt = "# Caption\\n{caption}\\n# Lyric\\n{lyrics}\\n"
negative = "# Lyric\\n{lyrics}\\n"
[[planner.thinking.fields]]
name = "bpm"
option = "bpm"
kind = "integer"
minimum = 30
maximum = 300
[[planner.thinking.fields]]
name = "caption"
kind = "text"
max_tokens = 24
without = ["`"]
[[planner.thinking.fields]]
name = "language"
option = "language"
kind = "choice"
values = ["en", "de", "unknown"]
"""


def save_planner(
    folder: Path,
    *,
    capacity: int = 64,
    window: int = 0,
    thinking: bool = True,
    draft: bool = False,
    seed: int = 0,
    plan: bool | Mapping[str, Any] = False,
) -> str:
    """Write the graph and the tokenizer into `folder`; returns `[planner]` of bundle.toml.

    With `draft` a smaller graph drafts. plan: with sections, those of `PLAN` or of another one, and without thinking.
    """
    if draft:
        save_draft(folder / "planner_draft.onnx", capacity)
    onnx.save(planner_graph(Qwen3Sizes.of(CONFIG), capacity, tiny_weights(seed).__getitem__), folder / "planner.onnx")
    (word_tokenizer() if plan else byte_tokenizer()).save(str(folder / "planner_tokenizer.json"))
    toml = planner_toml(capacity, window, thinking=thinking and not plan, draft=draft)
    lines = _toml_lines(PLAN if plan is True else plan or {})
    return f"{toml}[planner.plan]\n{lines}" if plan else toml


def save_draft(path: Path, capacity: int) -> None:
    """Write the graph of `[planner.draft]`."""
    weights = tiny_weights(1, DRAFT_CONFIG)
    onnx.save(planner_graph(Qwen3Sizes.of(DRAFT_CONFIG), capacity, weights.__getitem__), path)


def planner_toml(capacity: int, window: int, *, thinking: bool, draft: bool) -> str:
    """`[planner]` of bundle.toml."""
    tables = [
        f"""[planner]
{_graph_toml("planner.onnx", CONFIG, capacity, window)}tokenizer = "planner_tokenizer.json"
vocabulary = {VOCABULARY}
end_token = {END_TOKEN}
prefill_tokens = 16
verify_tokens = 5
[planner.sampler]
candidates = 64
[planner.codes]
prompt = "# Caption\\n{{caption}}\\n{{thinking}}\\n"
negative = "# Caption\\n\\n<think>\\n</think>\\n"
groups = [{_range(FIRST_GROUP)}, {_range(SECOND_GROUP)}]
markers = {_range(MARKERS)}
"""
    ]
    if thinking:
        tables.append(THINKING)
    if draft:
        tables.append(f"[planner.draft]\n{_graph_toml('planner_draft.onnx', DRAFT_CONFIG, capacity, window)}")
    return "".join(tables)


def planner_spec(**changes: Any) -> PlannerSpec:
    """The tables of `planner_toml` with other values."""
    table = tomllib.loads(planner_toml(64, 0, thinking=True, draft=False))["planner"]
    return validated(PlannerSpec, {**table, **changes}, "planner")


def byte_tokenizer() -> Tokenizer:
    """One token per byte, the special ones and the codes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_special_tokens([f"<|audio_code_{code}|>" for code in range(MARKERS[0] - FIRST_GROUP[0])])
    tokenizer.add_special_tokens([f"<|marker_{marker}|>" for marker in range(VOCABULARY - MARKERS[0])])
    return tokenizer


def word_tokenizer() -> Tokenizer:
    """Words of a plan's prompt."""
    words = {"calm": 28, "wild": 29, "bpm:120": 9, "meter:3": 13, "<unknown>": 255}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def tiny_weights(seed: int = 0, config: Mapping[str, Any] = CONFIG) -> dict[str, NDArray[np.float32]]:
    """A checkpoint in Qwen3's layout, large enough that every layer shows in the logits."""
    random, found = np.random.default_rng(seed), dict[str, NDArray[np.float32]]()

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape)
        scaled = 1 + values / 10 if len(shape) == 1 else values * (1.5 / np.sqrt(shape[-1]))
        found[f"{name}.weight"] = scaled.astype(np.float32)

    hidden, width = config["hidden_size"], config["head_dim"]
    heads, kv_heads, inner = config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]
    add("model.embed_tokens", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        path = f"model.layers.{layer}."
        for kind, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            add(f"{path}self_attn.{kind}_proj", count * width, hidden)
        add(f"{path}self_attn.o_proj", hidden, heads * width)
        add(f"{path}self_attn.q_norm", width)
        add(f"{path}self_attn.k_norm", width)
        add(f"{path}input_layernorm", hidden)
        add(f"{path}post_attention_layernorm", hidden)
        for kind in ("gate", "up"):
            add(f"{path}mlp.{kind}_proj", inner, hidden)
        add(f"{path}mlp.down_proj", hidden, inner)
    add("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head", config["vocab_size"], hidden)
    return found


def reference_logits(
    weights: Mapping[str, NDArray[np.float32]], tokens: NDArray[np.int64], window: int = 0, start: int = 0
) -> NDArray[np.float64]:
    """Qwen3 over a whole sequence `[n]` in float64, `[n, V]`; each token sees the last `window` positions.

    start: the first position.
    """
    w = {name.removesuffix(".weight"): values.astype(np.float64) for name, values in weights.items()}
    width, heads, kv_heads = CONFIG["head_dim"], CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    count = len(tokens)
    positions = np.arange(count)
    sees = positions[None] <= positions[:, None]
    sees &= positions[None] > positions[:, None] - (window or count)
    angles = (start + positions)[:, None, None] * CONFIG["rope_theta"] ** -(np.arange(0, width, 2) / width)

    def norm(value: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return value / np.sqrt(np.mean(value**2, -1, keepdims=True) + CONFIG["rms_norm_eps"]) * w[name]

    def turned(value: NDArray[np.float64]) -> NDArray[np.float64]:
        first, second = value[..., : width // 2], value[..., width // 2 :]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    hidden = w["model.embed_tokens"][tokens]
    for layer in range(CONFIG["num_hidden_layers"]):
        path = f"model.layers.{layer}."
        normed = norm(hidden, f"{path}input_layernorm")
        query, key, value = ((normed @ w[f"{path}self_attn.{kind}_proj"].T).reshape(count, -1, width) for kind in "qkv")
        query = turned(norm(query, f"{path}self_attn.q_norm"))
        key = np.repeat(turned(norm(key, f"{path}self_attn.k_norm")), heads // kv_heads, 1)
        value = np.repeat(value, heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(width)
        chances = np.exp(np.where(sees, scores, -np.inf))
        chances /= chances.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", chances, value).reshape(count, -1)
        hidden = hidden + mixed @ w[f"{path}self_attn.o_proj"].T
        normed = norm(hidden, f"{path}post_attention_layernorm")
        gate = normed @ w[f"{path}mlp.gate_proj"].T
        gated = gate / (1 + np.exp(-gate)) * (normed @ w[f"{path}mlp.up_proj"].T)
        hidden = hidden + gated @ w[f"{path}mlp.down_proj"].T
    return norm(hidden, "model.norm") @ w.get("lm_head", w["model.embed_tokens"]).T


def _graph_toml(graph: str, config: Mapping[str, Any], capacity: int, window: int) -> str:
    past, present = cache_names(config["num_hidden_layers"])
    return f"""graph = "{graph}"
capacity = {capacity}
window = {window}
inputs = {{ past = {list(past)} }}
outputs = {{ present = {list(present)} }}
"""


def _range(tokens: tuple[int, int]) -> str:
    return f"{{ first = {tokens[0]}, count = {tokens[1]} }}"


def _toml_lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in table.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml_value(each)}" for name, each in value.items()) + " }"
    return f"[{', '.join(map(_toml_value, value))}]" if isinstance(value, list) else json.dumps(value)


def qwen3(window: int = 0, config: Mapping[str, Any] = CONFIG, positions: int = 128) -> Any:
    """transformers' model with the tiny weights of a configuration."""
    import torch
    import transformers

    sliding = {"use_sliding_window": True, "sliding_window": window, "layer_types": ["sliding_attention"] * 2}
    found = transformers.Qwen3Config(**config, max_position_embeddings=positions, **(sliding if window else {}))
    found._attn_implementation = "eager"
    module = transformers.Qwen3ForCausalLM(found).eval()
    weights = {name: torch.from_numpy(values) for name, values in tiny_weights(config=config).items()}
    module.load_state_dict(weights, strict=False)
    module.tie_weights()
    return module


def save_checkpoint(
    folder: Path,
    config: Mapping[str, Any] = CONFIG,
    *,
    tokenizer: Tokenizer | None = None,
    positions: int = 128,
) -> Path:
    """As published: weights in bfloat16, a fast tokenizer with the code tokens and a chat template. Needs torch."""
    import torch
    import transformers

    qwen3(config=config, positions=positions).to(torch.bfloat16).save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer or byte_tokenizer(), eos_token="<|im_end|>")
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if not (loop.last and m.role == 'assistant') %}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)
    return folder
