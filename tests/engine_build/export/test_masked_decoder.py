"""Export: masked decoders as clean ONNX graphs."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.export

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import onnx  # noqa: E402
from diffusers import AceStepTransformer1DModel  # noqa: E402

from engine_build.export.acestep.bundle_text import INPUTS  # noqa: E402
from engine_build.export.cleanup import KEPT_METADATA, paths_in  # noqa: E402
from engine_build.export.decoder_graph import DecoderShape, export_decoder  # noqa: E402
from engine_build.export.masked_decoder import MaskedDecoder  # noqa: E402
from engine_build.export.torch_export import graph_error, module_outputs  # noqa: E402

SHAPE = DecoderShape(channels=8, condition_width=12, frame_multiple=2, inputs=INPUTS)


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


def test_the_graph_agrees_with_torch_at_every_size(decoder: MaskedDecoder, file: Path) -> None:
    sizes = [(1, 2, 1), (1, 64, 7), (5, 32, 24), (2, 512, 3)]
    examples = [SHAPE.example(*size, seed) for seed, size in enumerate(sizes)]
    assert graph_error(file, examples, module_outputs(decoder, examples)) < 1e-5


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


def test_names_and_dimensions(file: Path) -> None:
    graph = onnx.load(file).graph
    assert tuple(value.name for value in graph.input) == tuple(INPUTS.values())
    dimensions = [dimension.dim_param for dimension in graph.input[0].type.tensor_type.shape.dim]
    assert dimensions == ["rows", "frames", ""]
    assert [dimension.dim_param for dimension in graph.input[2].type.tensor_type.shape.dim] == ["rows", "tokens", ""]


def test_metadata_is_module_scopes_only(file: Path) -> None:
    assert not paths_in(file)
    model = onnx.load(file)
    keys = {entry.key for node in model.graph.node for entry in node.metadata_props}
    assert keys <= set(KEPT_METADATA)
    assert any("layers.1.self_attn" in entry.value for node in model.graph.node for entry in node.metadata_props)
    assert not model.metadata_props
