"""Which library runs an engine on the CPU: the faster one, where rows keep their bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import building
from helpers.factories import tiny_deployment
from numpy.typing import NDArray
from onnx import helper

from engine_build.compile import backends
from engine_build.compile.backends import same_bits, speed_ratio
from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import RebuildDecision, check_rebuilds
from engine_build.compile.verify import sample_inputs
from engine_build.compile.worker import BuildLog
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec
from engine_build.specs.engine_specs import engine_specs
from runtime.config.deployment import load_deployment
from runtime.devices.device import HostDevice
from runtime.engines.loading import OPENVINO_FIX, install_command, open_engine
from runtime.engines.manifest import BACKEND, SAME_BITS, Manifest, machine_mismatch

pytest.importorskip("openvino", reason="needs pip install 'tickrt[openvino]'")

VARIANTS = "what it computes has the same bits in all its variants there"
MERGED = "adapters are merged into its weights when it is opened"
BITS = "openvino is not taken: a row has other bits alone than beside other rows"
Ratio = Callable[[float], None]


def deployment_of(folder: Path, backend: str = "auto", **changes: Any) -> Path:
    more = f'[build]\nstep_variants = ["plain"]\nbackend = "{backend}"\n'
    return tiny_deployment(folder, more=more, **changes)


def decision(path: Path, name: str) -> RebuildDecision:
    return next(each for each in check_rebuilds(load_request(path), "cpu") if each.spec.name == name)


def build_engine(path: Path, name: str, log: BuildLog | None = None) -> Manifest:
    request, folder = load_request(path).for_target("cpu"), load_deployment(path).engine_folder("cpu")
    with locked(folder):
        environment = build_environment("cpu", request.options)
        return building.build_engine(decision(path, name), request, folder, environment, log)


@pytest.fixture
def so_fast(monkeypatch: pytest.MonkeyPatch) -> Ratio:
    """`so_fast(2)`: OpenVINO is found to take half the time."""
    return lambda ratio: monkeypatch.setattr(backends, "speed_ratio", lambda *_: ratio)


def test_auto_takes_the_faster_library_once_and_leaves_no_files_of_the_other(tmp_path: Path, so_fast: Ratio) -> None:
    path, name, log = deployment_of(tmp_path), "codec_decode", BuildLog()
    folder, spec = load_deployment(path).engine_folder("cpu"), decision(path, name).spec
    so_fast(1.56)
    manifest = build_engine(path, name, log)
    assert (manifest.target, manifest.engine_file) == ("cpu", "codec_decode.xml")
    assert manifest.facts[BACKEND] == "openvino: 1.56 times as fast as onnxruntime"
    assert log.summary() == ["codec_decode: openvino, 1.56 times as fast as onnxruntime"]
    assert decision(path, name).action == "reuse"
    assert {file.suffix for file in folder.iterdir()} == {".bin", ".json", ".xml"}
    feeds = next(sample_inputs(spec))
    found = open_engine(folder, name, HostDevice(), threads=1).run(feeds)["audio"]
    path.write_text(path.read_text().replace('backend = "auto"\n', ""))
    assert decision(path, name).action == "build"
    assert BACKEND not in build_engine(path, name).facts
    assert {file.suffix for file in folder.iterdir()} == {".json", ".onnx"}
    np.testing.assert_allclose(open_engine(folder, name, HostDevice(), threads=1).run(feeds)["audio"], found, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "ratio", "changes", "reason"),
    [
        ("codec_decode", 1.1, {}, "openvino is 1.10 times as fast"),
        ("step.plain", 2, {}, VARIANTS),
        ("decoder", 2, {"adapters": True}, MERGED),
    ],
)
def test_a_graph_stays_in_onnx_runtime(
    name: str, ratio: float, changes: dict[str, Any], reason: str, tmp_path: Path, so_fast: Ratio
) -> None:
    so_fast(ratio)
    log = BuildLog()
    manifest = build_engine(deployment_of(tmp_path, **changes), name, log)
    assert (manifest.engine_file, manifest.facts[BACKEND]) == (f"{name}.onnx", f"onnxruntime: {reason}")
    assert log.summary() == [f"{name.partition('.')[0]}: onnxruntime, {reason}"]


def test_rows_that_depend_on_others_keep_a_decoder_in_onnx_runtime(tmp_path: Path, so_fast: Ratio) -> None:
    so_fast(2)
    path = deployment_of(tmp_path, codec=False)
    assert build_engine(path, "decoder").facts[BACKEND].startswith("openvino")
    mix_rows(load_deployment(path).bundle / "decoder.onnx")
    assert build_engine(path, "decoder").facts[BACKEND] == f"onnxruntime: {BITS}"
    log = BuildLog()
    path.write_text(path.read_text().replace('"auto"', '"openvino"'))
    manifest = build_engine(path, "decoder", log)
    assert (manifest.engine_file, manifest.facts[SAME_BITS]) == ("decoder.xml", False)
    assert log.summary() == ["decoder: a row has other bits alone than beside other rows"]


def mix_rows(file: Path) -> None:
    """A row of the decoder gets a little of all rows."""
    model = onnx.load(file)
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = ["own" if name == output.name else name for name in node.output]
    scale = helper.make_tensor("little", onnx.TensorProto.FLOAT, [], [1e-3])
    model.graph.initializer.append(scale)
    model.graph.node.extend(
        [
            helper.make_node("ReduceSum", ["own", "axis"], ["sum"], keepdims=1),
            helper.make_node("Mul", ["sum", "little"], ["part"]),
            helper.make_node("Add", ["own", "part"], [output.name]),
        ]
    )
    model.graph.initializer.append(helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [0]))
    onnx.save(model, file)


class Rows:
    """An engine of a decoder whose rows are changed by `change`, which gets the latents and the mask."""

    def __init__(self, change: Callable[..., NDArray[Any]]) -> None:
        self._change = change

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        latents, mask = feeds["hidden_states"], feeds["condition_mask"]
        return {"velocity": latents + self._change(latents, mask)}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    return engine_specs(load_request(tiny_deployment(tmp_path_factory.mktemp("tiny"))))[0]


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (lambda latents, mask: mask.sum(1)[:, None, None], True),
        (lambda latents, mask: np.float32(1e-5 * (len(latents) > 4)), False),
        (lambda latents, mask: np.float32(1e-5 * (mask.shape[1] > 8)), False),
    ],
)
def test_rows_are_compared_bit_for_bit_in_batches_and_with_more_tokens(
    change: Callable[..., NDArray[Any]], is_same: bool, decoder: EngineSpec
) -> None:
    engine: Any = Rows(change)
    assert same_bits(decoder, engine) is is_same


def test_the_ratio_is_of_executes_in_turn() -> None:
    called = list[str]()
    assert speed_ratio(lambda: called.append("first"), lambda: called.append("second")) > 0
    assert called == ["first", "second"] * (len(called) // 2)


def test_only_an_engine_in_openvino_needs_it(tmp_path: Path, so_fast: Ratio) -> None:
    so_fast(2)
    path = deployment_of(tmp_path)
    theirs, ours = build_engine(path, "codec_decode"), build_engine(path, "rows.plain")
    versions = {"onnxruntime": ours.tool_versions["onnxruntime"]}
    assert machine_mismatch(ours, ours.device, versions) == install_command(ours, versions) == ""
    assert "this machine has none" in machine_mismatch(theirs, theirs.device, versions)
    assert install_command(theirs, versions) == OPENVINO_FIX
    assert install_command(theirs, theirs.tool_versions) == ""
