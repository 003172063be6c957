"""A graph of one's own from `init` to HTTP: by every rule its latents are those of a loop over the steps in float64."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
from conftest import Built
from helpers.http_harness import GENERATIONS, Served, problem, serving
from helpers.live_player import is_audio, player
from numpy.typing import NDArray
from typer.testing import CliRunner

from engine_build.cli import app
from engine_build.graphs.graph_writer import GraphWriter
from runtime.base.errors import EngineMismatchError
from runtime.config.deployment import load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.loading import open_engines
from runtime.live.protocol.server_messages import Applied, Problem
from runtime.requests.timesteps import noise

F64 = NDArray[np.float64]
# p, n, guidance, rescale and what is kept between steps -> the velocity.
Rule = Callable[[F64, F64, float, float, dict[str, F64]], F64]
C, D, WIDTH, T, STEPS = 4, 6, 16, 250, 6
RANDOM = np.random.default_rng(7)
W_IN, W_TIME, W_CONDITION, W_OUT = (
    (RANDOM.standard_normal(shape) * 0.7).astype(np.float32)
    for shape in ((C, WIDTH), (1, WIDTH), (D, WIDTH), (WIDTH, C))
)
CONDITIONS = RANDOM.standard_normal((8, 1, D)).astype(np.float32)
NULL = RANDOM.standard_normal((1, D)).astype(np.float32)
SCALES = (3.0, 0.0, 1.5, 7.0, 3.0, 12.0, 2.0, 4.0)
RESCALES = (0.0, 0.0, 0.7, 1.0, 0.3, 0.5, 0.0, 0.9)


def save_model(path: Path) -> None:
    """v = tanh(x A + t b + c B + the mean over time) O."""
    graph = GraphWriter("model")
    x, t, c = graph.input("x", ("n", "frames", C)), graph.input("t", ("n",)), graph.input("c", ("n", D))
    time = graph.op("MatMul", graph.op("Reshape", t, graph.constant([-1, 1], np.int64)), graph.constant(W_TIME))
    added = graph.op("Add", time, graph.op("MatMul", c, graph.constant(W_CONDITION)))
    hidden = graph.op("MatMul", x, graph.constant(W_IN))
    mean = graph.op("ReduceMean", hidden, graph.constant([1], np.int64), keepdims=1)
    hidden = graph.op("Add", graph.op("Add", hidden, mean), graph.op("Unsqueeze", added, graph.constant([1], np.int64)))
    graph.output("v", graph.op("MatMul", graph.op("Tanh", hidden), graph.constant(W_OUT)), ("n", "frames", C))
    onnx.save(graph.model(), path)


def velocity(x: F64, t: float, c: NDArray[np.float32]) -> F64:
    a, b, d, o = (np.float64(weights) for weights in (W_IN, W_TIME, W_CONDITION, W_OUT))
    hidden = x @ a
    return np.asarray(np.tanh(hidden + hidden.mean(0, keepdims=True) + t * b + np.float64(c) @ d) @ o)


def plain(p: F64, n: F64, g: float, r: float, kept: dict[str, F64]) -> F64:
    """Lin et al., equations 15 and 16."""
    v = n + g * (p - n)
    return r * v * (p.std() / v.std()) + (1 - r) * v


def apg(p: F64, n: F64, g: float, r: float, kept: dict[str, F64]) -> F64:
    """Sadat et al., algorithm 1, over all of a generation: momentum -0.5, radius 1.5, eta 0.25."""
    kept["d"] = p - n - 0.5 * kept.get("d", np.zeros_like(p))
    d = kept["d"] * min(1.0, 1.5 / np.linalg.norm(kept["d"]))
    unit = p / np.linalg.norm(p)
    parallel = (d * unit).sum() * unit
    v = p + (g - 1) * (d - parallel + 0.25 * parallel)
    return r * v * (p.std() / v.std()) + (1 - r) * v


def apg_by_channel(p: F64, n: F64, g: float, r: float, kept: dict[str, F64]) -> F64:
    """What a bundle without [guidance] has: every channel for itself, with ACE-Step's numbers."""
    kept["d"] = p - n - 0.75 * kept.get("d", np.zeros_like(p))
    v = np.empty_like(p)
    for c in range(C):
        d, one = kept["d"][:, c], p[:, c]
        d = d * min(1.0, 2.5 / np.linalg.norm(d))
        v[:, c] = one + (g - 1) * (d - (d @ one) / (one @ one) * one)
        v[:, c] *= 1 + r * (np.linalg.norm(one) / np.linalg.norm(v[:, c]) - 1)
    return v


def generated(rule: Rule, condition: NDArray[np.float32], seed: int, g: float, r: float) -> F64:
    x, kept = np.float64(noise(T, C, seed)), dict[str, F64]()
    for step in range(STEPS):
        t = 1 - step / STEPS
        p, n = velocity(x, t, condition), velocity(x, t, NULL)
        x = x - rule(p, n, g, r, kept) / STEPS
    return x


TABLES: dict[str, tuple[str | None, Rule]] = {
    "init": (None, plain),
    "apg": ('rule = "apg"\nnorms = "all"\nmomentum = -0.5\nnorm_limit = 1.5\nparallel = 0.25', apg),
    "none": ("", apg_by_channel),
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `init` writes it, with a null condition and few step variants; 8 generations share an execute."""
    folder = tmp_path_factory.mktemp("own")
    save_model(folder / "model.onnx")
    np.save(folder / "null.npy", NULL)
    assert CliRunner().invoke(app, ["init", str(folder / "model.onnx")]).exit_code == 0
    bundle, path = folder / "bundle.toml", folder / "deployment.toml"
    bundle.write_text(bundle.read_text().replace("[decoder]", "[decoder]\nnull_condition = 'null.npy'"))
    text = path.read_text().replace("opt = 4, max = 8", "opt = 4, max = 16").replace("depth = 4", "depth = 8")
    path.write_text(f'{text}\n[build]\nstep_variants = ["plain", "guidance"]\n')
    return path


def build(path: Path, table: str | None) -> str:
    """Build with this [guidance]: None as it is, "" without one."""
    bundle = path.parent / "bundle.toml"
    if table is not None:
        before = bundle.read_text().partition("\n[guidance]")[0]
        bundle.write_text(before + (f"\n[guidance]\n{table}\n" if table else "\n"))
    result = CliRunner().invoke(app, [str(path)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module", params=TABLES)
def served(deployment: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Served, Rule]]:
    table, rule = TABLES[request.param]
    build(deployment, table)
    with serving(load_deployment(deployment)) as server:
        yield server, rule


def latents(server: Served, index: int, **options: Any) -> NDArray[np.float32]:
    asked = {"seed": index, "steps": STEPS, "response_format": "latents", **options}
    tensor = safetensors.numpy.save({"condition": CONDITIONS[index]})
    files = {"request": (None, json.dumps(asked), "application/json"), "condition": ("condition", tensor)}
    response = server.send("POST", GENERATIONS, files=files)
    assert response.status_code == 200, response.text
    return safetensors.numpy.load(response.content)["latents"]


def test_eight_at_once_are_those_of_a_plain_loop(served: tuple[Served, Rule]) -> None:
    server, rule = served
    options = [{"guidance": g, **({"rescale": r} if r else {})} for g, r in zip(SCALES, RESCALES, strict=True)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: latents(server, index, **options[index]), range(8)))
    for index, each in enumerate(found):
        expected, *others = (
            generated(one, CONDITIONS[index], index, SCALES[index], RESCALES[index])
            for one in (rule, *(other for _, other in TABLES.values() if other is not rule))
        )
        peak = np.abs(expected).max()
        assert np.abs(each - expected).max() < 1e-5 * peak
        assert all(np.abs(other - expected).max() > 1e-3 * peak for other in others)


def test_the_rule_is_told_and_what_it_leaves_no_choice_of_is_refused(served: tuple[Served, Rule]) -> None:
    server, rule = served
    spec = server.pipeline.bundle.guidance
    assert (spec.rule == "plain") == (rule is plain)
    (card,) = server.get("/v1/models").json()["data"]
    offered = server.get("/v1/schema").json()["properties"]
    body = {"guidance": 3.0, "momentum": 0.5}
    answer = server.send("POST", GENERATIONS, json=body)
    assert card["guidance"] == spec.model_dump()
    assert offered["guidance"]["x-rule"] == spec.rule
    assert offered["rescale"]["default"] == 0.0
    if rule is plain:
        assert "momentum" not in offered
        assert "its guidance is plain, [guidance] rule" in problem(answer, 422)["detail"]
    else:
        assert offered["momentum"]["default"] == spec.momentum


def test_another_rule_builds_the_guided_steps_anew_and_engines_of_the_one_before_are_refused(deployment: Path) -> None:
    build(deployment, "")
    bundle = deployment.parent / "bundle.toml"
    bundle.write_text(f'{bundle.read_text()}\n[guidance]\nrule = "plain"\n')
    with pytest.raises(EngineMismatchError, match=r"step\..* was built with another \[guidance\] .* than .*rule plain"):
        open_engines(load_deployment(deployment), HostDevice())
    before = {path: path.stat().st_mtime_ns for path in (deployment.parent).rglob("*.manifest.json")}
    build(deployment, None)
    changed = {
        path.name.removesuffix(".manifest.json") for path, time in before.items() if path.stat().st_mtime_ns != time
    }
    assert changed == {
        name for name in (path.name.removesuffix(".manifest.json") for path in before) if "guidance" in name
    }
    open_engines(load_deployment(deployment), HostDevice()).close()
    bundle.write_text(bundle.read_text().replace('rule = "plain"', "momentum = 0.5\nrescale = 0.25"))
    with pytest.raises(EngineMismatchError, match="rule plain, norms all"):
        open_engines(load_deployment(deployment), HostDevice())


def test_a_live_session_takes_the_defaults_of_its_rule_and_offers_no_momentum_without_one(built: Built) -> None:
    with serving(built(rule='rule = "plain"\nrescale = 0.25')) as server, player(server) as client:
        ready = client.open(mode="loop", prompts=[{"text": "a"}], seed=1)
        offered = ready.controls.json_schema["properties"]
        assert "momentum" not in offered
        assert (offered["rescale"]["default"], ready.controls.values["rescale"]) == (0.25, 0.25)
        client.receive_until(is_audio)
        client.send(type="set", seq=1, values={"momentum": 0.3})
        assert "its guidance is plain" in client.receive_until(lambda item: isinstance(item, Problem)).detail
        client.send(type="set", seq=2, values={"guidance": 6.0, "rescale": 0.5})
        client.receive_until(lambda item: isinstance(item, Applied) and item.seq == 2)
        client.receive_until(is_audio)
