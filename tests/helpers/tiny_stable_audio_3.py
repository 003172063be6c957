"""Tiny Stable Audio 3 checkpoints in both layouts. Needs the extra `export`.

Weights are scaled so that errors do not grow from layer to layer, and nothing is zero that a new model has as zeros.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from helpers.tiny_acestep import tiny_tokenizer

CHANNELS = 6
CONDITION_WIDTH = 24
HOP_SAMPLES = 1024
SAMPLE_RATE_HZ = 11_025
MAX_TOKENS = 256
TRANSFORMER = {
    "io_channels": CHANNELS,
    "embed_dim": 32,
    "depth": 3,
    "num_heads": 2,
    "cond_token_dim": CONDITION_WIDTH,
    "global_cond_dim": CONDITION_WIDTH,
    "local_add_cond_dim": 1 + CHANNELS,
    "timestep_features_dim": 16,
    "num_memory_tokens": 5,
}
VAE = {
    "audio_channels": 2,
    "patch_size": 64,
    "encoder_channels": 8,
    "encoder_c_mults": [4],
    "encoder_strides": [16],
    "encoder_transformer_depths": [4],
    "latent_dim": CHANNELS,
    "dim_heads": 16,
    "ff_mult": 2,
    "decoder_sinusoidal_blocks": [3],
    "sampling_rate": SAMPLE_RATE_HZ,
}
SIZES = ("small", "medium")
SMALL = {"use_differential_attention": False}
TEXT = {
    "hidden_size": CONDITION_WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 512,
}

# Names in stable-audio-tools' checkpoints, by part: diffusers' beginnings and inner parts of names.
OWN_NAMES = {
    "transformer": {
        "prompt_padding_embedding": "conditioner.conditioners.prompt.padding_embedding",
        "proj_in.": "model.model.transformer.project_in.",
        "proj_out.": "model.model.transformer.project_out.",
        "transformer_blocks.": "model.model.transformer.layers.",
        "memory_tokens": "model.model.transformer.memory_tokens",
        "rotary_pos_emb.": "model.model.transformer.rotary_pos_emb.",
        "global_cond_embedder.": "model.model.transformer.global_cond_embedder.",
        "": "model.model.",
    },
    "vae": {
        "encoder.blocks.0.": "pretransform.model.encoder.layers.0.",
        "encoder.proj.": "pretransform.model.encoder.layers.2.",
        "decoder.proj.": "pretransform.model.decoder.layers.1.",
        "decoder.blocks.0.": "pretransform.model.decoder.layers.3.",
        "bottleneck.scale": "pretransform.model.bottleneck.scaling_factor",
        "": "pretransform.model.",
    },
    "duration_embedder": {"linear.": "conditioner.conditioners.seconds_total.embedder.embedding.1."},
}
OWN_PARTS = {
    ".ff.proj_in.": ".ff.ff.0.proj.",
    ".ff.proj_out.": ".ff.ff.2.",
    ".norm_attn.": ".pre_norm.",
    ".norm_ff.": ".ff_norm.",
    ".attn.": ".self_attn.",
}


def tiny_parts(size: str) -> dict[str, Any]:
    """The modules of a tiny small or medium, by diffusers' names, with random weights."""
    from diffusers import AutoencoderSAME, StableAudio3DiTModel
    from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder
    from transformers.models.t5gemma import T5GemmaConfig, T5GemmaEncoderModel
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

    from engine_build.export.stable_audio_3.sources import randomise

    text = T5GemmaModuleConfig(vocab_size=300, **TEXT).to_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = {
            "transformer": StableAudio3DiTModel(**TRANSFORMER, **(SMALL if size == "small" else {})),
            "vae": AutoencoderSAME(**VAE),
            "duration_embedder": StableAudio3DurationEmbedder(output_dim=CONDITION_WIDTH, fourier_dim=16),
            "text_encoder": T5GemmaEncoderModel(T5GemmaConfig(encoder=text, decoder=text, is_encoder_decoder=False)),
        }
        return {name: randomise(module, seed=index).eval() for index, (name, module) in enumerate(parts.items())}


def bundled_parts(size: str) -> dict[str, Any]:
    """The same as bundles have them: small's norms are those of the authors' layout."""
    parts = tiny_parts(size)
    for name, module in parts["transformer"].named_modules() if size == "small" else ():
        if name.rpartition(".")[2] in ("pre_norm", "cross_attend_norm", "ff_norm"):
            module.eps = 1e-5
    return parts


def save_checkpoint(folder: Path, size: str, *, distilled: bool = True) -> Path:
    """Write a checkpoint in diffusers' layout; returns its folder."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, module in tiny_parts(size).items():
            module.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / "tokenizer")
        scheduler = FlowMatchEulerDiscreteScheduler(1, shift=1.0, stochastic_sampling=distilled)
        scheduler.save_pretrained(folder / "scheduler")
    return folder


def save_own_checkpoint(folder: Path, size: str, *, distilled: bool = True, **changes: Any) -> Path:
    """Write the same checkpoint in stable-audio-tools' layout, T5Gemma's folder beside its files; returns its folder.

    changes: of the transformer's configuration.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    parts, tensors = tiny_parts(size), {}
    for name, names in OWN_NAMES.items():
        for key, value in parts[name].state_dict().items():
            if key != "freqs":
                tensors[_own_name(key, names)] = _own_order(key, value).contiguous()
    for half, layer in (("encoder", 0), ("decoder", 3)):
        for index in range(VAE["encoder_transformer_depths"][0]):
            rope = parts["vae"].encoder.blocks[0].transformers[index].attn.rope.inv_freq.clone()
            tensors[f"pretransform.model.{half}.layers.{layer}.transformers.{index}.rope.inv_freq"] = rope
    save_file(tensors, folder / "model.safetensors")
    (folder / "model_config.json").write_text(json.dumps(own_config(size, distilled, **changes)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts["text_encoder"].save_pretrained(folder / "t5gemma")
        tiny_tokenizer().save_pretrained(folder / "t5gemma")
    return folder


def own_config(size: str, distilled: bool, **changes: Any) -> dict[str, Any]:
    """model_config.json. The autoencoder's attention has a window, in a small one chunks."""
    window = {"chunk_size": 32, "chunk_midpoint_shift": True} if size == "small" else {"sliding_window": [1, 1]}
    half = {
        "channels": VAE["encoder_channels"],
        "c_mults": VAE["encoder_c_mults"],
        "strides": VAE["encoder_strides"],
        "transformer_depths": VAE["encoder_transformer_depths"],
        "latent_dim": CHANNELS,
        "dim_heads": VAE["dim_heads"],
        "ff_mult": VAE["ff_mult"],
        **window,
    }
    transformer = {
        "io_channels": CHANNELS,
        "depth": TRANSFORMER["depth"],
        "timestep_features_type": "expo",
        "global_cond_type": "adaLN",
        **changes,
    }
    codec = {
        "io_channels": 2,
        "encoder": {"type": "same", "config": half},
        "decoder": {"type": "same", "config": {**half, "sinusoidal_blocks": VAE["decoder_sinusoidal_blocks"]}},
        "pretransform": {"type": "patched", "config": {"patch_size": VAE["patch_size"], "channels": 2}},
        "bottleneck": {"type": "softnorm", "config": {"auto_scale": True}},
    }
    objective = "rf_denoiser" if distilled else "rectified_flow"
    prompt = {"id": "prompt", "type": "t5gemma", "config": {"max_length": MAX_TOKENS, "padding_mode": "learned"}}
    seconds = {"id": "seconds_total", "type": "number", "config": {"min_val": 0, "max_val": 384}}
    return {
        "sample_rate": SAMPLE_RATE_HZ,
        "model": {
            "diffusion": {"diffusion_objective": objective, "config": transformer},
            "pretransform": {"type": "autoencoder", "config": codec},
            "conditioning": {"cond_dim": CONDITION_WIDTH, "configs": [prompt, seconds]},
        },
    }


def _own_name(key: str, names: dict[str, str]) -> str:
    old = next(begin for begin in names if key.startswith(begin))
    name = names[old] + key.removeprefix(old)
    if ".transformers." in name or ".layers." in name:
        for part, own in OWN_PARTS.items():
            name = name.replace(part, own)
    return name


def _own_order(key: str, value: Any) -> Any:
    """diffusers' q1, q2, k1, k2, v of self-attention as q, k, v, q2, k2."""
    import torch

    if not key.endswith("attn.to_qkv.weight") or value.shape[0] != 5 * value.shape[1]:
        return value
    q1, q2, k1, k2, v = value.chunk(5)
    return torch.cat((q1, k1, v, q2, k2))


def diffusers_condition(parts: dict[str, Any], ids: Any, mask: Any, seconds: Any) -> Any:
    """The transformer's condition as diffusers' pipeline has it, with token 0 the duration: f32 `[B, 257, D]`."""
    import torch

    padded = torch.zeros(len(ids), MAX_TOKENS, dtype=torch.int64)
    padded_mask = padded.clone()
    padded[:, : ids.shape[1]], padded_mask[:, : ids.shape[1]] = ids, mask
    with torch.no_grad():
        hidden = parts["text_encoder"](padded, attention_mask=padded_mask)[0]
        text = torch.where(padded_mask[..., None] > 0, hidden, parts["transformer"].prompt_padding_embedding)
        return torch.cat((parts["duration_embedder"](seconds)[:, None], text), dim=1)


def save_adapter(file: Path, transformer: Any, *, alpha: int = 6, more: tuple[str, ...] = (), **config: Any) -> Any:
    """Write a LoRA as the authors' trainer does, of all linear layers and convolutions; returns weight -> its change.

    more: further modules. config: of the file's metadata.
    """
    import torch
    from safetensors.torch import save_file

    rank, random = 4, torch.Generator().manual_seed(7)
    tensors, changes = {}, {}

    def factors(module: str, outputs: int, inputs: int) -> Any:
        a = torch.randn(rank, inputs, generator=random).mul(0.3 / inputs**0.5).half()
        b = torch.randn(outputs, rank, generator=random).half()
        place = f"{module}.parametrizations.weight.0"
        tensors.update({f"{place}.lora_A": a, f"{place}.lora_B": b})
        return alpha / rank * b.float() @ a.float()

    for name, module in transformer.named_modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d)):
            own = _own_name(name + ".", OWN_NAMES["transformer"]).removeprefix("model.").removesuffix(".")
            outputs, inputs = module.weight.shape[:2]
            change = factors(own, outputs, inputs)
            if name.endswith("self_attn.to_qkv") and outputs == 5 * inputs:
                q1, k1, v, q2, k2 = change.chunk(5)
                change = torch.cat((q1, q2, k1, k2, v))
            changes[f"{name}.weight"] = change.reshape(module.weight.shape)
    for name in more:
        factors(name, 8, 16)
    table = {"rank": rank, "alpha": alpha, "adapter_type": "lora", "dropout": 0.0, "include": None, "exclude": None}
    save_file(tensors, file, {"lora_config": json.dumps({**table, **config})})
    return changes


def chunked(block: Any, tokens: Any) -> Any:
    """The authors' rule, literally: tokens `[B, N, D]` in chunks of 34, in the second half of the blocks from 17 on."""
    import torch

    layers, width = block.transformers, tokens.shape[2]
    half = len(layers) // 2
    x = tokens.reshape(-1, 34, width)
    for layer in layers[:half]:
        x = layer(x)
    x = x.reshape(tokens.shape)
    x = torch.cat((x[:, :17], x, x[:, -17:]), dim=1)
    whole = x.shape
    x = x.reshape(-1, 34, width)
    for layer in layers[half:]:
        x = layer(x)
    return x.reshape(whole)[:, 17:-17]


def small_decode(vae: Any, values: Any) -> Any:
    """Latents `[1, T, C]` -> audio `[1, A, N]` by the authors' rule, on diffusers' blocks."""
    import torch

    block = vae.decoder.blocks[0]
    seeds = vae.decoder.proj(values * vae.bottleneck.running_std)  # [1, T, D]
    seeds = torch.cat((seeds, torch.zeros(1, seeds.shape[1] % 2, seeds.shape[2])), dim=1)
    new = block.new_tokens.expand(seeds.shape[1], 16, -1)
    tokens = torch.cat((seeds[0][:, None], new), dim=1).reshape(1, -1, seeds.shape[2])
    tokens = chunked(block, tokens).reshape(-1, 17, seeds.shape[2])[: values.shape[1], 1:]
    return vae.patch_embed.decode(block.mapping(tokens.reshape(1, -1, seeds.shape[2]).transpose(1, 2)))
