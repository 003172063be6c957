"""None"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_bundle

from runtime.config.bundle import Bundle, load_bundle
from runtime.config.option_ranges import ControlSpec, ControlsSpec
from runtime.requests.option_types import MAX_LYRICS_CHARACTERS
from runtime.requests.options import COVER_DENOISE
from server.asgi.problems import Finding, ProblemError
from server.protocols.acestep.fields import MAX_ITEMS, PARAMETERS, Fields, error_text
from server.protocols.acestep.request import NEUTRAL, TaskRequest, task_request

FILES = ("src_audio",)


def test_values_come_by_every_name_and_from_objects() -> None:
    fields = Fields({"caption": "a", "param_obj": '{"duration": 3}', "user_metadata": {"keyScale": "Am", "bpm": 90}})
    assert (fields.text("prompt"), fields.number("audio_duration")) == ("a", 3.0)
    assert (fields.text("key_scale"), fields.integer("bpm"), fields.text("lyrics")) == ("Am", 90, "")
    both = Fields({"prompt": "first", "caption": "second", "bpm": 100, "metas": {"bpm": 120}})
    assert (both.text("prompt"), both.integer("bpm")) == ("first", 100)


def test_texts_of_forms_are_values() -> None:
    fields = Fields({"bpm": "120", "thinking": "True", "shift": " 2.5 ", "seed": "", "lyrics": " la "})
    assert (fields.integer("bpm"), fields.flag("thinking"), fields.number("shift")) == (120, True, 2.5)
    assert (fields.integer("seed"), fields.flag("use_adg", True), fields.text("lyrics")) == (None, True, "la")
    assert Fields({"seed": "", PARAMETERS: '{"seed": 5}'}).integer("seed") == 5
    assert (Fields({"thinking": 0}).flag("thinking", True), Fields({"bpm": 120.0}).integer("bpm")) == (False, 120)
    assert Fields({"track_classes": "drums, bass|fx,"}).texts("track_classes") == ["drums", "bass", "fx"]
    assert Fields({"instruments": ["drums", 5]}).texts("track_classes") == ["drums", "5"]


@pytest.mark.parametrize(
    ("name", "most"), [("key_scale", MAX_LYRICS_CHARACTERS), ("audio_code_string", 131_072), ("seed", MAX_ITEMS)]
)
def test_texts_and_lists_have_a_most(name: str, most: int) -> None:
    def read(size: int) -> object:
        return Fields({name: [7] * size}).texts(name) if most == MAX_ITEMS else Fields({name: "x" * size}).text(name)

    assert read(most)
    with pytest.raises(ProblemError, match=f"has {most + 1} .*, at most {most} are taken"):
        read(most + 1)


def test_an_error_has_the_clients_names() -> None:
    def text(pointer: str, detail: str, fix: str = "") -> str:
        error = ProblemError(422, "x", "what", fix=fix, errors=[Finding(pointer=pointer, detail=detail)])
        return error_text(error.document().model_dump())

    assert text("/guidance", "too large", "see /v1/schema") == "guidance_scale: too large"
    assert text("/repaint/0/end_s", "repaint: is outside", "end it") == "repainting_start: is outside (end it)"
    assert text("/query/path", "is missing") == "path: is missing"
    assert text("", "wrong") == "wrong"
    assert error_text(ProblemError(503, "busy", "busy").document().model_dump()) == "busy"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """One that also knows lego."""
    made = load_bundle(tiny_bundle(tmp_path_factory.mktemp("bundle"), conditions=True, structure=True))
    assert made.text_encoder is not None
    instructions = {**made.text_encoder.instructions, "lego": ("l {track}",)}
    encoder = made.text_encoder.model_copy(update={"instructions": instructions})
    return made.model_copy(update={"text_encoder": encoder})


def wanted(bundle: Bundle, *files: str, **fields: Any) -> TaskRequest:
    return task_request(Fields({"prompt": "a", **fields}), files, bundle)


def sampler(bundle: Bundle, **changes: Any) -> Bundle:
    return bundle.model_copy(update={"sampler": bundle.sampler.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("theirs", "key"),
    [
        ("C Major", "C major"), ("Am", "A minor"), ("f# min", "F# minor"), ("Bb", "Bb major"), ("D♭ maj", "Db major"),
        ("EM", "E major"), ("g minor", "G minor"), ("N/A", None), ("", None),
    ],
)  # fmt: skip
def test_keys(bundle: Bundle, theirs: str, key: str | None) -> None:
    assert wanted(bundle, keyscale=theirs).values.get("key") == key


@pytest.mark.parametrize(("theirs", "beats"), [("4", 4), (3, 3), ("6/8", 6), (2.0, 2), ("auto", None)])
def test_time_signatures(bundle: Bundle, theirs: object, beats: int | None) -> None:
    assert wanted(bundle, timesignature=theirs).values.get("time_signature") == beats


def test_defaults_that_clients_always_send_are_the_models(bundle: Bundle) -> None:
    sent = {"guidance_scale": "7.0", "shift": 3, "cfg_interval_start": 0.0, "cfg_interval_end": 1.0, "bpm": 0}
    auto = {"audio_duration": -1, "vocal_language": "unknown", "instruction": "", "negative_prompt": ""}
    request = wanted(bundle, **sent, **auto)
    assert request.values == {"prompt": "a", "response_format": "mp3", "task": "text2music"}
    assert request.ignored == ()


def test_what_asks_for_nothing_is_taken(bundle: Bundle) -> None:
    plain = wanted(bundle).values
    assert wanted(bundle, **NEUTRAL).values == wanted(bundle, latent_shift="0.0", sampler_mode="").values == plain


def test_guidance_counts_where_the_model_works_with_it(bundle: Bundle) -> None:
    given = {"guidance_scale": 4, "cfg_interval_start": 0.1, "cfg_interval_end": 0.9}
    values = wanted(sampler(bundle, guidance=2.0), **given).values
    assert (values["guidance"], values["cfg_interval_start"], values["cfg_interval_end"]) == (4.0, 0.1, 0.9)
    assert not {"guidance", "cfg_interval_start"} & set(wanted(sampler(bundle, guidance=1.0), **given).values)


def test_timesteps_are_in_place_of_steps_and_shift(bundle: Bundle) -> None:
    values = wanted(bundle, timesteps="0.97,0.5,0.085,0", inference_steps=8, shift=2).values
    assert values["timesteps"] == [0.97, 0.5, 0.085]
    assert not {"steps", "shift"} & set(values)


def test_a_lego_adds_to_a_part_by_the_daws_instruction_or_the_models(bundle: Bundle) -> None:
    given = {"task_type": "lego", "track_name": "drums", "audio_duration": 8, "repainting_start": 2.0}
    request = wanted(bundle, *FILES, **given, repainting_end=7.98)
    assert (request.values["track"], "seconds" in request.values) == ("drums", False)
    assert request.with_source("id", 8.0)["repaint"] == [{"start_s": 2.0, "end_s": 8.0}]
    told = wanted(bundle, *FILES, **given, instruction="Generate a segment of the DRUMS track:")
    assert "track" not in told.values
    assert told.values["instruction"].startswith("Generate a segment")
    whole = wanted(bundle, *FILES, task_type="lego", track_name="drums")
    assert "repaint" not in whole.with_source("id", 8.0)


def test_what_is_made_behind_the_source_gives_the_length(bundle: Bundle) -> None:
    request = wanted(bundle, *FILES, task_type="repaint", repainting_start=8.05, repainting_end=12)
    values = request.with_source("id", 8.0)
    assert (values["repaint"], values["seconds"]) == ([{"start_s": 8.0, "end_s": 12.0}], 12.0)
    with pytest.raises(ProblemError, match="no part of the source"):
        wanted(bundle, *FILES, task_type="repaint", repainting_start=9).with_source("id", 8.0)


def test_how_much_a_cover_keeps_is_a_strength_or_where_it_starts(bundle: Bundle) -> None:
    plain, cover = bundle.model_copy(update={"structure": None}), {"task_type": "cover"}
    for strength, denoise in ((1.0, COVER_DENOISE), (0.0, 1.0), (0.5, (1 + COVER_DENOISE) / 2)):
        values = wanted(plain, *FILES, **cover, audio_cover_strength=strength).values
        assert (values["denoise"], "structure_strength" in values) == (pytest.approx(denoise), False)
        values = wanted(bundle, *FILES, **cover, audio_cover_strength=strength).values
        assert (values["structure_strength"], "denoise" in values) == (strength, False)
    for each in (plain, bundle):
        assert wanted(each, *FILES, **cover, cover_noise_strength=0.25).values["denoise"] == 0.75
    assert "denoise" not in wanted(plain, *FILES, **cover).values
    noisy = wanted(bundle, *FILES, task_type="repaint", repainting_end=2, cover_noise_strength=0.25)
    assert "denoise" not in noisy.values
    told = wanted(bundle, "reference_audio", audio_cover_strength=0.3).values
    assert (told["timbre_strength"], "structure_strength" in told) == (0.3, False)


def test_descriptions_are_prompts(bundle: Bundle) -> None:
    described = task_request(Fields({"sample_query": "soft", "sample_mode": True}), (), bundle)
    assert (described.values["prompt"], described.ignored) == ("soft", ("sample_mode",))
    assert wanted(bundle, prompt="", global_caption="a song").values["prompt"] == "a song"


def test_random_seeds_differ(bundle: Bundle) -> None:
    assert len(set(wanted(bundle, batch_size=8, seed=5).seeds)) == 8
    assert wanted(bundle, use_random_seed=False, seed=-1).seeds != wanted(bundle, use_random_seed=False, seed=-1).seeds
    assert wanted(bundle, use_random_seed="false", seed=5).seeds == (5, 6)


def test_metadata_that_a_model_has_no_option_for_are_words_of_its_prompt(tmp_path: Path) -> None:
    controls = ControlsSpec(bpm=ControlSpec(words=("slow", "fast")), scale=ControlSpec(words=("in {value}",)))
    plain = load_bundle(tiny_bundle(tmp_path)).model_copy(update={"controls": controls})
    request = wanted(plain, bpm=180, key_scale="Am", time_signature=3)
    assert (request.values["prompt"], request.ignored) == ("a, fast, in A minor", ("time_signature",))


def test_section_tags_are_the_plans_where_the_model_sings_nothing(tmp_path: Path) -> None:
    planned = load_bundle(tiny_bundle(tmp_path, planner={"plan": True}))
    tagged = wanted(planned, lyrics="[verse] [drop]")
    assert (tagged.values["lyrics"], tagged.values["plan"]) == ("[verse] [drop]", True)
    for lyrics in ("", "[Instrumental]"):
        plain = wanted(planned, lyrics=lyrics)
        assert ("lyrics" in plain.values, plain.values["plan"]) == (False, False)
    assert wanted(planned, thinking=True).values["plan"]
