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
from runtime.base.errors import ConfigError
from runtime.engines.manifest import TensorInfo

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


@pytest.mark.parametrize(
    "axes", [("rows", "frames", "tokens"), ("", "", ""), ("B", "S", "Q"), ("n", "n", "n"), ("{}_n", "{}_t", "{}_l")]
)
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
    with pytest.raises(ConfigError, match=r"is not a codec that decodes these latents: one input \[B, T, 5\]"):
        codec_roles(graph_of(model), 5)


def test_usual_names_of_strangers_need_no_flag() -> None:
    """`context` is what many decoders call their tokens; an output may be called as an input is."""
    made = graph(sample=("n", "l", 4), sigmas=("n",), context=("n", "m", 7), context_mask=("n", "m"))
    roles = {"latents": "sample", "time": "sigmas", "condition": "context", "condition_mask": "context_mask"}
    assert names_of(made) == {"velocity": "v", **roles}
    writer = GraphWriter("g")
    x, _ = writer.input("text_like", ("n", "l", 4)), writer.input("t", ("n",))
    writer.output("hidden_states", writer.op("Neg", x), ("n", "l", 4))
    assert names_of(graph_of(writer.model())) == {"velocity": "hidden_states", "latents": "text_like", "time": "t"}


UNCLEAR = {
    "a pooled vector beside tokens": graph(x=("n", "l", 4), t=("n",), c=("n", "m", 7), pooled=("n", 16)),
    "of a fixed number of tokens": graph(x=("n", "l", 4), t=("n",), c=("n", 77, 7), pooled=("n", 16)),
    "a second sequence of tokens": graph(x=("n", "l", 4), t=("n",), text=("n", "m", 7), lyrics=("n", "k", 7)),
    "two vectors": graph(x=("n", "l", 4), t=("n",), c=("n", 7), pooled=("n", 16)),
    "a second time": graph(x=("n", "l", 4), t=("n",), r=("n",)),
    "no time, but something of a prompt": graph(x=("n", "l", 4), prompt_length=("n",)),
    "no condition, but a mask": graph(x=("n", "l", 4), t=("n",), attention_mask=("n", 16)),
    "latents of a source": graph(x=("n", "l", 4), y=("n", "l", 4), t=("n",)),
}


@pytest.mark.parametrize("kind", UNCLEAR)
def test_what_is_left_over_gets_no_role(kind: str) -> None:
    """It is asked, or refused."""

    def refuse(role: str, fitting: Sequence[TensorInfo]) -> TensorInfo | None:
        raise ConfigError(f"asked for the {role}")

    with pytest.raises(
        ConfigError, match=r"asked for the (time|latents|condition)|no role fits: (c|pooled|lyrics|prompt) "
    ):
        names_of(UNCLEAR[kind], refuse)


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("condition_mask", "pooled"),
        ("condition", "x2"),
        ("time", "c"),
        ("context", "c"),
        ("latents", "c"),
        ("velocity", "v"),
    ],
)
def test_a_given_role_has_its_shape(role: str, name: str) -> None:
    width = "w" if role == "velocity" else 4
    made = graph(x=("n", "l", width), t=("n",), c=("n", "m", 7), pooled=("n", 16), x2=("n",))
    with pytest.raises(ConfigError, match=rf"{name} float32\[.*\] is not an (in|out)put \[B"):
        names_of(made, first, **{role: name})


@pytest.mark.parametrize("more", [("b", "t", 8), ("b",)])
def test_a_codec_with_two_tensors_for_a_role_is_refused(more: tuple[object, ...]) -> None:
    writer = GraphWriter("g")
    latents = writer.input("z", ("b", "t", 8))
    kind = np.float32 if len(more) == 3 else np.int64
    writer.input("one", more, kind)  # type: ignore[arg-type]
    writer.input("two", more, kind)  # type: ignore[arg-type]
    writer.output("audio", writer.op("Transpose", latents, perm=[0, 2, 1]), ("b", 8, "t"))
    with pytest.raises(ConfigError, match=r"one output \[B|no role fits: one int64"):
        codec_roles(graph_of(writer.model()), 8)
