"""Decoders as ONNX graphs: an attention mask for the condition, export, clean metadata, checks."""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

OPSET: Final = 20
INPUT_NAMES: Final = (
    "hidden_states",
    "timestep",
    "encoder_hidden_states",
    "condition_mask",
    "context_latents",
)
OUTPUT_NAME: Final = "velocity"
# torch's exporter writes stack traces and graph dumps into every node; profiling needs the module scopes only.
KEPT_METADATA: Final = ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
_PATH_PATTERN: Final = re.compile(
    rb"site-packages|stack_trace|(?:/[\w.+-]+){2,}\.(?:py|so)\b|/(?:home|root|Users|tmp)/"
)


@dataclass(frozen=True)
class DecoderShape:
    """The fixed dimensions of a decoder's tensors."""

    channels: int
    context_channels: int
    condition_width: int
    frame_multiple: int


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
    ) -> Tensor:
        """Velocity `[B, T, C]`. Masked tokens get an attention weight of exactly 0, whatever they hold.

        The second time of the mean-flow pair equals the first, as in ACE-Step's own inference.
        """
        bias = (1.0 - condition_mask[:, None, None, :]) * torch.finfo(torch.float32).min
        pair = (encoder_hidden_states, bias)
        outputs = self.decoder(hidden_states, timestep, timestep, pair, context_latents, return_dict=False)
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


def export_decoder(decoder: nn.Module, shape: DecoderShape) -> onnx.ModelProto:
    """A decoder with `MaskedDecoder`'s inputs as an ONNX model; rows B, frames T and tokens L are free."""
    rows, tokens = torch.export.Dim("rows", min=1, max=4096), torch.export.Dim("tokens", min=1, max=65_536)
    frames = shape.frame_multiple * torch.export.Dim("blocks", min=1, max=65_536)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            decoder.eval(),
            example_inputs(shape, rows=3, frames=32 * shape.frame_multiple, tokens=5, seed=0),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(INPUT_NAMES),
            output_names=[OUTPUT_NAME],
            dynamic_shapes=(
                {0: rows, 1: frames},
                {0: rows},
                {0: rows, 1: tokens},
                {0: rows, 1: tokens},
                {0: rows, 1: frames},
            ),
            verbose=False,
        )
    model: onnx.ModelProto = program.model_proto
    name_dimensions(model, {f"{shape.frame_multiple}*blocks": "frames"})
    divide_by_roots(model)
    strip_metadata(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def example_inputs(shape: DecoderShape, rows: int, frames: int, tokens: int, seed: int) -> tuple[Tensor, ...]:
    """Random decoder inputs in the order of `INPUT_NAMES`; about a third of the condition tokens are padding."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(rows, tokens, generator=generator) > 0.3).float()
    mask[:, 0] = 1.0
    return (
        torch.randn(rows, frames, shape.channels, generator=generator),
        torch.rand(rows, generator=generator),
        torch.randn(rows, tokens, shape.condition_width, generator=generator),
        mask,
        torch.randn(rows, frames, shape.context_channels, generator=generator),
    )


def name_dimensions(model: onnx.ModelProto, names: dict[str, str]) -> None:
    """Rename free dimensions of the graph's inputs, outputs and inner values."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]


def divide_by_roots(model: onnx.ModelProto) -> None:
    """Turn `x * (1 / sqrt(y))` into `x / sqrt(y)`: the form of RMSNorm that engines know how to fuse."""
    reciprocals = {node.output[0]: node for node in model.graph.node if node.op_type == "Reciprocal"}
    used = {name for node in model.graph.node if node.op_type != "Mul" for name in node.input}
    for node in model.graph.node:
        if node.op_type == "Mul" and node.input[1] in reciprocals and node.input[1] not in used:
            node.op_type = "Div"
            node.input[1] = reciprocals[node.input[1]].input[0]
    still_used = {name for node in model.graph.node for name in node.input}
    for name, node in reciprocals.items():
        if name not in still_used:
            model.graph.node.remove(node)


def strip_metadata(model: onnx.ModelProto) -> None:
    """Remove everything that the exporter noted but the module scopes; file paths of the machine go with it."""
    graph = model.graph
    holders: tuple[Iterable[Any], ...] = (
        graph.input,
        graph.output,
        graph.value_info,
        graph.initializer,
        [graph, model],
    )
    for values in holders:
        for value in values:
            del value.metadata_props[:]
    for node in graph.node:
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key in KEPT_METADATA]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
        node.doc_string = ""
    graph.doc_string = model.doc_string = ""


def paths_in(file: Path) -> list[bytes]:
    """Everything in a file that looks like a path of the machine that wrote it; empty is good."""
    return _PATH_PATTERN.findall(file.read_bytes())


def max_error(decoder: nn.Module, file: Path, shape: DecoderShape, sizes: Sequence[tuple[int, int, int]]) -> float:
    """Largest absolute difference of velocities, ONNX Runtime against torch, over (rows, frames, tokens) sizes."""
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    errors = []
    for seed, (rows, frames, tokens) in enumerate(sizes):
        inputs = example_inputs(shape, rows, frames, tokens, seed)
        with torch.no_grad():
            expected = decoder(*inputs).numpy()
        feed = {name: tensor.numpy() for name, tensor in zip(INPUT_NAMES, inputs, strict=True)}
        errors.append(float(np.abs(session.run(None, feed)[0] - expected).max()))
    return max(errors)
