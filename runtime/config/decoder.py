"""[latents], [decoder], [context] and [adapters] of bundle.toml: the denoiser, what it takes, and what changes it.

Shape letters: see the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from runtime.config.explain import FileName, TomlTable


class LatentSpec(TomlTable):
    """Layout of the latents `[T, C]`: C channels at `frame_rate_hz`, T a multiple of `frame_multiple`.

    most_unused: generations shorter than a canvas have lengths so close that less than this share of one's frames is
    cut off at its end, for models whose music depends on its length. Without it, they are quarters of the canvas.
    """

    channels: int = Field(ge=1)
    frame_rate_hz: float = Field(gt=0)
    frame_multiple: int = Field(default=1, ge=1)
    canvas_frames: int = Field(ge=1)
    most_unused: float | None = Field(default=None, ge=0.02, lt=1)

    def round_up(self, frames: int) -> int:
        """Smallest valid number of frames that is not less than `frames`."""
        return -(-frames // self.frame_multiple) * self.frame_multiple


class DecoderInputs(TomlTable):
    """Role -> tensor name. latents `[R,T,C]`, time `[R]`, condition `[R,L,D]`, its mask `[R,L]`, context `[R,T,X]`.

    The condition may also be one vector per row, `[R,D]`. time_end `[R]`: of a decoder of mean velocities, the time
    where the jump from `time` ends; where it is `time`, the output is the velocity. guidance `[R]`: the guidance that
    is built into a jump; 1 is none. frame_numbers `[R,T]`: of a decoder that keeps the beat by the frames' numbers,
    which are 0, 1, 2 ... but where a loop is turned.
    """

    latents: str
    time: str
    time_end: str | None = None
    guidance: str | None = None
    condition: str | None = None
    condition_mask: str | None = None
    context: str | None = None
    frame_numbers: str | None = None

    @model_validator(mode="after")
    def _check_mask(self) -> Self:
        if self.condition is None and self.condition_mask is not None:
            raise ValueError("condition_mask belongs to a condition: name that too")
        if self.time_end is None and self.guidance is not None:
            raise ValueError("guidance is built into jumps, which end at time_end: name that too")
        return self

    @property
    def row_numbers(self) -> tuple[str, ...]:
        """The tensors with one number per row: the time, then where a jump ends and its guidance."""
        return tuple(name for name in (self.time, self.time_end, self.guidance) if name is not None)

    def numbers(self, time: float, time_end: float, guidance: float) -> dict[str, float]:
        """Tensor name -> what a row tells the decoder, as far as it takes it."""
        values = {self.time: time, self.time_end: time_end, self.guidance: guidance}
        return {name: value for name, value in values.items() if name is not None}

    def steady(self, rows: int, frames: int) -> dict[str, NDArray[np.float32]]:
        """Tensor name -> what rows have that are no loops, and what does not change from step to step."""
        numbers = np.broadcast_to(np.arange(frames, dtype=np.float32), (rows, frames))  # [R, T]
        return {} if self.frame_numbers is None else {self.frame_numbers: numbers}

    def letters(self, condition_rank: int = 3) -> dict[str, str]:
        """Tensor name -> its shape letters, where the condition has `condition_rank` dimensions."""
        roles: dict[str | None, str] = {
            self.latents: "RTC",
            **dict.fromkeys(self.row_numbers, "R"),
            self.condition: "RD" if condition_rank == 2 else "RLD",
            self.condition_mask: "RL",
            self.context: "RTX",
            self.frame_numbers: "RT",
        }
        return {name: letters for name, letters in roles.items() if name is not None}


class DecoderOutputs(TomlTable):
    """Role -> tensor name. velocity `[R,T,C]`."""

    velocity: str


class DecoderSpec(TomlTable):
    """The denoiser's graph and its tensor roles.

    null_condition: a .npy file with the null condition's tokens, float32 `[L, D]`, for models that learn them; without
    it the text encoder encodes the empty text. mask_counts: the mask says how often a token counts, so that equal
    tokens are one. jump_guidance: the least and the most guidance that its jumps have learnt.
    """

    graph: FileName
    null_condition: FileName | None = None
    mask_counts: bool = False
    jump_guidance: tuple[float, float] = (1.0, 1.0)
    inputs: DecoderInputs
    outputs: DecoderOutputs

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.mask_counts and self.inputs.condition_mask is None:
            raise ValueError("mask_counts is said of a condition_mask: name that too")
        return self

    @model_validator(mode="after")
    def _check_jumps(self) -> Self:
        least, most = self.jump_guidance
        if not 0 <= least <= 1.0 <= most <= 100:
            raise ValueError("jump_guidance: expected the least, at most 1, and the most, at least 1")
        if "jump_guidance" in self.model_fields_set and self.inputs.guidance is None:
            raise ValueError("jump_guidance is said of the input guidance: name that in decoder.inputs")
        return self


class ContextSpec(TomlTable):
    """Layout of the context `[T, X]`: C channels of known latents (silence where unknown), C of mask (1 = generate).

    silence: one frame `[C]`, or the name of a .npy file with a sequence of frames, float32 `[N, C]`, that starts at the
    canvas's first frame and repeats where the canvas is longer.
    """

    layout: Literal["known+mask"] = "known+mask"
    silence: tuple[float, ...] | FileName
    overlap_frames: int = Field(default=64, ge=1)


class AdapterMatrix(TomlTable):
    """One matrix of the decoder, `inputs` x `outputs` features. weight: the initializer of its MatMul or Gemm."""

    weight: str
    inputs: int = Field(ge=1)
    outputs: int = Field(ge=1)


class AdapterSpec(TomlTable):
    """Module path -> matrix, in the order in which adapters' factors lie next to each other.

    aliases: names in adapters of other trainers -> names in the paths here, of one part of a path ("q_proj" -> "to_q")
    or of several ("ff.ff.2" -> "ff.proj_out", "model" -> ""), replaced one after the other. orders: the end of a path
    -> which of the equal parts of the outputs in files with aliases is the first here, the second, and so on.
    refused: the beginning of a path outside the decoder that a trainer writes too -> how to train without it.
    """

    aliases: Mapping[str, str] = {}
    orders: Mapping[str, tuple[int, ...]] = {}
    refused: Mapping[str, str] = {}
    matrices: dict[str, AdapterMatrix] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_orders(self) -> AdapterSpec:
        for end, order in self.orders.items():
            if sorted(order) != list(range(len(order))) or len(order) < 2:
                raise ValueError(f"orders: {end}: {list(order)} is no order of parts, as [1, 0] is")
            for path, matrix in self.matrices.items():
                if f".{path}".endswith(f".{end}") and matrix.outputs % len(order):
                    raise ValueError(f"orders: {end}: {path} has {matrix.outputs} outputs, not {len(order)} parts")
        return self

    @property
    def num_inputs(self) -> int:
        """I: the input features of all matrices."""
        return sum(matrix.inputs for matrix in self.matrices.values())

    @property
    def num_outputs(self) -> int:
        """O: the output features of all matrices."""
        return sum(matrix.outputs for matrix in self.matrices.values())

    @cached_property
    def places(self) -> dict[str, tuple[slice, slice]]:
        """Module path -> the columns of its factors in A `[r, I]` and in B `[r, O]`."""
        found, inputs, outputs = {}, 0, 0
        for path, matrix in self.matrices.items():
            ends = inputs + matrix.inputs, outputs + matrix.outputs
            found[path] = slice(inputs, ends[0]), slice(outputs, ends[1])
            inputs, outputs = ends
        return found

    def path(self, module: str) -> str:
        """A module's path with its aliases replaced."""
        found = f".{module}."
        for name, here in self.aliases.items():
            found = found.replace(f".{name}.", f".{here}." if here else ".")
        return found.strip(".")

    def order(self, module: str) -> tuple[int, ...]:
        """Of the parts of a module's outputs in a file with aliases; () where they are as in the matrix."""
        path = self.path(module)
        orders = (order for end, order in self.orders.items() if f".{path}".endswith(f".{end}"))
        return next(orders, ()) if path != module else ()

    def refusal(self, path: str) -> str:
        """How to train without a path that is outside the decoder; "" for others."""
        return next((fix for begin, fix in self.refused.items() if f"{path}.".startswith(f"{begin}.")), "")
