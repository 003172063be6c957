"""`python -m profiling.bench.peers.example FOLDER`: a small ACE-Step checkpoint with every part and random weights, in
FOLDER/checkpoint, and deployment files in float32: FOLDER/example.toml for its bundle, FOLDER/demo.toml for the demo's.
Needs the extra `export`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from diffusers import (
    AceStepPipeline,
    AceStepTransformer1DModel,
    AutoencoderOobleck,
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder
from diffusers.pipelines.ace_step.pipeline_ace_step import SFT_GEN_PROMPT, TASK_INSTRUCTIONS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

DEMO: Final = Path(__file__).resolve().parents[3] / "configs" / "demo"
CHANNELS: Final = 64
WIDTH: Final = 256
TEXT_WIDTH: Final = 128
VOCABULARY: Final = 1000
END: Final = "<|endoftext|>"
# An eighth of the published width and a sixth of the published layers.
ATTENTION: Final = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
DEPLOYMENT: Final = """[deployment]
bundle = "bundle"

[[shapes]]
rows = { min = 1, opt = 8, max = 16 }
frames = { min = 2, opt = 256, max = 256 }
tokens = { min = 1, opt = 64, max = 512 }

[runtime]
depth = 8
queue = 32

[build]
precision = "fp32"
step_variants = ["plain", "guidance"]
"""


def save_example(folder: Path) -> None:
    """Write checkpoint and deployment files."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        pipeline().save_pretrained(folder / "checkpoint")
    (folder / "example.toml").write_text(DEPLOYMENT, encoding="utf-8")
    demo = json.dumps(DEMO.as_posix())  # a string of TOML, too
    (folder / "demo.toml").write_text(DEPLOYMENT.replace('"bundle"', demo), encoding="utf-8")


def pipeline() -> Any:
    """All parts that text to music takes, with torch's current random state."""
    silence_encoder = AceStepConditionEncoder(
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        text_hidden_dim=TEXT_WIDTH,
        timbre_hidden_dim=CHANNELS,
        num_lyric_encoder_hidden_layers=2,
        num_timbre_encoder_hidden_layers=1,
        **ATTENTION,
    )
    silence_encoder.silence_latent.normal_(0.0, 0.5)
    return AceStepPipeline(
        transformer=_transformer(),
        vae=AutoencoderOobleck(
            encoder_hidden_size=2 * CHANNELS,
            downsampling_ratios=[2, 4, 4, 6, 10],
            channel_multiples=[1, 1, 2, 2, 4],
            decoder_channels=16,
            decoder_input_channels=CHANNELS,
            sampling_rate=48_000,
        ),
        condition_encoder=silence_encoder,
        text_encoder=_text_encoder(),
        tokenizer=_tokenizer(),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )


def _transformer() -> Any:
    return AceStepTransformer1DModel(
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=4,
        in_channels=3 * CHANNELS,
        audio_acoustic_hidden_dim=CHANNELS,
        encoder_hidden_size=WIDTH,
        **ATTENTION,
    )


def _text_encoder() -> Any:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=TEXT_WIDTH,
        intermediate_size=3 * TEXT_WIDTH,
        num_hidden_layers=4,
        **ATTENTION,
    )
    return Qwen3Model(config)


def _tokenizer() -> Any:
    """Byte pairs of the pipeline's own texts, with an end token behind every text, as Qwen3-Embedding's has one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SFT_GEN_PROMPT, *TASK_INSTRUCTIONS.values()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


if __name__ == "__main__":
    save_example(Path(sys.argv[1]))
