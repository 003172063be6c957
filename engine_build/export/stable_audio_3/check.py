"""A check of a Stable Audio 3 checkpoint on this machine: where published implementations contradict each other.

Eight questions are answered by the weights themselves. A transformer was trained with one of two inputs: with that
one it finds data in noise better. A codec was trained with one attention: with that one it repeats what it hears. Then
the bundle is compared with diffusers' pipeline, which is given what the authors' code has and it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any, Final

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableAudio3Pipeline
from diffusers.schedulers import scheduling_flow_match_euler_discrete as euler
from torch import Tensor

from engine_build.export.bundle_export import BundleExport
from engine_build.export.bundle_tables import TOKENIZER as TOKENIZER_FILE
from engine_build.export.bundle_tables import canvas_frames
from engine_build.export.check_report import Check, answered, measured
from engine_build.export.checkpoint import TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE
from engine_build.export.codec_graphs import CodecLayout
from engine_build.export.parity import (
    BUNDLE,
    PROMPT,
    Asked,
    CheckOptions,
    CheckpointCheck,
    Reference,
    level_db,
    music,
    reference_of,
    relative,
    rms,
)
from engine_build.export.stable_audio_3.bundle_text import STEPS, StableAudioFacts
from engine_build.export.stable_audio_3.codec import SameDecoder, SameEncoder, attention_of, same_layout
from engine_build.export.stable_audio_3.decoder import ContextDecoder, PaddedTextEncoder, reduce_angles
from engine_build.export.stable_audio_3.export import stable_audio_export
from engine_build.export.stable_audio_3.layouts import CHUNK_FRAMES, DURATION, PADDING
from engine_build.export.stable_audio_3.sources import StableAudioCheckpoint, set_norm_eps
from engine_build.export.torch_export import quiet, release
from runtime.config.codec import Latents, Pcm
from runtime.pipeline.text_encoder import encoded, read_tokenizer
from runtime.requests.timesteps import Purpose, log_snr_schedule, noise

# Tokens of Gemma's vocabulary, without bos.
KNOWN_IDS: Final = {"Hello world!": [4521, 2134, 235341]}
AUTHORS_EPS: Final = (1e-5, 1e-6)
DIFFUSERS_EPS: Final = (1e-6, 1e-6)
# Times at which data is looked for in noise: early, in the middle, late.
TIMES: Final = (0.9, 0.6, 0.3)
# What the authors' code generates beyond the length that is asked for.
PADDING_S: Final = 6.0
# The authors' noise in the decoder of the codec, of the latents' standard deviation.
DECODER_NOISE: Final = 1e-3
# The one input finds no less than the other, within what differs from noise to noise.
NOT_WORSE: Final = 1.01
NAMES: Final = {
    "local": "1 local condition: zeros, not none",
    "length": "2 length: exact, not 6 s more",
    "schedule": "3 schedule: by log-SNR alone, not by length",
    "norms": "4 eps of norms: the authors', not diffusers'",
    "codec": "5 attention of the codec: this checkpoint's, not the other size's",
    "tokens": "6 tokens of texts: the checkpoint's, of Gemma's vocabulary",
    "time": "7 time: as it is, not as its log-SNR",
    "noise": "8 noise in the codec's decoder: left out",
}
LENGTH_DB: Final = 3.0
LATENTS_RMS: Final = (0.5, 2.0)

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sample:
    """Music as the codec hears it. audio: `[1, A, N]`; latents `[1, T, C]`."""

    layout: CodecLayout
    audio: Tensor
    latents: Tensor


class StableAudioCheck(CheckpointCheck[StableAudioCheckpoint, StableAudioFacts]):
    """As CheckpointCheck, with eight questions."""

    title = "Stable Audio 3"
    name = "stable-audio-3"
    needed = (TRANSFORMER, VAE, DURATION, TEXT_ENCODER, TOKENIZER)

    def export(self) -> BundleExport[StableAudioFacts]:
        """As CheckpointCheck's."""
        return stable_audio_export(self.source)

    def how_to_complete(self) -> str:
        """As CheckpointCheck's: its text encoder is published elsewhere."""
        if self.source.has(TEXT_ENCODER):
            return super().how_to_complete()
        return "--text-encoder FOLDER names T5Gemma's (t5gemma-b-b-ul2)"

    def about(self, facts: StableAudioFacts) -> Mapping[str, str]:
        """As CheckpointCheck's."""
        chunk = self.source.traits.chunk_frames
        return {
            "kind": "distilled" if self.source.traits.distilled else "before distillation (base)",
            "decoder": f"{facts.figures['parameters'] / 1e6:.4g} M parameters, {facts.figures['layers']} layers",
            "attention of the codec": f"chunks of {chunk} frames" if chunk else "a sliding window",
        }

    def asked(self, facts: StableAudioFacts) -> Asked:
        """As CheckpointCheck's."""
        return Asked(PROMPT, how={"steps": STEPS, "guidance": 1.0})

    def questions(self, facts: StableAudioFacts) -> Iterator[Check]:
        """The checks in the order of NAMES."""
        with quiet(), torch.no_grad():
            found = self._found(facts)
        return (found[name] for name in NAMES)

    def _found(self, facts: StableAudioFacts) -> dict[str, Check]:
        source, sample = self.source, self._sample(facts)
        transformer = Transformer(source, facts.canvas_frames / facts.frame_rate_hz)
        found = {
            "local": self._ask("local", lambda: local_condition(transformer, sample.latents)),
            "time": self._ask("time", lambda: time_features(transformer, sample.latents)),
            "norms": self._ask("norms", lambda: norm_eps(transformer, sample.latents, source)),
        }
        exact, padded = (transformer.sample(facts, padding_s) for padding_s in (0.0, PADDING_S))
        found["schedule"] = self._ask("schedule", lambda: latents_of_the_schedule(transformer, exact, facts, source))
        transformer.close()
        vae: Any = source.load(VAE)
        decode = _decoder_of(vae, source.traits.chunk_frames)
        found["length"] = self._ask("length", lambda: length(decode, exact, padded, sample.layout))
        found["noise"] = self._ask("noise", lambda: decoder_noise(decode, exact))
        release(vae)
        found["codec"] = self._ask("codec", lambda: codec_attention(source, sample))
        found["tokens"] = self._ask("tokens", lambda: tokens(source, self.options))
        return found

    def _ask(self, name: str, question: Callable[[], Check]) -> Check:
        self.on_progress(f"{NAMES[name]} ...")
        return replace(answered(NAMES[name], question, (self.source.folder, self.options.out)), name=NAMES[name])

    def _sample(self, facts: StableAudioFacts) -> Sample:
        vae: Any = self.source.load(VAE)
        layout, samples = same_layout(vae), facts.canvas_frames * facts.hop_samples
        pcm = music(self.options, layout.sample_rate_hz, layout.channels, samples)
        audio = torch.from_numpy(np.ascontiguousarray(pcm.T))[None]  # [1, A, N]
        latents = SameEncoder(vae, attention_of(vae, self.source.traits.chunk_frames)).eval()(audio)
        release(vae)
        return Sample(layout, audio, latents)

    def reference(self, facts: StableAudioFacts) -> Reference:
        """As CheckpointCheck's, with the authors' local condition and norms."""
        with quiet(), torch.no_grad():
            return self._reference(facts)

    def _reference(self, facts: StableAudioFacts) -> Reference:
        pipeline = self._pipeline()
        frames, channels = facts.canvas_frames, facts.channels

        def latents(seed: int) -> Latents:
            start = torch.from_numpy(noise(frames, channels, seed).T.copy())[None]  # [1, C, T]
            with _step_noise(seed, frames, channels):
                found = pipeline(
                    PROMPT,
                    frames / facts.frame_rate_hz,
                    num_inference_steps=STEPS,
                    latents=start,
                    output_type="latent",
                )
            values: Latents = found.audios[0].T.numpy()
            return values

        decode = _decoder_of(pipeline.vae, self.source.traits.chunk_frames) if self.source.traits.chunk_frames else None

        def audio(values: Latents) -> Pcm:
            """diffusers' own decoder; it has no chunks, which are the authors' rule on its blocks."""
            given = torch.from_numpy(values)[None]
            found = pipeline.vae.decode(given.transpose(1, 2)).sample if decode is None else decode(given)
            pcm: Pcm = found[0].T.numpy()
            return pcm

        return reference_of(latents, audio)

    def _pipeline(self) -> Any:
        """Of a checkpoint in either layout; text to audio has a local condition of zeros, and of the angles of time and
        length whole turns are taken off.
        """
        transformer: Any = self.source.load(TRANSFORMER)
        forward = transformer.forward

        def with_zeros(latents: Tensor, time: Tensor, **more: Any) -> Any:
            local = torch.zeros(latents.shape[0], 1 + latents.shape[1], latents.shape[2])
            return forward(latents, time, local_add_cond=local, **more)

        transformer.forward = with_zeros
        others = {part: self.source.load(part) for part in self.needed if part != TRANSFORMER}
        reduce_angles(transformer, others[DURATION])
        scheduler = FlowMatchEulerDiscreteScheduler(1, shift=1.0, stochastic_sampling=self.source.traits.distilled)
        pipeline = StableAudio3Pipeline(**others, transformer=transformer, scheduler=scheduler)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def _decoder_of(vae: Any, chunk_frames: int) -> SameDecoder:
    decoder: SameDecoder = SameDecoder(vae, attention_of(vae, chunk_frames)).eval()
    return decoder


class Transformer:
    """The transformer in torch, as the bundle has it, and what it is conditioned on."""

    def __init__(self, source: StableAudioCheckpoint, seconds: float) -> None:
        self._traits, self._seconds = source.traits, seconds
        self.module: Any = source.load(TRANSFORMER)
        self.decoder = ContextDecoder(self.module).eval()
        parts = source.load(TEXT_ENCODER), source.load(DURATION), source.load(PADDING)
        self._text = PaddedTextEncoder(*parts, source.traits.max_tokens).eval()
        self._ids = torch.tensor([source.load(TOKENIZER)(PROMPT).input_ids])  # [1, L]

    def close(self) -> None:
        """Free the weights."""
        release(self.decoder)
        release(self._text)

    def condition(self) -> Tensor:
        """`[1, 257, D]` of the text and the length."""
        found: Tensor = self._text(self._ids, torch.ones_like(self._ids), torch.tensor([self._seconds]))[0]
        return found

    def velocity(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """With nothing known: a local condition of zeros. `[1, T, C]`, `[1]`, `[1, L, D]` -> `[1, T, C]`."""
        context = torch.cat((torch.zeros_like(x), torch.ones_like(x)), dim=-1)
        found: Tensor = self.decoder(x, t, condition, torch.ones_like(condition[..., 0]), context)
        return found

    def velocity_without_local(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        """As diffusers' pipeline has it: no local condition."""
        counted = condition, torch.ones_like(condition[..., 0])
        found: Tensor = self.module(x.transpose(1, 2), t, counted, condition[:, 0], return_dict=False)[0]
        return found.transpose(1, 2)

    def sample(self, facts: StableAudioFacts, padding_s: float = 0.0, times: Any = None) -> Tensor:
        """Latents `[1, T, C]` of the authors' sampler, of a length and some more. times: default, the bundle's."""
        frames = canvas_frames(self._seconds + padding_s, facts.frame_rate_hz, facts.frame_multiple)
        times = log_snr_schedule(STEPS, *self._traits.logsnr) if times is None else times
        condition, x = self.condition(), _noise(frames, facts.channels)
        for step, (time, after) in enumerate(pairwise([float(time) for time in times])):
            velocity = self.velocity(x, torch.tensor([time]), condition)
            if self._traits.distilled:
                data = x - time * velocity
                x = (1.0 - after) * data + after * _noise(frames, facts.channels, Purpose.STEP, step)
            else:
                x = x + (after - time) * velocity
        return x


def _noise(frames: int, channels: int, purpose: Purpose = Purpose.START, step: int = 0) -> Tensor:
    return torch.from_numpy(noise(frames, channels, 1, purpose, step))[None]


def denoising_error(predict: Velocity, latents: Tensor, condition: Tensor) -> float:
    """How far the data that a velocity finds in noisy latents `[1, T, C]` is from them, of their rms: a mean."""
    errors = []
    for index, time in enumerate(TIMES):
        x = (1.0 - time) * latents + time * _noise(latents.shape[1], latents.shape[2], Purpose.STEP, index)
        data = x - time * predict(x, torch.tensor([time]), condition)
        errors.append(relative(data.numpy(), latents.numpy()))
    return float(np.mean(errors))


def local_condition(transformer: Transformer, latents: Tensor) -> Check:
    """Zeros, as the authors' code and its ports pass them, or none, as diffusers."""
    condition = transformer.condition()
    zeros, none = (
        denoising_error(predict, latents, condition)
        for predict in (transformer.velocity, transformer.velocity_without_local)
    )
    x, t = _noise(*latents.shape[1:]), torch.tensor([TIMES[1]])
    pair = (transformer.velocity_without_local(x, t, condition), transformer.velocity(x, t, condition))
    detail = f"error of denoising {zeros:.4g}, without {none:.4g}; velocities differ by {_differ(*pair):.3g}"
    return measured(NAMES["local"], zeros / none, at_most=NOT_WORSE, detail=detail)


def time_features(transformer: Transformer, latents: Tensor) -> Check:
    """timestep_features_logsnr: false, as everywhere but in the authors' code, which has both."""
    condition = transformer.condition()

    def by_log_snr(x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        log_snr = torch.log((1.0 - t) / t).clamp(-12.0, 5.0)
        return transformer.velocity(x, (5.0 - log_snr) / 17.0, condition)

    plain, other = (denoising_error(predict, latents, condition) for predict in (transformer.velocity, by_log_snr))
    x, t = _noise(*latents.shape[1:]), torch.tensor([TIMES[1]])
    rounded = transformer.velocity(x, t.bfloat16().float(), condition)
    half = _differ(rounded, transformer.velocity(x, t, condition))
    detail = f"error of denoising {plain:.4g}, as log-SNR {other:.4g}; a time in bfloat16 moves them by {half:.3g}"
    return measured(NAMES["time"], plain / other, at_most=NOT_WORSE, detail=detail)


def norm_eps(transformer: Transformer, latents: Tensor, source: StableAudioCheckpoint) -> Check:
    """1e-5 in blocks in the authors' code, 1e-6 in diffusers. Their own layout says which; the other does not."""
    condition, found = transformer.condition(), []
    x, t = _noise(*latents.shape[1:]), torch.tensor([TIMES[1]])
    for eps in (DIFFUSERS_EPS, AUTHORS_EPS):
        set_norm_eps(transformer.module, *eps)
        found.append(transformer.velocity(x, t, condition))
    set_norm_eps(transformer.module, *(source.norm_eps or DIFFUSERS_EPS))
    if source.norm_eps is not None:
        detail = f"velocities differ by this; the bundle has {source.norm_eps[0]:.0e}, as model_config.json says"
        return measured(NAMES["norms"], _differ(*found), detail=detail)
    detail = "velocities differ by this; this layout does not say which, the bundle has diffusers'"
    return measured(NAMES["norms"], _differ(*found), at_most=1e-3, detail=detail)


def latents_of_the_schedule(
    transformer: Transformer, latents: Tensor, facts: StableAudioFacts, source: StableAudioCheckpoint
) -> Check:
    """Latents of music are about 1: the codec divides by what it has measured. Another schedule is said to explode."""
    other = transformer.sample(facts, times=length_shifted(STEPS, latents.shape[1]))
    at_least, at_most = LATENTS_RMS
    detail = f"rms of a generation's latents; with times shifted by length {rms(other.numpy()):.3g}"
    found = measured(NAMES["schedule"], rms(latents.numpy()), at_least=at_least, at_most=at_most, detail=detail)
    wanted = [note for note in source.notes if "schedule" in note]
    return replace(found, result="fail", detail=f"{detail}; {wanted[0]}") if wanted else found


def length_shifted(steps: int, frames: int) -> list[float]:
    """Times of Stability's TensorRT code: from 1 to 0, shifted by 0.5 at 256 frames to 1.15 at 4096."""
    shift = 0.5 + (1.15 - 0.5) * (min(max(frames, 256), 4096) - 256) / (4096 - 256)
    times = np.linspace(1.0, 0.0, steps + 1)[:-1]
    factor = math.exp(shift)
    return [*(factor * times / (1.0 + (factor - 1.0) * times)), 0.0]


def length(decode: SameDecoder, exact: Tensor, padded: Tensor, layout: CodecLayout) -> Check:
    """The level of the last second, against that of a generation of 6 s more, which the authors' code cuts off."""
    samples, second = exact.shape[1] * layout.hop_samples, layout.sample_rate_hz
    ends = [decode(latents)[0, :, :samples][:, -second:].numpy() for latents in (exact, padded)]
    difference = level_db(ends[0]) - level_db(ends[1])
    detail = f"level of the last second against that of a generation of {PADDING_S:.0f} s more, cut"
    return measured(NAMES["length"], difference, at_least=-LENGTH_DB, at_most=LENGTH_DB, unit="dB", detail=detail)


def decoder_noise(decode: SameDecoder, latents: Tensor) -> Check:
    """What the noise that the authors' code may add changes, against the sound."""
    sound = decode(latents).numpy()
    noisy = decode(latents + DECODER_NOISE * _noise(latents.shape[1], latents.shape[2], Purpose.STEP)).numpy()
    change = 20.0 * math.log10(max(relative(noisy, sound), 1e-30))
    detail = f"what noise of {DECODER_NOISE:.0e} changes in the sound"
    return measured(NAMES["noise"], change, at_most=-40.0, unit="dB", detail=detail)


def codec_attention(source: StableAudioCheckpoint, sample: Sample) -> Check:
    """How much better audio comes back from the codec with the bundle's attention than with the other size's."""
    used = source.traits.chunk_frames
    ours, other = (_repeats_db(source, sample, chunk) for chunk in (used, 0 if used else CHUNK_FRAMES))
    names = ("chunks", "a sliding window") if used else ("a sliding window", "chunks")
    detail = f"signal to error of encoded and decoded audio: {ours:.3g} dB with {names[0]}, {other:.3g} with {names[1]}"
    return measured(NAMES["codec"], ours - other, at_least=1.0, unit="dB", detail=detail)


def _repeats_db(source: StableAudioCheckpoint, sample: Sample, chunk_frames: int) -> float:
    """Signal to error of audio that was encoded and decoded, in dB."""
    vae: Any = source.load(VAE)
    rule = attention_of(vae, chunk_frames)
    encode, decode = SameEncoder(vae, rule).eval(), SameDecoder(vae, rule).eval()
    found, wanted = decode(encode(sample.audio)).numpy(), sample.audio.numpy()
    release(vae)
    return -20.0 * math.log10(max(relative(found, wanted), 1e-30))


def tokens(source: StableAudioCheckpoint, options: CheckOptions) -> Check:
    """The bundle's tokenizer, as the runtime reads it, against the checkpoint's own and against known ids of Gemma's.

    Sources disagree whether a text begins with bos: without it the empty text has no token.
    """
    theirs, (ours, _) = source.load(TOKENIZER), read_tokenizer(options.out / BUNDLE / TOKENIZER_FILE)
    ids = {text: list(encoded(ours, text).ids) for text in ("", PROMPT, *KNOWN_IDS)}
    begin = 1 if ids[PROMPT][:1] == [theirs.bos_token_id] else 0
    wrong = {text for text, found in ids.items() if found != list(theirs(text).input_ids)}
    wrong |= {text for text, known in KNOWN_IDS.items() if ids[text][begin:] != known}
    bos, empty = "with" if begin else "without", len(ids[""])
    detail = f"of {len(ids)} texts; a text begins {bos} bos, the empty text has {empty} tokens"
    return measured(NAMES["tokens"], len(wrong), at_most=0, detail=detail)


def _differ(found: Tensor, wanted: Tensor) -> float:
    return relative(found.numpy(), wanted.numpy())


@contextmanager
def _step_noise(seed: int, frames: int, channels: int) -> Iterator[None]:
    """diffusers' scheduler draws TickRT's noise of the seed in each step."""
    drawn, steps = euler.randn_tensor, count()

    def ours(*_: object, **__: object) -> Tensor:
        return torch.from_numpy(noise(frames, channels, seed, Purpose.STEP, next(steps)).T.copy())[None]

    euler.randn_tensor = ours
    try:
        yield
    finally:
        euler.randn_tensor = drawn
