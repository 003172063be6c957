"""diffusers' modules of ACE-Step with TickRT's arguments: decoder, codec, and the 5 Hz structure with its graphs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine_build.export.codec_graphs import MAX_BATCH, CodecLayout
from engine_build.export.torch_export import export_graph, free, graph_error, module_outputs, open_without_copies, quiet
from runtime.base.errors import BuildError

EXAMPLE_CODES: Final = 3
CHECKED_CODES: Final = 40
# The share of codes that may differ between torch and ONNX Runtime: values at the limit between two levels.
MAX_UNEQUAL: Final = 0.05


class MaskedDecoder(nn.Module):
    """diffusers' ACE-Step transformer with a mask for its condition tokens.

    The model itself has no such input, but its blocks do: the tokens travel to them as a pair with the attention bias.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        decoder.condition_embedder = _PairEmbedder(decoder.condition_embedder)
        for layer in decoder.layers:
            layer.register_forward_pre_hook(_split_pair, with_kwargs=True)

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        condition_mask: Tensor,
        context_latents: Tensor,
        timestep_r: Tensor | None = None,
    ) -> Tensor:
        """Velocity `[B, T, C]`. Masked tokens get an attention weight of exactly 0.

        Without timestep_r, the second time of the mean-flow pair equals the first, as in ACE-Step's own inference.
        """
        bias = (1.0 - condition_mask[:, None, None, :]) * torch.finfo(torch.float32).min
        pair = (encoder_hidden_states, bias)
        end = timestep if timestep_r is None else timestep_r
        outputs = self.decoder(hidden_states, timestep, end, pair, context_latents, return_dict=False)
        velocity: Tensor = outputs[0]
        return velocity


class _PairEmbedder(nn.Module):
    """Projects the tokens of a (tokens, attention bias) pair and passes the bias on."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens `[B, L, D]` -> `[B, L, hidden]`, bias `[B, 1, 1, L]` unchanged but for its dtype."""
        tokens = self.linear(pair[0])
        return tokens, pair[1].to(tokens.dtype)


def _split_pair(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tokens, bias = kwargs["encoder_hidden_states"]
    return args, {**kwargs, "encoder_hidden_states": tokens, "encoder_attention_mask": bias}


def oobleck_layout(vae: Any) -> CodecLayout:
    """The layout from a VAE's configuration. Raises BuildError for strides that do not give whole frames."""
    config = vae.config
    if any(ratio % 2 for ratio in config.downsampling_ratios):
        raise BuildError(
            f"the vae has downsampling_ratios {list(config.downsampling_ratios)}, expected even ones: "
            "an odd stride makes its frames and its audio differ in length"
        )
    return CodecLayout(
        sample_rate_hz=int(config.sampling_rate),
        channels=int(config.audio_channels),
        hop_samples=math.prod(config.downsampling_ratios),
        latent_channels=int(config.decoder_input_channels),
    )


class OobleckDecoder(nn.Module):
    """The VAE's decoder on frames."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, T, C]` -> audio `[B, A, T * hop]`."""
        audio: Tensor = self.decoder(latents.transpose(1, 2))
        return audio


class OobleckEncoder(nn.Module):
    """The VAE's encoder, deterministic: the mode of the posterior."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, audio: Tensor) -> Tensor:
        """Audio `[B, A, T * hop]` -> latents `[B, T, C]`."""
        mean: Tensor = self.encoder(audio).chunk(2, dim=1)[0]
        return mean.transpose(1, 2)


class LatentsToCodes(nn.Module):
    """The audio tokenizer's indices; its patches do not see each other."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer, self.frames = tokenizer, int(tokenizer.pool_window_size)

    def forward(self, latents: Tensor) -> Tensor:
        """Latents `[B, Q * frames, C]` -> codes int64 `[B, Q]`."""
        indices: Tensor = self.tokenizer(latents.unflatten(1, (-1, self.frames)))[1]
        return indices[..., 0]


class CodesToHints(nn.Module):
    """The quantizer's output for codes, and the detokenizer. A table has the digits of every code, so that the graph
    needs no integer division."""

    def __init__(self, quantizer: Any, detokenizer: nn.Module) -> None:
        super().__init__()
        self.project_out, self.detokenizer = quantizer.project_out, detokenizer
        every_code = torch.arange(quantizer.codebook_size)[:, None]
        self.register_buffer("digits", quantizer.get_codes_from_indices(every_code)[0].flatten(0, -2))

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 `[B, Q]` -> hints `[B, Q * frames, C]`."""
        hints: Tensor = self.detokenizer(self.project_out(nn.functional.embedding(codes, self.digits)))
        return hints


def export_codes(tokenizer: Any, file: Path) -> dict[str, int]:
    """Write latents -> codes; returns the entries of `[structure]`. Raises BuildError where the graph differs."""
    quantizers = int(tokenizer.quantizer.num_quantizers)
    if quantizers != 1:
        raise BuildError(f"the audio tokenizer has {quantizers} quantizers, expected 1 code per step")
    module = LatentsToCodes(tokenizer).eval()
    channels = tokenizer.audio_acoustic_proj.in_features
    codes = free("codes")
    export_graph(
        module,
        file,
        (torch.zeros(2, EXAMPLE_CODES * module.frames, channels),),
        inputs=["latents"],
        outputs=["codes"],
        dynamic_shapes=({0: free("batch", MAX_BATCH), 1: module.frames * codes},),
        dimensions={f"{module.frames}*codes": "frames"},
    )
    latents = torch.randn(1, CHECKED_CODES * module.frames, channels, generator=torch.Generator().manual_seed(0))
    with quiet(), torch.no_grad():
        expected = module(latents).numpy()
    unequal = float((open_without_copies(file).run(None, {"latents": latents.numpy()})[0] != expected).mean())
    if unequal > MAX_UNEQUAL:
        raise BuildError(f"{file.name}: {unequal:.0%} of the codes differ from those of its module")
    return {"frames_per_code": module.frames, "num_codes": int(tokenizer.quantizer.codebook_size)}


def export_hints(quantizer: Any, detokenizer: nn.Module, file: Path) -> float:
    """Write codes -> hints; returns the largest difference from its module."""
    module = CodesToHints(quantizer, detokenizer).eval()
    export_graph(
        module,
        file,
        (torch.zeros(2, EXAMPLE_CODES, dtype=torch.int64),),
        inputs=["codes"],
        outputs=["hints"],
        dynamic_shapes=({0: free("batch", MAX_BATCH), 1: free("codes")},),
    )
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(quantizer.codebook_size, (1, CHECKED_CODES), generator=generator)
    examples = [{"codes": codes}]
    return graph_error(file, examples, module_outputs(module, examples))
