"""PyTorch and diffusers on ACE-Step's checkpoint, eager and compiled: decoder and generations. Extra `export`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from diffusers import AceStepPipeline, AceStepTransformer1DModel
from diffusers.utils import logging as diffusers_logging
from numpy.typing import NDArray
from transformers.utils import logging as transformers_logging

from profiling.bench.statistics import mean_ms
from runtime.base.errors import ConfigError, EngineError

PUBLISHED = "published"
WARM_UP_RUNS = 3
Output = Literal["latent", "np"]


class TorchDecoder:
    """ACE-Step's transformer of diffusers on fixed inputs: rows R, frames T, tokens L; bfloat16 on a GPU, else float32.

    source: a checkpoint in diffusers' layout, or "published": the published sizes with random weights. layers: their
    number, with "published" only. inputs: arrays by the names of forward(), in place of random ones. threads: of
    the CPU, for all of PyTorch; 0 leaves them. Raises ConfigError, and EngineError where memory does not suffice.
    """

    def __init__(
        self,
        source: str,
        *,
        rows: int,
        frames: int,
        tokens: int,
        layers: int | None = None,
        compiled: bool,
        inputs: Mapping[str, NDArray[Any]] = MappingProxyType({}),
        threads: int = 0,
    ) -> None:
        quiet_libraries()
        if threads:
            torch.set_num_threads(threads)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        try:
            model = _model(source, layers).to(self._device, self._dtype).eval()
            self._inputs = self._make_inputs(model.config, rows, frames, tokens)
            self._inputs |= {name: torch.tensor(array).to(self._device, self._dtype) for name, array in inputs.items()}
            self._run: Any = compiled_for_shapes(model) if compiled else model
            self.time_ms(WARM_UP_RUNS)
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"PyTorch has too little memory for {rows} rows: {error}", fix="a lower --depth"
            ) from error

    def time_ms(self, times: int = 1) -> float:
        """Wall time of one forward pass over all rows, mean of `times` in a row, in milliseconds."""
        self._synchronize()
        return mean_ms(self._forward, times, self._synchronize)

    def velocity(self) -> NDArray[np.float32]:
        """One forward pass: `[R, T, C]`."""
        output: NDArray[np.float32] = self._forward().float().cpu().numpy()
        return output

    def _forward(self) -> torch.Tensor:
        with torch.inference_mode():
            output: torch.Tensor = self._run(**self._inputs, return_dict=False)[0]
        return output

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _make_inputs(self, config: Any, rows: int, frames: int, tokens: int) -> dict[str, torch.Tensor]:
        channels = config.audio_acoustic_hidden_dim
        width = config.encoder_hidden_size or config.hidden_size
        times = torch.rand(rows, device=self._device, dtype=self._dtype)
        shapes = {
            "hidden_states": (rows, frames, channels),
            "encoder_hidden_states": (rows, tokens, width),
            "context_latents": (rows, frames, config.in_channels - channels),
        }
        inputs = {name: torch.randn(shape, device=self._device, dtype=self._dtype) for name, shape in shapes.items()}
        return {**inputs, "timestep": times, "timestep_r": times}


def quiet_libraries() -> None:
    """No progress bars and no advice of diffusers and transformers: errors only."""
    for messages in (diffusers_logging, transformers_logging):
        messages.set_verbosity_error()
        messages.disable_progress_bar()


def compiled_for_shapes(model: Any) -> Any:
    """torch.compile, once for every shape that is met: kernels for one shape are faster than those for any."""
    torch.compiler.reset()
    return torch.compile(model, dynamic=False)


def _model(source: str, layers: int | None) -> Any:
    folder = Path(source) / "transformer"
    if source == PUBLISHED:
        sizes = {} if layers is None else {"num_hidden_layers": layers}
        return AceStepTransformer1DModel(**sizes)
    if layers is not None:
        raise ConfigError("--torch-layers needs --torch published", fix="--torch published --torch-layers 2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return AceStepTransformer1DModel.from_pretrained(folder)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ConfigError(f"no ACE-Step transformer in {folder}: {error}", fix="--torch published") from error


class DiffusersPipeline:
    """AceStepPipeline on a checkpoint, in float32 on the CPU. compiled: its transformer, by torch.compile.

    XL's timbre is summed up, as in the authors' code. Raises ConfigError where the folder is not a whole pipeline.
    """

    def __init__(self, checkpoint: str, *, compiled: bool) -> None:
        quiet_libraries()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._pipeline: Any = AceStepPipeline.from_pretrained(
                    checkpoint, torch_dtype=torch.float32, local_files_only=True
                )
        except (OSError, ValueError, TypeError, json.JSONDecodeError) as error:
            fix = "--torch a folder with model_index.json"
            raise ConfigError(f"AceStepPipeline does not open {checkpoint}: {error}", fix=fix) from error
        self._pipeline.set_progress_bar_config(disable=True)
        sizes = self._pipeline.transformer.config
        if sizes.encoder_hidden_size not in (None, sizes.hidden_size):
            _sum_up_timbre(self._pipeline.condition_encoder.timbre_encoder)
        if compiled:
            self._pipeline.transformer = compiled_for_shapes(self._pipeline.transformer)

    def generate(
        self, prompts: list[str], output: Output, *, seconds: float, steps: int, guidance: float, shift: float
    ) -> list[NDArray[np.float32]]:
        """Latents `[T, C]`, or audio `[channels, n]`, of all prompts in one batch; the seed of each is its index."""
        made = self._pipeline(
            prompts,
            lyrics=[""] * len(prompts),
            audio_duration=seconds,
            num_inference_steps=steps,
            guidance_scale=guidance,
            shift=shift,
            generator=[torch.Generator().manual_seed(seed) for seed in range(len(prompts))],
            output_type=output,
        ).audios
        return [np.asarray(each) for each in made]


def _sum_up_timbre(encoder: Any) -> None:
    """XL's output is that of a learned token before the frames; diffusers reads the first frame's for every model."""

    def with_token(_: Any, __: Any, frames: torch.Tensor) -> torch.Tensor:
        return torch.cat((encoder.special_token.expand(len(frames), 1, -1), frames), dim=1)

    encoder.embed_tokens.register_forward_hook(with_token)
