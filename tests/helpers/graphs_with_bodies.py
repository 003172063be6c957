"""Random graphs with If, Loop and Scan, nested, whose bodies read what lies around them, and with local functions.

Latents `[R,5,8]` and flow time `[R]` become one velocity `[R,5,8]`, beside much that no output depends on. Conditions
depend on sizes and constants only, so rounding changes no branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

C, FRAMES = 8, 5
OPSET = 20
DOMAIN = "stranger"
FLOAT = TensorProto.FLOAT

Values = list[onnx.ValueInfoProto]


def graph_with_bodies(seed: int, depth: int = 2) -> onnx.ModelProto:
    """The graph of a seed; its inputs are latents and time. depth: how deep bodies lie in each other."""
    return _Maker(Random(seed)).model(depth)


@dataclass
class _Scope:
    """A graph or body that is being written: its nodes, constants and values `[R,T,C]`."""

    values: list[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)


class _Maker:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers = np.random.default_rng(random.randrange(1 << 30))
        self._count = 0
        self._functions: list[onnx.FunctionProto] = []
        self._has_functions = random.random() < 0.6
        self._shared: list[str] = []

    def model(self, depth: int) -> onnx.ModelProto:
        main = _Scope(["latents"])
        self._shared = [self._weight(main) for _ in range(2)]
        self._write(main, "Unsqueeze", ["time", self._constant(main, np.array([1, 2]))], into=(column := self._name()))
        main.values.append(self._write(main, "Mul", ["latents", column]))
        self._fill(main, self._random.randrange(3, 8), depth)
        velocity = self._write(main, "Add", [main.values[-1], self._pick(main)], into="velocity")
        self._fill(main, 2, depth=1)  # what nothing depends on
        inputs = [_value("latents", ("rows", FRAMES, C)), _value("time", ("rows",))]
        graph = helper.make_graph(
            main.nodes, "stranger", inputs, [_value(velocity, ("rows", FRAMES, C))], main.constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, functions=self._functions, ir_version=10)

    def _fill(self, scope: _Scope, count: int, depth: int) -> None:
        plain = [self._linear, self._pointwise, self._norm, self._attention, self._truth, self._range, self._idle]
        deep = [self._if, self._loop, self._scan, *([self._call] if self._has_functions else [])] if depth else []
        for _ in range(count):
            choices: Sequence[Callable[[_Scope, int], str]] = deep if deep and self._random.random() < 0.5 else plain
            scope.values.append(self._random.choice(choices)(scope, depth))

    def _linear(self, scope: _Scope, depth: int) -> str:
        weight = self._random.choice(self._shared) if self._random.random() < 0.3 else self._weight(scope)
        return self._write(scope, "MatMul", [self._pick(scope), weight])

    def _pointwise(self, scope: _Scope, depth: int) -> str:
        kind = self._random.choice(["Tanh", "Sigmoid", "Mul", "Sub", "Mul by a scalar"])
        if kind == "Mul by a scalar":
            moved = self._write(scope, "Transpose", [self._pick(scope)], perm=[0, 2, 1])
            scaled = self._write(scope, "Mul", [moved, self._constant(scope, np.float32(0.7))])
            return self._write(scope, "Transpose", [scaled], perm=[0, 2, 1])
        bounded = self._write(scope, "Tanh", [self._pick(scope)])
        return self._write(scope, kind, [bounded, self._pick(scope)][: 1 if kind in ("Tanh", "Sigmoid") else 2])

    def _norm(self, scope: _Scope, depth: int) -> str:
        x = self._pick(scope)
        square = self._write(scope, "Mul", [x, x])
        mean = self._write(scope, "ReduceMean", [square, self._constant(scope, np.array([-1]))])
        root = self._write(scope, "Sqrt", [self._write(scope, "Add", [mean, self._constant(scope, np.float32(1e-3))])])
        normed = self._write(scope, "Div", [x, root])
        return self._write(scope, "Mul", [normed, self._constant(scope, self._floats(C) + 1)])

    def _attention(self, scope: _Scope, depth: int) -> str:
        """With a mask of the last frames whose lowest number is float32's, chosen by a branch."""
        query, key, value = (self._write(scope, "MatMul", [self._pick(scope), self._weight(scope)]) for _ in range(3))
        scores = self._write(scope, "MatMul", [query, self._write(scope, "Transpose", [key], perm=[0, 2, 1])])
        mask = self._constant(scope, np.zeros((1, 1, FRAMES), np.float32))
        if depth:
            low = np.where(np.arange(FRAMES) < 3, np.float32(0), np.finfo(np.float32).min).reshape(1, 1, FRAMES)
            branches = [self._branch(_Scope([]), lambda inner, x=x: self._constant(inner, x)) for x in (low, low / 2)]
            mask = self._write(scope, "If", [self._flag(scope)], then_branch=branches[0], else_branch=branches[1])
            place = self._write(scope, "Mul", [mask, self._constant(scope, np.float32(0.0))])
            mask = self._write(scope, "Where", [self._flag(scope), mask, place])
        weights = self._write(scope, "Softmax", [self._write(scope, "Add", [scores, mask])], axis=-1)
        return self._write(scope, "MatMul", [weights, value])

    def _truth(self, scope: _Scope, depth: int) -> str:
        """A comparison of truth values, as torch's exporter writes it."""
        same = self._write(scope, "Equal", [self._flag(scope), self._constant(scope, np.array(True))])
        return self._write(scope, "Where", [same, self._pick(scope), self._pick(scope)])

    def _range(self, scope: _Scope, depth: int) -> str:
        """Of constants alone."""
        ends = [self._constant(scope, np.array(each)) for each in (0, C, 1)]
        ramp = self._write(scope, "Cast", [self._write(scope, "Range", ends)], to=FLOAT)
        return self._write(scope, "Add", [self._pick(scope), self._write(scope, "Sin", [ramp])])

    def _idle(self, scope: _Scope, depth: int) -> str:
        """A reshape to the shape that it has."""
        shape = self._write(scope, "Shape", [x := self._pick(scope)])
        return self._write(scope, "Reshape", [x, shape])

    def _if(self, scope: _Scope, depth: int) -> str:
        branches = [
            self._branch(_Scope(list(scope.values)), lambda inner: self._filled(inner, depth)) for _ in range(2)
        ]
        return self._write(scope, "If", [self._flag(scope)], then_branch=branches[0], else_branch=branches[1])

    def _loop(self, scope: _Scope, depth: int) -> str:
        step, going, carried = self._name(), self._name(), self._name()
        inner = _Scope([*scope.values, carried])
        result = self._write(inner, "Tanh", [self._filled(inner, depth)])
        still = self._write(inner, "Identity", [going])
        inputs = [_value(step, (), TensorProto.INT64), _value(going, (), TensorProto.BOOL), _value(carried)]
        body = self._graph(inner, inputs, [_value(still, (), TensorProto.BOOL), _value(result)])
        trips = self._constant(scope, np.array(2))
        return self._write(scope, "Loop", [trips, "", self._pick(scope)], body=body)

    def _scan(self, scope: _Scope, depth: int) -> str:
        """Over the frames: a running sum of products with a weight from outside."""
        weight, state, frame = self._weight(scope), self._name(), self._name()
        inner = _Scope([])
        product = self._write(inner, "MatMul", [frame, weight])
        after = self._write(inner, "Tanh", [self._write(inner, "Add", [product, state])])
        out = self._write(inner, "Mul", [after, self._constant(inner, self._floats(C))])
        sides = [[_value(name, (None, C)) for name in names] for names in ((state, frame), (after, out))]
        body = self._graph(inner, *sides)
        start = self._write(scope, "ReduceMax", [self._pick(scope), self._constant(scope, np.array([1]))], keepdims=0)
        outputs = [self._name(), self._name()]
        axes = {"scan_input_axes": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
        scope.nodes.append(
            helper.make_node("Scan", [start, self._pick(scope)], outputs, self._label(), body=body, **axes)
        )
        return outputs[1]

    def _call(self, scope: _Scope, depth: int) -> str:
        if not self._functions or self._random.random() < 0.5:
            self._functions.append(self._function(depth - 1))
        function = self._random.choice(self._functions)
        given = {"alpha": 0.5} if self._random.random() < 0.5 else {}
        return self._write(scope, function.name, [self._pick(scope)], domain=DOMAIN, **given)

    def _function(self, depth: int) -> onnx.FunctionProto:
        """Of one value, with an attribute that has a default."""
        inner = _Scope(["x"])
        self._write(inner, "LeakyRelu", ["x"], into=(first := self._name()))
        inner.nodes[-1].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
        inner.values.append(first)
        shared, self._shared = self._shared, [self._constant(inner, self._floats(C, C) / 3)]
        self._has_functions = False
        result = self._filled(inner, depth)
        self._shared, self._has_functions = shared, True
        constants = [helper.make_node("Constant", [], [each.name], value=each) for each in inner.constants]
        default = helper.make_attribute("alpha", 0.25)
        name = f"Block{len(self._functions)}"
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_function(
            DOMAIN, name, ["x"], [result], [*constants, *inner.nodes], opsets, attribute_protos=[default]
        )

    def _filled(self, scope: _Scope, depth: int) -> str:
        self._fill(scope, self._random.randrange(1, 4), max(depth - 1, 0))
        return scope.values[-1]

    def _branch(self, scope: _Scope, fill: Callable[[_Scope], str]) -> onnx.GraphProto:
        result = self._write(scope, "Identity", [fill(scope)])
        return self._graph(scope, [], [_value(result)])

    def _graph(
        self, scope: _Scope, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """A body; half of them have their constants as nodes."""
        nodes, constants = list(scope.nodes), scope.constants
        if self._random.random() < 0.5:
            nodes = [*(helper.make_node("Constant", [], [each.name], value=each) for each in constants), *nodes]
            constants = []
        return helper.make_graph(nodes, "body", inputs, outputs, constants)

    def _flag(self, scope: _Scope) -> str:
        """A truth value: of a size, or a constant."""
        if self._random.random() < 0.3:
            return self._constant(scope, np.array(self._random.random() < 0.5))
        size = self._write(scope, "Size", [self._pick(scope) if scope.values else "latents"])
        return self._write(scope, "Less", [size, self._constant(scope, np.array(C * 6))])

    def _weight(self, scope: _Scope) -> str:
        return self._constant(scope, self._floats(C, C) / 2)

    def _floats(self, *shape: int) -> np.ndarray:
        return self._numbers.standard_normal(shape).astype(np.float32)

    def _constant(self, scope: _Scope, value: np.ndarray | np.generic) -> str:
        scope.constants.append(numpy_helper.from_array(np.asarray(value), self._name()))
        return str(scope.constants[-1].name)

    def _pick(self, scope: _Scope) -> str:
        return self._random.choice(scope.values[-4:])

    def _write(self, scope: _Scope, kind: str, inputs: list[str], into: str = "", **attributes: object) -> str:
        output = into or self._name()
        scope.nodes.append(helper.make_node(kind, inputs, [output], self._label(), **attributes))
        return output

    def _label(self) -> str:
        self._count += 1
        return self._random.choice(["", f"node {self._count}"])

    def _name(self) -> str:
        self._count += 1
        return f"val_{self._count}"


def _value(name: str, shape: tuple[object, ...] | None = None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
