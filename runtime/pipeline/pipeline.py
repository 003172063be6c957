"""An open deployment: bundle, device, engines, tick loop and what works on them, opened and closed together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from runtime.audio.codec import Codec, default_workers, window_ms, windows_per_execute
from runtime.audio.codec_queue import CodecQueue
from runtime.base.errors import TickError
from runtime.base.threads import Watched
from runtime.config.bundle import Bundle
from runtime.config.deployment import PLAN_TARGETS, Deployment, ModelIdentity, Target, build_command, load_deployment
from runtime.devices.device import Device
from runtime.devices.machine import open_device
from runtime.engines.engine import Engine, EngineSet, RunnableGraph, condition_width
from runtime.engines.loading import open_engine, open_engines, settle_kernels, warm_up
from runtime.pipeline.compose import NO_INPUTS, GenerationInputs, RequestComposer
from runtime.pipeline.inputs import InputReader
from runtime.pipeline.lengths import Lengths
from runtime.pipeline.meanings import PromptReader
from runtime.pipeline.songs.planner import Planner, open_planner
from runtime.pipeline.structure import StructureCodec, open_structure
from runtime.pipeline.text_encoder import TextEncoder
from runtime.pipeline.timbre import TimbreEncoder
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
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
        return not self.composer.has_null

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
        requests = (
            self.request("", self._least_inputs, seconds=n / rate_hz, seed=0)
            for n in reversed(self.lengths.generations)
        )
        return common_ticks(requests, self.bundle, self.deployment)

    @property
    def _least_inputs(self) -> GenerationInputs:
        """A condition of zeros where the model needs one."""
        width = condition_width(self.engines.decoder, self.bundle.decoder.inputs)
        tokens = self.deployment.shapes[0].tokens.min
        return GenerationInputs(np.zeros((tokens, width), np.float32) if self.needs_condition else None)

    @cached_property
    def lengths(self) -> Lengths:
        """How long its generations are."""
        return Lengths(self.bundle, self.deployment)

    @cached_property
    def inputs(self) -> InputReader:
        """What reads sources, references and structures."""
        return InputReader(self.bundle, self.codec, None if self.text_encoder is None else self.text_encoder.timbre)

    @cached_property
    def prompts(self) -> PromptReader:
        """What reads prompts."""
        return PromptReader(self.bundle, self.text_encoder, self.planner)

    @cached_property
    def composer(self) -> RequestComposer:
        """What makes requests out of options."""
        return RequestComposer(self.bundle, self.text_encoder, self.structure)

    def request(
        self, prompt: str | list[dict[str, Any]], inputs: GenerationInputs = NO_INPUTS, **options: Any
    ) -> GenerationRequest:
        """The first segment of a generation, by plain values of GenerationOptions. Raises RequestError."""
        parsed = parse_options({"prompt": prompt, **options})
        segment = self.lengths.next_segment(0, self.lengths.total_frames(parsed, inputs.known))
        assert segment is not None
        return self.composer.compose(parsed, segment, inputs)


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
    return Codec(bundle, decode, engines.get("codec_encode"), queue, batch, partial(window_ms, decode.manifest))


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
