"""A trained checkpoint -> the demo bundle's folder."""

from pathlib import Path
from typing import Final

import onnx
import torch

from configs.demo.recipe.bundle_text import (
    DECODER_INPUTS,
    ENCODER_FILE,
    SIZE_LIMIT_BYTES,
    TIMBRE_FRAMES,
    bundle_size_bytes,
    rewrite_bundle_file,
    write_bundle_file,
    write_codec,
    write_text_side,
)
from configs.demo.recipe.corpus.vocabulary import LAYER_CONCEPTS, NUM_TOKENS, TOKEN_IDS
from configs.demo.recipe.latents import CHANNELS
from configs.demo.recipe.model import CONDITION_WIDTH, MIN_TIME, TimbreEncoder
from configs.demo.recipe.structure import export_structure
from configs.demo.recipe.student import new_student
from configs.demo.recipe.teacher import read_parts
from configs.demo.recipe.train import load_average
from engine_build.export.bundle_tables import JUMP_INPUTS
from engine_build.export.cleanup import paths_in
from engine_build.export.decoder_graph import DecoderShape, export_decoder
from engine_build.export.torch_export import MAX_BATCH, export_graph, free, graph_error, module_outputs
from engine_build.graphs.adapter_graph import linear_matrices

SHAPE: Final = DecoderShape(CHANNELS, CONDITION_WIDTH, frame_multiple=2, inputs=DECODER_INPUTS)
JUMP_SHAPE: Final = DecoderShape(CHANNELS, CONDITION_WIDTH, frame_multiple=2, inputs=DECODER_INPUTS | JUMP_INPUTS)
_CHECKED_SIZES: Final = ((1, 256, 24), (4, 2, 1), (8, 256, 5), (3, 512, 33))
_RHYTHM: Final = (TOKEN_IDS["always"], TOKEN_IDS["bpm:97"], TOKEN_IDS["meter:6/8"])
_ERROR_LIMIT: Final = 2e-5 / MIN_TIME  # of the velocity: 2e-5 of the clean latents


def export_bundle(checkpoint: Path, folder: Path) -> None:
    """Write the whole bundle and check it: graphs against torch, no machine paths, size.

    The weights of the codec's encoder lie beside the checkpoint.

    Raises:
        RuntimeError: a check failed; the text says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer, figures = load_average(checkpoint)
    export_decoder(model.decoder, SHAPE, folder / "decoder.onnx")
    export_structure(tokenizer, folder)
    _export_timbre(model.timbre, folder / "timbre_encoder.onnx")
    write_text_side(folder, model.token_table().detach().numpy())
    write_codec(folder, checkpoint.with_name(ENCODER_FILE))
    examples = [_example(model.token_table().detach(), *size) for size in _CHECKED_SIZES]
    error = graph_error(folder / "decoder.onnx", examples, module_outputs(model.decoder, examples))
    matrices = linear_matrices(onnx.load(folder / "decoder.onnx"))
    write_bundle_file(
        folder,
        figures | {"export_max_error": error},
        {},
        {path: matrix.model_dump() for path, matrix in matrices.items()},
    )
    _check(folder, error)


def export_student(checkpoint: Path, folder: Path) -> None:
    """Put a distilled decoder into a bundle in place of the one that it has learnt from, and check it as the others.

    Raises:
        RuntimeError: a check failed; the text says which.
    """
    parts, state = read_parts(folder), torch.load(checkpoint, weights_only=True)
    student = new_student(parts.decoder)
    student.load_state_dict(state["average"])
    student.eval().requires_grad_(False)
    export_decoder(student, JUMP_SHAPE, folder / "decoder.onnx")
    examples = [_example(parts.table, *size, shape=JUMP_SHAPE) for size in _CHECKED_SIZES]
    error = graph_error(folder / "decoder.onnx", examples, module_outputs(student, examples))
    figures = {"student_steps": state["step"], "student_minutes": round(state["elapsed_s"] / 60, 1)}
    matrices = {path: each.model_dump() for path, each in linear_matrices(onnx.load(folder / "decoder.onnx")).items()}
    rewrite_bundle_file(folder, training={**figures, "export_max_error": error}, matrices=matrices)
    _check(folder, error)


def _example(
    table: torch.Tensor, rows: int, frames: int, tokens: int, shape: DecoderShape = SHAPE
) -> dict[str, torch.Tensor]:
    """Random inputs of the decoder, but for the condition: a prompt's tokens, of one tempo and one meter."""
    example = shape.example(rows, frames, tokens, seed=tokens)
    others = torch.randint(
        TOKEN_IDS[LAYER_CONCEPTS[0]], NUM_TOKENS, (rows, tokens), generator=torch.Generator().manual_seed(tokens)
    )
    others[:, : len(_RHYTHM)] = torch.tensor(_RHYTHM[:tokens])
    example["condition_mask"][:, : len(_RHYTHM)] = 1.0
    return example | {"encoder_hidden_states": table[others]}


def _export_timbre(encoder: TimbreEncoder, file: Path) -> None:
    export_graph(
        encoder,
        file,
        (torch.zeros(2, TIMBRE_FRAMES, CHANNELS),),
        inputs=["reference_latents"],
        outputs=["condition"],
        dynamic_shapes=({0: free("batch", MAX_BATCH)},),
    )


def _check(folder: Path, error: float) -> None:
    if not error <= _ERROR_LIMIT:
        raise RuntimeError(f"decoder.onnx differs from torch by {error:.1e}, allowed is {_ERROR_LIMIT:.0e}")
    for file in folder.iterdir():
        if file.suffix in (".onnx", ".json", ".toml") and (found := paths_in(file)):
            raise RuntimeError(f"{file.name} contains paths of this machine, such as {found[0]!r}")
    if (size := bundle_size_bytes(folder)) > SIZE_LIMIT_BYTES:
        raise RuntimeError(f"the bundle has {size} bytes, allowed are {SIZE_LIMIT_BYTES}")
