"""Small decoders as strangers export them, from public reports about exporters, TensorRT and ONNX Runtime.

Each is a folder with `model.onnx` (`codec.onnx`), and what is expected of it: that the commands serve what a plain
Euler loop over ONNX Runtime gives, or that one of them refuses it with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, numpy_helper

C, D = 4, 3
FLOAT, FLOAT16, BFLOAT16, DOUBLE, INT64, BOOL = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.INT64,
    TensorProto.BOOL,
)  # fmt: skip
Shape = Sequence[int | str | None]
Write = Callable[[Path], None]


@dataclass(frozen=True)
class Stranger:
    """One graph. refused: command (init, build, rtx) -> a part of the sentence with which it refuses; none: it works.

    flags: of `init`. build: lines of [build]. condition: the shape of what generations bring as theirs, () for none.
    """

    write: Write
    refused: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    build: str = ""
    condition: tuple[int, ...] = ()
    has_codec: bool = False


class Graph:
    """A decoder that is being written: latents and time, then what `op` adds, then `save`."""

    def __init__(self, *, latents: Shape = ("rows", "frames", C), time: Shape = ("rows",), kind: int = FLOAT) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.parts: dict[str, Any] = {}
        self.inputs = [value("latents", latents, kind), value("timestep", time)]
        self.velocity_shape: Shape = latents
        self.outputs: list[onnx.ValueInfoProto] = []
        self.ir_version, self.opset, self.domains = 10, 20, dict[str, int]()

    def op(self, kind: str, *inputs: str, into: str = "", domain: str = "", **attributes: Any) -> str:
        output = into or f"val_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], f"n{len(self.nodes)}", domain=domain, **attributes))
        return output

    def constant(self, array: Any, name: str = "") -> str:
        """float32, or integers as they are."""
        found = np.asarray(array)
        found = found.astype(np.float32) if found.dtype == np.float64 else found
        self.constants.append(numpy_helper.from_array(found, name or f"w{len(self.constants)}"))
        return str(self.constants[-1].name)

    def weight(self, *shape: int) -> str:
        random = np.random.default_rng(len(self.constants))
        return self.constant(random.standard_normal(shape).astype(np.float32) / 2)

    def body(self, x: str = "latents") -> str:
        """x `[R,T,C]` and the time `[R]` -> `[R,T,C]`."""
        hidden = self.op("Tanh", self.op("MatMul", x, self.weight(C, 8)))
        time = self.op("Unsqueeze", "timestep", self.constant(np.array([1, 2])))
        timed = self.op("Add", hidden, self.op("Mul", time, self.weight(8)))
        return self.op("MatMul", timed, self.weight(8, C))

    def finish(self, result: str, name: str = "velocity", shape: Shape | None = None, kind: int = FLOAT) -> Graph:
        """Make a value an output."""
        self.op("Identity", result, into=name)
        self.outputs.append(value(name, self.velocity_shape if shape is None else shape, kind))
        return self

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants, **self.parts)
        opsets = [helper.make_opsetid(*item) for item in {"": self.opset, **self.domains}.items()]
        return helper.make_model(graph, opset_imports=opsets, functions=self.functions, ir_version=self.ir_version)


def value(name: str, shape: Shape | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None if shape is None else list(shape))


def plain(**options: Any) -> Graph:
    graph = Graph(**options)
    return graph.finish(graph.body())


def saved(make: Callable[[], Graph | onnx.ModelProto]) -> Write:
    def write(folder: Path) -> None:
        made = make()
        onnx.save(made.model() if isinstance(made, Graph) else made, folder / "model.onnx")

    return write


def works(make: Callable[[], Graph | onnx.ModelProto], **more: Any) -> Stranger:
    return Stranger(saved(make), **more)


def refused(command: str, sentence: str, make: Callable[[], Graph | onnx.ModelProto], **more: Any) -> Stranger:
    return Stranger(saved(make), {command: sentence}, **more)


def changed(make: Callable[[], Graph], change: Callable[[onnx.ModelProto], object]) -> Callable[[], onnx.ModelProto]:
    """The model, changed in place."""

    def made() -> onnx.ModelProto:
        model = make().model()
        change(model)
        return model

    return made


def named(names: Mapping[str, str]) -> Callable[[], onnx.ModelProto]:
    """The plain decoder with other names of its tensors and nodes."""

    def change(model: onnx.ModelProto) -> None:
        for values in (model.graph.input, model.graph.output, model.graph.initializer):
            for item in values:
                item.name = names.get(item.name, item.name)
        for node in model.graph.node:
            node.name = names.get(node.name, node.name)
            for side in (node.input, node.output):
                side[:] = [names.get(name, name) for name in side]

    return changed(plain, change)


def every_name(text: str) -> Callable[[], onnx.ModelProto]:
    """All inner names, those of weights and nodes with this text around them."""
    model = plain().model()
    inner = [item.name for item in (*model.graph.initializer, *model.graph.node)]
    inner += [name for node in model.graph.node for name in node.output if name != "velocity"]
    return named({name: text.format(name) for name in inner})


def patched(length: int) -> Graph:
    """Works on patches of so many frames."""
    graph = Graph()
    patches = graph.op("Reshape", "latents", graph.constant(np.array([0, -1, length * C])))
    mixed = graph.op("MatMul", patches, graph.weight(length * C, length * C))
    return graph.finish(graph.body(graph.op("Reshape", mixed, graph.constant(np.array([0, -1, C])))))


def branch(graph: Graph, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [value(nodes[-1].output[0], None)])


def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


def with_if() -> Graph:
    graph = Graph()
    x, w = graph.body(), graph.weight(C, C)
    size = graph.op("Size", "latents")
    flag = graph.op("Less", size, graph.constant(np.array(100)))
    one, other = branch(graph, node("MatMul", [x, w], "a")), branch(graph, node("Mul", [x, "latents"], "b"))
    return graph.finish(graph.op("If", flag, then_branch=one, else_branch=other))


def loop(x: str, w: str) -> onnx.GraphProto:
    inputs = [value("i", [], INT64), value("going", [], BOOL), value("carried", None)]
    nodes = [node("MatMul", ["carried", w], "m"), node("Tanh", ["m"], "h"), node("Identity", ["going"], "still")]
    return helper.make_graph(nodes, "body", inputs, [value("still", [], BOOL), value("h", None)])


def with_loop(start: str = "") -> Graph:
    """start: the name of its first condition, which may be left out."""
    graph = Graph()
    x, w, trips = graph.body(), graph.weight(C, C), graph.constant(np.array(3))
    going = graph.constant(np.array(True), start) if start else ""
    return graph.finish(graph.op("Loop", trips, going, x, body=loop(x, w)))


def with_scan() -> Graph:
    graph = Graph()
    x, w = graph.body(), graph.weight(C, C)
    nodes = [node("MatMul", ["frame", w], "m"), node("Add", ["m", "state"], "s"), node("Tanh", ["s"], "after")]
    nodes.append(node("Identity", ["after"], "out"))
    sides = [[value(name, (None, C)) for name in names] for names in (("state", "frame"), ("after", "out"))]
    body = helper.make_graph(nodes, "body", *sides)
    first = graph.op("ReduceMax", x, graph.constant(np.array([1])), keepdims=0)
    axes = {"scan_input_axes": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
    graph.nodes.append(helper.make_node("Scan", [first, x], ["last", "all"], "scan", body=body, **axes))
    return graph.finish("all")


def with_function(opset: int = 20, **given: float) -> Graph:
    """A block as a local function, with an attribute that has a default."""
    graph = Graph()
    nodes = [node("LeakyRelu", ["x"], "y"), node("MatMul", ["y", "w"], "z")]
    nodes[0].attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    slope = helper.make_attribute("slope", 0.4)
    opsets = [helper.make_opsetid("", opset)]
    function = helper.make_function("pkg.blocks", "Block", ["x", "w"], ["z"], nodes, opsets, attribute_protos=[slope])
    graph.functions, graph.domains = [function], {"pkg.blocks": 1}
    return graph.finish(graph.op("Block", graph.body(), graph.weight(C, C), domain="pkg.blocks", **given))


def function(name: str, *nodes: onnx.NodeProto, **defaults: float) -> onnx.FunctionProto:
    """Of x, which becomes y."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("pkg.blocks", 1)]
    attributes = [helper.make_attribute(*item) for item in defaults.items()]
    return helper.make_function("pkg.blocks", name, ["x"], ["y"], nodes, opsets, attribute_protos=attributes)


def with_nested_functions() -> Graph:
    """A function that calls one whose attribute it gives, and one with a branch that reads its input."""
    graph = Graph()
    elu = node("Elu", ["x"], "y")
    elu.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    choice = {
        "then_branch": branch(graph, node("Tanh", ["x"], "a")),
        "else_branch": branch(graph, node("Sin", ["x"], "b")),
    }
    limit = node("Constant", [], "limit", value_int=100)
    chosen = [
        node("Size", ["x"], "size"),
        limit,
        node("Less", ["size", "limit"], "is"),
        node("If", ["is"], "y", **choice),
    ]
    call, pick = (
        node("Inner", ["x"], "h", domain="pkg.blocks", slope=0.7),
        node("Pick", ["h"], "y", domain="pkg.blocks"),
    )
    graph.functions = [function("Inner", elu, slope=0.2), function("Pick", *chosen), function("Outer", call, pick)]
    graph.domains = {"pkg.blocks": 1}
    inner = graph.op("Inner", graph.body(), domain="pkg.blocks")
    return graph.finish(graph.op("Outer", inner, domain="pkg.blocks"))


def with_function_in_if() -> Graph:
    graph = with_if()
    graph.functions, graph.domains = [function("Inner", node("Tanh", ["x"], "y"))], {"pkg.blocks": 1}
    one = graph.nodes[-2].attribute[0].g
    one.node.append(node("Inner", [one.output[0].name], "called", domain="pkg.blocks"))
    one.output[0].name = "called"
    return graph


def with_branches_of_one_name() -> Graph:
    """Their results, and constants of their own."""
    graph = Graph()
    x, size = graph.body(), graph.op("Size", "latents")
    branches = [branch(graph, node("Identity", ["own"], "same")) for _ in range(2)]
    for number, each in enumerate(branches):
        each.initializer.append(numpy_helper.from_array(np.float32(number + 2), "own"))
    flag = graph.op("Less", size, graph.constant(np.array(100)))
    factor = graph.op("If", flag, then_branch=branches[0], else_branch=branches[1])
    return graph.finish(graph.op("Mul", x, factor))


def with_running_sum() -> Graph:
    """A Loop over frames that it reads from outside, and stacks what it makes."""
    graph = Graph()
    x = graph.body()
    nodes = [node("Identity", ["going"], "still"), node("Gather", [x, "i"], "frame", axis=1)]
    nodes += [node("Add", ["frame", "sum"], "after"), node("Identity", ["after"], "out")]
    inputs = [value("i", [], INT64), value("going", [], BOOL), value("sum", None)]
    body = helper.make_graph(
        nodes, "body", inputs, [value("still", [], BOOL), value("after", None), value("out", None)]
    )
    frames = graph.op("Squeeze", graph.op("Shape", x, start=1, end=2))
    first = graph.op("ReduceMax", x, graph.constant(np.array([1])), keepdims=0)
    graph.nodes.append(helper.make_node("Loop", [frames, "", first], ["last", "all"], "loop", body=body))
    return graph.finish(graph.op("Transpose", "all", perm=[1, 0, 2]))


def with_dropout(training: bool) -> Graph:
    graph = Graph()
    x = graph.body()
    ratio, mode = graph.constant(np.array(0.5)), graph.constant(np.array(training))
    graph.nodes.append(helper.make_node("Dropout", [x, ratio, mode], ["dropped"], "blocks.0/drop"))
    return graph.finish("dropped")


def with_op(kind: str, *more: Any, domain: str = "", **attributes: Any) -> Graph:
    """One more node behind the body. more: constants that it reads."""
    graph = Graph()
    graph.domains = {domain: 1} if domain else {}
    return graph.finish(graph.op(kind, graph.body(), *map(graph.constant, more), domain=domain, **attributes))


def noisy() -> Graph:
    graph = Graph()
    x = graph.body()
    return graph.finish(graph.op("Add", x, graph.op("RandomNormalLike", x)))


def mixing() -> Graph:
    graph = Graph()
    x = graph.body()
    return graph.finish(graph.op("Sub", x, graph.op("ReduceMean", x, graph.constant(np.array([0])))))


def cast(kind: int) -> Graph:
    """Its inside in another type."""
    graph = Graph()
    x = graph.op("Cast", graph.body(), to=kind)
    w = graph.op("Cast", graph.weight(C, C), to=kind)
    return graph.finish(graph.op("Cast", graph.op("MatMul", x, w), to=FLOAT))


def whole_in(kind: int) -> onnx.ModelProto:
    graph = Graph(kind=kind)
    x = graph.op("Cast", graph.body(graph.op("Cast", "latents", to=FLOAT)), to=kind)
    return graph.finish(x, kind=kind).model()


def timed(shape: Shape, kind: int = FLOAT) -> Graph:
    """Its time is of another form."""
    graph = Graph()
    graph.inputs[1] = value("timestep", shape, kind)
    flat = graph.op("Reshape", graph.op("Cast", "timestep", to=FLOAT), graph.constant(np.array([-1, 1, 1])))
    return graph.finish(graph.op("Mul", graph.op("MatMul", "latents", graph.weight(C, C)), flat))


def overflowing() -> Graph:
    graph = Graph()
    large = graph.op("Mul", graph.body(), graph.constant(np.array(3e38)))
    return graph.finish(graph.op("Sub", graph.op("Mul", large, graph.constant(np.array(1e3))), large))


def sequenced() -> Graph:
    graph = Graph()
    x = graph.body()
    split = graph.op("SplitToSequence", x, graph.constant(np.array(2)), axis=2)
    return graph.finish(graph.op("ConcatFromSequence", split, axis=2))


def optional() -> Graph:
    graph = Graph()
    return graph.finish(graph.op("OptionalGetElement", graph.op("Optional", graph.body())))


def in_float8() -> Graph:
    graph = Graph()
    return graph.finish(graph.op("Cast", graph.op("Cast", graph.body(), to=TensorProto.FLOAT8E4M3FN), to=FLOAT))


def quantized() -> Graph:
    """8 bits in the graph already."""
    graph = Graph()
    x, scale, zero = graph.body(), graph.constant(np.array(0.05)), graph.constant(np.array(0, np.int8))
    stored = graph.op("QuantizeLinear", x, scale, zero)
    weight = graph.constant(np.random.default_rng(1).integers(-127, 127, (C, C)).astype(np.int8))
    read = graph.op("DequantizeLinear", weight, graph.constant(np.array(0.01)), graph.constant(np.array(0, np.int8)))
    return graph.finish(graph.op("MatMul", graph.op("DequantizeLinear", stored, scale, zero), read))


def shared() -> Graph:
    graph = Graph()
    w = graph.weight(C, C)
    x = graph.op("MatMul", graph.op("MatMul", graph.body(), w), w)
    return graph.finish(graph.op("Add", x, graph.op("Gather", w, graph.constant(np.array(0)))))


def sparse() -> Graph:
    graph = Graph()
    values = numpy_helper.from_array(np.array([0.5, -0.5], np.float32), "sparse")
    places = numpy_helper.from_array(np.array([1, 11]))
    graph.parts = {"sparse_initializer": [helper.make_sparse_tensor(values, places, [C, C])]}
    return graph.finish(graph.op("MatMul", graph.body(), "sparse"))


def constant_nodes(model: onnx.ModelProto) -> None:
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    for tensor in reversed(tensors):
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))


def initializers_as_inputs(model: onnx.ModelProto) -> None:
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(value(tensor.name, list(tensor.dims), tensor.data_type))


def sequence_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_sequence_value_info("cache", FLOAT, None))


def long_domain(model: onnx.ModelProto) -> None:
    for each in (*model.opset_import, *model.graph.node):
        each.domain = "ai.onnx"


def unused_parts(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((9, 9), np.float32), "unused"))
    model.graph.node.append(node("Exp", ["unused"], "nothing"))


def one_more_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(value("return_dict", [1], BOOL))


def second_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(value("val_3", ("rows", "frames", 8)))


def renamed_result(model: onnx.ModelProto) -> None:
    """As torch's older exporter names the axes of results that it was not told about."""
    model.graph.output[0].CopyFrom(value("velocity", ("Addvelocity_dim_0", "Addvelocity_dim_1", C)))


def without_shape(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")


def old() -> Graph:
    """Opset 11: axes are attributes, and Dropout has two inputs."""
    graph = Graph()
    graph.opset, graph.ir_version = 11, 6
    time = graph.op("Unsqueeze", "timestep", axes=[1, 2])
    hidden = graph.op("Tanh", graph.op("Add", graph.op("MatMul", "latents", graph.weight(C, 8)), time))
    return graph.finish(graph.op("MatMul", hidden, graph.weight(8, C)))


def at_opset(version: int, ir_version: int = 10) -> Callable[[], Graph]:
    def make() -> Graph:
        graph = plain()
        graph.opset, graph.ir_version = version, ir_version
        return graph

    return make


def external(location: str, size: int = 100) -> Write:
    """Weights of so many bytes or more in a file of their own, at this path below the graph's folder."""

    def write(folder: Path) -> None:
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        place = {"save_as_external_data": True, "location": location, "size_threshold": size}
        onnx.save(plain().model(), folder / "model.onnx", **place)

    return write


def conditioned(*shapes: Shape, mask: int | None = None) -> Graph:
    """A condition of tokens or a vector, maybe a second one, maybe a mask."""
    graph = Graph()
    x, names = graph.body(), ("encoder_hidden_states", "pooled_projections")
    for name, shape in zip(names, shapes, strict=False):
        graph.inputs.append(value(name, shape))
        projected = graph.op("MatMul", name, graph.weight(int(shape[-1] or 0), C))
        if len(shape) == 2:
            projected = graph.op("Unsqueeze", projected, graph.constant(np.array([1])))
        elif mask is None:
            projected = graph.op("ReduceMean", projected, graph.constant(np.array([1])))
        else:
            graph.inputs.append(value("encoder_attention_mask", shape[:2], mask))
            kept = graph.op(
                "Unsqueeze", graph.op("Cast", "encoder_attention_mask", to=FLOAT), graph.constant(np.array([2]))
            )
            projected = graph.op("ReduceSum", graph.op("Mul", projected, kept), graph.constant(np.array([1])))
        x = graph.op("Add", x, projected)
    return graph.finish(x)


def codec(nodes: Sequence[onnx.NodeProto], **arrays: NDArray[Any]) -> Write:
    """A decoder with a codec of these nodes: from x `[n,T,C]` to audio."""

    def write(folder: Path) -> None:
        onnx.save(plain().model(), folder / "model.onnx")
        constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        inputs, outputs = [value("x", ("n", "length", C))], [value("audio", ("n", 1, "samples"))]
        graph = helper.make_graph(nodes, "codec", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.save(model, folder / "codec.onnx")

    return write


def grouped_codec(groups: int, hop: int = 8) -> Write:
    """Turns groups of frames into samples."""
    weight = np.random.default_rng(3).standard_normal((groups * C, groups * hop)).astype(np.float32) / 9
    nodes = [
        node("Reshape", ["x", "grouped"], "g"), node("MatMul", ["g", "w"], "m"), node("Tanh", ["m"], "t"),
        node("Reshape", ["t", "flat"], "audio"),
    ]  # fmt: skip
    return codec(nodes, grouped=np.array([0, -1, groups * C]), w=weight, flat=np.array([0, 1, -1]))


def mirrored_codec(reach: int, hop: int = 8) -> Write:
    """A convolution over frames that are mirrored at both ends: shorter windows than its reach do not run."""
    weight = np.random.default_rng(3).standard_normal((hop, C, 2 * reach + 1)).astype(np.float32) / 9
    nodes = [
        node("Transpose", ["x"], "c", perm=[0, 2, 1]), node("Pad", ["c", "pads"], "p", mode="reflect"),
        node("Conv", ["p", "w"], "v"), node("Transpose", ["v"], "h", perm=[0, 2, 1]), node("Tanh", ["h"], "t"),
        node("Reshape", ["t", "flat"], "audio"),
    ]  # fmt: skip
    return codec(nodes, pads=np.array([0, 0, reach, 0, 0, reach]), w=weight, flat=np.array([0, 1, -1]))


def odd_scopes(model: onnx.ModelProto) -> None:
    for each, text in zip(model.graph.node, ("a: [b", "x/['", "None", "__import__('os')", "{}: \n"), strict=False):
        for key in ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"):
            each.metadata_props.add(key=key, value=text)


def twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(node("Identity", ["velocity"], "again"))
    model.graph.output.append(value("again", ("rows", "frames", C)))


def its_input(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "latents"


def left_out() -> Graph:
    graph = Graph()
    return graph.finish(graph.op("Clip", graph.body(), "", graph.constant(np.array(0.3))))


def outside(folder: Path) -> None:
    external("w.bin")(folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../w.bin" if entry.key == "location" else entry.value
    onnx.save(model, folder / "model.onnx")


def with_constant_if() -> Graph:
    graph = Graph()
    x, flag = graph.body(), graph.constant(np.array(False))
    one, other = branch(graph, node("Exp", [x], "a")), branch(graph, node("Tanh", [x], "b"))
    return graph.finish(graph.op("If", flag, then_branch=one, else_branch=other))


def with_while(trips: int | None = None) -> Graph:
    """Until a counter reaches its end, which the body reads from outside."""
    graph = Graph()
    x, w, going = graph.body(), graph.weight(C, C), graph.constant(np.array(True))
    last = graph.constant(np.array(2))
    body = loop(x, w)
    body.node.pop()
    body.node.append(node("Less", ["i", last], "still"))
    most = "" if trips is None else graph.constant(np.array(trips))
    return graph.finish(graph.op("Loop", most, going, x, body=body))


def with_batch_norm() -> Graph:
    graph = Graph()
    x = graph.op("Transpose", graph.body(), perm=[0, 2, 1])
    numbers = [graph.constant(np.full(C, number)) for number in (1.0, 0.0, 0.0, 1.0)]
    graph.nodes.append(helper.make_node("BatchNormalization", [x, *numbers], ["n", "m", "v"], "norm", training_mode=1))
    return graph.finish(graph.op("Transpose", "n", perm=[0, 2, 1]))


NEWEST = defs.onnx_opset_version()
TOKENS: Shape = ("rows", "tokens", D)
LONG = "blocks.0/" * 40 + "{}"

STRANGERS: dict[str, Stranger] = {
    # dimensions
    "other names of the first axis": works(lambda: plain(latents=("batch", "frames", C), time=("n",))),
    "symbols of dynamic shapes": works(lambda: plain(latents=("s77", "8*s12", C), time=("s77",))),
    "axes without names": works(lambda: plain(latents=(None, None, C), time=(None,))),
    "axes with each other's names": works(lambda: plain(latents=("time", "batch", C), time=("frames",))),
    "minus one for dynamic": works(lambda: plain(latents=(-1, -1, C), time=(-1,))),
    "a size of zero": refused("init", "has size 0 in dimension 1", lambda: plain(latents=("rows", 0, C))),
    "fixed frames": works(lambda: plain(latents=("rows", 8, C))),
    "a result without names": works(lambda: Graph().finish("latents", shape=(None, None, C))),
    "a result with names of its own": works(changed(plain, renamed_result)),
    "a result without a width": refused(
        "init",
        "it has not an output [B, T, C] with a fixed number of channels C",
        lambda: Graph().finish("latents", shape=(None, None, None)),
    ),
    "a result without a shape": refused("init", "'velocity' has no shape", changed(plain, without_shape)),
    "one row": works(lambda: plain(latents=(1, "frames", C), time=(1,))),
    "two rows": refused(
        "init", "its first axis is fixed at 2 rows", lambda: plain(latents=(2, "frames", C), time=(2,))
    ),
    "patches of two": works(lambda: patched(2)),
    "patches of five": works(lambda: patched(5)),
    # time
    "a scalar time": refused("init", "it has not an input [B] for the flow time", lambda: timed(())),
    "a time of two dimensions": refused("init", "an input [B] for the flow time", lambda: timed(("rows", 1))),
    "a time of integers": refused("init", "time 'timestep' is int64, expected float32", lambda: timed(("r",), INT64)),
    "a time in float64": refused("init", "time 'timestep' is float64, expected float32", lambda: timed(("r",), DOUBLE)),
    # types
    "float16 inside": refused("build", "tolerance = 0.0003 in [build]", lambda: cast(FLOAT16)),
    "float16 inside, with its tolerance": works(lambda: cast(FLOAT16), build="tolerance = 0.0004\n"),
    "float64 inside": works(lambda: cast(DOUBLE)),
    "bfloat16 inside": refused(
        "init", "(MatMul): there is no kernel for the types of its inputs", lambda: cast(BFLOAT16)
    ),
    "8-bit floats inside": refused("rtx", "TensorRT could not build", in_float8),
    "float16 outside": refused("init", "is float16, expected float32", lambda: whole_in(FLOAT16)),
    "bfloat16 outside": refused("init", "is bfloat16, expected float32", lambda: whole_in(BFLOAT16)),
    "8 bits already": works(quantized),
    # names
    "spaces in names": works(every_name("the {} of a block")),
    "line breaks in names": works(every_name("a\n{}\r\n|b")),
    "unicode in names": works(every_name("блок·{}·ß")),
    "very long names": works(every_name(LONG)),
    "slashes in names": works(every_name("/model/../{}/")),
    "names of tensors with spaces": works(
        named({"latents": "noisy latents", "timestep": "the time", "velocity": "out put"}),
        flags=("--role", "latents=noisy latents", "--role", "time=the time"),
    ),
    "nodes without names": works(named({f"n{index}": "" for index in range(12)})),
    "two nodes of one name": refused("init", "two nodes have the name 'n0'", named({"n1": "n0"})),
    "scopes that are no lists": works(changed(plain, odd_scopes)),
    # inputs, outputs and constants
    "channels first": refused("init", "with a fixed number of channels C", lambda: plain(latents=("n", C, "t"))),
    "latents of four dimensions": refused("init", "an output [B, T, C]", lambda: plain(latents=("n", 1, "t", C))),
    "a result twice": refused("init", "that no role fits: again", changed(plain, twice)),
    "a result that is an input": refused("init", "twice among its inputs and outputs", changed(plain, its_input)),
    "a time that nothing reads": works(lambda: Graph().finish("latents")),
    "inputs that are left out": works(left_out),
    "a sequence as input": refused("init", "'cache' is a sequence", changed(plain, sequence_input)),
    "an input without a role": refused(
        "init", "has tensors that no role fits: return_dict", changed(plain, one_more_input)
    ),
    "a second output": refused("init", "has tensors that no role fits: val_3", changed(plain, second_output)),
    "parts that nothing reads": works(changed(plain, unused_parts)),
    "constants among the inputs": works(changed(plain, initializers_as_inputs)),
    "constants as nodes": works(changed(plain, constant_nodes)),
    "a sparse constant": works(sparse),
    "a weight that three nodes read": works(shared),
    "external data in a folder": Stranger(external("weights/part 1/data.bin")),
    "external data with a strange name": Stranger(external("gewichte ß | 1.bin")),
    "shapes in external data": Stranger(
        external("all.bin", 0), {"init": "the constant 'w1' decides a shape and lies in external data"}
    ),
    "external data elsewhere": Stranger(outside, {"init": "expected a file in its own folder"}),
    # control flow and functions
    "If of a constant": works(with_constant_if),
    "Loop without a number of trips": works(with_while),
    "Loop of endless trips": works(lambda: with_while(2**63 - 1)),
    "If": works(with_if),
    "Loop": works(lambda: with_loop("going")),
    "Loop without a condition": works(with_loop),
    "Scan": works(with_scan),
    "a local function": works(lambda: with_function(slope=0.1)),
    "a default of a function": works(with_function),
    "functions in functions": works(with_nested_functions),
    "a function in a branch": works(with_function_in_if),
    "branches of one name": works(with_branches_of_one_name),
    "Loop that stacks frames": works(with_running_sum),
    "a function of another opset": works(lambda: with_function(17)),
    # operators
    "dropout in training": refused("build", "first at node 'blocks.0/drop' (Dropout)", lambda: with_dropout(True)),
    "dropout": works(lambda: with_dropout(False)),
    "noise inside": refused("build", "(RandomNormalLike)", noisy),
    "batch norm in training": refused("build", "depends on the rows beside it", with_batch_norm),
    "rows that mix": refused("build", "depends on the rows beside it", mixing),
    "an unknown operator": refused(
        "init", "it has no operator MyNorm of the domain own", lambda: with_op("MyNorm", domain="own")
    ),
    "an operator of ONNX Runtime": refused(
        "rtx",
        "(BiasGelu): the parser does not support",
        lambda: with_op("BiasGelu", np.ones(C), domain="com.microsoft"),
    ),
    "a sequence": refused("rtx", "(SplitToSequence): the parser does not support this operator", sequenced),
    "an optional": refused("rtx", "(Optional): the parser does not support this operator", optional),
    "overflow": refused("init", "values that are not finite", overflowing),
    # versions
    "opset 11": works(old),
    "opset 13": works(at_opset(13, 7)),
    "opset 23": works(at_opset(23, 11)),
    "an operator of a newer opset": refused(
        "init", "node 'n6': opset 20 has no operator RMSNormalization", lambda: with_op("RMSNormalization", np.ones(C))
    ),
    "the newest opset": works(at_opset(NEWEST, onnx.IR_VERSION)),
    "no opset": refused("init", "it names no opset", changed(plain, lambda model: model.ClearField("opset_import"))),
    "the standard domain by its name": works(changed(plain, long_domain)),
    "a newer opset": refused("init", "opset 99", at_opset(99)),
    "a newer file format": refused("init", "version 99 of the file format (IR)", at_opset(20, 99)),
    # conditions
    "tokens": works(lambda: conditioned(TOKENS), condition=(5, D)),
    "tokens and their mask": works(lambda: conditioned(TOKENS, mask=FLOAT), condition=(5, D)),
    "a mask of truth values": refused("init", "is bool, expected float32", lambda: conditioned(TOKENS, mask=BOOL)),
    "a vector": works(lambda: conditioned(("rows", D)), condition=(1, D)),
    "tokens as wide as latents": works(lambda: conditioned(("rows", "tokens", C)), condition=(5, C)),
    "tokens of a fixed number": works(lambda: conditioned(("rows", 5, D)), condition=(5, D)),
    "tokens and a pooled vector": refused("init", "pooled_projections", lambda: conditioned(TOKENS, ("rows", 7))),
    # codecs
    "a codec": Stranger(grouped_codec(1), has_codec=True),
    "a codec that mirrors its ends": Stranger(mirrored_codec(6), has_codec=True),
    "a codec of groups of three": Stranger(grouped_codec(3), has_codec=True),
    "a codec of groups of five": Stranger(grouped_codec(5), has_codec=True),
}


def condition(stranger: Stranger) -> NDArray[np.float32] | None:
    """What a generation brings, where the decoder has a condition."""
    if not stranger.condition:
        return None
    return np.random.default_rng(7).standard_normal(stranger.condition).astype(np.float32)
