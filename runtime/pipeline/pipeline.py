"""An open deployment: bundle, device, engines, tick loop, codec and text encoder, opened and closed together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from runtime.audio.codec import Codec, default_workers, windows_per_execute
from runtime.audio.codec_queue import CodecQueue
from runtime.audio.decoding import audio_chunks, convert_audio, within
from runtime.audio.formats import is_latents_file, read_latents
from runtime.base.errors import RequestError, TickError
from runtime.base.threads import Watched
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents, Pcm
from runtime.config.deployment import PLAN_TARGETS, Deployment, ModelIdentity, Target, build_command, load_deployment
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.engine import Engine, EngineSet, RunnableGraph, condition_width
from runtime.engines.loading import open_engine, open_engines, settle_kernels, warm_up
from runtime.music.part_moods import NO_MOODS, PartMoods, part_moods
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs, RequestComposer, SourceAudio, no_timbre
from runtime.pipeline.meanings import prompt_meanings, with_drawn
from runtime.pipeline.songs.course import course_words
from runtime.pipeline.songs.planning import Planner, open_planner
from runtime.pipeline.structure import StructureCodec, no_structure, open_structure, parse_codes
from runtime.pipeline.text_encoder import TextEncoder
from runtime.pipeline.timbre import TimbreEncoder
from runtime.requests.option_types import MAX_SECONDS
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.prompt_words import PromptMeaning, PromptWords
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment, generation_lengths, loop_lengths, next_segment
from runtime.tick.loop.common_ticks import CommonTicks, common_ticks
from runtime.tick.loop.tick_loop import TickLoop

CODEC_THREADS = 1


@dataclass(frozen=True)
class Pipeline:
    """An open deployment. A context manager: entering starts the tick thread, leaving closes everything.

    `codec`, `text_encoder` and `structure` are None where the bundle has none, `planner` where generations are not
    planned from their texts; `other_engines` are those that ticks do not execute. Methods may be called from any
    thread.
    """

    deployment: Deployment
    bundle: Bundle
    device: Device
    loop: TickLoop
    codec: Codec | None
    text_encoder: TextEncoder | None
    structure: StructureCodec | None
    planner: Planner | None
    other_engines: tuple[Engine, ...]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the tick thread."""
        self.loop.start()

    def close(self) -> None:
        """Stop the loop and release every engine."""
        self.loop.close()
        if self.codec is not None:
            self.codec.queue.close()
        for engine in self.other_engines:
            engine.close()
        self.device.close()

    @property
    def engines(self) -> EngineSet:
        """The engines that ticks execute."""
        return self.loop.engines

    @property
    def identity(self) -> ModelIdentity:
        """Which model this is: its bundle, with the graphs that its engines were built of, and their precision."""
        names = {"decoder", *(engine.manifest.name for engine in self.other_engines)}
        manifests = {engine.manifest.name: engine.manifest for engine in self.all_engines()}
        own = {name: manifest for name, manifest in sorted(manifests.items()) if name in names or name == "planner"}
        digest = hashlib.sha256(self._settings_json)
        for name, manifest in own.items():
            digest.update(f"{name} {manifest.graph_sha256}\n".encode())
        precisions = [manifest.build.get("precision", "fp32") for manifest in own.values()]
        return ModelIdentity(digest.hexdigest(), "+".join(sorted(set(precisions))))

    @cached_property
    def _settings_json(self) -> bytes:
        return self.bundle.settings_json()

    def reload(self, merged: Mapping[str, float] | None = None) -> None:
        """Replace the tick's engines with those that are in the deployment's folder now.

        merged: the adapters in the decoder's weights from now on, with their strengths (default: those that are). The
        plans of them that this card has not executed are, in a process of their own; then they are opened and warmed up
        before the old ones are closed. Generations in flight continue with the next tick. Raises EngineError,
        AdapterError, RequestError where the new ones end that process, cannot be opened or do not fit; the old ones
        then stay.
        """
        if (target := self.deployment.target) in PLAN_TARGETS:
            from runtime.engines.tensorrt.trials import refuse_crashing

            refuse_crashing(self.deployment.engine_folder(), target)
        engines = open_engines(self.deployment, self.device, merged=self.engines.merged if merged is None else merged)
        try:
            warm_up(engines, self.bundle, self.deployment)
            # Until the tick thread is between two ticks, and has swapped them.
            self.loop.swap(engines).result()
        except TickError:
            engines.close()
            raise

    def settle_kernels(self) -> bool:
        """Wait for kernels that are compiled in the background, and keep them; False where the target compiles none."""
        return settle_kernels(self.deployment.target)

    @property
    def threads(self) -> tuple[Watched, ...]:
        """Those that serve many. What others wait for, such as parts of a tick, shows in these."""
        return (self.loop.thread, *(() if self.codec is None else (self.codec.queue.threads,)))

    def all_engines(self) -> tuple[Engine, ...]:
        """Every open engine."""
        return (*self.engines.all, *self.other_engines)

    @property
    def needs_condition(self) -> bool:
        """Whether every generation has to bring condition tokens: no text encoder makes them."""
        return not RequestComposer(self.bundle, self.text_encoder).has_null

    @property
    def live_refusal(self) -> str:
        """Why there are no live sessions; "" where there are."""
        if self.codec is None:
            return f"bundle {self.bundle.name!r} has no [codec]: it makes latents, and live sessions need audio"
        if self.needs_condition:
            return f"bundle {self.bundle.name!r} has neither a text encoder nor a null condition for live sessions"
        return ""

    def warm_up_requests(self) -> Iterator[GenerationRequest]:
        """Generations of one step: without and, where one can be used, with an adapter."""
        catalog = self.engines.adapters
        usable = [adapter.id for adapter in catalog.adapters.values() if adapter.rank <= catalog.max_rank]
        for adapters in (None, *([{"id": id_}] for id_ in usable[:1])):
            yield self.request("", self._least_inputs, steps=1, seed=0, adapters=adapters)

    def common_ticks(self) -> list[CommonTicks]:
        """The ticks whose graphs are captured before the first request: generations by default, of every length."""
        rate_hz = self.bundle.latents.frame_rate_hz
        requests = (self.request("", self._least_inputs, seconds=n / rate_hz, seed=0) for n in reversed(self.lengths))
        return common_ticks(requests, self.bundle, self.deployment)

    @property
    def _least_inputs(self) -> GenerationInputs:
        """A condition of zeros where the model needs one."""
        width = condition_width(self.engines.decoder, self.bundle.decoder.inputs)
        tokens = self.deployment.shapes[0].tokens.min
        return GenerationInputs(np.zeros((tokens, width), np.float32) if self.needs_condition else None)

    @property
    def canvas_frames(self) -> int:
        """T of a full generation: the bundle's canvas, or the largest T that the engines take where that is less."""
        return self.lengths[-1]

    @property
    def overlap_frames(self) -> int:
        """Frames that a segment keeps of the previous one."""
        multiple = self.bundle.latents.frame_multiple
        wanted = self.bundle.context.overlap_frames if self.bundle.context else self.canvas_frames // 4
        most = (self.canvas_frames - 1) // multiple * multiple
        return min(self.bundle.latents.round_up(wanted), most)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The values of T that generations have, in order, up to the canvas."""
        return generation_lengths(self.bundle.latents, self.deployment.shapes)

    @property
    def loop_lengths(self) -> tuple[int, ...]:
        """The values of T that loops have, in order, up to what the engines take."""
        return loop_lengths(self.bundle.latents, self.deployment.shapes)

    def total_frames(self, options: GenerationOptions, source: Latents | None = None) -> int:
        """Frames of a whole generation, rounded up: enough for `seconds`, else the source's, its codes', else a canvas.

        A canvas is extended to the end of the notes. Raises RequestError for codes that the model does not have.
        """
        structure = self.bundle.structure
        if options.seconds is not None:
            frames = self._frames_for(options.seconds)
        elif source is not None:
            frames = len(source)
        elif options.codes is not None and structure is not None:
            frames = len(parse_codes(options.codes, structure.num_codes)) * structure.frames_per_code
        elif options.notes is not None:
            frames = max(self.canvas_frames, self._frames_for(max(note.end_s for note in options.notes)))
        else:
            frames = self.canvas_frames
        return self.bundle.latents.round_up(frames)

    def total_samples(self, options: GenerationOptions, source: Latents | None = None) -> int:
        """Samples of a whole generation: exactly `seconds`, else those of all its frames. 0 without a codec."""
        codec = self.bundle.codec
        if codec is None:
            return 0
        if options.seconds is not None:
            return max(1, round(options.seconds * codec.sample_rate_hz))
        return self.total_frames(options, source) * codec.hop_samples

    def next_segment(self, done_frames: int, total_frames: int | None) -> Segment | None:
        """The segment after the first `done_frames` frames; None after the last one."""
        return next_segment(done_frames, total_frames, lengths=self.lengths, overlap_frames=self.overlap_frames)

    def read_source(
        self, data: Path | bytes, *, max_seconds: float = MAX_SECONDS, timeout_s: float = math.inf
    ) -> Latents:
        """Latents `[T, C]` float32 of an audio file or a latents file, padded with silence to the decoder's multiple.

        Audio is decoded and encoded in pieces, for at most `timeout_s`. Raises RequestError.
        """
        latents = self.bundle.latents
        if is_latents_file(data):
            limit = latents.round_up(math.ceil(max_seconds * latents.frame_rate_hz))
            return self._padded(read_latents(data, latents.channels, limit))
        codec = self._encoding_codec()
        chunks = audio_chunks(data, codec.sample_rate_hz, codec.channels, max_seconds)
        return self._padded(codec.encode_chunks(within(timeout_s, chunks)))

    def read_timbre(self, data: Path | bytes) -> Latents:
        """Latents `[F, C]` float32 of the reference in an audio file or a latents file. Raises RequestError."""
        audio, latents = self.source_audio(data), self.bundle.latents
        if audio is not None:
            return self.encode_timbre(audio)
        limit = math.ceil(MAX_SECONDS * latents.frame_rate_hz)
        return self._timbre_encoder.reference(lambda: iter([read_latents(data, latents.channels, limit)]))

    def encode_timbre(self, audio: SourceAudio) -> Latents:
        """Latents `[F, C]` float32 of a reference's samples, at the codec's rate and channels. Raises RequestError."""
        return self._timbre_encoder.reference(audio, self._encoding_codec("timbre"))

    def timbre_latents(self, latents: Latents) -> Latents:
        """Latents `[F, C]` of a reference that is latents `[N, C]` itself. Raises RequestError."""
        return self._timbre_encoder.reference(lambda: iter([latents]))

    def structure_hints(self, latents: Latents) -> Latents:
        """Hints `[N, C]` float32 of latents whose structure is kept. Raises RequestError."""
        if self.structure is None:
            raise no_structure()
        return self.structure.hints(latents)

    @property
    def _timbre_encoder(self) -> TimbreEncoder:
        if self.text_encoder is None or self.text_encoder.timbre is None:
            raise no_timbre(self.bundle)
        return self.text_encoder.timbre

    def encode_source(self, pcm: Pcm, sample_rate_hz: int) -> Latents:
        """As read_source(), from float PCM `[N, channels]`, -1..1, at any usual rate. Raises RequestError."""
        codec = self._encoding_codec()
        converted = convert_audio(pcm, sample_rate_hz, codec.sample_rate_hz, codec.channels, MAX_SECONDS)
        return self._padded(codec.encode(converted))

    def source_audio(self, data: Path | bytes) -> SourceAudio | None:
        """Opens the samples of an audio file that read_source() encodes; None for latents."""
        if self.codec is None or is_latents_file(data):
            return None
        return partial(audio_chunks, data, self.codec.sample_rate_hz, self.codec.channels)

    def pcm_audio(self, pcm: Pcm, sample_rate_hz: int) -> SourceAudio | None:
        """Opens the samples that encode_source() encodes; None where the bundle has no codec."""
        codec = self.bundle.codec
        if codec is None:
            return None
        return lambda: iter([convert_audio(pcm, sample_rate_hz, codec.sample_rate_hz, codec.channels, MAX_SECONDS)])

    def request(
        self, prompt: str | list[dict[str, Any]], inputs: GenerationInputs = NO_INPUTS, **options: Any
    ) -> GenerationRequest:
        """The first segment of a generation, by plain values of GenerationOptions. Raises RequestError."""
        parsed = parse_options({"prompt": prompt, **options})
        segment = self.next_segment(0, self.total_frames(parsed, inputs.known))
        assert segment is not None
        return self.compose(parsed, segment, inputs)

    def compose(
        self,
        options: GenerationOptions,
        segment: Segment,
        inputs: GenerationInputs = NO_INPUTS,
        tail: Latents | None = None,
    ) -> GenerationRequest:
        """The request for one segment of a generation; see RequestComposer.compose. Raises RequestError."""
        composer = RequestComposer(self.bundle, self.text_encoder, self.structure)
        return composer.compose(options, segment, inputs, tail)

    def prompt_words(self, options: GenerationOptions) -> PromptWords | None:
        """Which words of the prompts and the negative prompt are understood; None where the bundle takes no text."""
        if self.text_encoder is None:
            return None
        prompts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
        words, planner = self.text_encoder.words(prompts, options.negative_prompt), self.planner
        if planner is None or planner.spec.plan is None or options.plan is False:
            return words
        return words.with_understood(course_words(planner.spec.plan, ", ".join(prompts), planner.sequences.tokens))

    def meanings(self, options: GenerationOptions, seed: int) -> tuple[PromptMeaning, ...]:
        """What of the prompts is played, with what a generation's or a session's seed draws; () where it is not told.

        Raises RequestError, EngineError.
        """
        return () if self.text_encoder is None else prompt_meanings(self.text_encoder, options, seed)

    def part_moods(self, options: GenerationOptions, seed: int, frames: int | None = None) -> PartMoods:
        """What the prompts say of single parts; none where the model does not tell. frames: that their weights span.

        Without them curves count by their mean. Raises RequestError, EngineError.
        """
        if self.bundle.notes is None or not (meanings := self.meanings(options, seed)):
            return NO_MOODS
        bound = [meaning.bound for meaning in meanings]
        if isinstance(options.prompt, str) or not any(bound):
            return part_moods(bound[:1], [1.0])
        span = None if frames is None else Segment(0, frames, total_frames=frames)
        weights = [item.weight for item in options.prompt]
        if span is None:
            return part_moods(bound, [float(np.mean(weight)) for weight in weights])
        return part_moods(bound, [span.curve(weight) for weight in weights])

    def with_drawn(self, options: GenerationOptions, seed: int) -> GenerationOptions:
        """Options whose prompts have what this seed draws for them. Raises RequestError, EngineError."""
        return options if self.text_encoder is None else with_drawn(self.text_encoder, options, seed)

    def _frames_for(self, seconds: float) -> int:
        codec, rate_hz = self.bundle.codec, self.bundle.latents.frame_rate_hz
        if codec is None:
            return math.ceil(seconds * rate_hz - 1e-6)
        return -(-round(seconds * codec.sample_rate_hz) // codec.hop_samples)

    def _encoding_codec(self, field: str = "source") -> Codec:
        if self.codec is None or not self.codec.can_encode:
            raise RequestError(
                f"bundle {self.bundle.name!r} cannot turn audio into latents", field=field, fix="give .safetensors"
            )
        return self.codec

    def _padded(self, latents: Latents) -> Latents:
        """`latents` and silence up to the next number of frames that the decoder takes."""
        silence = self.bundle.silence(self.bundle.latents.round_up(len(latents)))
        return np.concatenate((latents, silence[len(latents) :]))


def open_pipeline(deployment: Deployment | Path, *, target: Target | None = None) -> Pipeline:
    """Open a deployment's device, engines and codec; `target` overrides the deployment's.

    Raises ConfigError, EngineNotBuiltError and EngineMismatchError (both name the build command as the fix).
    """
    if isinstance(deployment, Path):
        deployment = load_deployment(deployment)
    if target is not None:
        deployment = deployment.model_copy(update={"target": target})
    bundle = deployment.loaded_bundle
    device = open_device(deployment.target)
    with ExitStack() as opened:
        opened.callback(device.close)
        engines = open_engines(deployment, device)
        opened.callback(engines.close)
        others = _open_other_engines(deployment, bundle, device, opened)
        structure = open_structure(bundle, others)
        is_apart = device.kind != "cpu"
        queue = CodecQueue(default_workers(deployment.target), lambda: loop.is_empty, is_apart=is_apart)
        loop = TickLoop(engines, bundle, deployment, device, before_tick=queue.hold)
        pipeline = Pipeline(
            deployment=deployment,
            bundle=bundle,
            device=device,
            loop=loop,
            codec=_codec(bundle, others, queue),
            text_encoder=text_encoder_of(bundle, others),
            structure=structure,
            planner=open_planner(bundle, loop, structure),
            other_engines=tuple(others.values()),
        )
        opened.pop_all()
    return pipeline


def _codec(bundle: Bundle, engines: Mapping[str, Engine], queue: CodecQueue) -> Codec | None:
    if bundle.codec is None:
        return None
    decode = engines["codec_decode"]
    batch = partial(windows_per_execute, decode.manifest, bundle.codec.decode)
    return Codec(bundle, decode, engines.get("codec_encode"), queue, batch)


def text_encoder_of(bundle: Bundle, engines: Mapping[str, RunnableGraph]) -> TextEncoder | None:
    """The bundle's text encoder on its engines by name; None where it has none. Raises ConfigError."""
    if bundle.text_encoder is None:
        return None
    timbre = TimbreEncoder(bundle, engines["timbre_encoder"]) if bundle.timbre else None
    return TextEncoder(bundle, engines["text_encoder"], engines.get("lyric_encoder"), timbre)


def _open_other_engines(deployment: Deployment, bundle: Bundle, device: Device, opened: ExitStack) -> dict[str, Engine]:
    """The engines that ticks do not execute, by name."""
    names = list(bundle.condition_graphs)
    if bundle.codec is not None:
        names += ["codec_decode", "codec_encode"] if bundle.codec.encode else ["codec_decode"]
    if bundle.structure is not None:
        names += ["structure_encode", "structure_decode"]
    fix = build_command(deployment.path, deployment.target)
    engines: dict[str, Engine] = {}
    for name in names:
        engines[name] = open_engine(deployment.engine_folder(), name, device, threads=CODEC_THREADS, fix=fix)
        opened.callback(engines[name].close)
    return engines
