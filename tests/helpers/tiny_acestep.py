"""A tiny ACE-Step checkpoint, made and saved by diffusers and transformers. Needs the extra `export`."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

CHANNELS = 8
CONDITION_WIDTH = 16
TEXT_WIDTH = 32
HOP_SAMPLES = 320
SAMPLE_RATE_HZ = 8000
END = "<|endoftext|>"
WEIGHTS = "diffusion_pytorch_model.safetensors"
TRANSFORMER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "in_channels": 3 * CHANNELS,
    "audio_acoustic_hidden_dim": CHANNELS,
    "sliding_window": 4,
    "encoder_hidden_size": CONDITION_WIDTH,
}
SMALLEST_TRANSFORMER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "in_channels": 3 * CHANNELS,
    "audio_acoustic_hidden_dim": CHANNELS,
    "encoder_hidden_size": 12,
}
VAE = {
    "encoder_hidden_size": 2 * CHANNELS,
    "downsampling_ratios": [4, 8, 10],
    "channel_multiples": [1, 2, 4],
    "decoder_channels": 8,
    "decoder_input_channels": CHANNELS,
    "sampling_rate": SAMPLE_RATE_HZ,
}
STRUCTURE = {
    "hidden_size": CONDITION_WIDTH,
    "intermediate_size": 24,
    "audio_acoustic_hidden_dim": CHANNELS,
    "num_attention_pooler_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 4,
}


# Name in ACE-Step's own file, and in diffusers' parts; from diffusers' scripts/convert_ace_step_to_diffusers.py.
NAMES = [
    ("proj_in.1.", "proj_in_conv."),
    ("proj_out.1.", "proj_out_conv."),
    (".q_proj.", ".to_q."),
    (".k_proj.", ".to_k."),
    (".v_proj.", ".to_v."),
    (".o_proj.", ".to_out.0."),
    (".q_norm.", ".norm_q."),
    (".k_norm.", ".norm_k."),
]
PREFIXES = {
    "transformer": "decoder.",
    "condition_encoder": "encoder.",
    "audio_tokenizer": "tokenizer.",
    "audio_token_detokenizer": "detokenizer.",
}


def save_checkpoint(folder: Path, *, turbo: bool = False, text: bool = True, encoder: bool = True) -> Path:
    """Write a checkpoint as AceStepPipeline saves it, with every part; returns its folder.

    Without `text` it has no text encoder and no tokenizer, without `encoder` only transformer and vae.
    """
    import torch

    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        tiny_pipeline(turbo).save_pretrained(folder)
    removed = [] if text else ["text_encoder", "tokenizer"]
    removed += [] if encoder else ["condition_encoder", "audio_tokenizer", "audio_token_detokenizer"]
    for part in removed:
        shutil.rmtree(folder / part)
    return folder


def save_own_checkpoint(base: Path, folder: Path) -> Path:
    """Write a checkpoint in diffusers' layout as ACE-Step publishes it; returns the folder of its decoder.

    One file has four models; codec and text encoder are beside it.
    """
    import torch
    from safetensors.torch import load_file, save_file

    own, tensors, config = folder / "acestep-v15-base", {}, {}
    own.mkdir(parents=True)
    for part, prefix in PREFIXES.items():
        for name, tensor in load_file(base / part / WEIGHTS).items():
            for theirs, ours in NAMES:
                name = name.replace(ours, theirs)
            tensors["null_condition_emb" if name == "null_condition_emb" else prefix + name] = tensor
        found = json.loads((base / part / "config.json").read_text())
        sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        config = {
            f"encoder_{key}" if key in sizes and part != "transformer" else key: value for key, value in found.items()
        } | config
    silence = tensors.pop("encoder.silence_latent")
    torch.save(silence.transpose(1, 2).contiguous(), own / "silence_latent.pt")
    config["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    config["encoder_hidden_size"] = CONDITION_WIDTH
    del config["_class_name"]
    (own / "config.json").write_text(json.dumps({**config, "model_type": "acestep"}))
    save_file(tensors, own / "model.safetensors")
    shutil.copytree(base / "vae", folder / "vae")
    shutil.copytree(base / "text_encoder", folder / "Qwen3-Embedding-0.6B")
    for file in (base / "tokenizer").iterdir():
        shutil.copy(file, folder / "Qwen3-Embedding-0.6B")
    return own


def diffusers_pipeline(folder: Path) -> Any:
    """diffusers' own pipeline on a checkpoint, in float32. XL's timbre is summed up, as in the authors' code."""
    import torch
    from diffusers import AceStepPipeline

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = AceStepPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    sizes, timbre = pipeline.transformer.config, pipeline.condition_encoder.timbre_encoder
    if sizes.encoder_hidden_size != sizes.hidden_size:
        embed, token = timbre.embed_tokens.forward, timbre.special_token
        timbre.embed_tokens.forward = lambda frames: torch.cat((token.expand(len(frames), 1, -1), embed(frames)), dim=1)
    return pipeline


def tiny_pipeline(turbo: bool) -> Any:
    """All parts, with torch's current random state."""
    from diffusers import AceStepPipeline, FlowMatchEulerDiscreteScheduler

    return AceStepPipeline(
        transformer=tiny_transformer(turbo),
        vae=tiny_vae(),
        condition_encoder=tiny_condition_encoder(),
        text_encoder=tiny_text_encoder(),
        tokenizer=tiny_tokenizer(),
        audio_tokenizer=tiny_audio_tokenizer(),
        audio_token_detokenizer=tiny_audio_detokenizer(),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
    )


def tiny_transformer(turbo: bool) -> Any:
    """Weights are larger than a fresh model's, so that time, text and context all show in the velocity."""
    import torch
    from diffusers import AceStepTransformer1DModel

    module = AceStepTransformer1DModel(**TRANSFORMER, is_turbo=turbo)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(1.5)
    return module.eval()


def tiny_vae() -> Any:
    """Oobleck at 25 frames per second."""
    from diffusers import AutoencoderOobleck

    return AutoencoderOobleck(**VAE).eval()


def tiny_condition_encoder() -> Any:
    """With a silence that is a sequence."""
    from diffusers.pipelines.ace_step.modeling_ace_step import AceStepConditionEncoder

    module = AceStepConditionEncoder(
        hidden_size=CONDITION_WIDTH,
        intermediate_size=24,
        text_hidden_dim=TEXT_WIDTH,
        timbre_hidden_dim=CHANNELS,
        num_lyric_encoder_hidden_layers=2,
        num_timbre_encoder_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=4,
    )
    module.silence_latent.normal_(0.0, 0.5)
    return module.eval()


def tiny_audio_tokenizer() -> Any:
    """Five frames to one of 64 000 codes."""
    from diffusers.pipelines.ace_step.modeling_ace_step import AceStepAudioTokenizer

    return AceStepAudioTokenizer(**STRUCTURE, fsq_dim=CONDITION_WIDTH).eval()


def tiny_audio_detokenizer() -> Any:
    """One code to five frames of hints."""
    from diffusers.pipelines.ace_step.modeling_ace_step import AceStepAudioTokenDetokenizer

    return AceStepAudioTokenDetokenizer(**STRUCTURE).eval()


def tiny_text_encoder() -> Any:
    """Qwen3, as ACE-Step's."""
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=300,
        hidden_size=TEXT_WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
    )
    return Qwen3Model(config).eval()


def tiny_tokenizer() -> Any:
    """One token per byte, and an end token behind every text, as Qwen3-Embedding's tokenizer puts one."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {END: 0, **{letter: index + 1 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
