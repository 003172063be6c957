"""bundle.toml: what is loaded, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers.factories import tiny_bundle

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec


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


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version.*found 2"),
        ('family = "flow"', 'family = "gan"', "family"),
        ("channels = 8", "channels = 0", "latents.channels"),
        ("channels = 8", "channels = 7", "context.silence has 8 values, latents.channels is 7"),
        ("frame_multiple", "frame_multiples", "frame_multiples: is not a known name; did you mean frame_multiple"),
        ("hop_samples = 320", "hop_samples = 300", "sample_rate_hz is 8000, expected hop_samples 300 times"),
        ("[codec]", "[codec", "is not TOML"),
        ("max_tokens", 'template = "always the same"\nmax_tokens', "template has no {prompt}"),
        ('velocity = "velocity"', "", "decoder.outputs.velocity: is missing"),
        ("shift = 3.0", "live_steps = 0", "sampler.live_steps: expected at least 1"),
        ("shift = 3.0", 'solver = "heun"', "sampler.solver: expected"),
        ("shift = 3.0", "schedules = { 2 = [1.0] }", "sampler.*schedules.2: expected 2 times, from 1 down to above 0"),
        ("shift = 3.0", "schedules = { 2 = [1.0, 1.0] }", "schedules.2"),
        ("shift = 3.0", "schedules = { 2 = [0.9, 0.5] }", "schedules.2"),
        ("shift = 3.0", "schedules = { 2 = [1.0, 0.0] }", "schedules.2"),
        ("shift = 3.0", "cfg_interval_start = 0.5\ncfg_interval_end = 0.4", "sampler.*cfg_interval_start <= cfg"),
        ("energy_below = 0.0", "energy_below = 0.5", "sampler.*blend_energy_below is for blend_power 4 or 8, not 1"),
        ("shift = 3.0", 'dcw = { mode = "low", high = 0.1 }', "mode low does not read high"),
        (
            "shift = 3.0",
            'schedule = { kind = "cosine", start = -6, end = 2 }',
            "schedule.kind: expected 'logsnr'",
        ),
        ("shift = 3.0", 'schedule = { kind = "logsnr", start = 2, end = 2.5 }', "needs end at least 1 above start"),
        (
            "shift = 3.0",
            'shift = 1.0\nschedule = { kind = "logsnr", start = -6, end = 2 }',
            "schedule and shift",
        ),
        ("shift = 3.0", 'guidance_reason = "distilled"', "guidance_reason says that there is no guidance but 1"),
        ("shift = 3.0", 'noise_layout = "CT"', "sampler.noise_layout: expected"),
        (
            "margin_frames = 1",
            "margin_frames = 1\nalign_frames = 2",
            "margin_frames is 1, expected a multiple",
        ),
        (
            "margin_frames = 1",
            "margin_frames = 4\nalign_frames = 4",
            "frame_multiple is 2, expected a multiple",
        ),
        ("canvas_frames = 32", "canvas_frames = 32\nmost_unused = 0.0", "latents.most_unused: expected at least 0.02"),
    ],
)
def test_an_invalid_bundle_names_file_key_and_expected_value(old: str, new: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"bundle\.toml.*{says}"):
        load_bundle(replaced(tmp_path, old, new))


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


def test_both_names_of_the_text_encoder_are_refused(tmp_path: Path) -> None:
    tiny_bundle(tmp_path)
    path = tmp_path / "bundle.toml"
    path.write_text(f"{path.read_text()}\n[conditioner]\n")
    with pytest.raises(ConfigError, match=r"bundle\.toml.*conditioner: is not a known name"):
        load_bundle(tmp_path)


def test_context_table_and_context_input_require_each_other(tmp_path: Path) -> None:
    tiny_bundle(tmp_path)
    path = tmp_path / "bundle.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("context = ")]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="go together"):
        load_bundle(tmp_path)


def test_a_missing_bundle_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a bundle: it has no bundle\.toml"):
        load_bundle(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no bundle at .*none") as caught:
        load_bundle(tmp_path / "none")
    assert "engine_build.export acestep" in str(caught.value.fix)


def test_a_deployment_in_place_of_a_bundle_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bundle.toml").write_text('[deployment]\nbundle = "b"\n')
    with pytest.raises(ConfigError, match=r"bundle\.toml is a deployment, expected a bundle"):
        load_bundle(tmp_path)
    with pytest.raises(ConfigError, match=r"is a file, expected a bundle's folder"):
        load_bundle(tmp_path / "bundle.toml")


def test_the_folder_is_no_key_of_the_file(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path) / "bundle.toml"
    path.write_text(f'folder = "x"\n{path.read_text()}')
    with pytest.raises(ConfigError, match="folder: is not a known name"):
        load_bundle(tmp_path)


def with_arrays(folder: Path, silence: object = None, null: object = None) -> Path:
    """A tiny bundle whose silence and null condition are files."""
    replaced(folder, "silence = [", 'silence = "silence.npy" # [')
    path = folder / "bundle.toml"
    path.write_text(path.read_text().replace("[decoder]\n", '[decoder]\nnull_condition = "null.npy"\n'))
    np.save(folder / "silence.npy", np.arange(24, dtype=np.float32).reshape(3, 8) if silence is None else silence)
    np.save(folder / "null.npy", np.ones((1, 12), np.float32) if null is None else null)
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


@pytest.mark.parametrize(
    "arrays",
    [
        {"silence": np.zeros((3, 7), np.float32)},
        {"silence": np.zeros((3, 8))},
        {"silence": np.full((3, 8), np.nan, np.float32)},
        {"null": np.zeros(12, np.float32)},
        {"null": np.zeros((0, 12), np.float32)},
    ],
)
def test_an_array_of_wrong_shape_dtype_or_value_is_refused(tmp_path: Path, arrays: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(arrays))}\.npy does not hold float32 \["):
        load_bundle(with_arrays(tmp_path, **arrays))


@pytest.mark.parametrize("content", [None, b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_a_damaged_array_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = with_arrays(tmp_path) / "silence.npy"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    cause = "cannot be read: No such file" if content is None else "does not hold float32"
    with pytest.raises(ConfigError, match=rf"silence\.npy {cause}"):
        load_bundle(tmp_path)


def test_a_template_is_filled_with_prompt_and_whole_seconds(tmp_path: Path) -> None:
    spec = load_bundle(tiny_bundle(tmp_path)).text_encoder
    assert spec is not None
    assert spec.text("a {seconds} b", 3.0) == "a {seconds} b"
    filled = spec.model_copy(update={"template": "# {prompt}\n- {seconds} seconds"}).text("{seconds} {prompt}", 59.6)
    assert filled == "# {seconds} {prompt}\n- 59 seconds"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text_encoder": False}, "sampler.guidance is not 1"),
        ({"guidance": 1.0}, "text_encoder needs decoder.inputs.condition"),
        ({"text_encoder": False, "guidance": 1.0, "mask": True}, "condition_mask belongs to a condition"),
        ({"text_encoder": False, "guidance": 1.0, "mask_counts": True}, "mask_counts is said of a condition_mask"),
    ],
)
def test_what_needs_a_condition_is_refused_without_one(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_bundle(tiny_bundle(tmp_path, **{"condition": "", "mask": False, **changes}))  # type: ignore[arg-type]


def test_the_letters_of_the_decoders_inputs(tmp_path: Path) -> None:
    inputs = load_bundle(tiny_bundle(tmp_path)).decoder.inputs
    assert list(inputs.letters().values()) == ["RTC", "R", "RLD", "RL", "RTX"]
    alone = {"condition": "", "mask": False, "context": False, "text_encoder": False, "guidance": 1.0}
    inputs = load_bundle(tiny_bundle(tmp_path / "alone", **alone)).decoder.inputs
    assert inputs.letters() == {"hidden_states": "RTC", "timestep": "R"}


def test_features_of_all_matrices_and_names_of_other_trainers() -> None:
    spec = AdapterSpec(
        aliases={"o_proj": "to_out.0"},
        matrices={
            "layers.0.to_out.0": AdapterMatrix(weight="w", inputs=3, outputs=5),
            "layers.1.to_out.0": AdapterMatrix(weight="v", inputs=4, outputs=6),
        },
    )
    assert (spec.num_inputs, spec.num_outputs) == (7, 11)
    assert spec.path("layers.1.o_proj") == "layers.1.to_out.0"


def test_a_bundle_names_the_matrices_that_take_adapters(tmp_path: Path) -> None:
    folder = tiny_bundle(tmp_path / "tiny", adapters=True)
    spec = load_bundle(folder).adapters
    assert spec is not None
    assert spec.matrices["layers.0.in"] == AdapterMatrix(weight="w_in", inputs=8, outputs=16)
    (folder / "bundle.toml").write_text((folder / "bundle.toml").read_text().replace("inputs = 8,", "inputs = 0,"))
    with pytest.raises(ConfigError, match=r"adapters\.matrices"):
        load_bundle(folder)
