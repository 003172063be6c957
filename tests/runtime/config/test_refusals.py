"""What is refused in bundle.toml: one table, of one change to a tiny bundle each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import tiny_bundle
from helpers.tiny_planner import KEYED_PLAN

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle

PLAIN: dict[str, Any] = {}
SUNG: dict[str, Any] = {"conditions": True}
NOTED: dict[str, Any] = {"notes": True}
SHAPED: dict[str, Any] = {"notes": True, "envelopes": True}
STRUCTURED: dict[str, Any] = {"structure": True}
NO_TEXT: dict[str, Any] = {"condition": "", "mask": False, "text_encoder": False, "guidance": 1.0}
TIMBRE = '[timbre]\ngraph = "t.onnx"\nframes = 3\ninputs = { latents = "x" }\noutputs = { condition = "y" }\n'
MARGIN, SHIFT, DRUMS, ATTACK = "margin_frames = 1", "shift = 3.0", 'name = "drums"', "attack = [1.0, 0.8]"
ONE_NOISE = '[options]\node_noise = { min = 0, max = 0, reason = "it draws none" }'


def rule(text: str) -> dict[str, Any]:
    """A bundle with this in [guidance]."""
    return {"rule": text}


# What the tiny bundle is made with, a part of its text ("": its end), what stands there instead, words of the refusal.
REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    (PLAIN, "schema_version = 1", "schema_version = 2", "schema_version.*found 2"),
    (PLAIN, 'family = "flow"', 'family = "gan"', "family"),
    (PLAIN, "channels = 8", "channels = 0", "latents.channels"),
    (PLAIN, "channels = 8", "channels = 7", "context.silence has 8 values, latents.channels is 7"),
    (PLAIN, "frame_multiple", "frame_multiples", "frame_multiples: is not a known name; did you mean frame_multiple"),
    (PLAIN, "canvas_frames = 32", "canvas_frames = 32\nmost_unused = 0.0", "latents.most_unused: expected at least"),
    (PLAIN, "[codec]", "[codec", "is not TOML"),
    (PLAIN, "max_tokens", 'template = "always the same"\nmax_tokens', "template has no {prompt}"),
    (PLAIN, 'velocity = "velocity"', "", "decoder.outputs.velocity: is missing"),
    (PLAIN, "", "[conditioner]", "conditioner: is not a known name"),
    (PLAIN, "schema_version", 'folder = "x"\nschema_version', "folder: is not a known name"),
    (PLAIN, 'context = "', '# "', "go together"),
    (PLAIN, "schema_version", "guidance = 3\nschema_version", "guidance: expected a table of names and values"),
    ({"adapters": True}, "inputs = 8,", "inputs = 0,", r"adapters\.matrices"),
    # The sampler.
    (PLAIN, SHIFT, "live_steps = 0", "sampler.live_steps: expected at least 1"),
    (PLAIN, SHIFT, 'solver = "heun"', "sampler.solver: expected"),
    (PLAIN, SHIFT, "schedules = { 2 = [1.0] }", "sampler.*schedules.2: expected 2 times, from 1 down to above 0"),
    (PLAIN, SHIFT, "schedules = { 2 = [1.0, 1.0] }", "schedules.2"),
    (PLAIN, SHIFT, "schedules = { 2 = [0.9, 0.5] }", "schedules.2"),
    (PLAIN, SHIFT, "schedules = { 2 = [1.0, 0.0] }", "schedules.2"),
    (PLAIN, SHIFT, "cfg_interval_start = 0.5\ncfg_interval_end = 0.4", "sampler.*cfg_interval_start <= cfg"),
    (PLAIN, "energy_below = 0.0", "energy_below = 0.5", "sampler.*blend_energy_below is for blend_power 4 or 8, not 1"),
    (PLAIN, SHIFT, 'dcw = { mode = "low", high = 0.1 }', "mode low does not read high"),
    (PLAIN, SHIFT, 'schedule = { kind = "cosine", start = -6, end = 2 }', "schedule.kind: expected 'logsnr'"),
    (PLAIN, SHIFT, 'schedule = { kind = "logsnr", start = 2, end = 2.5 }', "needs end at least 1 above start"),
    (PLAIN, SHIFT, 'shift = 1.0\nschedule = { kind = "logsnr", start = -6, end = 2 }', "schedule and shift"),
    (PLAIN, SHIFT, 'guidance_reason = "distilled"', "guidance_reason says that there is no guidance but 1"),
    (PLAIN, SHIFT, 'noise_layout = "CT"', "sampler.noise_layout: expected"),
    # Guidance.
    (rule('rule = "cfg"'), "", "", "guidance.rule: expected 'plain' or 'apg'"),
    (rule('rule = "plain"\nmomentum = 0.0'), "", "", "momentum is a number of rule = .apg., and the rule is plain"),
    (rule('rule = "plain"\nnorm_limit = 2.5'), "", "", "guidance: norm_limit is a number of rule"),
    (rule('rule = "plain"\nparallel = 0.0'), "", "", "guidance: parallel is a number of rule"),
    (rule("momentum = -1.5"), "", "", "guidance.momentum: expected at least -1"),
    (rule("norm_limit = -1"), "", "", "guidance.norm_limit: expected at least 0"),
    (rule("norm_limit = inf"), "", "", "guidance.norm_limit: expected"),
    (rule("parallel = 1.5"), "", "", "guidance.parallel: expected at most 1"),
    (rule("rescale = 1.5"), "", "", "guidance.rescale: expected at most 1"),
    (rule('norms = "frame"'), "", "", "guidance.norms: expected 'channel' or 'all'"),
    (rule("normlimit = 2"), "", "", "guidance.normlimit: is not a known name; did you mean norm_limit"),
    # The codec and the structure.
    (PLAIN, "hop_samples = 320", "hop_samples = 300", "sample_rate_hz is 8000, expected hop_samples 300 times"),
    (PLAIN, "hop_samples = ", "hop_samples = -", "codec.hop_samples: expected at least 1"),
    (PLAIN, "gain_db = ", "gain_db = 99", "codec.gain_db: expected at most 24"),
    (PLAIN, 'graph = "codec_decode.onnx"', "", "codec.decode.graph: is missing"),
    (PLAIN, MARGIN, "margin_frames = 1\nalign_frames = 2", "margin_frames is 1, expected a multiple"),
    (PLAIN, MARGIN, "margin_frames = 4\nalign_frames = 4", "frame_multiple is 2, expected a multiple"),
    (STRUCTURED, "frames_per_code = 3", "frames_per_code = 0", "structure.frames_per_code: expected at least 1"),
    (STRUCTURED, 'outputs = { codes = "codes" }', "outputs = {}", "structure.encode.outputs.codes"),
    ({"structure": True, "context": False}, "", "", r"\[structure\] needs \[context\]"),
    # What needs a condition, and templates of texts.
    ({**NO_TEXT, "guidance": 3.0}, "", "", "sampler.guidance is not 1"),
    ({**NO_TEXT, "text_encoder": True}, "", "", "text_encoder needs decoder.inputs.condition"),
    ({**NO_TEXT, "mask": True}, "", "", "condition_mask belongs to a condition"),
    ({**NO_TEXT, "mask_counts": True}, "", "", "mask_counts is said of a condition_mask"),
    (SUNG, 'template = "{prompt}', 'template = "{prmpt}', r"text_encoder: template has no \{prompt\}"),
    (SUNG, '"{language} {lyrics}"', '"{language}"', r"lyrics: template has no \{lyrics\}"),
    (SUNG, '["t"]', '["t {bpm}"]', r"instructions have \{bpm\}, they take \{track\}"),
    (SUNG, "text2music =", "text3music =", "instructions"),
    (SUNG, "frames = 12", "frames = 13", "timbre.frames: expected a multiple of 3"),
    (SUNG, "prefix_tokens = 5", 'order = ["text", "text", "lyrics"]', "lyrics, timbre and text once each"),
    ({"text_encoder": False}, "", TIMBRE, r"\[timbre\] needs \[text_encoder\]"),
    # Notes, their envelopes, and stems.
    (NOTED, "off = 0.06", "off = 0.12", "off is 0.12, expected less than on, 0.12"),
    (NOTED, "channels = [3, 4]", "channels = [2, 4]", "channel 2 stands twice"),
    (NOTED, "timbre_channels = [5]", "timbre_channels = [4]", "channel 4 stands twice"),
    (NOTED, DRUMS, 'name = "../drums"', "layers.1.name: expected text that matches"),
    (NOTED, DRUMS, 'name = "mix"', "a layer is named 'mix'"),
    (NOTED, DRUMS, 'name = "bass"', "layer 'bass' stands twice"),
    (NOTED, "keys = [36, 38]", "keys = [36]", "layer 'drums' has 2 channels and 1 keys"),
    (NOTED, "keys = [36, 38]", "keys = [36, 128]", "expected at most 127"),
    (NOTED, "channels = [3, 4]", "channels = [3, 8]", "channel 8, latents.channels is 8"),
    (NOTED, "channels = [3, 4]", "channels = [-1, 4]", "expected at least 0"),
    (NOTED, "levels = [0.3]", "levels = [0.3, 0.4]", "instrument 'sub bass' has 2 levels"),
    (NOTED, "program = 39", "program = 128", "expected at most 127"),
    (NOTED, "scale = 0.5", "scale = 0", "expected more than 0"),
    (SHAPED, ATTACK, "attack = []", "attack: expected at least 1 item"),
    (SHAPED, ATTACK, "attack = [0.0, 0.0]", "attack is silent"),
    (SHAPED, ATTACK, "attack = [1.5]", "expected at most 1"),
    (SHAPED, "decay = 0.92", "decay = 0.0", "expected more than 0"),
    (SHAPED, "decay = 0.92", "decay = 1.1", "expected at most 1"),
    (SHAPED, "release = [0.35]", "release = [-1.0]", "expected at least 0"),
    (PLAIN, "", "[stems]", r"\[stems\] needs \[codec\], and \[notes\]"),
    ({"stems": True, "codec": False}, "", "", r"\[stems\] needs \[codec\], and \[notes\]"),
    (PLAIN, "", '[stems]\ntracks = ["drums"]', r"stems.tracks need \[codec\], \[context\], and an instruction for"),
    ({**SUNG, "codec": False}, "", '[stems]\ntracks = ["drums"]', "stems.tracks need"),
    (SUNG, "", '[stems]\ntracks = ["drums", "drums"]', "a name stands twice"),
    (SUNG, "", '[stems]\ntracks = ["mix"]', "or is 'mix'"),
    (SUNG, "", '[stems]\ntracks = ["../drums"]', "expected text that matches"),
    (SUNG, "", '[stems]\ntracks = ["drums"]\nsaturation = "tanh"', "tracks do not sum"),
    ({"planner": {"plan": {**KEYED_PLAN, "openings": 2}}}, "", "", r"planner.plan.openings needs \[notes\]"),
    # Controls.
    (PLAIN, "", '[controls]\nbmp = { words = ["a"] }', "controls.bmp: is not a known name; did you mean bpm"),
    (PLAIN, "", "[controls]\nbpm = {}", "controls.bpm: expected words or an option"),
    (PLAIN, "", '[controls]\ndensity = { words = ["a"], range = [0.0, 1.0] }', "range belongs to an option"),
    (PLAIN, "", '[controls]\ndensity = { option = "seconds" }', "controls.density.option: expected 'bpm'"),
    (PLAIN, "", '[controls]\nbpm = { option = "bpm" }', r"bpm.option is bpm, the template has no \{bpm\}"),
    (PLAIN, "", '[controls]\nbpm = { option = "key" }', "a scale sets key"),
    (PLAIN, "", '[controls]\nscale = { option = "guidance" }', "a scale sets key"),
    (PLAIN, "", '[controls]\nscale = { words = ["a", "b"] }', "scale has one text"),
    (PLAIN, "", '[controls]\nmeter = { words = ["a", "b"] }', "meter has one text"),
    (PLAIN, "", '[controls]\nmeter = { option = "bpm" }', "a meter sets time_signature"),
    (PLAIN, "", '[controls]\ndensity = { words = ["a"], values = ["b"] }', "values belong to"),
    (PLAIN, "", '[controls]\nmeter = { option = "time_signature", range = [2, 4] }', "an option that is a number"),
    ({"text_encoder": False}, "", '[controls]\ndensity = { words = ["a"] }', r"density.words need \[text_encoder\]"),
    # Options.
    (SUNG, "", "[options]\nbmp = { max = 180 }", "options.bmp: is not a known name; did you mean bpm"),
    (SUNG, "", "[options]\nbpm = 120", "options.bpm: expected a table of names and values"),
    (SUNG, "", '[options]\nbpm = { max = "fast" }', "options.bpm.max: expected a number"),
    (SUNG, "", "[options]\nbpm = { maximum = 180 }", "options.bpm.maximum: is not a known name"),
    (SUNG, "", '[options]\nbpm = { type = "int" }', "options.bpm.type: expected 'float' or 'integer'"),
    (SUNG, "", "[options]\nbpm = { min = 180, max = 60 }", "options.bpm: expected min < max"),
    (SUNG, "", "[options]\nbpm = { max = 180, usual = [90, 200] }", r"bpm: .*usual = \[LOW, HIGH\] between them"),
    (SUNG, "", "[options]\nbpm = { min = nan }", "options.bpm.min: expected a finite number"),
    (SUNG, "", "[options]\nbpm = { max = 400 }", "options: bpm goes from 30 to 400, expected 30 to 300, or less of it"),
    (SUNG, "", "[options]\ndcw_low = { max = 0.1 }", r"dcw_low has no min and max of its own: expected usual"),
    (SUNG, "", "[options]\nbpm = { min = 90, max = 90 }", "options.bpm: expected min < max"),
    (SUNG, "", '[options]\nbpm = { min = 90, max = 99, reason = "x" }', "a reason belongs to one number, min = max"),
    (SUNG, "", '[options]\nrescale = "no option of this table"', "options.rescale: is not a known name"),
    (SUNG, "", "[options]\nsteps = { min = 5 }", r"sampler.steps is 4, expected 5 to 200, as \[options.steps\] says"),
    (SUNG, "", "[options]\nguidance = { usual = [4, 9] }", r"sampler.guidance is .*, expected 4 to 9"),
    (
        SUNG, "", f'{ONE_NOISE}\n[controls]\ntemperature = {{ option = "ode_noise" }}',
        "controls.temperature.option is ode_noise, of which there is one: it draws none",
    ),
    (
        SUNG, "", '[options]\nbpm = { max = 180 }\n[controls]\nbpm = { option = "bpm", range = [60, 200] }',
        r"controls.bpm.range is outside of \[options.bpm\], which takes 30 to 180",
    ),
    (
        rule('rule = "plain"'), "", "[options]\nmomentum = { max = 0 }",
        r"options.momentum is left out: \[guidance\] says which one is taken",
    ),
    (
        rule("momentum = -0.5"), "", "[options]\nmomentum = { min = 0, max = 0.5 }",
        r"guidance.momentum is -0.5, expected 0 to 0.5, as",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "old", "new", "says"), REFUSED)
def test_an_invalid_bundle_names_file_key_and_expected_value(
    changes: dict[str, Any], old: str, new: str, says: str, tmp_path: Path
) -> None:
    path = tiny_bundle(tmp_path, **changes) / "bundle.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1) if old else f"{text}\n{new}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"bundle\.toml.*{says}"):
        load_bundle(tmp_path)


def test_a_missing_bundle_and_a_deployment_in_its_place_are_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a bundle: it has no bundle\.toml"):
        load_bundle(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no bundle at .*none") as caught:
        load_bundle(tmp_path / "none")
    assert "engine_build.export acestep" in str(caught.value.fix)
    (tmp_path / "bundle.toml").write_text('[deployment]\nbundle = "b"\n')
    with pytest.raises(ConfigError, match=r"bundle\.toml is a deployment, expected a bundle"):
        load_bundle(tmp_path)
    with pytest.raises(ConfigError, match=r"is a file, expected a bundle's folder"):
        load_bundle(tmp_path / "bundle.toml")


ARRAYS = (("[decoder]\n", '[decoder]\nnull_condition = "null.npy"\n'), ("silence = [", 'silence = "silence.npy" # ['))


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("silence", np.zeros((3, 7), np.float32), r"does not hold float32 \["),
        ("silence", np.zeros((3, 8)), r"does not hold float32 \["),
        ("silence", np.full((3, 8), np.nan, np.float32), r"does not hold float32 \["),
        ("null", np.zeros(12, np.float32), r"does not hold float32 \["),
        ("null", np.zeros((0, 12), np.float32), r"does not hold float32 \["),
        ("silence", None, "cannot be read: No such file"),
        ("silence", b"no array", "does not hold float32"),
    ],
)
def test_an_array_of_wrong_shape_dtype_or_value_is_refused(
    tmp_path: Path, name: str, content: object, cause: str
) -> None:
    path = tiny_bundle(tmp_path) / "bundle.toml"
    text = path.read_text(encoding="utf-8")
    for old, new in ARRAYS:
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    np.save(tmp_path / "silence.npy", np.zeros((3, 8), np.float32))
    np.save(tmp_path / "null.npy", np.ones((1, 12), np.float32))
    file = tmp_path / f"{name}.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is None:
        file.unlink()
    else:
        np.save(file, content)
    with pytest.raises(ConfigError, match=rf"{name}\.npy {cause}"):
        load_bundle(tmp_path)
