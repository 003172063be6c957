"""Whole generations by diffusers' AceStepPipeline, eager and compiled. Needs the extra `export`."""

from __future__ import annotations

import json
import warnings
from typing import Any, Literal

import numpy as np
import torch
from diffusers import AceStepPipeline
from numpy.typing import NDArray

from profiling.bench.peers.torch_decoder import compiled_for_shapes, quiet_libraries
from runtime.base.errors import ConfigError

Output = Literal["latent", "np"]


class DiffusersPipeline:
    """AceStepPipeline on a checkpoint, in float32 on the CPU. compiled: its transformer, by torch.compile.

    Raises ConfigError where the folder is not a whole pipeline.
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
