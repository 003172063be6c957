"""The options that decide whether an engine is reused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from helpers.factories import tiny_deployment
from onnx import helper, numpy_helper

from engine_build.compile.environment import BuildEnvironment, probe_environment
from engine_build.compile.rebuild_check import _outermost, build_options, check_graphs, check_rebuilds
from engine_build.config import CPU_GRAPH_VERSION, RECIPE_VERSION, BuildConfig
from engine_build.graphs.graph_file import graph_of
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.tensorrt_preparation import PREPARATION
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError
from runtime.config.deployment import Target


@pytest.fixture
def options(tmp_path: Path) -> tuple[dict[str, EngineSpec], BuildConfig]:
    request = load_request(tiny_deployment(tmp_path, more='[build]\nprecision = "bf16"\n'))
    return {spec.name: spec for spec in engine_specs(request)}, request.options


def test_the_versions_of_what_is_done_to_graphs_are_in_the_options(
    options: tuple[dict[str, EngineSpec], BuildConfig],
) -> None:
    """So that engines of another version are stale."""
    specs, chosen = options
    for target in ("cuda", "tensorrt", "tensorrt-rtx"):
        found = {name: build_options(spec, target, chosen) for name, spec in specs.items()}
        versions = {name: build["recipe"] for name, build in found.items() if "recipe" in build}
        assert versions == dict.fromkeys(("decoder", "text_encoder"), RECIPE_VERSION)
        assert target == "cuda" or {build["preparation"] for build in found.values()} == {PREPARATION}
    plain, basic = (build_options(specs["decoder"], "cpu", BuildConfig(optimization=name)) for name in ("all", "basic"))
    assert (plain["rewrite"], "rewrite" in basic) == (CPU_GRAPH_VERSION, False)


def test_ticks_run_on_one_stream_and_tell_nan_from_numbers(options: tuple[dict[str, EngineSpec], BuildConfig]) -> None:
    specs, chosen = options
    found = {name: build_options(spec, "tensorrt", chosen) for name, spec in specs.items()}
    assert {name for name, build in found.items() if build["strict_nans"]} == {
        name for name in specs if name.startswith(("rows.", "step."))
    }
    assert {name for name, build in found.items() if build["max_aux_streams"] is None} == {
        "codec_decode", "codec_encode", "text_encoder",
    }  # fmt: skip


def test_tensorrt_rtx_has_only_the_options_that_it_reads(options: tuple[dict[str, EngineSpec], BuildConfig]) -> None:
    specs, chosen = options
    both = [build_options(specs["decoder"], target, chosen) for target in ("tensorrt", "tensorrt-rtx")]
    assert both[0].keys() - both[1].keys() == {"refit", "version_compatible", "hardware_compatibility"}
    assert both[1].pop("capabilities") == []
    assert all(both[0][name] == value for name, value in both[1].items())


def test_tf32_is_float32_with_rounded_factors(options: tuple[dict[str, EngineSpec], BuildConfig]) -> None:
    tf32, fp32 = (BuildConfig.model_validate({"precision": {"codec": name}}) for name in ("tf32", "fp32"))
    for target in ("cuda", "tensorrt", "tensorrt-rtx"):
        spec = options[0]["codec_decode"]
        quiet, plain = (build_options(spec, target, chosen) for chosen in (tf32, fp32))
        assert {name for name in plain if quiet[name] != plain[name]} == {"tf32", "tolerance"}
        assert (quiet["precision"], quiet["tf32"]) == ("fp32", True)


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize(
    ("kind", "changed"),
    [("codec", {"codec_decode", "codec_encode"}), ("encoders", {"text_encoder"}), ("planner", set[str]())],
)
def test_an_engine_depends_on_the_values_of_its_own_kind_only(
    target: Target, kind: str, changed: set[str], options: tuple[dict[str, EngineSpec], BuildConfig]
) -> None:
    for name, value in (("precision", "fp16"), ("optimization_level", 2), ("workspace_mib", 64)):
        both = [BuildConfig.model_validate(table) for table in ({}, {name: {kind: value}})]
        before, after = ([build_options(spec, target, one) for spec in options[0].values()] for one in both)
        assert {spec for spec, one, other in zip(options[0], before, after, strict=True) if one != other} == changed
        assert all(value not in (None, {}) for one in after for value in [one["optimization_level"]])


@pytest.mark.parametrize("heads", [63, 64])
def test_a_shape_range_with_too_many_scores_is_refused_before_anything_is_built(tmp_path: Path, heads: int) -> None:
    """8 rows, 64 heads, 2048 x 2048 frames: 2^31 elements. Needs no GPU."""
    path = tiny_deployment(tmp_path, codec=False, text_encoder=False)
    path.write_text(path.read_text().replace("max = 64 }", "max = 2048 }"))
    request = load_request(path)
    decoder = check_rebuilds(request, "tensorrt", environment=probe_environment("tensorrt", request.options))[0]
    model = model_of(decoder.spec.graph)
    for name, value in (("axis", np.array([1])), ("heads", np.array([1, heads, 1, 1]))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    for kind, inputs, output, attributes in (
        ("Unsqueeze", ["velocity", "axis"], "one_head", {}),
        ("Expand", ["one_head", "heads"], "q", {}),
        ("Transpose", ["q"], "k", {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["q", "k"], "scores", {}),
    ):
        model.graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
    model.graph.output.append(helper.make_tensor_value_info("scores", 1, ["rows", heads, "frames", "frames"]))
    changed = replace(decoder, spec=replace(decoder.spec, graph=graph_of(model)))
    if heads == 63:
        check_graphs([changed])
        return
    with pytest.raises(
        BuildError, match=r"decoder is too large for TensorRT at rows 8, frames 2048, .*'scores'"
    ) as caught:
        check_graphs([changed])
    assert "lower max of that range in [[shapes]]" in caught.value.fix
    check_graphs([replace(changed, action="reuse")])


def test_for_tensorrt_rtx_what_it_would_compute_wrongly_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    """It takes the lengths of attention's keys, and ignores them."""
    request = load_request(tiny_deployment(tmp_path))
    decoder = check_rebuilds(request, "tensorrt-rtx", environment=BuildEnvironment())[0]
    check_graphs([decoder])
    model = model_of(decoder.spec.graph)
    model.graph.node.append(helper.make_node("Attention", ["q", "k", "v", "", "", "", "lengths"], ["y"]))
    changed = replace(decoder, spec=replace(decoder.spec, graph=graph_of(model)))
    with pytest.raises(BuildError, match="the lengths of its keys are an input, which is ignored"):
        check_graphs([changed])
    check_graphs([replace(changed, action="reuse")])


def test_the_ranges_that_others_hold_are_not_looked_at() -> None:
    sizes = [{"R": 8, "T": 10}, {"R": 16, "T": 10}, {"R": 8, "T": 20}, {"R": 8, "T": 20}, {"R": 4, "T": 20}]
    assert list(_outermost(sizes)) == [{"R": 16, "T": 10}, {"R": 8, "T": 20}]


def test_int8_is_for_the_decoder_on_the_cpu(options: tuple[dict[str, EngineSpec], BuildConfig]) -> None:
    specs, int8 = options[0], BuildConfig(precision="int8")
    chosen = {name: build_options(spec, "cpu", int8).get("precision") for name, spec in specs.items()}
    assert [name for name, precision in chosen.items() if precision is not None] == ["decoder"]
    assert (
        build_options(specs["decoder"], "cpu", int8)["tolerance"]
        > build_options(specs["decoder"], "cpu", BuildConfig())["tolerance"]
    )


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_8_bits_on_gpus_are_for_decoders_and_what_else_is_rounded_is_bf16(
    target: Target, precision: Literal["fp8", "int8"], options: tuple[dict[str, EngineSpec], BuildConfig]
) -> None:
    chosen = BuildConfig(precision=precision)
    found = {name: build_options(spec, target, chosen) for name, spec in options[0].items()}
    assert found["decoder"]["precision"] == precision
    assert found["decoder"]["recipe"]
    assert {name for name in found if found[name]["precision"] == "bf16"} == {"text_encoder"}
    assert found["codec_decode"]["precision"] == "fp32"
    assert found["decoder"]["tolerance"] > found["text_encoder"]["tolerance"]
