from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer.main
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec, tiny_deployment
from helpers.http_harness import Served, problem, serving

from runtime.commands.generate import app
from runtime.requests.option_types import DcwOptions
from runtime.requests.options import GenerationOptions
from runtime.requests.validation import untaken_options

SPEC = TinySpec()


def test_the_model_list_has_openais_shape_and_the_models_facts(served: Served) -> None:
    models = served.get("/v1/models").json()
    one = served.get("/v1/models/tiny").json()
    missing = problem(served.get("/v1/models/tinny"), 404, "model_not_found")
    assert missing["fix"] == "did you mean tiny?"
    assert models == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["owned_by"]) == ("tiny", "model", "tickrt")
    assert (one["sample_rate_hz"], one["canvas_seconds"], one["latent_channels"]) == (8000, 1.28, 8)
    assert (one["takes_text"], one["takes_source"]) == (True, True)
    assert one["defaults"]["steps"] == 4
    assert len(one["engines"]["decoder"]["sha256"]) == 64
    assert "mid" not in one["response_formats"]
    assert served.post(model="tiny", steps=1).status_code == 200


def test_a_closed_vocabulary_is_listed(built: Built, served: Served) -> None:
    assert served.get("/v1/models/tiny").json()["vocabulary"] is None
    with serving(built(words=("calm", "drums"), more=FEW_VARIANTS)) as other, other.client() as client:
        assert client.get("/v1/models/tiny").json()["vocabulary"] == ["calm", "drums"]


def test_every_option_is_once_in_the_schema_and_a_flag_of_tickrt_generate(served: Served) -> None:
    """All of them come from GenerationOptions; dcw, an object, has one flag per field."""
    properties = set(served.get("/v1/schema").json()["properties"])
    flags = [flag for item in typer.main.get_command(app).params for flag in item.opts if flag.startswith("--")]
    pipeline = served.app.state.service.pipeline
    untaken = untaken_options(pipeline.bundle)
    assert {"lyrics", "bpm", "timbre_strength"} < untaken
    assert not properties & {*untaken, "timbre_id"}
    options = set(GenerationOptions.model_fields)
    of_the_response = {"response_format", "stems", "quantize", "sample_rate_hz", "bit_rate_kbps", "stream", "metadata"}
    assert properties - options == {*of_the_response, "source_id", "target_id", "model"}
    assert options - untaken <= properties
    flat = options - {"dcw"} | {f"dcw_{name}" for name in DcwOptions.model_fields}
    assert {f"--{name.replace('_', '-')}" for name in flat} <= set(flags)
    assert len(flags) == len(set(flags))


@pytest.fixture(scope="module")
def file_without_text_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without-text")
    path = tiny_deployment(folder, text_encoder=False, more=FEW_VARIANTS)
    bundle = folder / "tiny" / "bundle.toml"
    bundle.write_text(bundle.read_text().replace("[decoder]\n", '[decoder]\nnull_condition = "null.npy"\n'))
    np.save(bundle.with_name("null.npy"), np.full((1, SPEC.condition_width), 0.5, np.float32))
    return path


def test_a_model_without_text_encoder_says_so_and_generates_from_its_null_condition(
    built: Built, file_without_text_encoder: Path
) -> None:
    with serving(built(file_without_text_encoder)) as served:
        (card,) = served.get("/v1/models").json()["data"]
        assert card["takes_text"] is False
        assert len(served.post(prompt="", seconds=1.0, response_format="pcm").content) == 8000 * 2 * 2
        refused = problem(served.post(prompt="piano"), 422)
        assert "takes no text" in refused["detail"]
        assert "leave the text empty" in str(refused)
