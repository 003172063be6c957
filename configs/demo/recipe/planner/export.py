"""A trained planner -> the bundle's graph, with weights in 16 bits, the prompts' tokenizer and `[planner]`."""

from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

from configs.demo.recipe.bundle_text import (
    PLANNER_CAPACITY,
    PLANNER_FILE,
    PLANNER_TOKENIZER_FILE,
    rewrite_bundle_file,
)
from configs.demo.recipe.planner.model import Planner, checkpoint_tensors
from configs.demo.recipe.planner.prompt import build_prompt_tokenizer
from configs.demo.recipe.planner.tokens import Codes
from configs.demo.recipe.planner.train import PlannerConfig, PlannerTrainer
from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names, planner_graph
from runtime.config.planner import NO_WINDOW

_CHECKED_TOKENS: Final = 384
ERROR_LIMIT: Final = 1e-3  # of a logit, against torch with the weights as they are stored
_HALF: Final = ".half"


def load_planner(checkpoint: Path) -> tuple[Planner, int]:
    """The trained model, and its number of steps."""
    trainer = PlannerTrainer(PlannerConfig())
    trainer.load(checkpoint)
    return trainer.model.eval(), trainer.step


def export_planner(checkpoint: Path, folder: Path) -> float:
    """Write the planner into a bundle's folder; the largest difference of a logit from torch.

    Raises RuntimeError where the graph differs from torch by more than `ERROR_LIMIT`.
    """
    model, steps = load_planner(checkpoint)
    graph = half_planner_graph(model)
    tokens = np.random.default_rng(0).integers(model.shape.vocab_size, size=(2, _CHECKED_TOKENS))
    with torch.no_grad():
        table = round_weights(model)
        wanted = model(table[torch.from_numpy(tokens)]) @ table.T
    if (error := float(np.abs(graph_logits(graph, tokens) - wanted.numpy()).max())) > ERROR_LIMIT:
        raise RuntimeError(f"{PLANNER_FILE} differs from torch by {error:.1e}, allowed is {ERROR_LIMIT:.0e}")
    onnx.save(graph, folder / PLANNER_FILE)
    (folder / PLANNER_TOKENIZER_FILE).write_text(build_prompt_tokenizer().to_str(), encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rewrite_bundle_file(folder, training={"planner_parameters": parameters, "planner_steps": steps})
    return error


def round_weights(model: Planner) -> torch.Tensor:
    """Round a model's matrices as the graph stores them; returns its table of tokens f32 `[V, H]`, rounded likewise."""
    with torch.no_grad():
        table = model.table().half().float()
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float() if parameter.dim() > 1 else parameter)
    return table


def half_planner_graph(model: Planner) -> onnx.ModelProto:
    """The cached decoder. Its matrices are stored in 16 bits and cast to float32, in which it computes."""
    tensors = checkpoint_tensors(model)

    def store(name: str, array: np.ndarray) -> TensorProto:
        return numpy_helper.from_array(array.astype(np.float16) if array.ndim > 1 else array, name)

    graph = planner_graph(Qwen3Sizes.of(vars(model.shape)), PLANNER_CAPACITY, tensors.__getitem__, store)
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            name, tensor.name = tensor.name, tensor.name + _HALF
            cast = helper.make_node("Cast", [tensor.name], [name], name=f"Cast/{name}", to=TensorProto.FLOAT)
            graph.graph.node.insert(0, cast)
    onnx.checker.check_model(graph)
    return graph


def graph_logits(graph: onnx.ModelProto, tokens: Codes) -> np.ndarray:
    """Logits `[R, U, V]` of tokens `[R, U]` from an empty cache."""
    rows, count = tokens.shape
    options = ort.SessionOptions()
    options.log_severity_level = 3  # caches are copied here
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shapes = {item.name: item.shape for item in session.get_inputs()}
    layers = sum(name.startswith("past_key") for name in shapes)
    feed = {name: np.zeros((rows, *shapes[name][1:]), np.float32) for name in cache_names(layers).past}
    zeros, places = np.zeros(rows, np.int64), np.tile(np.arange(count)[None, :, None], (rows, 1, 1))
    feed |= {"tokens": tokens, "position": zeros, "write": zeros, "window": zeros + NO_WINDOW}
    (logits,) = session.run(["logits"], feed | {"slots": np.arange(count), "pick": places})
    return np.asarray(logits)
