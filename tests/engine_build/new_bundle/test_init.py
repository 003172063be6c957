"""tickrt-build init: from ONNX graphs to a deployment that builds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_codec_decode, tiny_decoder
from typer.testing import CliRunner

from engine_build.cli import app
from engine_build.graphs.graph_file import Graph, graph_of, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.new_bundle import init as module
from engine_build.new_bundle.init import ModelFacts, ask_for_tensor, bundle_toml, deployment_toml, parse_roles
from engine_build.new_bundle.probe import FrameCounts
from engine_build.new_bundle.roles import codec_roles, decoder_roles, listed
from engine_build.request import load_request
from engine_build.specs.engine_specs import engine_specs
from runtime.base.errors import ConfigError
from runtime.commands.terminal import EXIT_FILE, EXIT_INVALID
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment
from runtime.engines.manifest import TensorInfo


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(tiny_decoder(TinySpec()), tmp_path / "model.onnx")
    onnx.save(tiny_codec_decode(TinySpec()), tmp_path / "codec.onnx")
    return tmp_path / "model.onnx"


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["init", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def test_it_says_what_it_guessed_and_writes_what_builds(model: Path) -> None:
    said = run(model, "--codec", model.parent / "codec.onnx", "--sample-rate", 8000)
    assert "latents: hidden_states float32[rows, frames, 8] (the only one of this shape)" in said
    assert "measured: 2 channels, 320 samples per frame, a frame of latents changes 1 frames on each side" in said
    assert "velocity = noise - data" in said
    assert f"next: tickrt-build {model.parent / 'deployment.toml'}" in said
    assert f"tickrt-generate {model.parent / 'deployment.toml'} --condition TOKENS.npy --out out.wav" in said
    specs = engine_specs(load_request(model.parent / "deployment.toml"))
    assert {spec.kind for spec in specs} == {"decoder", "rows", "step", "codec_decode"}
    codec = load_bundle(model.parent).codec
    assert codec is not None
    assert (codec.sample_rate_hz, codec.channels, codec.hop_samples) == (8000, 2, 320)
    assert codec.decode.margin_frames == 1


def test_a_codec_in_groups_makes_generations_of_whole_groups(model: Path) -> None:
    onnx.save(tiny_codec_decode(TinySpec(group_frames=2)), model.parent / "codec.onnx")
    said = run(model, "--codec", model.parent / "codec.onnx", "--sample-rate", 8000)
    assert "it works in groups of 2 frames, so that windows begin at multiples of it" in said
    bundle = load_bundle(model.parent)
    assert bundle.codec is not None
    assert (bundle.codec.decode.margin_frames, bundle.codec.decode.align_frames) == (2, 2)
    assert bundle.latents.frame_multiple == 2
    (codec,) = (spec for spec in engine_specs(load_request(model.parent / "deployment.toml")) if "codec" in spec.name)
    assert codec.ranges[0]["T"][0] == 2


def test_where_a_jump_ends_and_its_guidance_are_known_by_name(model: Path) -> None:
    onnx.save(tiny_decoder(TinySpec(jumps=True)), model)
    run(model)
    inputs = load_bundle(model.parent).decoder.inputs
    assert (inputs.time, inputs.time_end, inputs.guidance) == ("timestep", "timestep_r", "guidance")
    run(model, "--role", "time_end=guidance", "--role", "guidance=timestep_r", "--force")
    assert load_bundle(model.parent).decoder.inputs.time_end == "guidance"
    assert "decoder" in {spec.name for spec in engine_specs(load_request(model.parent / "deployment.toml"))}


@pytest.mark.parametrize("name", ["guidance", "fps", "scale"])
def test_a_number_per_row_that_no_jump_has_is_left_over(name: str, model: Path) -> None:
    """Also what would be a jump's guidance, where nothing says where the jump ends."""
    made = onnx.load(model)
    made.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows"]))
    onnx.save(made, model)
    assert f"tensors that no role fits: {name}" in run(model, status=EXIT_INVALID)
    assert "time_end" in run(model, "--role", "guidance=guidance", status=EXIT_INVALID) or name != "guidance"


def test_existing_files_are_kept_unless_forced(model: Path) -> None:
    run(model)
    before = (model.parent / "bundle.toml").read_text()
    assert "exists and is not replaced" in run(model, "--frame-rate", 50, status=EXIT_FILE)
    assert (model.parent / "bundle.toml").read_text() == before
    run(model, "--frame-rate", 50, "--force")
    assert load_bundle(model.parent).latents.frame_rate_hz == 50.0
    assert "written: " in run(model, "--out", model.parent / "other")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--role", "latents"), "expected ROLE=NAME"),
        (("--role", "time=timestep", "--role", "time=timestep"), "once per role"),
        (("--role", "tiem=timestep"), "did you mean time?"),
        (("--codec", "{model}"), "has tensors that no role fits: timestep"),
    ],
)
def test_wrong_arguments_are_refused(model: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in run(model, *(item.replace("{model}", str(model)) for item in arguments), status=EXIT_INVALID)
    assert not (model.parent / "bundle.toml").exists()


def test_without_a_terminal_the_flag_is_named_and_with_one_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [TensorInfo(name=name, dtype="float32", shape=("n", "l", 4)) for name in ("a", "b")]
    for streams in ((False, False), (True, False), (False, True), (True, True)):
        for stream, is_terminal in zip((module.sys.stdin, module.sys.stdout), streams, strict=True):
            monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        if not all(streams):
            with pytest.raises(ConfigError, match=r"several tensors may be the latents.*\n  fix: --role latents=a"):
                ask_for_tensor("latents", both)
    for answer, expected in (("b", both[1]), ("", None)):
        monkeypatch.setattr(module.typer, "prompt", lambda *_, answer=answer, **__: answer)
        assert ask_for_tensor("latents", both) is expected
    monkeypatch.setattr(module.typer, "prompt", lambda *_, **__: "c")
    with pytest.raises(ConfigError, match="expected one of a, b"):
        ask_for_tensor("latents", both)


def test_roles_are_parsed() -> None:
    assert parse_roles(["latents=x", "time=t=0"]) == {"latents": "x", "time": "t=0"}


def facts_of(path: Path, spec: TinySpec) -> ModelFacts:
    onnx.save(tiny_decoder(spec), path)
    return ModelFacts(path, decoder_roles(read_graph(path), {}, lambda role, fitting: None), FrameCounts(2), 25.0)


def test_a_complete_decoder(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "My Model.onnx", TinySpec())
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "bundle.toml").write_text(bundle_toml(facts, folder))
    (folder / "deployment.toml").write_text(deployment_toml(facts))
    bundle, deployment = load_bundle(folder), load_deployment(folder / "deployment.toml")
    assert (bundle.name, bundle.latents.channels, bundle.latents.canvas_frames) == ("my-model", 8, 250)
    assert bundle.graph_path(bundle.decoder.graph).resolve() == facts.graph
    assert bundle.decoder.inputs.context == "context_latents"
    assert bundle.context is not None
    assert bundle.context.overlap_frames == 62
    (shapes,) = deployment.shapes
    assert (deployment.bundle, shapes.rows.max, shapes.frames.min, shapes.tokens.max) == (folder, 8, 2, 64)


@pytest.mark.parametrize(
    ("axes", "rows", "frames"), [((1, "l", "k"), (1, 1), (2, 250)), ((2, 16, 77), (2, 2), (16, 16))]
)
def test_fixed_dimensions_are_the_only_size(
    tmp_path: Path, axes: tuple[int | str, ...], rows: tuple[int, int], frames: tuple[int, int]
) -> None:
    facts = facts_of(tmp_path / "m.onnx", TinySpec(axes=axes))  # type: ignore[arg-type]
    (tmp_path / "d.toml").write_text(deployment_toml(facts))
    (shapes,) = load_deployment(tmp_path / "d.toml").shapes
    assert (shapes.rows.min, shapes.rows.max) == rows
    assert (shapes.frames.min, shapes.frames.max) == frames
    assert shapes.tokens.min == (77 if axes[2] == 77 else 1)


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
