"""What engine_build/README.md says about a family of one's own, done as it says, and compared with torch."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.family_walk import Walk, with_the_wheel_alone
from helpers.paths import ROOT
from numpy.typing import NDArray
from safetensors.numpy import load, load_file

from engine_build.export.family import family_of_file
from runtime.config.bundle import load_bundle

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(shutil.which("curl") is None, reason="the shown requests are curl's"),
]

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

SECONDS, FRAMES, STEPS = 4, 100, 8


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_the_wheel_alone(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def walk(python: str, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """With the commands of the wheel: no checkout."""
    return Walk(tmp_path_factory.mktemp("walk"), python)


@pytest.fixture(scope="module")
def address(walk: Walk) -> Iterator[str]:
    with walk.complete() as address:
        yield address


def test_the_walk_is_with_the_wheel(python: str) -> None:
    program = "import engine_build, runtime, server; print(engine_build.__file__, runtime.__file__, server.__file__)"
    found = subprocess.run([python, "-c", program], cwd="/", check=True, capture_output=True, text=True).stdout
    assert all(file.startswith(str(Path(python).parents[1])) for file in found.split())
    assert str(ROOT) not in found


def test_the_shown_commands_make_a_bundle_and_latents(walk: Walk, address: str) -> None:
    bundle = load_bundle(walk.folder / "ltx")
    assert (bundle.codec, bundle.text_encoder, bundle.guidance.rule) == (None, None, "plain")
    for name in ("a.safetensors", "b.safetensors"):
        (latents,) = load_file(walk.folder / name).values()
        assert latents.shape == (FRAMES // 2, 8)
        assert np.isfinite(latents).all()
    assert not (walk.folder / "ltx.export.log").exists()


def generated(address: str, folder: Path, seed: int, guidance: float) -> NDArray[np.float32]:
    options = {"seconds": SECONDS, "seed": seed, "guidance": guidance, "noise": "torch", "response_format": "latents"}
    parts = {
        "request": (None, json.dumps(options), "application/json"),
        "condition": ("condition.safetensors", (folder / "condition.safetensors").read_bytes()),
    }
    answer = httpx.post(f"http://{address}/v1/audio/generations", files=parts, timeout=120)
    assert answer.is_success, answer.text
    (latents,) = load(answer.content).values()
    return latents


def expected(folder: Path, seed: int, guidance: float) -> NDArray[np.float32]:
    """Euler's steps of diffusers' module in torch, with guidance as everybody writes it."""
    source = family_of_file(folder / "ltx.py").export(random=True).source
    transformer: Any = source.load("transformer")
    conditions = np.load(folder / "condition.npy"), np.load(folder / "ltx" / "null_condition.npy")

    def velocity(x: Any, t: float, condition: NDArray[np.float32]) -> Any:
        tokens, time = torch.from_numpy(condition)[None], torch.tensor([1000 * t])
        mask = torch.ones(tokens.shape[:2])
        return transformer(x, tokens, time, mask, FRAMES, 1, 1, return_dict=False)[0]

    x = torch.randn(1, FRAMES, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for step in range(STEPS):
            t = 1 - step / STEPS
            positive, negative = (velocity(x, t, condition) for condition in conditions)
            x = x - (negative + guidance * (positive - negative)) / STEPS
    return np.asarray(x[0])


def test_what_is_served_is_what_torch_computes_alone_and_beside_others(walk: Walk, address: str) -> None:
    asked = [(1, 1.0), (2, 3.0), (3, 3.0)]
    alone = [generated(address, walk.folder, *each) for each in asked]
    for latents, (seed, guidance) in zip(alone, asked, strict=True):
        wanted = expected(walk.folder, seed, guidance)
        assert np.abs(latents - wanted).max() < 1e-4 * np.abs(wanted).max()
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda each: generated(address, walk.folder, *each), asked))
    for latents, wanted in zip(together, alone, strict=True):
        assert np.array_equal(latents, wanted)
