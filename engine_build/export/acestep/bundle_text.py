"""bundle.toml of an exported ACE-Step, its planner included. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine_build.export.bundle_tables import (
    INPUTS,
    SAID_CONTROLS,
    SILENCE,
    TEXT_ENCODER,
    TEXT_INPUTS,
    TEXT_OUTPUTS,
    TOKENIZER,
    FamilyFacts,
    Tables,
)
from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names

# Of turbo checkpoints, which are guidance-distilled: their default is no guidance.
STEPS: Final = 8
SHIFT: Final = 3.0
# Of the others, as their authors recommend (docs/en/INFERENCE.md and the model zoo of ACE-Step-1.5).
BASE_STEPS: Final = 50
BASE_SHIFT: Final = 1.0
GUIDANCE: Final = 7.0
# Turbo checkpoints alone: in music of sft its authors traced noise to it (ACE-Step-1.5, issues 1206, 1259, 1288, mended
# by 1273).
DCW: Final = {"mode": "double", "low": 0.05, "high": 0.02}
# Its pipeline's limits: tokens of a text with its template, and of lyrics. It cuts what is longer, here it is refused.
MAX_TEXT_TOKENS: Final = 256
MAX_LYRIC_TOKENS: Final = 2048
# Modules in LoRA adapters of ACE-Step's own trainer -> their names in diffusers.
ALIASES: Final = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out.0"}
# What base checkpoints were trained to take out; turbo and sft were not (the model zoo in their README).
TRACKS: Final = (
    "vocals", "backing_vocals", "drums", "bass", "guitar", "keyboard", "percussion", "strings", "synth", "fx", "brass",
    "woodwinds",
)  # fmt: skip
# The sets of step features that requests for a turbo checkpoint have without options, and those for another.
TURBO_VARIANTS: Final = ("plain", "dcw", "dcw+guidance", "dcw+mask", "dcw+guidance+mask")
STEP_VARIANTS: Final = ("plain", "guidance", "mask", "guidance+mask")
LYRIC_ENCODER: Final = "lyric_encoder.onnx"
TIMBRE_ENCODER: Final = "timbre_encoder.onnx"
STRUCTURE_ENCODE: Final = "structure_encode.onnx"
STRUCTURE_DECODE: Final = "structure_decode.onnx"
# [planner]: its files, and what the published pipeline has: a context of 4096 tokens, fields of thinking, prompts.
PLANNER_GRAPH: Final = "planner.onnx"
DRAFT_GRAPH: Final = "planner_draft.onnx"
PLANNER_TOKENIZER: Final = "planner_tokenizer.json"
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


@dataclass(frozen=True, kw_only=True)
class AceStepFacts(FamilyFacts):
    """The content of bundle.toml.

    knows_tracks: it was trained to take tracks out. silence: one frame, or None where silence.npy has a sequence.
    planner: its tables.
    """

    inputs: Mapping[str, str] = field(default_factory=lambda: INPUTS)
    is_turbo: bool
    knows_tracks: bool = False
    silence: tuple[float, ...] | None
    lyrics: Mapping[str, Any] | None = None
    timbre: Mapping[str, Any] | None = None
    structure: Mapping[str, int] | None = None
    planner: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def family_tables(self) -> Tables:
        """As FamilyFacts'."""
        steps, shift, guidance = (STEPS, SHIFT, 1.0) if self.is_turbo else (BASE_STEPS, BASE_SHIFT, GUIDANCE)
        return {
            **self._text_tables(),
            **self._structure_tables(),
            **self.planner,
            "sampler": {"steps": steps, "shift": shift, "guidance": guidance, "denoise": 1.0},
            **({"sampler.dcw": DCW} if self.is_turbo else {}),
            **self._controls_tables(),
            "training": self.figures,
            **self.adapter_tables(aliases=ALIASES),
        }

    def context_silence(self) -> str | Sequence[float]:
        """As FamilyFacts'."""
        return SILENCE if self.silence is None else self.silence

    def shapes(self) -> list[Mapping[str, Any]]:
        """As FamilyFacts', with the tokens of the longest text and lyrics."""
        tokens = 64
        if self.text_encoder is not None:
            lyrics = 0 if self.lyrics is None else self.lyrics["max_tokens"]
            tokens = self.text_encoder["max_tokens"] + self.text_encoder["prefix_tokens"] + lyrics
        return [self.shape_range(self.frame_multiple, self.canvas_frames, (1, tokens))]

    def step_variants(self) -> Sequence[str]:
        """Those that requests without options have."""
        return TURBO_VARIANTS if self.is_turbo else STEP_VARIANTS

    def _text_tables(self) -> Tables:
        text = {"inputs": TEXT_INPUTS, "outputs": TEXT_OUTPUTS}
        tables: Tables = {}
        if self.text_encoder is not None:
            entries = dict(self.text_encoder)
            instructions = entries.pop("instructions", {})
            tables["text_encoder"] = {"graph": TEXT_ENCODER, "tokenizer": TOKENIZER, **entries, **text}
            tables["text_encoder.instructions"] = instructions
            if self.knows_tracks and any("{track}" in text for text in instructions.get("extract", ())):
                tables["stems"] = {"tracks": TRACKS}
        if self.lyrics is not None:
            tables["text_encoder.lyrics"] = {"graph": LYRIC_ENCODER, **self.lyrics, **text}
        if self.timbre is not None:
            tensors = {"inputs": {"latents": "reference_latents"}, "outputs": {"condition": "condition"}}
            tables["timbre"] = {"graph": TIMBRE_ENCODER, **self.timbre, **tensors}
        return tables

    def _controls_tables(self) -> Tables:
        """Captions say what ACE-Step has no metadata for."""
        template = "" if self.text_encoder is None else self.text_encoder["template"]
        options = {"bpm": "bpm", "scale": "key"}
        metadata = {name: {"option": option} for name, option in options.items() if f"{{{option}}}" in template}
        ranges = {"options": {"bpm": BPM}} if "{bpm}" in template else {}
        return {**ranges, "controls": {**metadata, **SAID_CONTROLS}} if template else {}

    def _structure_tables(self) -> Tables:
        if self.structure is None:
            return {}
        latents, codes, hints = ({name: name} for name in ("latents", "codes", "hints"))
        return {
            "structure": self.structure,
            "structure.encode": {"graph": STRUCTURE_ENCODE, "inputs": latents, "outputs": codes},
            "structure.decode": {"graph": STRUCTURE_DECODE, "inputs": codes, "outputs": hints},
        }


def is_turbo(config: Mapping[str, Any]) -> bool:
    """Whether a decoder's configuration is of a guidance-distilled checkpoint, as AceStepPipeline decides it."""
    return bool(config.get("is_turbo") or config.get("model_version") == "turbo")


def knows_tracks(config: Mapping[str, Any], name: str) -> bool:
    """Whether a checkpoint was trained to take tracks out: base alone, which its authors, too, know by the name."""
    return not is_turbo(config) and "sft" not in f"{name} {config.get('model_version')}".lower()


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
    tables = _graph_tables("planner", PLANNER_GRAPH, sizes, capacity)
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
    return _graph_tables("planner.draft", DRAFT_GRAPH, sizes, capacity)


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
