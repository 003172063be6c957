"""torch modules as ONNX files: free dimensions, their error, masked decoders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("diffusers")

from diffusers import AceStepTransformer1DModel  # noqa: E402

from engine_build.export.acestep.graphs import MaskedDecoder  # noqa: E402
from engine_build.export.bundle_tables import INPUTS  # noqa: E402
from engine_build.export.cleanup import KEPT_METADATA, paths_in  # noqa: E402
from engine_build.export.decoder_graph import DecoderShape, export_decoder  # noqa: E402
from engine_build.export.torch_export import export_graph, free, graph_error, module_outputs, quiet  # noqa: E402

SHAPE = DecoderShape(channels=8, condition_width=12, frame_multiple=2, inputs=INPUTS)


def export_linear(file: Path, width: int = 8) -> Any:
    torch.manual_seed(0)
    module = torch.nn.Linear(width, 4)
    rows = free("rows", 64)
    export_graph(
        module, file, (torch.ones(3, width),), inputs=["x"], outputs=["y"], dynamic_shapes=({0: rows},),
        dimensions={"rows": "batch"},
    )  # fmt: skip
    return module


def test_the_graph_computes_what_the_module_computes(tmp_path: Path) -> None:
    module, examples = export_linear(tmp_path / "linear.onnx"), [{"x": torch.randn(rows, 8)} for rows in (1, 7)]
    expected = module_outputs(module, examples)
    assert graph_error(tmp_path / "linear.onnx", examples, expected) < 1e-6
    other = [expected[0], expected[1] + 0.5]
    assert graph_error(tmp_path / "linear.onnx", examples, other) == pytest.approx(0.5, abs=1e-5)
    (x,) = onnx.load(tmp_path / "linear.onnx").graph.input
    assert [dim.dim_param or dim.dim_value for dim in x.type.tensor_type.shape.dim] == ["batch", 8]


def test_warnings_are_suppressed_inside_quiet_only() -> None:
    with quiet():
        warnings.warn("inside", stacklevel=1)
    with pytest.raises(UserWarning, match="outside"):
        warnings.warn("outside", stacklevel=1)


@pytest.fixture(scope="module")
def decoder() -> MaskedDecoder:
    torch.manual_seed(0)
    return MaskedDecoder(
        AceStepTransformer1DModel(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            in_channels=24,
            audio_acoustic_hidden_dim=8,
            sliding_window=4,
            encoder_hidden_size=12,
        )
    ).eval()


@pytest.fixture(scope="module")
def file(decoder: MaskedDecoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "decoder.onnx"
    export_decoder(decoder, SHAPE, path)
    return path


def test_without_padding_it_is_the_model_itself(decoder: MaskedDecoder) -> None:
    latents, time, tokens, _, context = SHAPE.example(rows=2, frames=16, tokens=6, seed=1).values()
    with torch.no_grad():
        masked = decoder(latents, time, tokens, torch.ones(2, 6), context)
        more = torch.cat([tokens, torch.full((2, 3, 12), 9.0)], dim=1)
        padded = decoder(latents, time, more, torch.cat([torch.ones(2, 6), torch.zeros(2, 3)], dim=1), context)
    assert float((masked - padded).abs().max()) < 1e-6


def test_a_mask_is_not_a_zero(decoder: MaskedDecoder) -> None:
    latents, time, tokens, mask, context = SHAPE.example(rows=2, frames=16, tokens=6, seed=1).values()
    with torch.no_grad():
        masked = decoder(latents, time, tokens, mask, context)
        zeroed = decoder(latents, time, tokens * mask[:, :, None], torch.ones_like(mask), context)
    assert float((masked - zeroed).abs().max()) > 1e-4


def test_names_are_kept_and_metadata_is_module_scopes_only(file: Path) -> None:
    inputs = onnx.load(file).graph.input
    assert tuple(value.name for value in inputs) == tuple(INPUTS.values())
    shapes = [[dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in inputs]
    assert (shapes[0], shapes[2]) == (["rows", "frames", ""], ["rows", "tokens", ""])
    assert not paths_in(file)
    model = onnx.load(file)
    keys = {entry.key for node in model.graph.node for entry in node.metadata_props}
    assert keys <= set(KEPT_METADATA)
    assert any("layers.1.self_attn" in entry.value for node in model.graph.node for entry in node.metadata_props)
    assert not model.metadata_props
