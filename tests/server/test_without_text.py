"""A server of a bundle that takes no text: it comes up, plays its null condition, and says what it cannot do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec, tiny_deployment
from helpers.http_harness import Served, problem, serving

SPEC = TinySpec()


@pytest.fixture(scope="module")
def deployment_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mute")
    path = tiny_deployment(folder, text_encoder=False, more=FEW_VARIANTS)
    bundle = folder / "tiny" / "bundle.toml"
    bundle.write_text(bundle.read_text().replace("[decoder]\n", '[decoder]\nnull_condition = "null.npy"\n'))
    np.save(bundle.with_name("null.npy"), np.full((1, SPEC.condition_width), 0.5, np.float32))
    return path


def test_it_plays_its_null_condition_and_refuses_texts(built: Built, deployment_file: Path) -> None:
    with serving(built(deployment_file)) as served:
        _check(served)


def _check(served: Served) -> None:
    with served.client() as client:
        (card,) = client.get("/v1/models").json()["data"]
        assert client.get("/health/ready").status_code == 200
    assert card["takes_text"] is False
    assert len(served.post(prompt="", seconds=1.0, response_format="pcm").content) == 8000 * 2 * 2
    refused = problem(served.post(prompt="piano"), 422)
    assert "takes no text" in refused["detail"]
    assert "leave the text empty" in str(refused)
