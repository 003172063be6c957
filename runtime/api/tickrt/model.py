"""A deployment opened for Python programs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from runtime.audio.codec import Codec
from runtime.base.errors import ConfigError, DrainingError, RequestError, TickError
from runtime.base.files import losses, warn_of_losses
from runtime.base.threads import Process
from runtime.config.deployment import Target, load_deployment
from runtime.engines.adapters import Adapter
from runtime.live.protocol.messages import EventKind
from runtime.music.midi_file import read_notes
from runtime.music.score import Note
from runtime.pipeline.building import open_built_pipeline
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import WINDOW_FRAMES, LongGeneration, OnEvent, generate_audio, generate_latents
from runtime.pipeline.inputs import Given
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.prompt_words import PromptWords
from runtime.requests.validation import note_spec
from runtime.tick.loop.events import Event
from tickrt.audio import Audio
from tickrt.live import CHUNK_S, Live, open_message
from tickrt.live_sessions import LiveSessions
from tickrt.options import (
    INPUTS,
    Arguments,
    Blend,
    Controls,
    Generation,
    Notes,
    Prompt,
    Source,
    documented,
    json_values,
    plain_options,
    prompt_items,
)

NUM_THREADS_PER_SLOT = 2
# What inputs are called here.
SOURCES = {"source": "source", "target": "target_source", "structure": "structure", "timbre": "timbre"}
T = TypeVar("T")


def open(name: str | Path, *, target: Target | None = None, quiet: bool = False) -> Model:
    """Open a shipped deployment ("demo") or a deployment file; engines that are missing are built first.

    target: "cpu", "openvino", "cuda", "tensorrt" or "tensorrt-rtx", in place of the deployment's own. quiet: show no
    progress of the build. Raises ConfigError, BuildError, EngineError.
    """
    if target is not None and target not in get_args(Target):
        raise RequestError(f"expected one of {', '.join(get_args(Target))}, got {target!r}", field="target")
    pipeline = open_built_pipeline(load_deployment(Path(name)), target=target, quiet=quiet)
    pipeline.start()
    return Model(pipeline)


class Model:
    """An open model, made by tickrt.open(); a context manager. Any thread may use it, and generations share ticks.

    Closed by close(), at the end of a `with`, or with its last reference. It works in the process that opened it; in a
    fork of that its methods raise ForkedError.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._resources = ExitStack()
        self._resources.callback(pipeline.close)
        self._live: LiveSessions | None = None
        # Held while the host of live sessions is made, so that there is one.
        self._opening = threading.Lock()
        self._process = Process()
        self._closing = weakref.finalize(self, self._process.call, self._resources.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop; generations in flight end with DrainingError. A second call, or one in a fork, does nothing."""
        self._closing()

    @property
    def options(self) -> dict[str, Any]:
        """Every option of a generation with its limits and its description, as a JSON schema."""
        schema = GenerationOptions.model_json_schema()
        self._pipeline.bundle.options.narrow(schema)
        return schema

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The words that prompts may consist of; None where the model reads any text."""
        return None if self._pipeline.text_encoder is None else self._pipeline.text_encoder.vocabulary

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that generations can use: `id`, `rank`, `trigger_words` and more."""
        return tuple(self._pipeline.engines.adapters.adapters.values())

    @property
    def sample_rate_hz(self) -> int:
        """Samples per second of every generation. Raises ConfigError where the bundle has no codec."""
        return self._require_codec().sample_rate_hz

    @documented
    def generate(self, prompt: Prompt | None = None, **arguments: Unpack[Arguments]) -> Audio:
        """Generate audio; blocks until it is finished, and first until a slot or a place in the queue is free.

        prompt: a text, or several with weights. Raises RequestError for an invalid argument, ShapeError, EngineError,
        NonFiniteError.
        """
        return self._run(self._prepare(prompt, arguments))

    @documented
    def stream(
        self, prompt: Prompt | None = None, **arguments: Unpack[Arguments]
    ) -> Generator[NDArray[np.float32], None, None]:
        """As generate(), but yields PCM float32 `[n, channels]` in chunks while the next ones are generated.

        Leaving the loop, or closing the generator, cancels what is not finished. Also raises ConfigError where the
        bundle has no codec.
        """
        self._require_codec()
        return self._stream(self._prepare(prompt, arguments))

    def generate_many(self, items: Iterable[str | Generation], **arguments: Unpack[Arguments]) -> list[Audio]:
        """Generate several in the same ticks; returns them in order.

        items: any number of prompts, or of dicts with arguments of generate(), which come before `arguments`. All are
        validated before the first one starts; where one fails, the others are cancelled and its error is raised.
        """
        calls: list[dict[str, Any]] = [
            {**arguments, **({"prompt": item} if isinstance(item, str) else item)} for item in items
        ]
        generations = [self._prepare(call.pop("prompt", None), call) for call in calls]
        has_failed = threading.Event()

        def stop_others(event: Event) -> None:
            if has_failed.is_set():
                raise TickError("another generation of the same call has failed")

        num_threads = NUM_THREADS_PER_SLOT * self._pipeline.deployment.runtime.depth
        with ThreadPoolExecutor(num_threads, "tickrt-generate") as pool:
            futures = [pool.submit(self._run, generation, stop_others) for generation in generations]
            try:
                # Until all are finished, or one has failed.
                finished = wait(futures, return_when=FIRST_EXCEPTION).done
                return [future.result() for future in sorted(finished, key=futures.index)]
            finally:
                has_failed.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def live(
        self,
        prompts: Prompt = "",
        *,
        mode: Literal["loop", "extend"] = "loop",
        seconds: float | None = None,
        blend: Blend = "velocity",
        source: Source | None = None,
        source_strength: float | None = None,
        sample_rate_hz: int | None = None,
        slots: int = 2,
        plan: bool | None = None,
        chunk_s: float = CHUNK_S,
        events: Sequence[EventKind] = (),
        **controls: Unpack[Controls],
    ) -> Live:
        """Open a live session: audio without end, whose prompts and controls change while it plays.

        mode: "loop" repeats a canvas of `seconds` and generates it again where something changes; "extend" continues
        without repeating. slots: generations in flight at a time. plan: whether it plays by a plan; None: where mode
        and bundle have one. chunk_s: seconds per item of the iterator. events: ["notes"] for Live.events. source,
        sample_rate_hz: as of generate(). Raises RequestError, and ConfigError where the bundle has no codec.
        """
        sessions = self._live_sessions()
        source_id = None if source is None else sessions.add_source("source", source, sample_rate_hz)
        try:
            message = open_message(
                prompts,
                controls,
                mode=mode,
                seconds=seconds,
                blend=blend,
                source_id=source_id,
                source_strength=source_strength,
                slots=slots,
                plan=plan,
                events=list(events),
            )
            return Live(sessions, message, chunk_s, self)
        finally:
            sessions.remove_source(source_id)

    def _live_sessions(self) -> LiveSessions:
        self._check_open()
        with self._opening:
            if self._live is None:
                self._live = LiveSessions(self._pipeline, partial(_latents, self._pipeline))
                self._resources.callback(self._live.close, "the model is closed")
            return self._live

    def _check_open(self) -> None:
        self._process.check()
        if not self._closing.alive:
            raise DrainingError("the model is closed", fix="open it again, or use it inside of the `with`")

    def _prepare(self, prompt: Prompt | None, arguments: Mapping[str, Any]) -> LongGeneration:
        """Validate a call's arguments. Raises RequestError, DrainingError."""
        self._check_open()
        options = plain_options({name: value for name, value in arguments.items() if name not in INPUTS})
        condition, rate_hz = arguments.get("condition"), arguments.get("sample_rate_hz")
        if prompt is not None or condition is not None or self._pipeline.text_encoder is None:
            options["prompt"] = prompt_items(prompt) if prompt and not isinstance(prompt, str) else prompt or ""
        if (notes := arguments.get("notes")) is not None:
            options["notes"] = self._note_values(notes)
        parsed = parse_options(options, self._pipeline.bundle.options)
        given = {
            name: given_source(self._pipeline, source, rate_hz, field)
            for name, field in SOURCES.items()
            if (source := arguments.get(field)) is not None
        }
        inputs = GenerationInputs(None if condition is None else np.asarray(condition, np.float32))
        inputs = self._pipeline.inputs.read(given, inputs)
        return LongGeneration(self._pipeline, parsed, inputs)

    def _note_values(self, notes: Notes) -> Any:
        if isinstance(notes, str | Path):
            return _read_file(partial(read_notes, spec=note_spec(self._pipeline.bundle)), Path(notes))
        return [note._asdict() if isinstance(note, Note) else json_values(note) for note in notes]

    def _run(self, generation: LongGeneration, on_event: OnEvent | None = None) -> Audio:
        pieces: list[NDArray[np.float32]] = []
        chunks: list[NDArray[np.float32]] = []
        codec, latents = self._pipeline.codec, self._pipeline.bundle.latents
        cutter = codec and codec.window_cutter(WINDOW_FRAMES, total_frames=generation.total_frames)
        decoder = codec and generation.audio_decoder(is_streamed=False)
        for new in generate_latents(self._pipeline, generation, on_event, wait=True):
            pieces.append(new)
            if codec and cutter and decoder:
                chunks.extend(decoder.decode(window, codec) for window in cutter.cut(new))
        return Audio(
            latents=np.concatenate(pieces),
            frame_rate_hz=latents.frame_rate_hz,
            sample_rate_hz=codec.sample_rate_hz if codec else 0,
            seed=generation.seed,
            options=generation.options.model_dump(exclude_unset=True) | {"seed": generation.seed},
            bundle=self._bundle,
            metadata=generation.metadata(),
            _pcm=np.concatenate(chunks) if codec else None,
            prompt_words=self._pipeline.prompts.words(generation.options) or PromptWords(),
            meanings=generation.meanings,
            is_estimated=generation.is_estimated,
            _generation=generation,
        )

    def _stream(self, generation: LongGeneration) -> Generator[NDArray[np.float32], None, None]:
        """A generator of this object's own, because it keeps the model open."""
        self._process.check()
        for chunk in generate_audio(self._pipeline, generation, wait=True):
            yield chunk
            self._process.check()

    @property
    def _bundle(self) -> tuple[str, str]:
        return self._pipeline.bundle.name, self._pipeline.bundle.version

    def _require_codec(self) -> Codec:
        if self._pipeline.codec is None:
            raise ConfigError(f"bundle {self._pipeline.bundle.name!r} has no [codec]: it makes latents, not audio")
        return self._pipeline.codec


def _latents(pipeline: Pipeline, source: Source, sample_rate_hz: int | None) -> NDArray[np.float32]:
    return given_source(pipeline, source, sample_rate_hz).latents()


def given_source(pipeline: Pipeline, source: Source, sample_rate_hz: int | None, field: str = "source") -> Given:
    """A source in any of its forms. An Audio of the same model is not encoded again."""
    reader = pipeline.inputs
    if isinstance(source, str | Path):
        path = Path(source)
        read, timbre = partial(_read_file, reader.read_source, path), partial(_read_file, reader.read_timbre, path)
        return replace(reader.file(path, field), latents=read, timbre=timbre)
    if not isinstance(source, Audio):
        return reader.array(np.asarray(source), sample_rate_hz, field)
    if source.sample_rate_hz:
        given = reader.array(source.pcm, source.sample_rate_hz, field)
    else:
        given = Given(lambda: source.pcm, None, False, field, lambda: reader.timbre_latents(source.latents))
    if source.bundle != (pipeline.bundle.name, pipeline.bundle.version):
        return given
    return replace(given, latents=lambda: source.latents, is_encoded=source.is_estimated)


def _read_file(read: Callable[[Path], T], path: Path) -> T:
    """Warns of what is left out."""
    with losses() as lost:
        found = read(path)
    warn_of_losses(path, lost)
    return found
