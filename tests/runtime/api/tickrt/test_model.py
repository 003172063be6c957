"""tickrt.open and Model: what they generate is what the pipeline generates, and errors are those of HTTP."""

import dataclasses
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.adapters import adapter_deployment
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec
from helpers.http_harness import eventually
from helpers.odd_audio import DAMAGED

import tickrt
from runtime.pipeline.generation import LongGeneration, generate_latents
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import GenerationOptions, parse_options
from runtime.tick.loop.record import TickRecord

SPEC = TinySpec()
RATE_HZ = SPEC.sample_rate_hz
LONG_S = 3.0  # three segments


def test_generates_what_the_pipeline_generates(model: tickrt.Model, built: Built) -> None:
    audio = model.generate("warm piano", seconds=LONG_S, seed=3, finish=False)
    with open_pipeline(built()) as pipeline:
        options = parse_options({"prompt": "warm piano", "seconds": LONG_S, "seed": 3})
        latents = np.concatenate(list(generate_latents(pipeline, LongGeneration(pipeline, options))))
        assert pipeline.codec is not None
        pcm = pipeline.codec.decode(latents)[: len(audio)]
    assert np.array_equal(audio.latents, latents)
    assert np.abs(audio.pcm - pcm).max() < 1e-5
    assert (audio.pcm.shape, audio.pcm.dtype) == ((round(LONG_S * RATE_HZ), SPEC.audio_channels), np.float32)
    assert (audio.sample_rate_hz, model.sample_rate_hz, audio.seed) == (RATE_HZ, RATE_HZ, 3)


def test_an_audio_says_which_words_are_understood(model: tickrt.Model, built: Built) -> None:
    assert model.generate("jazz", seconds=0.5, steps=1).prompt_words == tickrt.PromptWords(("jazz",))
    with tickrt.open(built(words=("calm", "drums"), more=FEW_VARIANTS).path) as other:
        words = other.generate("calm jazz", seconds=0.5, steps=1).prompt_words
    assert words == tickrt.PromptWords(("calm",), ("jazz",))


def test_an_audio_says_what_is_played_of_its_prompts(model: tickrt.Model, built: Built) -> None:
    assert model.generate("jazz", seconds=0.5, steps=1).meanings == ()
    with tickrt.open(built(meaning=True, words=("calm", "chant"), more=FEW_VARIANTS).path) as other:
        named = other.generate("fast jazz", seconds=0.5, steps=1)
        assert named.meanings == (tickrt.PromptMeaning("fast jazz", {"genre": ("jazz",), "tempo": ("150 bpm",)}),)
        drawn = other.generate("chant", seconds=0.5, steps=1)
        again = other.generate(**drawn.options)
    assert drawn.options["prompt"] == "chant"
    assert again.meanings == drawn.meanings
    assert np.array_equal(again.latents, drawn.latents)


def test_adapters_are_listed_and_named(tmp_path: Path) -> None:
    with tickrt.open(adapter_deployment(tmp_path).path) as model:
        assert [(one.id, one.rank, one.trigger_words) for one in model.adapters] == [
            ("hard", 4, ()), ("soft", 4, ("soft", "felt"))
        ]  # fmt: skip
        plain, named = (model.generate("a", seconds=0.5, seed=1, **more) for more in ({}, {"adapters": "soft"}))  # type: ignore[arg-type]
        assert np.abs(named.latents - plain.latents).max() > 0.01
        weighted = model.generate("a", seconds=0.5, seed=1, adapters={"soft": 1.0})
        assert np.array_equal(weighted.latents, named.latents)


def test_a_model_tells_its_words_and_an_audio_its_plan(built: Built) -> None:
    planner = {"capacity": 1024, "plan": True}
    deployment = built(words=("pads", "and", "bass"), planner=planner, conditions=True, more=FEW_VARIANTS)
    with tickrt.open(deployment.path) as model:
        assert model.adapters == ()
        assert set(model.vocabulary or ()) >= {"pads", "bass"}
        audio = model.generate("pads and bass", seconds=0.5, steps=1, plan=True)
        assert audio.plan is not None
        assert audio.plan["sections"]
        assert model.generate("pads", seconds=0.5, steps=1, plan=False).plan is None


def test_its_options_generate_it_again(model: tickrt.Model) -> None:
    audio = model.generate([{"text": "a", "weight": np.linspace(0, 1, 3)}], guidance=(1.0, 2.0), steps=2)
    assert audio.options == {
        "prompt": [{"text": "a", "weight": [0.0, 0.5, 1.0]}], "guidance": [1.0, 2.0], "steps": 2, "seed": audio.seed
    }  # fmt: skip
    assert np.array_equal(model.generate(**audio.options).latents, audio.latents)


def test_a_stream_is_the_same_audio_in_chunks(model: tickrt.Model) -> None:
    chunks = list(model.stream("a", seconds=LONG_S, seed=1))
    assert len(chunks) > 1
    assert np.abs(np.concatenate(chunks) - model.generate("a", seconds=LONG_S, seed=1).pcm).max() < 1e-5


def test_leaving_a_stream_cancels_it(model: tickrt.Model) -> None:
    loop, left = model._pipeline.loop, threading.Event()
    before = dict(loop.stats().outcomes)

    def wait_after_the_first_segment(record: TickRecord) -> None:
        if loop.stats().outcomes["ok"] > before["ok"]:
            left.wait(60)

    loop.observers.append(wait_after_the_first_segment)
    for _ in model.stream("a", seconds=60):
        eventually(lambda: not loop.is_empty)  # the next segment is in flight
        break
    left.set()
    model.generate("b", seconds=1)
    loop.observers.remove(wait_after_the_first_segment)
    assert loop.stats().outcomes["cancelled"] == before["cancelled"] + 1
    assert loop.stats().outcomes["ok"] == before["ok"] + 2


def test_many_share_ticks_and_come_back_in_order(model: tickrt.Model) -> None:
    runtime = model._pipeline.deployment.runtime
    records: list[TickRecord] = []
    model._pipeline.loop.observers.append(records.append)
    count = 2 * (runtime.depth + runtime.queue)
    items: list[str | tickrt.Generation] = [{"prompt": f"song {index}", "seed": index} for index in range(count - 1)]
    many = model.generate_many([*items, "last"], seconds=1, steps=2)
    model._pipeline.loop.observers.clear()
    assert [audio.options["prompt"] for audio in many] == [*(f"song {index}" for index in range(count - 1)), "last"]
    assert [audio.seed for audio in many[:-1]] == list(range(count - 1))
    alone = model.generate("song 5", seed=5, seconds=1, steps=2)
    assert np.abs(many[5].latents - alone.latents).max() < 1e-4
    assert len(records) < 2 * count


def test_one_invalid_item_stops_all_before_they_start(model: tickrt.Model) -> None:
    stats = model._pipeline.loop.stats
    started = dict(stats().outcomes)
    with pytest.raises(tickrt.RequestError, match="seconds"):
        model.generate_many(["a", {"prompt": "b", "seconds": -1}])
    assert stats().outcomes == started


def test_an_item_that_fails_cancels_the_others(model: tickrt.Model) -> None:
    too_wide = np.zeros((4, SPEC.condition_width + 1), np.float32)
    stats = model._pipeline.loop.stats
    before = stats().outcomes["ok"]
    with pytest.raises(tickrt.RequestError, match="conditions"):
        model.generate_many([{"prompt": "a", "seconds": 600}, {"condition": too_wide}])
    model.generate("b", seconds=1)
    num_segments = 600 * RATE_HZ // SPEC.hop_samples // SPEC.canvas_frames
    assert stats().outcomes["ok"] - before < num_segments


def test_what_cannot_be_decoded_of_a_source_is_a_warning(model: tickrt.Model, tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(DAMAGED["cut flac"][0])
    with pytest.warns(UserWarning, match=r"a\.flac: at least 0\.\d\d s of the audio cannot be decoded"):
        model.generate("b", source=tmp_path / "a.flac", denoise=0.5)


def test_sources_are_paths_audio_and_arrays(model: tickrt.Model, tmp_path: Path) -> None:
    first = model.generate("a", seconds=1, seed=1)
    first.save(tmp_path / "a.wav")
    first.save(tmp_path / "a.safetensors")
    options: tickrt.Options = {"denoise": 0.5, "seed": 2}
    from_audio = model.generate("b", source=first, **options)
    from_latents = model.generate("b", source=str(tmp_path / "a.safetensors"), **options)
    assert np.array_equal(from_audio.latents, from_latents.latents)
    from_file = model.generate("b", source=tmp_path / "a.wav", **options)
    from_array = model.generate("b", source=first.pcm, **options)
    assert np.abs(from_file.latents - from_array.latents).max() < 1e-3
    assert np.abs(from_file.latents - model.generate("b", seconds=1, seed=2).latents).max() > 0.01
    other = dataclasses.replace(first, bundle=("other", "1.0.0"))
    assert np.array_equal(model.generate("b", source=other, **options).latents, from_array.latents)
    resampled = model.generate("b", source=first.pcm[:, :1].repeat(2, axis=0), sample_rate_hz=2 * RATE_HZ, **options)
    assert resampled.latents.shape == from_file.latents.shape
    drawn = model.generate("b", target_source=first, target_curve=1.0, seed=2, seconds=1)
    assert np.abs(drawn.latents - first.latents).max() < 0.01


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"guidanse": 2.0}, "guidanse: .*\n.*did you mean guidance"),
        ({"seconds": "4"}, "seconds: expected a number"),
        ({"repaint": [{"start_s": 0.0, "end_s": 1.0}]}, "repaint: needs a source"),
        ({"source": "nowhere.wav"}, "nowhere.wav cannot be read"),
        ({"source": np.zeros((2, 4800), np.float32)}, "float32 .2, 4800., expected float samples"),
        ({"source": np.zeros((4800, 2), np.int16)}, "int16"),
        ({"prompt": None}, "prompt: is missing"),
    ],
)
def test_invalid_arguments_are_refused(model: tickrt.Model, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(tickrt.RequestError, match=says):
        model.generate(**{"prompt": "a", **arguments})  # type: ignore[arg-type]


def test_options_are_a_json_schema(model: tickrt.Model) -> None:
    assert model.options == GenerationOptions.model_json_schema()


def test_a_closed_model_says_so(built: Built) -> None:
    model = tickrt.open(str(built().path))
    stream = model.stream("a", seconds=LONG_S)
    next(stream)
    model.close()
    model.close()
    with pytest.raises(tickrt.DrainingError, match="the model is closed"):
        model.generate("a")


def test_a_stream_keeps_its_model_open(built: Built) -> None:
    pcm = np.concatenate(list(tickrt.open(built().path).stream("a", seconds=LONG_S)))
    assert len(pcm) == LONG_S * RATE_HZ


def test_a_bundle_without_a_codec_gives_latents(built: Built) -> None:
    with tickrt.open(built(codec=False, more=FEW_VARIANTS).path) as model:
        audio = model.generate("a", seed=1)
        assert audio.latents.shape == (SPEC.canvas_frames, SPEC.channels)
        for refused in (lambda: audio.pcm, lambda: model.sample_rate_hz, lambda: model.stream("a")):
            with pytest.raises(tickrt.ConfigError, match="latents, not audio"):
                refused()


def test_what_cannot_be_opened() -> None:
    with pytest.raises(tickrt.ConfigError, match="no configuration at nowhere"):
        tickrt.open("nowhere")
    with pytest.raises(tickrt.RequestError, match="target"):
        tickrt.open("demo", target="abacus")  # type: ignore[arg-type]


def test_notes_and_stems_of_a_generation(built: Built, tmp_path: Path) -> None:
    with tickrt.open(built(stems=True).path) as model:
        audio = model.generate("a", seconds=2, seed=1)
        stems = audio.stems()
        assert list(stems) == ["bass", "drums"]
        assert np.abs(sum(stems.values()) - audio.pcm).max() < 1e-6
        assert {note.layer for note in audio.notes} <= set(stems)
        audio.save_stems(tmp_path / "layers", "wav")
        assert (tmp_path / "layers" / "drums.wav").exists()
        copied = pickle.loads(pickle.dumps(audio))
        assert np.array_equal(copied.pcm, audio.pcm)
        with pytest.raises(tickrt.RequestError, match="nothing tells the layers"):
            copied.stems()
    with pytest.raises(tickrt.TickError):
        audio.stems()


def test_stems_of_a_model_that_extracts_tracks(built: Built, tmp_path: Path) -> None:
    with tickrt.open(built(conditions=True, tracks=("drums", "vocals")).path) as model:
        audio = model.generate("a", seconds=1, seed=1, ending="cut")
        stems = audio.stems()
        assert {name: stem.shape for name, stem in stems.items()} == dict.fromkeys(("drums", "vocals"), audio.pcm.shape)
        drums = model.generate("a", source=audio, task="extract", track="drums", seed=1, finish=False)
        assert np.corrcoef(stems["drums"][:, 0], drums.pcm[: len(audio), 0])[0, 1] > 0.98
        audio.save_stems(tmp_path, "wav")
        names = [path.name for path in sorted(tmp_path.iterdir())]
        assert names == ["drums.wav", "mix.wav", "options.json", "vocals.wav"]


def test_notes_and_stems_of_audio_from_elsewhere_are_estimates(built: Built) -> None:
    with tickrt.open(built(stems=True).path) as model:
        first = model.generate("a", seconds=1, seed=1)
        kept: dict[str, Any] = {"seconds": 1, "seed": 2, "repaint": [{"start_s": 0.4, "end_s": 0.8}]}
        assert not first.is_estimated
        of_its_own = model.generate("a", source=first, **kept)
        assert (of_its_own.is_estimated, of_its_own.score.is_estimated) == (False, False)
        uploaded = model.generate("a", source=first.pcm, **kept)
        assert (uploaded.is_estimated, uploaded.score.is_estimated) == (True, True)
        assert model.generate("a", source=pickle.loads(pickle.dumps(uploaded)), **kept).is_estimated
        assert model.generate("a", target_source=first.pcm, x0_strength=1.0, seed=1).is_estimated


def test_notes_are_given_as_a_generation_has_them_as_objects_or_as_a_file(built: Built, tmp_path: Path) -> None:
    with tickrt.open(built(notes=True, structure=True).path) as model:
        note = {"layer": "bass", "pitch": 40, "start_s": 0.4, "seconds": 0.4}
        first = model.generate("a", seed=1, seconds=1.28, notes=[note], notes_exact=True)  # type: ignore[list-item]
        assert first.options["notes"][0]["pitch"] == 40
        again = model.generate(**first.options)
        np.testing.assert_array_equal(again.latents, first.latents)
        first.save(tmp_path / "a.mid")
        for notes in (first.notes, tmp_path / "a.mid", str(tmp_path / "a.mid")):
            played = model.generate("a", seed=1, seconds=1.28, notes=notes)
            assert len(played.options["notes"]) == len(first.notes)
        with pytest.raises(tickrt.RequestError, match=r"notes\.0\.pitch"):
            model.generate("a", notes=[{**note, "pitch": 128}])  # type: ignore[list-item]
