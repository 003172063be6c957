"""A deployment, opened: the one place where bundle, device, engines, tick loop, codec and text_encoder come together.

`Pipeline.request` turns public options (texts, curves, seconds) into a GenerationRequest (tokens, arrays, frames).
"""

from __future__ import annotations

import math
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.audio.decoding import read_audio
from runtime.audio.formats import FORMATS, read_latents
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import Deployment, Target, build_command, load_deployment
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.engine import Engine, EngineSet
from runtime.engines.loading import open_engine, open_engines, warm_up
from runtime.errors import RequestError, TickError
from runtime.pipeline.text_encoder import TextEncoder, Tokens
from runtime.requests.curves import Curve
from runtime.requests.options import MAX_SECONDS, GenerationOptions, Values, parse_options
from runtime.requests.request import Condition, GenerationRequest, LatentMask, StepParameters
from runtime.requests.request import Target as DrawnTo
from runtime.requests.segments import Latents, Segment, next_segment, repaint_curve, step_parameters
from runtime.tick.loop import TickLoop

COVER_DENOISE = 0.7
SEED_BITS = 32
SHORT_LENGTHS = 4
EDGE_THREADS = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Pipeline:
    """What a deployment opens to. A context manager: entering starts the tick thread, leaving closes everything.

    `codec` and `text_encoder` are None where the bundle has none. Methods may be called from any thread.
    """

    deployment: Deployment
    bundle: Bundle
    device: Device
    loop: TickLoop
    codec: Codec | None
    text_encoder: TextEncoder | None
    edge_engines: tuple[Engine, ...]

    def __enter__(self) -> Self:
        self.loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Run ticks in a thread of their own."""
        self.loop.start()

    def close(self) -> None:
        """Stop the loop and release every engine."""
        self.loop.close()
        for engine in self.edge_engines:
            engine.close()
        self.device.close()

    @property
    def engines(self) -> EngineSet:
        """The engines that ticks execute now."""
        return self.loop.engines

    def reload(self) -> None:
        """Open the tick's engines anew, as they lie in the deployment's folder now, and go on with them.

        They are open and warm before the old ones go; generations in flight go on at the next tick. Raises EngineError
        where they cannot be opened or do not fit; then the old ones stay.
        """
        engines = open_engines(self.deployment, self.device)
        try:
            warm_up(engines, self.bundle, self.deployment)
            self.loop.swap(engines).result()
        except TickError:
            engines.close()
            raise

    def all_engines(self) -> tuple[Engine, ...]:
        """Every open engine."""
        return (self.engines.decoder, *self.engines.rows.values(), *self.engines.steps.values(), *self.edge_engines)

    @property
    def canvas_frames(self) -> int:
        """T of a full generation: the bundle's canvas, or the most that the engines take where that is less."""
        latents = self.bundle.latents
        limit = min(latents.canvas_frames, max(shape.frames.max for shape in self.deployment.shapes))
        return limit // latents.frame_multiple * latents.frame_multiple

    @property
    def overlap_frames(self) -> int:
        """Frames that the next segment keeps of the one before it."""
        multiple = self.bundle.latents.frame_multiple
        wished = self.bundle.context.overlap_frames if self.bundle.context else self.canvas_frames // 4
        most = (self.canvas_frames - 1) // multiple * multiple
        return min(self.bundle.latents.round_up(wished), most)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of frames that generations have: few, so that they share ticks. The last is the canvas.

        Parts of the canvas, and the longest that each shape range takes; of these what some range holds.
        """
        canvas, latents, shapes = self.canvas_frames, self.bundle.latents, self.deployment.shapes
        step = latents.round_up(-(-canvas // SHORT_LENGTHS))
        longest = (shape.frames.max // latents.frame_multiple * latents.frame_multiple for shape in shapes)
        wanted = {*range(step, canvas, step), *(length for length in longest if length < canvas)}
        held = {length for length in wanted if any(shape.frames.holds(length) for shape in shapes)}
        return (*sorted(held), canvas)

    def total_frames(self, options: GenerationOptions, source: Latents | None = None) -> int:
        """Frames of the whole: enough for `seconds`, else the source's, else one canvas; a multiple."""
        if options.seconds is not None:
            return self.bundle.latents.round_up(self._frames_for(options.seconds))
        return self.bundle.latents.round_up(self.canvas_frames if source is None else len(source))

    def total_samples(self, options: GenerationOptions, source: Latents | None = None) -> int:
        """Samples of the whole: exactly `seconds` where given, else all of its frames. 0 without a codec."""
        codec = self.bundle.codec
        if codec is None:
            return 0
        if options.seconds is not None:
            return max(1, round(options.seconds * codec.sample_rate_hz))
        return self.total_frames(options, source) * codec.hop_samples

    def next_segment(self, done_frames: int, total_frames: int | None) -> Segment | None:
        """What to generate after `done_frames` of a whole; None where that is all."""
        return next_segment(done_frames, total_frames, lengths=self.lengths, overlap_frames=self.overlap_frames)

    def read_source(self, data: Path | bytes, *, max_seconds: float = MAX_SECONDS) -> Latents:
        """Latents `[T, C]` of an audio file or a latents file, T a multiple. Raises RequestError."""
        latents = self.bundle.latents
        if _is_safetensors(data):
            limit = latents.round_up(math.ceil(max_seconds * latents.frame_rate_hz))
            return self._whole(read_latents(data, latents.channels, limit)[0])
        if self.codec is None or not self.codec.can_encode:
            raise RequestError(
                f"bundle {self.bundle.name!r} cannot turn audio into latents", field="source", fix="give .safetensors"
            )
        pcm = read_audio(data, self.codec.sample_rate_hz, self.codec.channels, max_seconds)
        return self._whole(self.codec.encode(pcm))

    def request(
        self,
        prompt: str | list[dict[str, Any]],
        *,
        condition: Tokens | None = None,
        source: Latents | None = None,
        target: Latents | None = None,
        session: str = "",
        client: str = "",
        **options: Any,
    ) -> GenerationRequest:
        """The first segment of a generation, by plain values of GenerationOptions. Raises RequestError."""
        parsed = parse_options({"prompt": prompt, **options})
        segment = self.next_segment(0, self.total_frames(parsed, source))
        assert segment is not None
        return self.compose(
            parsed, segment, condition=condition, source=source, target=target, session=session, client=client
        )

    def compose(
        self,
        options: GenerationOptions,
        segment: Segment,
        *,
        tail: Latents | None = None,
        condition: Tokens | None = None,
        source: Latents | None = None,
        target: Latents | None = None,
        seed: int | None = None,
        session: str = "",
        client: str = "",
    ) -> GenerationRequest:
        """The request for one segment of a generation.

        `tail` `[n, C]`: what comes right before the segment's new frames, at least its `keep_frames`. `condition`
        `[L, D]`: tokens in place of the prompt's. `source` and `target` `[N, C]` begin at frame 0 of the whole.
        `seed`: instead of the options' one; drawn where neither says one. Raises RequestError.
        """
        sampler = self.bundle.sampler
        mask = self._mask(options, segment, tail, source)
        return GenerationRequest(
            frames=segment.frames,
            conditions=self._conditions(options, segment) if condition is None else (Condition(condition),),
            negatives=self._negatives(options, segment),
            steps=_first(options.steps, sampler.steps),
            shift=_first(options.shift, sampler.shift),
            denoise=_first(options.denoise, COVER_DENOISE if _is_cover(options, source) else sampler.denoise),
            seed=_first(seed, options.seed, secrets.randbits(SEED_BITS)),
            guidance_mode=options.guidance_mode,
            solver=options.solver,
            context=self._context(segment, mask),
            source=None if source is None else segment.part(source, self.bundle.silence(segment.frames)),
            initial_noise_curve=_curve(options.initial_noise_curve, segment),
            mask=mask,
            target=self._target(options, segment, source if target is None else target),
            parameters=self._parameters(options, segment),
            session=session,
            client=client,
        )

    def _frames_for(self, seconds: float) -> int:
        codec, rate_hz = self.bundle.codec, self.bundle.latents.frame_rate_hz
        if codec is None:
            return math.ceil(seconds * rate_hz - 1e-6)
        return max(1, -(-round(seconds * codec.sample_rate_hz) // codec.hop_samples))

    def _whole(self, latents: Latents) -> Latents:
        """Silence behind the end, up to a number of frames that the decoder takes."""
        total = self.bundle.latents.round_up(len(latents))
        return np.concatenate((latents, self.bundle.silence(total)[len(latents) :]))

    def _tokens(self, text: str, segment: Segment, field: str) -> Tokens:
        if self.text_encoder is not None:
            canvas_s = segment.frames / self.bundle.latents.frame_rate_hz
            return self.text_encoder.encode(text, seconds=canvas_s, field=field)
        null = self.bundle.null_condition()
        if text or null is None:
            raise RequestError(
                f"bundle {self.bundle.name!r} takes no text: it has no [text_encoder]"
                + ("" if null is None else ", only its null condition"),
                field=field,
                fix="export it with its text encoder" if null is None else "leave the text empty",
            )
        return null

    def _conditions(self, options: GenerationOptions, segment: Segment) -> tuple[Condition, ...]:
        if isinstance(options.prompt, str):
            return (Condition(self._tokens(options.prompt, segment, "prompt")),)
        return tuple(
            Condition(
                self._tokens(item.text, segment, f"prompt.{i}.text"), segment.curve(item.weight), item.start, item.end
            )
            for i, item in enumerate(options.prompt)
        )

    def _negatives(self, options: GenerationOptions, segment: Segment) -> tuple[Condition, ...]:
        """None where the bundle has nothing to push away from and nobody asks for it."""
        has_null = self.text_encoder is not None or self.bundle.null_condition() is not None
        if not has_null and not options.negative_prompt and options.guidance in (None, 1.0):
            return ()
        return (Condition(self._tokens(options.negative_prompt, segment, "negative_prompt")),)

    def _parameters(self, options: GenerationOptions, segment: Segment) -> StepParameters:
        return step_parameters(options, segment).over(StepParameters(guidance=self.bundle.sampler.guidance))

    def _mask(
        self, options: GenerationOptions, segment: Segment, tail: Latents | None, source: Latents | None
    ) -> LatentMask | None:
        """What to generate (1) and what to keep (0): the tail of what is before, and what a repaint leaves alone."""
        asked = self._asked_mask(options, segment)
        if asked is not None and source is None:
            raise RequestError("needs a source to keep", field="mask" if options.repaint is None else "repaint")
        if asked is None and not segment.keep_frames:
            return None
        silence = self.bundle.silence(segment.frames)
        original = silence if source is None else segment.part(source, silence)
        mask = np.ones(segment.frames, np.float32) if asked is None else asked
        if segment.keep_frames:
            assert tail is not None
            mask[: segment.keep_frames] = 0.0
            original[: segment.keep_frames] = tail[len(tail) - segment.keep_frames :]
        return LatentMask(mask, original)

    def _asked_mask(self, options: GenerationOptions, segment: Segment) -> NDArray[np.float32] | None:
        if options.repaint is not None:
            return repaint_curve(options.repaint, self.bundle.latents.frame_rate_hz, segment)
        if options.mask is None:
            return None
        return np.array(np.broadcast_to(segment.curve(options.mask), (segment.frames,)), np.float32)

    def _context(self, segment: Segment, mask: LatentMask | None) -> NDArray[np.float32] | None:
        """`[T, X]`: what is known, silence elsewhere, and which is which. None for decoders without context input."""
        if self.bundle.context is None:
            return None
        channels = self.bundle.latents.channels
        context = np.ones((segment.frames, 2 * channels), np.float32)
        context[:, :channels] = self.bundle.silence(segment.frames)
        if mask is not None and mask.original is not None:
            known = np.asarray(mask.mask) == 0.0
            context[known, :channels] = mask.original[known]
            context[known, channels:] = 0.0
        return context

    def _target(self, options: GenerationOptions, segment: Segment, latents: Latents | None) -> DrawnTo | None:
        if latents is not None:
            drawn = segment.part(latents, self.bundle.silence(segment.frames))
            return DrawnTo(drawn, _curve(options.target_curve, segment), options.target_gate)
        for field in ("target_curve", "x0_strength"):
            if getattr(options, field) is not None:
                raise RequestError("needs a target or a source to be drawn to", field=field)
        return None


def open_pipeline(deployment: Deployment | Path, *, target: Target | None = None) -> Pipeline:
    """Open everything that a deployment says; `target` instead of its own one.

    Raises ConfigError, EngineNotBuiltError and EngineMismatchError (both with the build command that helps).
    """
    if isinstance(deployment, Path):
        deployment = load_deployment(deployment)
    if target is not None:
        deployment = deployment.model_copy(update={"target": target})
    bundle = load_bundle(deployment.bundle)
    device = open_device(deployment.target)
    with ExitStack() as opened:
        opened.callback(device.close)
        engines = open_engines(deployment, device)
        opened.callback(engines.close)
        edge = _open_edge(deployment, bundle, device, opened)
        pipeline = Pipeline(
            deployment=deployment,
            bundle=bundle,
            device=device,
            loop=TickLoop(engines, bundle, deployment, device),
            codec=Codec(bundle, edge["codec_decode"], edge.get("codec_encode")) if bundle.codec else None,
            text_encoder=TextEncoder(bundle, edge["text_encoder"]) if bundle.text_encoder else None,
            edge_engines=tuple(edge.values()),
        )
        opened.pop_all()
    return pipeline


def _open_edge(deployment: Deployment, bundle: Bundle, device: Device, opened: ExitStack) -> dict[str, Engine]:
    """The engines outside of the tick, by name."""
    names = ["text_encoder"] if bundle.text_encoder else []
    if bundle.codec is not None:
        names += ["codec_decode", "codec_encode"] if bundle.codec.encode else ["codec_decode"]
    fix = build_command(deployment.path, deployment.target)
    engines: dict[str, Engine] = {}
    for name in names:
        engines[name] = open_engine(deployment.engine_folder(), name, device, threads=EDGE_THREADS, fix=fix)
        opened.callback(engines[name].close)
    return engines


def _is_cover(options: GenerationOptions, source: Latents | None) -> bool:
    """A source, and nothing that says what it is for: starting from it part of the way is the only use left."""
    uses = ("mask", "repaint", "initial_noise_curve", "sde_curve", "target_curve", "x0_strength")
    return source is not None and all(getattr(options, use) is None for use in uses)


def _is_safetensors(data: Path | bytes) -> bool:
    """Eight bytes of length, then a JSON object."""
    if isinstance(data, Path):
        return data.suffix == FORMATS["latents"].suffix
    return data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data)


def _curve(values: Values | None, segment: Segment) -> Curve | None:
    return None if values is None else segment.curve(values)


def _first(*choices: T | None) -> T:
    """The first that is said; the last one always is."""
    return next(choice for choice in choices if choice is not None)
