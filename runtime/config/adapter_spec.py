"""`[adapters]` of bundle.toml: which matrices of the decoder take LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pydantic import Field

from runtime.config.explain import TomlTable


class AdapterMatrix(TomlTable):
    """One matrix of the decoder, `inputs` x `outputs` features. weight: the initializer of its MatMul or Gemm."""

    weight: str
    inputs: int = Field(ge=1)
    outputs: int = Field(ge=1)


class AdapterSpec(TomlTable):
    """Module path -> matrix, in the order in which adapters' factors lie next to each other.

    aliases: names of modules in adapters of other trainers -> names in the paths here ("q_proj" -> "to_q").
    """

    aliases: Mapping[str, str] = {}
    matrices: dict[str, AdapterMatrix] = Field(min_length=1)

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
        return ".".join(self.aliases.get(part, part) for part in module.split("."))
