"""Roles are found by shape, then by name, then by asking; what cannot be a velocity decoder is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_codec_decode, tiny_decoder

from engine_build.graphs.graph_file import Graph, graph_of
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.new_bundle.roles import codec_roles, decoder_roles, listed
from runtime.engines.manifest import TensorInfo
from runtime.errors import ConfigError

USUAL = ("hidden_states", "timestep", "encoder_hidden_states", "condition_mask", "context_latents")
ROLES = ("latents", "time", "condition", "condition_mask", "context")


def never(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
    raise AssertionError(f"asked for {role}: {listed(fitting)}")


def first(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
    return fitting[0]


def graph(**inputs: Sequence[int | str]) -> Graph:
    """A graph of these inputs; its output `v` has the shape of its first input."""
    writer = GraphWriter("g")
    names = [writer.input(name, shape) for name, shape in inputs.items()]
    writer.output("v", writer.op("Neg", names[0]), next(iter(inputs.values())))
    return graph_of(writer.model())


def names_of(made: Graph, ask: object = never, **given: str) -> dict[str, str]:
    found = decoder_roles(made, given, ask)  # type: ignore[arg-type]
    return {role: choice.tensor.name for role, choice in found.items()}


@pytest.mark.parametrize("axes", [("rows", "frames", "tokens"), ("", "", ""), ("B", "S", "Q")])
@pytest.mark.parametrize("prefix", ["", "their_"])
def test_the_roles_of_a_complete_decoder(axes: tuple[str, str, str], prefix: str) -> None:
    found = names_of(graph_of(tiny_decoder(TinySpec(axes=axes, prefix=prefix))))
    assert found == {"velocity": f"{prefix}velocity", **{r: prefix + n for r, n in zip(ROLES, USUAL, strict=True)}}


@pytest.mark.parametrize("condition", ["", "vector"])
def test_the_roles_of_a_decoder_with_fewer_inputs(condition: str) -> None:
    found = names_of(graph_of(tiny_decoder(TinySpec(condition=condition, context=False, mask=False))))
    assert set(found) == {"velocity", "latents", "time"} | ({"condition"} if condition else set())


def test_shapes_decide_where_names_say_nothing() -> None:
    found = names_of(graph(a=("n", "l", 4), b=("n",), c=("n", "m", 7), d=("n", "m")))
    assert found == {"velocity": "v", "latents": "a", "time": "b", "condition": "c", "condition_mask": "d"}


def test_what_shapes_and_names_leave_open_is_asked() -> None:
    asked: list[str] = []

    def ask(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
        asked.append(f"{role}: {', '.join(info.name for info in fitting)}")
        return fitting[-1]

    made = graph(a=("n", "l", 4), b=("n", "l", 4), t=("n",))
    assert names_of(made, ask)["latents"] == "b"
    assert asked == ["latents: a, b"]
    assert names_of(made, latents="a")["condition"] == "b"


@pytest.mark.parametrize(
    ("made", "given", "says"),
    [
        (graph(t=("n",)), {}, "is not a velocity decoder: it has not an output"),
        (graph(a=("n", "l", "c"), t=("n",)), {}, "with a fixed number of channels"),
        (graph(a=("n", "l", 4), c=("n", "m", 7)), {}, r"it has not an input \[B\] for the flow time"),
        (graph(a=("n", "l", 4), t=("n",), z=("n", "l", "p", "q")), {}, r"no role fits: z float32\[n, l, p, q\]"),
        (graph(a=("n", "l", 4), t=("n",)), {"latent": "a"}, r"no role 'latent'\n  fix: did you mean latents\?"),
        (graph(alpha=("n", "l", 4), t=("n",)), {"latents": "alhpa"}, r"no such tensor\n  fix: did you mean alpha\?"),
    ],
)
def test_what_is_no_velocity_decoder_is_refused(made: Graph, given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        names_of(made, first, **given)


def test_a_time_of_whole_numbers_is_refused() -> None:
    writer = GraphWriter("g")
    latents, _ = writer.input("x", ("n", "l", 4)), writer.input("t", ("n",), np.int64)
    writer.output("v", writer.op("Neg", latents), ("n", "l", 4))
    with pytest.raises(ConfigError, match=r"time 't' is int64, expected float32 \(the flow time"):
        names_of(graph_of(writer.model()))


def test_the_roles_of_a_codec(tmp_path: Path) -> None:
    model: onnx.ModelProto = tiny_codec_decode(TinySpec())
    found = {role: choice.tensor.name for role, choice in codec_roles(graph_of(model), 8).items()}
    assert found == {"latents": "latents", "start_frame": "start_frame", "audio": "audio"}
    with pytest.raises(ConfigError, match=r"is not a codec that decodes these latents: an input \[B, T, 5\]"):
        codec_roles(graph_of(model), 5)
