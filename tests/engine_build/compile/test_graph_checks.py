"""Rows that change with others, or with their number, and graphs that draw numbers, are refused for every target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import NOTES, TinySpec, tiny_bundle, tiny_decoder, tiny_deployment
from onnx import TensorProto, helper

from engine_build.compile.builder import build, build_deployment
from engine_build.compile.environment import BuildEnvironment
from engine_build.compile.graph_checks import check_rows, check_stems
from engine_build.config import BuildConfig
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.request import load_request
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import BuildError, ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment

Body = Callable[[GraphWriter, str, str], str]
BARE = {"condition": "", "mask": False, "context": False, "codec": False, "text_encoder": False, "guidance": 1.0}
FEW = '[build]\nstep_variants = ["plain"]\nthreads = 1\n'
C = 8


def decoder(body: Body) -> onnx.ModelProto:
    """tanh(x W) + t, and what `body` makes of it and of the latents."""
    w = GraphWriter("decoder")
    latents, time = w.input("hidden_states", ("b", "f", C)), w.input("timestep", ("b",))
    weight = w.constant(np.random.default_rng(0).standard_normal((C, C)).astype(np.float32), name="w")
    hidden = w.op("Tanh", w.op("MatMul", latents, weight))
    hidden = w.op("Add", hidden, w.op("Unsqueeze", time, w.constant([1, 2], np.int64)))
    w.output("velocity", body(w, hidden, latents), ("b", "f", C))
    return w.model()


def ints(w: GraphWriter, *values: int) -> str:
    return w.constant(list(values), np.int64)


def mean(share: float) -> Body:
    def body(w: GraphWriter, x: str, _: str) -> str:
        return w.op("Add", x, w.op("Mul", w.op("ReduceMean", x, ints(w, 0)), w.constant(share)))

    return body


def neighbour(w: GraphWriter, x: str, _: str) -> str:
    last = w.op("Slice", x, ints(w, -1), ints(w, 2**31), ints(w, 0))
    rest = w.op("Slice", x, ints(w, 0), ints(w, -1), ints(w, 0))
    return w.op("Add", x, w.op("Concat", last, rest, axis=0))


def first_row(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Add", x, w.op("Slice", x, ints(w, 0), ints(w, 1), ints(w, 0)))


def frames_of_all(w: GraphWriter, x: str, _: str) -> str:
    """A mean over time, of all rows laid one after the other."""
    flat = w.op("Reshape", x, ints(w, 1, -1, C))
    return w.op("Add", x, w.op("ReduceMean", flat, ints(w, 1)))


def attention_over_rows(w: GraphWriter, x: str, _: str) -> str:
    turned = w.op("Transpose", x, perm=[1, 0, 2])
    scores = w.op("Softmax", w.op("MatMul", turned, w.op("Transpose", turned, perm=[0, 2, 1])), axis=-1)
    return w.op("Transpose", w.op("MatMul", scores, turned), perm=[1, 0, 2])


def batch_norm(w: GraphWriter, x: str, _: str) -> str:
    one, zero = w.constant(np.ones(C, np.float32)), w.constant(np.zeros(C, np.float32))
    turned = w.op("Transpose", x, perm=[0, 2, 1])
    made = w.ops("BatchNormalization", 3, turned, one, zero, zero, one, training_mode=1)
    return w.op("Transpose", made[0], perm=[0, 2, 1])


def scale_of_all(w: GraphWriter, x: str, _: str) -> str:
    codes, scale, zero = w.ops("DynamicQuantizeLinear", 3, x)
    return w.op("DequantizeLinear", codes, scale, zero)


def number_of_rows(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Div", x, w.op("Cast", w.op("Shape", x, start=0, end=1), to=TensorProto.FLOAT))


def halves(w: GraphWriter, x: str, _: str) -> str:
    one, other = w.ops("Split", 2, x, axis=0, num_outputs=2)
    return w.op("Concat", other, one, axis=0)


def variance_of_rows(w: GraphWriter, x: str, _: str) -> str:
    """So small a share that beside others nothing is seen; of one row it is 0 / 0."""
    off = w.op("Sub", x, w.op("ReduceMean", x, ints(w, 0)))
    rows = w.op("Cast", w.op("Shape", x, start=0, end=1), to=TensorProto.FLOAT)
    mean = w.op("Div", w.op("ReduceSum", w.op("Mul", off, off), ints(w, 0)), w.op("Sub", rows, w.constant(1.0)))
    return w.op("Add", x, w.op("Mul", mean, w.constant(1e-9)))


MIXING: dict[str, tuple[Body, str]] = {
    "mean": (mean(1.0), "ReduceMean"),
    "a small share of a mean": (mean(1e-3), "ReduceMean"),
    "neighbour": (neighbour, "Concat|Slice"),
    "first row": (first_row, "Slice"),
    "frames of all rows": (frames_of_all, "ReduceMean"),
    "attention over rows": (attention_over_rows, "MatMul"),
    "one scale of all rows": (scale_of_all, "DynamicQuantizeLinear"),
    "the number of rows": (number_of_rows, "Cast|Div"),
    "halves of the batch": (halves, "Split"),
    "a variance of rows": (variance_of_rows, "ReduceMean"),
}
SEEN_ALONE = ("the number of rows", "a variance of rows")


def noise(kind: str, **attributes: float) -> Body:
    def body(w: GraphWriter, x: str, _: str) -> str:
        return w.op("Add", x, w.op(kind, x, **attributes))

    return body


def fixed_noise(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Add", x, w.op("RandomNormal", shape=[1, 1, C]))


def dropout(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Dropout", x, w.constant(0.1), w.constant(True, np.bool_))


def bernoulli(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Add", x, w.op("Bernoulli", w.op("Sigmoid", x), dtype=TensorProto.FLOAT))


def multinomial(w: GraphWriter, x: str, _: str) -> str:
    drawn = w.op("Multinomial", w.op("ReduceMean", x, ints(w, 1), keepdims=0), dtype=TensorProto.INT64)
    return w.op("Add", x, w.op("Unsqueeze", w.op("Cast", drawn, to=TensorProto.FLOAT), ints(w, 2)))


def noise_in_a_branch(w: GraphWriter, x: str, _: str) -> str:
    value = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    noisy = helper.make_graph([helper.make_node("RandomNormalLike", [x], ["inner"])], "noisy", [], [value])
    plain = helper.make_graph([helper.make_node("Identity", [x], ["inner"])], "plain", [], [value])
    return w.op("If", w.constant(True, np.bool_), then_branch=noisy, else_branch=plain)


RANDOM: dict[str, tuple[Body, str]] = {
    "normal": (noise("RandomNormalLike", scale=1e-6), "RandomNormalLike"),
    "uniform": (noise("RandomUniformLike"), "RandomUniformLike"),
    "seeded": (noise("RandomNormalLike", seed=1.0), "RandomNormalLike"),
    "of a fixed shape": (fixed_noise, "RandomNormal"),
    "dropout in training": (dropout, "Dropout"),
    "Bernoulli": (bernoulli, "Bernoulli"),
    "Multinomial": (multinomial, "Cast"),
    "in a branch": (noise_in_a_branch, "If"),
}


def plain(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Neg", x)


def heads(w: GraphWriter, x: str, _: str) -> str:
    """Attention over time with rows and heads on one axis, and of an exporter that turns rows and frames."""
    turned = w.op("Transpose", x, perm=[1, 0, 2])
    back = w.op("Transpose", turned, perm=[1, 0, 2])
    split = w.op("Transpose", w.op("Reshape", back, ints(w, 0, 0, 2, C // 2)), perm=[0, 2, 1, 3])
    flat = w.op(
        "Reshape", split, w.op("Concat", ints(w, -1), w.op("Shape", x, start=1, end=2), ints(w, C // 2), axis=0)
    )
    scores = w.op("Softmax", w.op("MatMul", flat, w.op("Transpose", flat, perm=[0, 2, 1])), axis=-1)
    out = w.op("Reshape", w.op("MatMul", scores, flat), w.op("Shape", split))
    return w.op("Reshape", w.op("Transpose", out, perm=[0, 2, 1, 3]), ints(w, 0, 0, C))


def experts(w: GraphWriter, x: str, _: str) -> str:
    """Each frame through one of two matrices, in a product of all frames that chose it."""
    flat = w.op("Reshape", x, ints(w, -1, C))
    chosen = w.op("Greater", w.op("Gather", flat, w.constant(0, np.int64), axis=1), w.constant(0.0))
    places = w.op("Transpose", w.op("NonZero", chosen), perm=[1, 0])
    matrix = w.constant(np.random.default_rng(1).standard_normal((C, C)).astype(np.float32), name="expert")
    better = w.op("MatMul", w.op("GatherND", flat, places), matrix)
    return w.op("Reshape", w.op("ScatterND", flat, places, better), w.op("Shape", x))


def unused_noise(w: GraphWriter, x: str, _: str) -> str:
    return w.op("Add", x, w.op("Mul", w.op("RandomNormalLike", x), w.constant(0.0)))


GOOD: dict[str, Body] = {"plain": plain, "heads": heads, "experts": experts, "noise times zero": unused_noise}


def deployment(folder: Path, body: Body, **changes: int) -> Path:
    path = tiny_deployment(folder, more=FEW, **BARE, **changes)
    onnx.save(decoder(body), folder / "tiny" / "decoder.onnx")
    return path


def check(path: Path) -> None:
    request = load_request(path)
    check_rows(engine_specs(request), request.options)


@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize("most", [8, 2])
def test_rows_that_hear_each_other_are_refused_with_the_node(kind: str, most: int, tmp_path: Path) -> None:
    body, node = MIXING[kind]
    says = "is not what it is alone" if kind in SEEN_ALONE else "depends on the rows beside it"
    with pytest.raises(BuildError, match=rf"a row's 'velocity' {says}.*, first at node '.*' \(({node})\)") as caught:
        check(deployment(tmp_path, body, max_rows=most))
    assert "a mean or a norm over the first axis" in caught.value.fix


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("most", [8, 1])
def test_a_graph_that_draws_numbers_is_refused_with_the_node(kind: str, most: int, tmp_path: Path) -> None:
    body, node = RANDOM[kind]
    with pytest.raises(BuildError, match=rf"two executes .* differ by .*, first at node '.*' \({node}\)") as caught:
        check(deployment(tmp_path, body, max_rows=most))
    assert "model.eval()" in caught.value.fix


def test_a_norm_that_is_in_training_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime keeps its running means from execute to execute."""
    with pytest.raises(BuildError, match=r"two executes .* differ by"):
        check(deployment(tmp_path, batch_norm))


@pytest.mark.parametrize("kind", GOOD)
def test_graphs_of_independent_rows_are_taken(kind: str, tmp_path: Path) -> None:
    check(deployment(tmp_path, GOOD[kind]))


@pytest.mark.parametrize("target", ["cpu", "cuda", "tensorrt", "tensorrt-rtx"])
def test_every_target_refuses_before_it_builds(target: str, tmp_path: Path) -> None:
    here = BuildEnvironment({target: "1.0"}, {}, cannot_run="there is no such device")
    request = load_request(deployment(tmp_path, mean(0.1)))
    with pytest.raises(BuildError, match="depends on the rows beside it"):
        build(request, target=target, environment=here)  # type: ignore[arg-type]
    assert not list(request.deployment.engine_folder(target).iterdir())  # type: ignore[arg-type]


def test_a_codec_that_draws_numbers_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, more=FEW, text_encoder=False)
    model = onnx.load(tmp_path / "tiny" / "codec_decode.onnx")
    node = model.graph.node[-1]
    node.output[0] = "before"
    model.graph.node.append(helper.make_node("RandomNormalLike", ["before"], ["noise"], "dither"))
    model.graph.node.append(helper.make_node("Add", ["before", "noise"], ["audio"]))
    onnx.save(model, tmp_path / "tiny" / "codec_decode.onnx")
    with pytest.raises(BuildError, match=r"codec_decode\.onnx: two executes .*'dither' \(RandomNormalLike\)"):
        check(path)


@pytest.mark.parametrize(
    ("changes", "operator", "value", "what", "fix"),
    [
        # x^0 = 1: the mean over all tokens, also over masked ones.
        (
            {},
            "Pow",
            0.0,
            "tokens that condition_mask leaves out change it by",
            "leave condition_mask out of bundle.toml",
        ),
        (
            {"mask_counts": True},
            "Min",
            1.0,
            "a token that counts twice differs from two by",
            "leave mask_counts out of bundle.toml",
        ),
    ],
)
def test_a_mask_that_does_not_do_what_is_said_is_refused(
    tmp_path: Path, changes: dict[str, bool], operator: str, value: float, what: str, fix: str
) -> None:
    path = tiny_deployment(tmp_path, more=FEW, codec=False, text_encoder=False, **changes)
    check(path)
    model = tiny_decoder(TinySpec())
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "condition_mask":
                node.input[index] = "kept"
    model.graph.node.insert(0, helper.make_node(operator, ["condition_mask", "value"], ["kept"]))
    model.graph.initializer.append(helper.make_tensor("value", TensorProto.FLOAT, [1], [value]))
    onnx.save(model, tmp_path / "tiny" / "decoder.onnx")
    with pytest.raises(BuildError, match=what) as caught:
        check(path)
    assert fix in caught.value.fix


def test_a_graph_that_takes_some_numbers_of_rows_only_is_refused(tmp_path: Path) -> None:
    def pair(w: GraphWriter, x: str, _: str) -> str:
        return w.op("Add", x, w.constant(np.ones((2, 1, C))))

    with pytest.raises(BuildError, match=r"does not run with hidden_states \[3, 2, 8\].*Add") as caught:
        check(deployment(tmp_path, pair))
    assert "dynamic sizes" in caught.value.fix


def test_rows_that_become_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"of 3 rows it makes 'velocity' \[1, 6, 8\]"):
        check(deployment(tmp_path, lambda w, x, _: w.op("Reshape", x, ints(w, 1, -1, C))))


def test_ranges_without_a_single_row_are_refused(tmp_path: Path) -> None:
    path = deployment(tmp_path, plain)
    path.write_text(path.read_text().replace("rows = { min = 1, opt = 4", "rows = { min = 4, opt = 4"))
    with pytest.raises(
        ConfigError, match=r"no range takes fewer than 4 rows.*\n  fix: rows = \{ min = 1, opt = 4, max"
    ):
        load_request(path)


STEMS = '[stems]\nsaturation = "tanh"\n'


def test_a_codec_that_sums_its_layers_passes(tmp_path: Path) -> None:
    assert check_stems(load_bundle(tiny_bundle(tmp_path, stems=True)), BuildConfig()) < -100


def test_another_codec_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, spec=TinySpec())
    with (tmp_path / "tiny" / "bundle.toml").open("a", encoding="utf-8") as file:
        file.write(NOTES + STEMS)
    deployment = load_deployment(path)
    with pytest.raises(BuildError, match=r"the stems of tiny differ from its mix by -?\d+ dB, allowed are -60"):
        build_deployment(deployment)
    assert not list(deployment.engine_folder("cpu").glob("*.json"))


def test_another_saturation_than_the_codec_s_is_refused(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, stems=True) / "bundle.toml"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"tanh"', '"none"').replace("scale = 0.5", "scale = 20.0"),
        encoding="utf-8",
    )
    with pytest.raises(BuildError, match="say its saturation"):
        check_stems(load_bundle(tmp_path), BuildConfig())
