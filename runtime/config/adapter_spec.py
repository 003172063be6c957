"""`[adapters]` of bundle.toml: which matrices of the decoder take LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pydantic import Field, model_validator

from runtime.config.explain import TomlTable


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
