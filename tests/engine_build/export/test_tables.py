"""bundle.toml and first deployments: what is written is read, and is what the authors of checkpoints recommend."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.tiny_planner import CONFIG

from engine_build.export.acestep import bundle_text as acestep
from engine_build.export.acestep.bundle_text import TRACKS, AceStepFacts, chat_prompts, plain_chat, planner_tables
from engine_build.export.bundle_tables import table_text
from engine_build.export.stable_audio_3 import bundle_text as stable_audio_3
from engine_build.export.stable_audio_3.bundle_text import StableAudioFacts
from engine_build.graphs.planner_graph import Qwen3Sizes
from engine_build.request import check_ranges, read_options
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import load_deployment
from runtime.config.explain import validated
from runtime.config.planner import PlannerSpec
from runtime.config.sampler import DcwSpec
from runtime.engines.engine import variant_name
from runtime.requests.request import Dcw

VALUES = {
    "name": 'a "quoted" \\ name\nof two lines, ü',
    "steps": 8,
    "shift": 3.0,
    "small": np.float64(1e-05),
    "is_turbo": np.True_,
    "silence": [-0.25, 0.5],
    "inputs": {"latents": "hidden_states", "sizes": [1, 2], "two words": 1},
    "empty": [],
}


def test_a_table_is_read_as_written() -> None:
    assert tomllib.loads(table_text("model", VALUES)) == {"model": VALUES}


def test_a_table_without_a_name_is_the_top_of_the_file() -> None:
    assert tomllib.loads(table_text("", VALUES) + table_text("more", {"x": 1})) == {**VALUES, "more": {"x": 1}}


FACTS = AceStepFacts(
    name="acestep",
    description='Says "something".\nOn two lines.',
    channels=64,
    frame_rate_hz=25.0,
    frame_multiple=2,
    canvas_s=240.0,
    is_turbo=True,
    sample_rate_hz=48_000,
    audio_channels=2,
    hop_samples=1920,
    decode_margin_frames=9,
    encode_margin_frames=7,
    silence=tuple(float(value) for value in np.linspace(-1, 1, 64, dtype=np.float32)),
    has_null_condition=False,
)
TEXT = {"template": '# "Caption"\n{prompt}\t\\ {seconds}<|end|>\n', "max_tokens": 256, "prefix_tokens": 12}


def written(folder: Path, facts: AceStepFacts) -> Bundle:
    (folder / "bundle.toml").write_text(facts.bundle_text(), encoding="utf-8")
    return load_bundle(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    lyrics = {"template": "# Languages\n{language}\n\n# Lyric\n{lyrics}", "max_tokens": 2048}
    text = {**TEXT, "template": TEXT["template"] + "{instruction}", "instructions": {"extract": ["a {track}", "a"]}}
    facts = replace(FACTS, text_encoder=text, lyrics=lyrics, timbre={"frames": 750}, figures={"layers": 24})
    bundle = written(tmp_path, facts)
    assert bundle.description == FACTS.description
    assert bundle.text_encoder is not None
    assert bundle.text_encoder.template == text["template"]
    assert bundle.text_encoder.instructions == {"extract": ("a {track}", "a")}
    assert bundle.text_encoder.lyrics is not None
    assert bundle.text_encoder.lyrics.template == lyrics["template"]
    assert list(bundle.condition_graphs) == ["text_encoder", "lyric_encoder", "timbre_encoder"]
    assert np.array_equal(bundle.silence(1)[0], np.array(FACTS.silence, np.float32))
    assert bundle.training == {"layers": 24}
    assert (bundle.sampler.steps, bundle.sampler.shift, bundle.sampler.guidance) == (8, 3.0, 1.0)
    assert bundle.sampler.dcw == DcwSpec(mode="double", low=0.05, high=0.02)
    assert bundle.stems is None
    base = written(tmp_path, replace(facts, is_turbo=False, knows_tracks=True))
    assert (base.sampler.steps, base.sampler.shift, base.sampler.guidance) == (50, 1.0, 7.0)
    assert base.sampler.dcw == DcwSpec()
    assert base.stems is not None
    assert base.stems.tracks == TRACKS
    assert written(tmp_path, replace(facts, is_turbo=False)).stems is None
    assert written(tmp_path, replace(FACTS, is_turbo=False, knows_tracks=True)).stems is None


@pytest.mark.parametrize("is_turbo", [True, False])
def test_what_requests_without_options_need_has_step_graphs_of_its_own(tmp_path: Path, is_turbo: bool) -> None:
    facts = replace(FACTS, is_turbo=is_turbo)
    sampler = written(tmp_path, facts).sampler
    path = tmp_path / "deployment.toml"
    path.write_text(facts.deployment_text(tmp_path, path), encoding="utf-8")
    variants = read_options(load_deployment(path)).step_variants
    usual = {"dcw": not Dcw(**sampler.dcw.model_dump()).is_neutral, "guidance": sampler.guidance != 1.0}
    assert variant_name(frozenset(name for name, is_used in usual.items() if is_used)) in variants
    assert is_turbo == ("dcw" in variants)


def test_margins_and_windows_are_multiples(tmp_path: Path) -> None:
    codec = written(tmp_path, FACTS).codec
    assert codec is not None
    assert codec.encode is not None
    assert (codec.decode.margin_frames, codec.encode.margin_frames) == (10, 8)
    assert codec.decode.window_frames % 2 == codec.encode.window_frames % 2 == 0


@pytest.mark.parametrize(("canvas", "overlap"), [(6000, 250), (1500, 250), (100, 24), (2, 2)])
def test_the_overlap_fits_the_canvas(canvas: int, overlap: int) -> None:
    assert replace(FACTS, canvas_s=canvas / 25.0).overlap_frames == overlap


@pytest.mark.parametrize("text_encoder", [None, TEXT])
def test_the_first_deployment_fits_its_bundle(tmp_path: Path, text_encoder: dict[str, object] | None) -> None:
    facts = replace(FACTS, canvas_s=60.0, text_encoder=text_encoder)
    folder = tmp_path / "models" / "acestep"
    folder.mkdir(parents=True)
    bundle = written(folder, facts)
    path = tmp_path / "deployments" / "try.toml"
    path.parent.mkdir()
    path.write_text(facts.deployment_text(folder, path))
    deployment = load_deployment(path)
    assert deployment.bundle == folder
    check_ranges(deployment, bundle)
    read_options(deployment)
    if bundle.text_encoder is not None:
        assert deployment.max_tokens >= bundle.text_encoder.max_tokens + bundle.text_encoder.prefix_tokens


def test_controls_without_metadata_are_said_in_the_caption(tmp_path: Path) -> None:
    assert not written(tmp_path, FACTS).controls.given
    said = written(tmp_path, replace(FACTS, text_encoder=TEXT)).controls
    assert "bpm" not in said.given
    with_bpm = {**TEXT, "template": "{prompt} {bpm} {key}"}
    values = {"bpm": 90, "scale": "C major", "mute_drums": True}
    controls = written(tmp_path, replace(FACTS, text_encoder=with_bpm)).controls
    assert controls.heard(values) == (["without drums"], {"bpm": 90, "key": "C major"})


SYSTEM = (
    "<|im_start|>system\n# Instruction\nGenerate audio semantic tokens based on the given conditions:\n\n<|im_end|>\n"
)


def planner_spec() -> PlannerSpec:
    sizes, codes = Qwen3Sizes.of(CONFIG), {"first": 260, "count": 10}
    tables = planner_tables(sizes, 64, codes, 259, chat_prompts(plain_chat), tokenizer="tokenizer.json")
    text = "\n".join(table_text(name, values) for name, values in tables.items())
    return validated(PlannerSpec, tomllib.loads(text)["planner"], "planner")


def test_the_tables_are_a_planner_with_the_published_fields_and_defaults() -> None:
    found = planner_spec()
    assert found.thinking is not None
    assert [field.name for field in found.thinking.fields] == [
        "bpm", "caption", "duration", "keyscale", "language", "timesignature",
    ]  # fmt: skip
    assert [len(field.choices) for field in found.thinking.fields] == [271, 0, 591, 70, 51, 4]
    assert (found.sampler.guidance, found.sampler.temperature, found.sampler.top_p) == (2.0, 0.85, 0.9)
    assert (found.codes.count, found.codes.number([265]), found.end_token) == (10, 5, 259)


def test_the_prompts_are_those_of_the_published_pipeline() -> None:
    found = planner_spec()
    assert found.thinking is not None
    values = {"caption": "calm piano", "lyrics": "la la", "thinking": "bpm: 95"}
    prompt, negative = found.thinking.texts(values)
    user = "<|im_start|>user\n# Caption\ncalm piano\n\n# Lyric\nla la\n<|im_end|>\n"
    assert prompt == f"{SYSTEM}{user}<|im_start|>assistant\n"
    assert negative == f"{SYSTEM}<|im_start|>user\n# Lyric\nla la\n<|im_end|>\n<|im_start|>assistant\n"
    assert found.thinking.texts(values, "noise")[1] == prompt.replace("calm piano", "noise")
    prompt, negative = found.codes.texts(values)
    assert prompt == f"{SYSTEM}{user}<|im_start|>assistant\n<think>\nbpm: 95\n</think>\n"
    assert negative == f"{SYSTEM}{user}<|im_start|>assistant\n<think>\n</think>\n"
    assert found.codes.texts(values, "noise")[1] == negative.replace("calm piano", "noise")


DOCUMENT = ROOT / "configs/docs/pages/model.md"
SIZES: dict[str, Any] = {
    "description": "",
    "frame_rate_hz": 25.0,
    "frame_multiple": 2,
    "canvas_s": 60.0,
    "sample_rate_hz": 48_000,
    "audio_channels": 2,
    "hop_samples": 1920,
    "decode_margin_frames": 10,
    "encode_margin_frames": 8,
    "has_null_condition": False,
}


@dataclass(frozen=True)
class Authors:
    """What the authors of a checkpoint write.

    ACE-Step-1.5: README.md, the model zoo (steps, guidance, tasks); docs/en/INFERENCE.md (guidance 7, shift 3 for
    turbo, 1 for others, method ode); acestep/handler.py (256 and 2048 tokens); pull request 1273 (DCW of turbo alone).
    stable-audio-3: docs/workflows/inference.md (steps 8 and 50, guidance 1 and 7); stable_audio_3/inference/sampling.py
    (ping-pong of distilled checkpoints, else Euler); stable_audio_3/inference/distribution_shift.py (log-SNR, -6.2 to
    2); optimized/tensorRT/scripts/sa3_trt_core.py (256 tokens).
    """

    steps: int
    solver: str
    shift: float | None
    guidance: float
    has_dcw: bool
    tokens: tuple[int, ...]
    has_tracks: bool

    def row(self) -> list[str]:
        """The cells of the documentation."""
        shift = "log-SNR" if self.shift is None else f"{self.shift:g}"
        tokens = ", ".join(map(str, self.tokens))
        said = {True: "yes", False: "no"}
        dcw, tracks = said[self.has_dcw], said[self.has_tracks]
        return [str(self.steps), self.solver, shift, f"{self.guidance:g}", dcw, tokens, tracks]


TURBO = Authors(8, "ode", 3.0, 1.0, True, (256, 2048), False)
BASE = Authors(50, "ode", 1.0, 7.0, False, (256, 2048), True)
SFT = Authors(50, "ode", 1.0, 7.0, False, (256, 2048), False)
DISTILLED = Authors(8, "sde", None, 1.0, False, (256,), False)
UNDISTILLED = Authors(50, "ode", None, 7.0, False, (256,), False)
ACESTEP = {
    "acestep-v15-turbo": TURBO,
    "acestep-v15-xl-turbo": TURBO,
    "acestep-v15-base": BASE,
    "acestep-v15-xl-base": BASE,
    "acestep-v15-sft": SFT,
    "acestep-v15-xl-sft": SFT,
    "acestep-v15-base-sft-fix-inst": SFT,
}
ROWS = {
    "ACE-Step v1.5 turbo, XL turbo": TURBO,
    "ACE-Step v1.5 base, XL base": BASE,
    "ACE-Step v1.5 sft, XL sft": SFT,
    "Stable Audio 3 small-music, small-sfx, medium": DISTILLED,
    "Stable Audio 3 small-music-base, small-sfx-base, medium-base": UNDISTILLED,
}


def facts_of(bundle: Bundle) -> Authors:
    """What requests have that name nothing."""
    sampler, text = bundle.sampler, bundle.text_encoder
    assert text is not None
    return Authors(
        sampler.steps,
        sampler.solver,
        sampler.shift if sampler.schedule is None else None,
        sampler.guidance,
        sampler.dcw.mode is not None and bool(sampler.dcw.low or sampler.dcw.high),
        (text.max_tokens, *([] if text.lyrics is None else [text.lyrics.max_tokens])),
        bundle.stems is not None,
    )


def stable_audio_facts(*, is_distilled: bool, **sizes: Any) -> StableAudioFacts:
    return StableAudioFacts(
        name="small-music",
        channels=256,
        tokens=(1, 257),
        is_distilled=is_distilled,
        logsnr=(-6.2, 2.0),
        text_encoder={"max_tokens": stable_audio_3.MAX_TOKENS},
        **{**SIZES, **sizes},
    )


@pytest.mark.parametrize("name", ACESTEP)
def test_an_acestep_has_its_authors_defaults(tmp_path: Path, name: str) -> None:
    config = {"is_turbo": "turbo" in name}
    text = {"template": "{prompt}{instruction}", "prefix_tokens": 0, "instructions": {"extract": ["a {track}", "a"]}}
    facts = AceStepFacts(
        name=name,
        channels=64,
        silence=(0.0,) * 64,
        is_turbo=config["is_turbo"],
        knows_tracks=acestep.knows_tracks(config, name),
        text_encoder={**text, "max_tokens": acestep.MAX_TEXT_TOKENS},
        lyrics={"template": "{lyrics}", "max_tokens": acestep.MAX_LYRIC_TOKENS},
        **SIZES,
    )
    (tmp_path / "bundle.toml").write_text(facts.bundle_text())
    assert facts_of(load_bundle(tmp_path)) == ACESTEP[name]


@pytest.mark.parametrize("is_distilled", [True, False])
def test_a_stable_audio_3_has_its_authors_defaults(tmp_path: Path, is_distilled: bool) -> None:
    facts = stable_audio_facts(is_distilled=is_distilled)
    np.save(tmp_path / "silence.npy", np.zeros((1, 256), np.float32))
    (tmp_path / "bundle.toml").write_text(facts.bundle_text())
    bundle = load_bundle(tmp_path)
    assert facts_of(bundle) == (DISTILLED if is_distilled else UNDISTILLED)
    schedule = bundle.sampler.schedule
    assert schedule is not None
    assert (schedule.kind, schedule.start, schedule.end) == ("logsnr", -6.2, 2.0)


def test_the_documentation_says_the_same() -> None:
    lines = [line.strip("| \n").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    table = {cells[0]: cells[1:] for cells in lines}
    assert {name: table[name] for name in ROWS} == {name: facts.row() for name, facts in ROWS.items()}


@pytest.mark.parametrize("frames", [1, 2])
def test_windows_begin_where_the_codec_s_chunks_do(frames: int) -> None:
    text = replace(stable_audio_facts(is_distilled=True), align_frames=frames).bundle_text()
    assert ("align_frames = 2" in text) == (frames == 2)


def test_deployments_have_the_lengths_up_to_the_canvas() -> None:
    facts = stable_audio_facts(is_distilled=True, frame_rate_hz=11_025 / 1024)
    for canvas_s, ends in ((120.0, [324, 646, 1292]), (45.0, [324, 486])):
        text = replace(facts, canvas_s=canvas_s).deployment_text(Path("b"), Path("b.toml"))
        starts = [2, *(end + 2 for end in ends)]
        for start, end in zip(starts, ends, strict=False):
            assert f"frames = {{ min = {start}, opt = {end}, max = {end} }}" in text
        assert text.count("[[shapes]]") == len(ends)
