"""A family that differs from the others in all that a bundle says, against its formulas: generations, audio, live."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from conftest import Built
from helpers.direct_player import DirectPlayer
from helpers.factories import SECOND_FAMILY, TinySpec, second_rates
from helpers.http_harness import GENERATIONS, Served, problem, serving
from helpers.live_player import is_audio, player
from numpy.typing import NDArray

from runtime.audio.windows import WindowCutter
from runtime.base.errors import RequestError
from runtime.config.option_ranges import GUIDANCE_OPTIONS
from runtime.live.protocol.messages import LivePrompt, SetBand, SetPrompts
from runtime.live.protocol.server_messages import Applied, Problem
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.requests.timesteps import Purpose, noise
from runtime.requests.torch_noise import torch_normal

F32 = NDArray[np.float32]
SPEC = TinySpec(**SECOND_FAMILY)
C, HOP, RATE = SPEC.channels, SPEC.hop_samples, SPEC.sample_rate_hz
FRAME_RATE = RATE / HOP
# torch.sigmoid(torch.linspace(1, 0, 9) * 8.2 - 2), its first value 1 and its last one 0, as torch 2.13 has it.
TORCH_TIMES = (
    0x3F800000, 0x3F7E8F66, 0x3F7C06E5, 0x3F7539BD, 0x3F64123B, 0x3F3EDC24, 0x3F033307, 0x3E8C3AA8, 0x00000000,
)  # fmt: skip
TIMES = np.array(TORCH_TIMES, np.uint32).view(np.float32)


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(**SECOND_FAMILY)) as opened:
        yield opened


def session(pipeline: Pipeline, name: str) -> ort.InferenceSession:
    return ort.InferenceSession(str(pipeline.bundle.folder / f"{name}.onnx"))


def generated(pipeline: Pipeline, inputs: GenerationInputs | None = None, **options: Any) -> F32:
    parsed = parse_options({"prompt": "a low drone", "seed": 5, **options})
    return np.concatenate(
        list(generate_latents(pipeline, LongGeneration(pipeline, parsed, inputs or GenerationInputs())))
    )


def sampled(pipeline: Pipeline, request: GenerationRequest, x: F32, times: F32) -> F32:
    """x0 = x - t v; x = (1 - t') x0 + t' noise, one step after the other."""
    decoder, (condition,) = session(pipeline, "decoder"), request.conditions
    fixed = {
        "encoder_hidden_states": condition.tokens[None],
        "condition_mask": np.ones((1, len(condition.tokens)), np.float32),
        "context_latents": np.asarray(request.context)[None],
    }
    for step, (now, then) in enumerate(pairwise(times)):
        feeds = {"hidden_states": x[None], "timestep": np.array([now], np.float32), **fixed}
        x0 = x - now * decoder.run(None, feeds)[0][0]
        x = (1 - then) * x0 + then * noise(len(x), C, request.seed, Purpose.STEP, step)
    return x


def randn(frames: int, seed: int) -> F32:
    """torch.randn(1, C, T) as `[T, C]`."""
    return torch_normal(C * frames, seed).reshape(1, C, frames)[0].transpose(1, 0)


def request_of(pipeline: Pipeline, inputs: GenerationInputs | None = None, **options: Any) -> GenerationRequest:
    return pipeline.request("a low drone", inputs or GenerationInputs(), seed=5, **options)


def test_a_generation_follows_the_formulas_of_its_sampler(pipeline: Pipeline) -> None:
    latents = generated(pipeline, noise="torch")
    x = randn(SPEC.canvas_frames, 5)
    expected = sampled(pipeline, request_of(pipeline), x, TIMES)
    assert np.abs(latents - expected).max() < 1e-5
    assert np.abs(latents - x).max() > 0.1


def test_a_variation_of_a_source_begins_at_its_share_of_noise_and_descends_from_there(pipeline: Pipeline) -> None:
    source = np.random.default_rng(1).standard_normal((SPEC.canvas_frames, C)).astype(np.float32)
    inputs, share = GenerationInputs(source=source), np.float32(0.6)
    latents = generated(pipeline, inputs, noise="torch", denoise=0.6)
    x = share * randn(SPEC.canvas_frames, 5) + (1 - share) * source
    expected = sampled(pipeline, request_of(pipeline, inputs, denoise=0.6), x, share * TIMES)
    assert np.abs(latents - expected).max() < 1e-5
    np.testing.assert_array_equal(generated(pipeline, inputs, denoise=0.0), source)


def test_the_text_is_encoded_for_the_seconds_of_its_segment(pipeline: Pipeline) -> None:
    for frames in (10, SPEC.canvas_frames):
        request = request_of(pipeline, seconds=frames / FRAME_RATE)
        assert request.frames == frames
        expected = np.sin(frames / FRAME_RATE * second_rates(SPEC))
        np.testing.assert_allclose(request.conditions[0].tokens[0], expected, atol=1e-6)
    short, long = (request_of(pipeline, seconds=seconds).conditions[0].tokens for seconds in (1.0, 2.9))
    np.testing.assert_array_equal(short[1:], long[1:])
    assert len(short) == len(pipeline.text_encoder._tokenizer.encode("a low drone").ids) + 1  # type: ignore[union-attr]
    assert request_of(pipeline, seconds=1.0).conditions[0].tokens is short


def test_few_frames_of_a_short_generation_are_cut_off(pipeline: Pipeline) -> None:
    for wanted in range(2, SPEC.canvas_frames + 1, 2):
        frames = request_of(pipeline, seconds=wanted / FRAME_RATE).frames
        assert wanted <= frames
        assert frames - wanted < 0.1 * frames


def decoded(pipeline: Pipeline, latents: F32) -> F32:
    """`[T, C]` in one execute -> `[T * hop, channels]`; T is even."""
    return session(pipeline, "codec_decode").run(None, {"latents": latents[None]})[0][0].T


@pytest.mark.parametrize("window_frames", [1, 3, 6, 64])
def test_windows_equal_the_whole_decode(pipeline: Pipeline, window_frames: int) -> None:
    parsed = parse_options({"prompt": "a", "seed": 2, "seconds": 7.0, "finish": False})
    latents: list[F32] = []
    audio = generate_audio(
        pipeline, LongGeneration(pipeline, parsed), window_frames=window_frames, on_latents=latents.append
    )
    pcm = np.concatenate(list(audio))
    assert len(latents) > 1
    expected = decoded(pipeline, np.concatenate(latents))[: len(pcm)]
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(pcm, expected, atol=1e-6)


@pytest.mark.parametrize("first_frames", [1, 5, 8])
def test_first_windows_of_any_length_equal_the_whole_decode(pipeline: Pipeline, first_frames: int) -> None:
    codec, latents = pipeline.codec, np.random.default_rng(2).standard_normal((40, C)).astype(np.float32)
    assert codec is not None
    cutter = codec.window_cutter(7, total_frames=40, first_frames=first_frames, start_frame=3)
    windows = [window for part in np.split(latents, [11, 24, 31]) for window in cutter.cut(part)]
    assert len({window.frames for window in windows}) > 1
    pcm = np.concatenate([codec.decode_window(window) for window in windows])
    np.testing.assert_allclose(pcm, decoded(pipeline, latents), atol=1e-6)
    wrong = [window for window in WindowCutter(2, 7, 40).cut(latents) if window.start_frame % 2 and window.frames % 2]
    assert wrong
    for window in wrong:
        odd = decoded(pipeline, window.values[: len(window.values) // 2 * 2])[window.margin_before * HOP :]
        right = decoded(pipeline, latents)[window.first_frame * HOP :][: len(odd)]
        assert np.abs(odd - right).max() > 1e-2


def test_audio_is_encoded_and_decoded_in_whole_groups(pipeline: Pipeline) -> None:
    codec = pipeline.codec
    assert codec is not None
    pcm = np.random.default_rng(3).uniform(-1, 1, (601 * HOP - 100, 2)).astype(np.float32)
    padded = np.pad(pcm, ((0, HOP + 100), (0, 0)))  # 602 frames
    expected = session(pipeline, "codec_encode").run(None, {"audio": padded.T[None]})[0][0]
    found = codec.encode_chunks(np.split(pcm, [1000, 300_000]))
    assert len(found) == 601
    np.testing.assert_allclose(found, expected[:601], atol=1e-6)
    odd = codec.decode(found[:25])
    np.testing.assert_allclose(odd[: 24 * HOP - HOP], decoded(pipeline, found[:24])[: 23 * HOP], atol=1e-6)
    assert len(odd) == 25 * HOP


def test_a_loop_of_any_length_is_decoded_in_the_groups_of_its_canvas(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, prompts=[LivePrompt(text="a")])
    player.play(1.0)
    begin, end = 5, 18
    band = SetBand(seq=1, start_s=begin / FRAME_RATE, end_s=end / FRAME_RATE)
    player.session.handle(band, player.now_s)
    pcm = player.play(16.0)
    (latents,) = player.latents
    here = player.session.core.timeline.newest
    assert here is not None
    assert here.band == (begin, end)
    # One pass, with frames of the passes around it from an even frame on.
    frames = [begin + (frame - begin) % (end - begin) for frame in range(begin - 3, end + 4)]
    one_pass = decoded(pipeline, latents[frames])[3 * HOP :][: (end - begin) * HOP]
    first = here.play_frame + (begin - here.canvas_frame) % (end - begin) + end - begin  # where a pass begins
    for start in range(first * HOP, len(pcm) - len(one_pass), len(one_pass)):
        np.testing.assert_allclose(pcm[start : start + len(one_pass)], one_pass, atol=1e-6)
    assert len(pcm) - first * HOP > 4 * len(one_pass)


def test_an_extension_is_decoded_in_the_groups_of_its_canvas_also_after_changes(pipeline: Pipeline) -> None:
    player = DirectPlayer(pipeline, mode="extend", prompts=[LivePrompt(text="a")])
    for seq, seconds in enumerate((1.7, 4.2, 6.6), start=1):
        player.play(seconds)
        player.session.handle(SetPrompts(seq=seq, items=[LivePrompt(text="abc"[seq % 3])]), player.now_s)
    pcm = player.play(14.0)
    starts = [job.segment.start_frame for job in player.jobs]
    assert len(starts) > 5
    assert all(start % 2 == 0 for start in starts)
    canvas = player.session.core.timeline.canvas
    whole = decoded(pipeline, canvas.rows(range(canvas.end // 2 * 2)))
    settled = max((end for _, end in player.replaced), default=0) + 3 * HOP
    assert len(pcm) - settled > 4 * RATE
    np.testing.assert_allclose(pcm[settled:], whole[settled : len(pcm)], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"guidance": 2.0}, "guidance", r"is 2, this model takes 1 alone \(its checkpoint is distilled\)"),
        ({"guidance": [1.0, 3.0]}, "guidance", "is 3, this model takes 1 alone"),
        ({"shift": 3.0}, "shift", r"takes 1 alone \(its times are those of a schedule of its own"),
        ({"momentum": 0.5}, "momentum", r"this model takes no other \(its checkpoint is distilled\)"),
        ({"negative_prompt": "a"}, "negative_prompt", "this model takes no other"),
    ],
)
def test_what_there_is_no_choice_of_is_refused_with_the_reason(
    pipeline: Pipeline, options: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(RequestError, match=says) as error:
        generated(pipeline, **options)
    assert error.value.field == field
    assert len(generated(pipeline, guidance=1.0, seconds=0.5, steps=2))


def test_a_draft_of_a_loop_begins_at_half_noise(pipeline: Pipeline) -> None:
    request = request_of(
        pipeline, GenerationInputs(source=np.zeros((SPEC.canvas_frames, C), np.float32)), denoise=0.5, steps=4
    )
    exact = 0.5 / (1 + np.exp(2 - 8.2 * np.arange(4, 0, -1) / 4))
    assert request.timesteps is not None
    np.testing.assert_allclose(request.timesteps, [0.5, *exact[1:]], atol=1e-7)


@pytest.fixture(scope="module")
def served(built: Built) -> Iterator[Served]:
    with serving(built(**SECOND_FAMILY)) as server:
        yield server


def test_it_is_served_over_http_without_what_it_leaves_no_choice_of(served: Served) -> None:
    body = {"prompt": "a low drone", "seconds": 1.5, "seed": 3, "response_format": "wav"}
    with served.client() as client:
        made = client.post(GENERATIONS, json=body)
        assert made.status_code == 200
        assert client.post(GENERATIONS, json={**body, "guidance": 1.0, "shift": 1}).status_code == 200
        document = problem(client.post(GENERATIONS, json={**body, "guidance": 4.0}), 422)
        assert "this model takes 1 alone (its checkpoint is distilled)" in document["detail"]
        assert [error["pointer"] for error in document["errors"]] == ["/guidance"]
        offered = client.get("/v1/schema").json()["properties"]
        assert "solver" in offered
        assert not {"guidance", "shift", *GUIDANCE_OPTIONS} & offered.keys()


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_it_is_played_live_over_a_websocket(served: Served, mode: str) -> None:
    with player(served) as client:
        ready = client.open(mode=mode, prompts=[{"text": "a"}], seed=1)
        assert not {"guidance", "shift"} & ready.controls.json_schema["properties"].keys()
        client.receive_until(is_audio)
        client.send(type="set", seq=1, values={"guidance": 3.0})
        refused = client.receive_until(lambda item: isinstance(item, Problem))
        assert "its checkpoint is distilled" in refused.detail
        client.send(type="set", seq=2, values={"guidance": 1.0, "velocity_scale": 0.9})
        applied = client.receive_until(lambda item: isinstance(item, Applied) and item.seq == 2)
        assert applied.seq == 2
