"""The graph of a decoder of any family: dynamic axes and examples by role, and its comparison with the module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from torch import Tensor, nn

from engine_build.export.bundle_export import Facts, checked
from engine_build.export.bundle_tables import DECODER, VELOCITY
from engine_build.export.torch_export import MAX_BATCH, OPSET, export_graph, free, graph_error, module_outputs, release
from engine_build.graphs.adapter_graph import linear_matrices
from runtime.base.errors import ConfigError

# Axes by role, and of what size they are.
AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "latents": ("rows", "frames", "channels"),
    "time": ("rows",),
    "condition": ("rows", "tokens", "width"),
    "condition_mask": ("rows", "tokens"),
    "context": ("rows", "frames", "context_channels"),
    "time_end": ("rows",),
    "guidance": ("rows",),
    "frame_numbers": ("rows", "frames"),
}
USUAL: Final = ("latents", "time", "condition", "condition_mask", "context")
# Rows, multiples of frames and tokens of the examples that a graph is compared with its module on.
_CHECKED_SIZES: Final = ((1, 1, 1), (2, 17, 7))
_TRACED_SIZE: Final = (3, 32, 5)


@dataclass(frozen=True)
class DecoderShape:
    """The fixed dimensions of a decoder's tensors.

    tokens: the fewest and the most of a condition, equal where the graph takes this number alone; None: the condition
    is one vector `[R, D]`. inputs: role -> name, in the order of the module's arguments.
    """

    channels: int
    condition_width: int = 0
    frame_multiple: int = 1
    tokens: tuple[int, int] | None = (1, 64)
    inputs: Mapping[str, str] = field(default_factory=lambda: {role: role for role in USUAL})

    def axes(self, role: str) -> tuple[str, ...]:
        """The axes of an input; those of tokens are left out where the condition is one vector."""
        return tuple(axis for axis in AXES[role] if axis != "tokens" or self.tokens is not None)

    def example(self, rows: int, frames: int, tokens: int, seed: int) -> dict[str, Tensor]:
        """Random inputs by name: the first half of the frames is known, a third of the tokens is padding."""
        if self.tokens is not None and self.tokens[0] == self.tokens[1]:
            tokens = self.tokens[0]
        sizes = {"rows": rows, "frames": frames, "tokens": tokens, "channels": self.channels}
        sizes |= {"width": self.condition_width, "context_channels": 2 * self.channels}
        generator = torch.Generator().manual_seed(seed)
        return {
            name: _values(role, [sizes[axis] for axis in self.axes(role)], generator)
            for role, name in self.inputs.items()
        }

    def checked_examples(self) -> list[dict[str, Tensor]]:
        """What a graph is compared with its module on."""
        return [
            self.example(rows, frames * self.frame_multiple, tokens, seed)
            for seed, (rows, frames, tokens) in enumerate(_CHECKED_SIZES)
        ]


def _values(role: str, shape: list[int], generator: torch.Generator) -> Tensor:
    if role in ("time", "time_end", "guidance"):
        return torch.rand(shape, generator=generator)
    if role == "frame_numbers":
        return torch.arange(shape[1], dtype=torch.float32).expand(shape).clone()
    if role == "condition_mask":
        mask = (torch.rand(shape, generator=generator) > 0.3).float()
        mask[:, 0] = 1.0
        return mask
    values = torch.randn(shape, generator=generator)
    if role == "context":
        values[..., shape[2] // 2 :] = 1.0
        values[:, : shape[1] // 2, shape[2] // 2 :] = 0.0
    return values


def export_decoder(decoder: nn.Module, shape: DecoderShape, file: Path, opset: int = OPSET) -> None:
    """Write a decoder as an ONNX file; rows R, frames T and, where their number is free, tokens L are dynamic.

    Raises ModuleError where torch cannot export it.
    """
    rows, frames, tokens = _TRACED_SIZE
    multiple = shape.frame_multiple
    free_axes = {
        "rows": free("rows", MAX_BATCH),
        "frames": free("frames") if multiple == 1 else multiple * free("blocks"),
    }
    if shape.tokens is not None and shape.tokens[0] < shape.tokens[1]:
        free_axes["tokens"] = free("tokens")
    dynamic = [
        {index: free_axes[axis] for index, axis in enumerate(shape.axes(role)) if axis in free_axes}
        for role in shape.inputs
    ]
    export_graph(
        decoder,
        file,
        tuple(shape.example(rows, frames * multiple, tokens, seed=0).values()),
        inputs=list(shape.inputs.values()),
        outputs=[VELOCITY],
        dynamic_shapes=tuple(dynamic),
        dimensions={f"{multiple}*blocks": "frames"},
        opset=opset,
    )


def decoder_facts(decoder: nn.Module, folder: Path, shape: DecoderShape, opset: int = OPSET, **figures: Any) -> Facts:
    """Export a decoder into a bundle's folder and compare the graph with the module, whose weights are freed.

    Returns the facts of bundle.toml. figures: beside the number of parameters and the largest difference. Raises
    ModuleError, and BuildError where the graph differs.
    """
    figures["parameters"] = sum(parameter.numel() for parameter in decoder.parameters())
    examples = shape.checked_examples()
    expected = module_outputs(decoder, examples)
    export_decoder(decoder, shape, folder / DECODER, opset)
    release(decoder)
    figures["decoder_max_error"] = checked(DECODER, graph_error(folder / DECODER, examples, expected))
    return {"channels": shape.channels, "frame_multiple": shape.frame_multiple, "figures": figures}


def adapter_matrices(folder: Path) -> Facts:
    """Module path -> its matrix in the graph of a bundle's decoder, of the linear layers: [adapters.matrices]."""
    matrices = linear_matrices(onnx.load(folder / DECODER, load_external_data=False))
    return {path: matrix.model_dump() for path, matrix in matrices.items()}


def decoder_step(decoder: nn.Module, folder: Path, opset: int = 22, **sizes: Any) -> Facts:
    """`decoder_facts` of a decoder whose `forward` names its arguments by role. sizes: of its `DecoderShape`.

    Raises ConfigError for an argument that is no role.
    """
    roles = list(inspect.signature(decoder.forward).parameters)
    if unknown := [role for role in roles if role not in AXES]:
        what = f"{type(decoder).__name__}.forward takes {', '.join(unknown)}"
        raise ConfigError(what, fix=f"name its arguments by role, in any order: {', '.join(AXES)}")
    shape = DecoderShape(**sizes, inputs={role: role for role in roles})
    tokens = shape.tokens if "condition" in roles else None
    return {**decoder_facts(decoder, folder, shape, opset), "inputs": dict(shape.inputs), "tokens": tokens}
