"""bundle.toml: what is loaded of its tables."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers.factories import tiny_bundle
from helpers.paths import ROOT
from helpers.tiny_planner import KEYED_PLAN
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES
from pydantic import ValidationError

from runtime.base.errors import RequestError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.codec import WINDOW_FRAMES, CodecDecodeOutputs, CodecDecodeSpec, CodecDecodeTensors
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.config.notes import NotesSpec
from runtime.config.option_ranges import Option
from runtime.config.sampler import APG, GuidanceSpec
from runtime.live.parts.controls import CONTROL_NAMES


def replaced(folder: Path, old: str, new: str) -> Path:
    tiny_bundle(folder)
    path = folder / "bundle.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return folder


def test_latent_layout_and_context_channels(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path, channels=8))
    assert bundle.context_channels == 16
    assert np.array_equal(bundle.silence(3), np.tile(np.array(bundle.context.silence, np.float32), (3, 1)))
    assert bundle.latents.round_up(31) == 32
    assert bundle.graph_path(bundle.decoder.graph).is_file()


def test_live_sessions_take_the_steps_of_others_unless_the_bundle_says_otherwise(tmp_path: Path) -> None:
    sampler = load_bundle(tiny_bundle(tmp_path, steps=6)).sampler
    assert (sampler.steps, sampler.live_steps) == (6, 6)
    (tmp_path / "other").mkdir()
    other = load_bundle(replaced(tmp_path / "other", "shift = 3.0", "live_steps = 3")).sampler
    assert (other.steps > 3, other.live_steps) == (True, 3)


def test_a_bundle_may_have_times_for_a_number_of_steps(tmp_path: Path) -> None:
    sampler = load_bundle(replaced(tmp_path, "shift = 3.0", "schedules = { 3 = [1.0, 0.75, 0.25] }")).sampler
    assert sampler.schedules == {3: (1.0, 0.75, 0.25)}
    assert sampler.solver == "ode"
    assert (sampler.cfg_interval_start, sampler.cfg_interval_end) == (0.0, 1.0)


def test_without_context_silence_is_zero(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path, context=False))
    assert bundle.context_channels == 0
    assert bundle.silence(5).shape == (5, 8)
    assert not np.any(bundle.silence(5))


def test_a_conditioner_table_is_read_as_text_encoder_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current = load_bundle(tiny_bundle(tmp_path))
    path = tmp_path / "bundle.toml"
    path.write_text(path.read_text().replace("[text_encoder", "[conditioner"))
    with caplog.at_level(logging.WARNING):
        assert load_bundle(tmp_path).text_encoder == current.text_encoder
        load_bundle(tmp_path)
    (record,) = caplog.records
    assert record.getMessage() == f"{path}: [conditioner] is now called [text_encoder]; rename it in the file"


def with_arrays(folder: Path) -> Path:
    """A tiny bundle whose silence and null condition are files."""
    replaced(folder, "silence = [", 'silence = "silence.npy" # [')
    path = folder / "bundle.toml"
    path.write_text(path.read_text().replace("[decoder]\n", '[decoder]\nnull_condition = "null.npy"\n'))
    np.save(folder / "silence.npy", np.arange(24, dtype=np.float32).reshape(3, 8))
    np.save(folder / "null.npy", np.ones((1, 12), np.float32))
    return folder


def test_a_silence_file_starts_with_the_canvas_and_repeats(tmp_path: Path) -> None:
    bundle = load_bundle(with_arrays(tmp_path))
    sequence = np.arange(24, dtype=np.float32).reshape(3, 8)
    assert np.array_equal(bundle.silence(2), sequence[:2])
    assert np.array_equal(bundle.silence(7), np.concatenate((sequence, sequence, sequence[:1])))
    bundle.silence(2)[:] = 0.0
    assert np.array_equal(bundle.silence(2), sequence[:2])


def test_the_null_condition_is_read_only(tmp_path: Path) -> None:
    null = load_bundle(with_arrays(tmp_path)).null_condition()
    assert null is not None
    assert null.shape == (1, 12)
    with pytest.raises(ValueError, match="read-only"):
        null[0, 0] = 2.0
    assert load_bundle(tiny_bundle(tmp_path / "other")).null_condition() is None


def test_a_template_is_filled_with_prompt_and_whole_seconds(tmp_path: Path) -> None:
    spec = load_bundle(tiny_bundle(tmp_path)).text_encoder
    assert spec is not None
    assert spec.text("a {seconds} b", 3.0) == "a {seconds} b"
    filled = spec.model_copy(update={"template": "# {prompt}\n- {seconds} seconds"}).text("{seconds} {prompt}", 59.6)
    assert filled == "# {seconds} {prompt}\n- 59 seconds"


def test_the_letters_of_the_decoders_inputs(tmp_path: Path) -> None:
    inputs = load_bundle(tiny_bundle(tmp_path)).decoder.inputs
    assert list(inputs.letters().values()) == ["RTC", "R", "RLD", "RL", "RTX"]
    alone = {"condition": "", "mask": False, "context": False, "text_encoder": False, "guidance": 1.0}
    inputs = load_bundle(tiny_bundle(tmp_path / "alone", **alone)).decoder.inputs
    assert inputs.letters() == {"hidden_states": "RTC", "timestep": "R"}


def test_features_of_all_matrices_and_names_of_other_trainers(tmp_path: Path) -> None:
    spec = AdapterSpec(
        aliases={"o_proj": "to_out.0"},
        matrices={
            "layers.0.to_out.0": AdapterMatrix(weight="w", inputs=3, outputs=5),
            "layers.1.to_out.0": AdapterMatrix(weight="v", inputs=4, outputs=6),
        },
    )
    assert (spec.num_inputs, spec.num_outputs) == (7, 11)
    assert spec.path("layers.1.o_proj") == "layers.1.to_out.0"
    of_bundle = load_bundle(tiny_bundle(tmp_path, adapters=True)).adapters
    assert of_bundle is not None
    assert of_bundle.matrices["layers.0.in"] == AdapterMatrix(weight="w_in", inputs=8, outputs=16)


def test_a_bundle_names_both_halves_and_their_tensors(tmp_path: Path) -> None:
    codec = load_bundle(tiny_bundle(tmp_path)).codec
    assert codec is not None
    assert codec.encode is not None
    assert (codec.decode.outputs.audio, codec.encode.inputs.audio) == ("audio", "audio")
    assert (codec.decode.inputs.latents, codec.encode.outputs.latents) == ("latents", "latents")


def test_a_window_is_bounded_where_the_bundle_does_not_say_so() -> None:
    inputs, outputs = CodecDecodeTensors(latents="latents"), CodecDecodeOutputs(audio="audio")
    spec = CodecDecodeSpec(graph="decode.onnx", inputs=inputs, outputs=outputs)
    assert (spec.window_frames, spec.margin_frames, spec.inputs.start_frame) == (WINDOW_FRAMES, 0, None)


def test_a_bundle_names_graphs_tensors_and_codes(tmp_path: Path) -> None:
    structure = load_bundle(tiny_bundle(tmp_path, structure=True)).structure
    assert structure is not None
    assert (structure.frames_per_code, structure.num_codes) == (FRAMES_PER_CODE, NUM_CODES)
    assert (structure.encode.inputs.latents, structure.decode.outputs.hints) == ("latents", "hints")
    assert [structure.num_codes_of(frames) for frames in (1, 3, 4)] == [1, 1, 2]
    assert [structure.codes_per_piece(frames) for frames in (1, 3, 32)] == [1, 1, 10]


def test_a_bundle_names_its_layers(tmp_path: Path) -> None:
    notes = load_bundle(tiny_bundle(tmp_path, notes=True)).notes
    assert notes is not None
    assert [layer.name for layer in notes.layers] == ["bass", "drums"]
    assert notes.layers[0].all_channels == (0, 1, 2, 5)
    assert notes.last_channel == 5


def test_there_are_no_more_layers_than_midi_has_channels() -> None:
    layers = [{"name": f"layer {number}", "channels": [number], "keys": [60]} for number in range(16)]
    values = {"scale": 1.0, "on": 0.2, "off": 0.1}
    with pytest.raises(ValidationError, match="16 layers beside percussion"):
        NotesSpec(**values, layers=layers)
    NotesSpec(**values, layers=[*layers[:15], {**layers[15], "is_percussion": True}])


def test_notes_are_no_part_of_what_sounds(tmp_path: Path) -> None:
    with_notes, without = (load_bundle(tiny_bundle(tmp_path / str(has), notes=has)) for has in (True, False))
    assert with_notes.settings_json() == without.settings_json()


def test_envelopes_are_a_part_of_what_sounds(tmp_path: Path) -> None:
    plain, shaped = (load_bundle(tiny_bundle(tmp_path / str(has), notes=True, envelopes=has)) for has in (False, True))
    assert plain.settings_json() != shaped.settings_json()
    assert plain.notes is not None
    assert shaped.notes is not None
    assert (plain.notes.has_envelopes, shaped.notes.has_envelopes) == (False, True)


def test_notes_are_a_part_of_what_sounds_where_several_openings_need_them(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, planner={"plan": {**KEYED_PLAN, "openings": 2}}, notes=True)
    before, file = load_bundle(path).settings_json(), path / "bundle.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("on = 0.", "on = 0.9"), encoding="utf-8")
    assert load_bundle(path).settings_json() != before


def with_rule(folder: Path, rule: str, more: str = "") -> Bundle:
    path = tiny_bundle(folder, rule=rule) / "bundle.toml"
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    return load_bundle(folder)


def test_a_bundle_without_the_table_is_what_it_was(tmp_path: Path) -> None:
    without, with_it = with_rule(tmp_path / "a", ""), with_rule(tmp_path / "b", 'rule = "apg"\nnorm_limit = 2.5')
    assert without.guidance == with_it.guidance == APG
    assert (APG.rule, APG.momentum, APG.norm_limit, APG.parallel, APG.norms) == ("apg", -0.75, 2.5, 0.0, "channel")
    assert without.settings_json() == with_it.settings_json()
    assert b"norm_limit" not in without.settings_json()
    assert APG.made_with({"guidance"}) == {}


def test_each_rule_has_its_own_defaults() -> None:
    plain = GuidanceSpec(rule="plain")
    assert (plain.norms, plain.momentum, plain.norm_limit, plain.parallel, plain.rescale) == ("all", *[None] * 3, 0.0)
    assert plain.made_with({"guidance", "dcw"}) == {"guidance": {"rule": "plain", "norms": "all"}}
    assert plain.made_with({"dcw"}) == {}


@pytest.mark.parametrize("number", ["norm_limit = 2", "parallel = 0.5", 'norms = "all"'])
def test_a_number_of_the_graph_is_a_part_of_the_model_one_of_each_step_is_not_of_its_engine(number: str) -> None:
    key, value = number.split(" = ")
    changed = GuidanceSpec.model_validate({key: value.strip('"')})
    assert changed.made_with({"guidance"}) != APG.made_with({"guidance"})
    assert GuidanceSpec(momentum=0.25, rescale=0.5).made_with({"guidance"}) == {}


def test_other_numbers_are_another_model(tmp_path: Path) -> None:
    rules = ("", 'rule = "plain"', "momentum = 0.25", "rescale = 0.5")
    settings = [with_rule(tmp_path / str(index), rule).settings_json() for index, rule in enumerate(rules)]
    assert len(set(settings)) == len(rules)


def test_a_plain_rule_has_no_momentum_to_choose(tmp_path: Path) -> None:
    options = with_rule(tmp_path / "a", 'rule = "plain"').options
    assert options.without_choice == {"momentum"}
    with pytest.raises(RequestError, match=r"is 0.5, this model takes 0 alone \(its guidance is plain, \[guidance\]"):
        options.check({"momentum": 0.5})
    assert with_rule(tmp_path / "b", "", "\n[options]\nmomentum = { min = 0, max = 0.5 }\n").guidance == APG


DEMO = load_bundle(ROOT / "configs" / "demo").controls


def with_controls(folder: Path, controls: str) -> Bundle:
    path = tiny_bundle(folder) / "bundle.toml"
    path.write_text(f"{path.read_text()}\n[controls]\n{controls}\n", encoding="utf-8")
    return load_bundle(folder)


def test_the_demo_hears_options_and_words() -> None:
    values = {"bpm": 120, "scale": "D major", "density": 0.9, "brightness": 0.1, "mute_drums": True, "mute_bass": False}
    options = {"bpm": 120, "key": "D major", "time_signature": 3}
    assert DEMO.heard({**values, "meter": 3}) == (["dense", "dark", "no drums"], options)
    assert DEMO.heard({"temperature": 3.0}) == ([], dict.fromkeys(options))


@pytest.mark.parametrize(
    ("share", "word"), [(0.0, ["sparse"]), (0.34, []), (0.66, []), (0.67, ["dense"]), (1, ["dense"])]
)
def test_words_divide_the_range_equally(share: float, word: list[str]) -> None:
    assert DEMO.heard({"density": share})[0] == word


def test_an_option_takes_a_range_and_words_take_the_value(tmp_path: Path) -> None:
    controls = """
        bpm = { words = ["at {value} bpm"] }
        scale = { words = ["in {value}"] }
        temperature = { option = "ode_noise", range = [0.0, 0.3] }
    """
    found = with_controls(tmp_path, controls).controls.heard({"bpm": 90, "scale": "Db major", "temperature": 1.5})
    assert found == (["at 90 bpm", "in Db major"], {"ode_noise": pytest.approx(0.15)})


def test_every_option_is_a_control_of_live_sessions() -> None:
    options = [name for part in Option.__args__ for name in getattr(part, "__args__", (part,))]
    assert set(options) <= set(CONTROL_NAMES)
