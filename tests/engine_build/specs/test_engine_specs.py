"""Engine specs: the engines of a deployment, and errors of a bundle before a build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.building import build_engine
from helpers.factories import NUM_NAMES, TinySpec, tiny_decoder, tiny_deployment
from simulator.fixture import simulated
from simulator.onnxruntime_gpu import simulated_provider

from engine_build.compile.engine_folder import locked
from engine_build.compile.environment import build_environment
from engine_build.compile.rebuild_check import check_graphs, check_rebuilds, tensor_bytes
from engine_build.compile.verify import inputs_at
from engine_build.config import ROWS_VARIANTS, STEP_VARIANTS
from engine_build.graphs.graph_file import Graph, graph_of
from engine_build.request import load_request
from engine_build.specs import planner_specs
from engine_build.specs.engine_spec import (
    EngineSpec,
    Port,
    check_ports,
    input_shapes,
    optimization_profiles,
    sizes_at,
)
from engine_build.specs.engine_specs import decoder_samples, engine_specs
from runtime.audio.codec import MAX_BATCH
from runtime.base.errors import BuildError, ConfigError, TickError
from runtime.config.deployment import ShapeRange, ShapeRanges
from runtime.engines.loading import open_engine
from runtime.requests.request import MAX_CONDITIONS
from runtime.tick.denoise.row_buffers import row_multiple


def specs(folder: Path, **changes: object) -> dict[str, EngineSpec]:
    return {spec.name: spec for spec in engine_specs(load_request(tiny_deployment(folder, **changes)))}  # type: ignore[arg-type]


def with_bundle(folder: Path, old: str, new: str) -> Path:
    """A deployment whose bundle.toml is edited."""
    path = tiny_deployment(folder)
    bundle = folder / "tiny" / "bundle.toml"
    assert old in bundle.read_text()
    bundle.write_text(bundle.read_text().replace(old, new))
    return path


def test_the_engines_of_a_deployment_in_order(tmp_path: Path) -> None:
    expected = ["decoder", *(f"rows.{name}" for name in ROWS_VARIANTS), *(f"step.{name}" for name in STEP_VARIANTS)]
    assert list(specs(tmp_path)) == [*expected, "codec_decode", "codec_encode", "text_encoder"]


def test_lyrics_and_timbre_have_engines_of_their_own(tmp_path: Path) -> None:
    made = specs(tmp_path, conditions=True)
    assert list(made)[-3:] == ["text_encoder", "lyric_encoder", "timbre_encoder"]
    (reference,) = made["timbre_encoder"].inputs
    assert (reference.letters, made["timbre_encoder"].largest["F"]) == ("BFC", 12)
    assert made["lyric_encoder"].inputs[0].role == "text_encoder.lyrics.inputs.tokens"


@pytest.mark.parametrize(
    ("part", "without"),
    [("codec", {"codec_decode", "codec_encode"}), ("encode", {"codec_encode"}), ("text_encoder", {"text_encoder"})],
)
def test_parts_that_a_bundle_lacks_are_not_built(tmp_path: Path, part: str, without: set[str]) -> None:
    assert set(specs(tmp_path / "all")) - set(specs(tmp_path / "less", **{part: False})) == without


def test_structure_has_two_engines_in_pieces_of_at_most_a_canvas(tmp_path: Path) -> None:
    made = specs(tmp_path, structure=True)
    assert list(made)[-2:] == ["structure_encode", "structure_decode"]
    (encode,), (decode,) = (optimization_profiles(made[name]) for name in list(made)[-2:])
    assert encode == {"latents": "1x3x8 1x15x8 1x30x8"}
    assert decode == {"codes": "1x1 1x5 1x10"}


def test_a_decoder_without_mask_or_context_has_fewer_inputs(tmp_path: Path) -> None:
    made = specs(tmp_path, mask=False, context=False)
    assert [port.name for port in made["decoder"].inputs] == ["hidden_states", "timestep", "encoder_hidden_states"]
    masked = specs(tmp_path / "masked")
    assert ["L" in spec["decoder"].padded for spec in (made, masked)] == [False, True]


@pytest.mark.parametrize(("condition", "letters"), [("", ["RTC", "R"]), ("vector", ["RTC", "R", "RD"])])
def test_a_decoder_without_tokens(tmp_path: Path, condition: str, letters: list[str]) -> None:
    few = {"condition": condition, "mask": False, "context": False, "text_encoder": False, "guidance": 1.0}
    assert [port.letters for port in specs(tmp_path, **few)["decoder"].inputs] == letters
    path = tiny_deployment(tmp_path, **few)  # type: ignore[arg-type]
    path.write_text(path.read_text().replace("[runtime]", "tokens = { min = 1, opt = 4, max = 8 }\n\n[runtime]"))
    with pytest.raises(ConfigError, match=r"has 8 tokens, the decoder has no token dimension\n  fix: remove tokens"):
        engine_specs(load_request(path))


def test_every_tensor_of_a_tick_graph_is_checked(tmp_path: Path) -> None:
    made = {name: spec for name, spec in specs(tmp_path).items() if name.startswith(("rows.", "step."))}
    assert len(made) == len(ROWS_VARIANTS) + len(STEP_VARIANTS)
    for name, spec in made.items():
        for ports, tensors in ((spec.inputs, spec.graph.inputs), (spec.outputs, spec.graph.outputs)):
            assert {(port.name, port.dtype) for port in ports} == {(info.name, info.dtype) for info in tensors}, name


def test_every_sample_has_every_size_and_memory_too(tmp_path: Path) -> None:
    for spec in specs(tmp_path).values():
        letters = {letter for port in (*spec.inputs, *spec.outputs) for letter in port.letters}
        limits = {port.limit for port in spec.inputs} - {""}
        for sizes in (*spec.samples, spec.largest):
            assert (letters | limits) <= set(sizes), spec.name


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [
        ('latents = "hidden_states"', 'latents = "hidden"', ConfigError, "decoder.inputs.latents names 'hidden'"),
        ('velocity = "velocity"', 'velocity = "speed"', ConfigError, "decoder.outputs.velocity names 'speed'"),
        ('graph = "decoder.onnx"', 'graph = "dekoder.onnx"', ConfigError, "no graph at .*dekoder.onnx"),
        ('graph = "decoder.onnx"', 'graph = "tokenizer.json"', BuildError, "tokenizer.json is not an ONNX graph"),
        ('graph = "decoder.onnx"', 'graph = "."', ConfigError, "is a folder"),
        ('graph = "decoder.onnx"', 'graph = "text_encoder.onnx"', ConfigError, "its inputs are input_ids int64"),
        ("channels = 8", "channels = 16", ConfigError, "silence has 8 values"),
        ('condition_mask = "condition_mask"\n', "", ConfigError, "the inputs condition_mask, which have no role"),
        ('"start_frame" }', '"latents" }', ConfigError, "codec.decode.inputs.start_frame"),
        (', start_frame = "start_frame"', "", ConfigError, "the inputs start_frame"),
        ("channels = 2", "channels = 1", ConfigError, "audio channels"),
        ('tokenizer = "tokenizer.json"', 'tokenizer = "t.json"', ConfigError, "no tokenizer at .*t.json"),
        (
            'tokenizer = "tokenizer.json"',
            'tokenizer = "bundle.toml"',
            ConfigError,
            "is not a Hugging Face tokenizer file",
        ),
        ('tokens = "input_ids"', 'tokens = "ids"', ConfigError, "text_encoder.inputs.tokens names 'ids'"),
    ],
)
def test_a_bundle_that_does_not_fit_its_graphs(
    tmp_path: Path, old: str, new: str, error: type[TickError], says: str
) -> None:
    with pytest.raises(error, match=says):
        engine_specs(load_request(with_bundle(tmp_path, old, new)))


def test_another_condition_width_in_the_text_encoder_is_noticed(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    tiny_deployment(tmp_path / "other", condition_width=10)
    (tmp_path / "other" / "tiny" / "text_encoder.onnx").replace(tmp_path / "tiny" / "text_encoder.onnx")
    with pytest.raises(ConfigError, match=r"condition width\) is 10, expected 12"):
        engine_specs(load_request(path))


def test_what_a_text_means_is_an_output_of_its_graph_alone(tmp_path: Path) -> None:
    made = specs(tmp_path, meaning=True, conditions=True)
    assert [(port.name, port.letters) for port in made["text_encoder"].outputs][2:] == [("meaning", "BN")]
    assert made["text_encoder"].largest["N"] == NUM_NAMES
    assert len(made["lyric_encoder"].outputs) == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('output = "meaning"', 'output = "means"', "text_encoder.meaning.output names 'means', not an output"),
        ("meaning = {", "# ", "text_encoder.onnx has the outputs meaning, which have no role in bundle.toml"),
    ],
)
def test_a_meaning_without_a_role_or_an_output_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tiny_deployment(tmp_path, meaning=True)
    bundle = tmp_path / "tiny" / "bundle.toml"
    assert old in bundle.read_text()
    bundle.write_text(bundle.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=says):
        engine_specs(load_request(path))


def test_another_number_of_names_than_the_graph_has_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, meaning=True)
    (tmp_path / "tiny" / "meaning.json").write_text('{"genre": ["rock"]}')
    with pytest.raises(ConfigError, match=rf"names of a meaning\) is {NUM_NAMES}, expected 1"):
        engine_specs(load_request(path))


def test_a_graph_exported_for_one_length_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    file = tmp_path / "tiny" / "decoder.onnx"
    model = onnx.load(file)
    for value in (model.graph.input[0], model.graph.input[-1], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_value = 32
    onnx.save(model, file)
    with pytest.raises(ConfigError, match=r"\(frames\) is fixed at 32, expected a dynamic one for 2\.\.64"):
        engine_specs(load_request(path))


def test_every_range_of_a_port_holds_the_samples_and_is_in_order(tmp_path: Path) -> None:
    for spec in specs(tmp_path).values():
        assert len(spec.ranges) == {"decoder": len(spec.shapes), "codec_decode": 2}.get(spec.kind, 1)
        for ranges in spec.ranges:
            assert all(low <= usual <= high for low, usual, high in ranges.values()), spec.name
        for sample in spec.samples:
            assert any(
                all(ranges[letter][0] <= sample[letter] <= ranges[letter][2] for letter in ranges if letter in sample)
                for ranges in spec.ranges
            ), (spec.name, sample)


@pytest.mark.parametrize(("depth", "frames"), [(1, 32), (4, 64), (64, 6000)])
def test_tick_ranges_hold_all_that_a_tick_may_have(tmp_path: Path, depth: int, frames: int) -> None:
    path = tiny_deployment(tmp_path, depth=depth)
    path.write_text(path.read_text().replace("opt = 32, max = 64", f"opt = 4, max = {frames}"))
    made = {spec.name: spec.ranges[0] for spec in engine_specs(load_request(path))}
    spare = row_multiple(2, 8)
    assert spare == 4
    most = depth * 2 * MAX_CONDITIONS * spare
    assert made["rows.plain"]["R"][2] == made["step.blend+guidance"]["R"][2] == most
    assert made["step.guidance"]["R"][2] == 2 * depth * spare
    assert made["step.blend+guidance"]["K"] == made["step.blend+guidance"]["N"] == (1, 2, MAX_CONDITIONS)
    assert made["step.guidance"]["K"] == (1, 1, 1)
    assert made["step.dcw"]["T"][2] == frames
    assert made["step.dcw"]["B"][2] == frames // 2
    assert made["step.dcw"]["S"] == (1, depth, depth)


def test_profiles_are_shapes_of_every_input(tmp_path: Path) -> None:
    made = specs(tmp_path)
    (decoder,) = optimization_profiles(made["decoder"])
    assert decoder["timestep"] == "1 4 8"
    assert decoder["context_latents"] == "1x2x16 4x32x16 8x64x16"
    (codec,) = optimization_profiles(made["codec_encode"])
    low, _, high = codec["audio"].split()
    assert (low, int(high.split("x")[2]) % 320) == ("1x2x320", 0)
    for name, spec in made.items():
        for profile in optimization_profiles(spec):
            assert set(profile) == {port.name for port in spec.inputs}, name


def test_a_codec_takes_several_short_windows_at_once_where_its_graph_does(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    alone, several = next(spec for spec in engine_specs(load_request(path)) if spec.name == "codec_decode").ranges
    assert (alone["B"], several["B"]) == ((1, 1, 1), (2, MAX_BATCH, MAX_BATCH))
    assert several["T"][2] < alone["T"][2], "several of any length would take several times the memory"
    file = tmp_path / "tiny" / "codec_decode.onnx"
    model = onnx.load(file)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, file)
    found = next(spec for spec in engine_specs(load_request(path)) if spec.name == "codec_decode").ranges
    assert found == (alone,)


def test_the_codec_takes_a_window_with_its_margins(tmp_path: Path) -> None:
    spec = specs(tmp_path)["codec_decode"]
    codec = load_request(tmp_path / "tiny.toml").bundle.codec
    assert codec is not None
    assert spec.ranges[0]["T"][2] == codec.decode.window_frames + 2 * codec.decode.margin_frames


@pytest.mark.parametrize(("decode", "encode"), [(4, 100), (100, 4)])
def test_samples_of_the_codec_fit_into_the_smaller_one_of_two_windows(tmp_path: Path, decode: int, encode: int) -> None:
    path = tiny_deployment(tmp_path)
    bundle = tmp_path / "tiny" / "bundle.toml"
    text = bundle.read_text()
    for part, frames in (("codec_decode", decode), ("codec_encode", encode)):
        text = text.replace(f'graph = "{part}.onnx"', f'graph = "{part}.onnx"\nwindow_frames = {frames}')
    bundle.write_text(text)
    made = {spec.name: spec for spec in engine_specs(load_request(path))}
    for name in ("codec_decode", "codec_encode"):
        assert max(sizes["T"] for sizes in made[name].samples) == 4, name


def test_the_shapes_of_inputs_at_the_ends_of_a_range(tmp_path: Path) -> None:
    decoder = engine_specs(load_request(tiny_deployment(tmp_path)))[0]
    least, most = (input_shapes(decoder, sizes_at(decoder, decoder.ranges[0], end)) for end in (0, 2))
    assert (least["hidden_states"], most["hidden_states"]) == ((1, 2, 8), (8, 64, 8))
    assert (decoder.name, decoder.kind) == ("decoder", "decoder")


def test_samples_lie_inside_the_range() -> None:
    ranges = ShapeRanges(
        rows=ShapeRange(min=3, opt=4, max=8),
        frames=ShapeRange(min=4, opt=6, max=12),
        tokens=ShapeRange(min=2, opt=2, max=9),
    )
    samples = list(decoder_samples(ranges))
    assert all(ranges.holds(sample["R"], sample["T"], sample["L"]) for sample in samples)
    assert {sample["T"] for sample in samples} == {4, 6, 12}
    assert max(sample["R"] for sample in samples) == 8


def test_samples_of_long_canvases_stay_affordable() -> None:
    canvas, tokens = ShapeRange(min=6000, opt=6000, max=6000), ShapeRange(min=1, opt=2, max=9)
    few = ShapeRanges(rows=ShapeRange(min=1, opt=4, max=8), frames=canvas, tokens=tokens)
    many = ShapeRanges(rows=ShapeRange(min=9, opt=16, max=16), frames=canvas, tokens=tokens)
    assert [sample["R"] for sample in decoder_samples(few)] == [1, 1, 1]
    assert [sample["R"] for sample in decoder_samples(many)] == [9]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_deployment(tmp_path_factory.mktemp("planner"), planner={"draft": True})


@pytest.fixture(scope="module")
def planners(path: Path) -> dict[str, EngineSpec]:
    return {spec.name: spec for spec in engine_specs(load_request(path))}


def test_one_engine_has_prefill_decode_and_verify_as_shape_ranges(
    planners: dict[str, EngineSpec],
) -> None:
    assert {"planner", "planner_draft", "sampler"} <= planners.keys()
    prefill, decode, verify = planners["planner"].ranges
    assert (prefill["R"], prefill["U"], prefill["G"], prefill["E"]) == ((1, 1, 2), (16,) * 3, (1,) * 3, (16, 32, 64))
    assert (decode["R"], decode["U"], decode["G"], decode["E"]) == ((1, 8, 8), (1,) * 3, (1,) * 3, (1, 32, 64))
    assert (verify["R"], verify["U"], verify["G"]) == ((1, 8, 8), (2, 5, 5), (1, 5, 5))


def test_of_each_range_few_rows_are_compared_and_full_caches_first(
    planners: dict[str, EngineSpec],
) -> None:
    samples = planners["planner"].samples
    assert [(sizes["U"], sizes["R"], sizes["E"]) for sizes in samples[:3]] == [(1, 2, 64), (5, 2, 64), (16, 2, 64)]
    assert max(sizes["R"] for sizes in samples) == 2


def test_an_engine_of_the_cpu_is_verified_in_every_range_and_reused(path: Path) -> None:
    request = load_request(path)
    environment, folder = build_environment("cpu", request.options), request.deployment.engine_folder("cpu")
    with locked(folder):
        for decision in check_rebuilds(request, "cpu", environment=environment):
            if decision.spec.name.startswith(("planner", "sampler")):
                assert build_engine(decision, request, folder, environment).error["max_rel"] < 1e-5
    actions = {d.spec.name: d.action for d in check_rebuilds(request, "cpu", environment=environment)}
    assert [actions[name] for name in ("planner", "planner_draft", "sampler")] == ["reuse"] * 3


def test_tensorrt_updates_the_caches_in_place(path: Path, tmp_path: Path) -> None:
    with simulated():
        from runtime.devices.cuda import CudaDevice

        request = load_request(path)
        environment = build_environment("tensorrt", request.options)
        decisions = {item.spec.name: item for item in check_rebuilds(request, "tensorrt", environment=environment)}
        check_graphs([decisions["planner"], decisions["sampler"]])
        manifest = build_engine(decisions["planner"], request, tmp_path, environment)
        assert (manifest.facts["tried_shapes"], manifest.facts["compared_shapes"]) == (12, 6)
        spec, device = decisions["planner"].spec, CudaDevice()
        engine = open_engine(tmp_path, "planner", device)
        sizes = {**spec.largest, "R": 2, "U": 3, "G": 2, "E": 12, "A": 9}
        feeds = inputs_at(spec.inputs, [sizes], 0)
        outputs = engine.run(feeds)
        assert request.bundle.planner is not None
        names = request.bundle.planner.inputs.past, request.bundle.planner.outputs.present
        for past, present in zip(*names, strict=True):
            assert np.flatnonzero((outputs[present] != feeds[past]).any(axis=(0, 1, 3))).tolist() == [9, 10, 11]
        engine.close()
        device.close()


@pytest.mark.parametrize(("precision", "dtype", "limit"), [("fp32", "float32", 1e-5), ("fp16", "float16", 2e-2)])
def test_the_cuda_provider_builds_them(tmp_path: Path, precision: str, dtype: str, limit: float) -> None:
    path = tiny_deployment(tmp_path, planner={}, more=f'[build]\nprecision = "{precision}"\n')
    with simulated() as machine, simulated_provider(machine):
        request = load_request(path)
        environment = build_environment("cuda", request.options)
        decisions = {item.spec.name: item for item in check_rebuilds(request, "cuda", environment=environment)}
        planner = build_engine(decisions["planner"], request, tmp_path, environment)
        assert planner.error["max_rel"] < limit
        caches = [info.dtype for info in (*planner.inputs, *planner.outputs) if len(info.shape) == 4]
        assert caches == [dtype] * 8
        assert build_engine(decisions["sampler"], request, tmp_path, environment).error["max_rel"] < 1e-5


def test_memory_counts_a_cache_that_is_updated_in_place_once(planners: dict[str, EngineSpec]) -> None:
    spec = planners["planner"]
    cache = 4 * 8 * 2 * 64 * 8
    assert 4 * cache < tensor_bytes(spec) < 5 * cache + 4 * 8 * 5 * 280


def test_an_older_onnxruntime_is_refused_with_the_one_that_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_specs, "tool_versions", lambda target: {"onnxruntime": "1.24.4"})
    with pytest.raises(BuildError, match=r"onnxruntime 1\.24\.4 does not run a planner.*expected 1\.25") as raised:
        engine_specs(load_request(path))
    assert raised.value.fix == "pip install 'onnxruntime>=1.25'"


def test_a_capacity_that_is_not_the_graphs_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, planner={})
    bundle = tmp_path / "tiny" / "bundle.toml"
    bundle.write_text(bundle.read_text("utf-8").replace("capacity = 64", "capacity = 80"), encoding="utf-8")
    with pytest.raises(ConfigError, match="capacity\\) is 64, expected 80"):
        engine_specs(load_request(path))


def test_a_graph_of_one_row_is_refused(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, planner={})
    file = load_request(path).bundle.graph_path("planner.onnx")
    model = onnx.load(file)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "R":
                dim.dim_value = 1
    onnx.save(model, file)
    with pytest.raises(ConfigError, match=r"is fixed at 1, expected a dynamic one for 1\.\."):
        engine_specs(load_request(path))


INPUTS = (
    Port("decoder.inputs.latents", "hidden_states", "RTC"),
    Port("decoder.inputs.time", "timestep", "R"),
    Port("decoder.inputs.condition", "encoder_hidden_states", "RLD"),
    Port("decoder.inputs.condition_mask", "condition_mask", "RL"),
    Port("decoder.inputs.context", "context_latents", "RTX"),
)
OUTPUTS = (Port("decoder.outputs.velocity", "velocity", "RTC"),)
KNOWN = {"C": 8, "X": 16}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(tiny_decoder(TinySpec()))


def changed(index: int, **fields: str) -> tuple[Port, ...]:
    ports = list(INPUTS)
    found = {"role": ports[index].role, "name": ports[index].name, "letters": ports[index].letters}
    ports[index] = Port(**{**found, **fields})
    return tuple(ports)


def test_an_output_is_not_accepted_as_an_input(graph: Graph) -> None:
    with pytest.raises(ConfigError, match="not an input of"):
        check_ports(graph, changed(0, name="velocity"), OUTPUTS, KNOWN)


@pytest.mark.parametrize(
    ("ports", "known", "says"),
    [
        (changed(1, dtype="int64"), KNOWN, r"'timestep' \(decoder.inputs.time\) is float32, expected int64"),
        (changed(1, letters="RT"), KNOWN, r"'timestep'.* has shape \[rows\], expected \[rows, frames\]"),
        (INPUTS, {"C": 64, "X": 16}, r"\(latent channels\) is 8, expected 64"),
        (INPUTS, {"C": 8, "X": 8}, r"\(context channels\) is 16, expected 8"),
        (INPUTS[:-1], KNOWN, "the inputs context_latents, which have no role in bundle.toml"),
    ],
)
def test_a_role_that_does_not_match_is_refused(
    graph: Graph, ports: tuple[Port, ...], known: dict[str, int], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check_ports(graph, ports, OUTPUTS, known)
