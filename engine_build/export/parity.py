"""An exported bundle on this machine, against what its family's own pipeline makes of the same noise.

The pipeline runs first and is gone when the bundle's engines are opened: one of them is in memory at a time.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine_build.compile.builder import build_deployment
from engine_build.export.bundle_export import (
    ERROR_LIMIT,
    BundleExport,
    ExportOptions,
    FactsType,
    OnProgress,
    write_bundle,
)
from engine_build.export.bundle_tables import value_text
from engine_build.export.check_report import Check, CheckFigure, CheckReport, measured, this_machine, versions_of
from runtime.audio.decoding import read_audio
from runtime.audio.encoding import AudioWriter, write_audio
from runtime.audio.formats import complete_file
from runtime.base.errors import ConfigError
from runtime.base.threads import start_python
from runtime.config.bundle import BUNDLE_FILE
from runtime.config.codec import Latents, Pcm
from runtime.config.deployment import Target, load_deployment
from runtime.config.sampler import DcwSpec
from runtime.pipeline.generation import LongGeneration, generate_audio
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.events import Event, Failed, Finished

if TYPE_CHECKING:
    from engine_build.export.checkpoint import Checkpoint

SEEDS: Final = (1, 2)
PROMPT: Final = "Warm piano and soft strings, slow"
# Of the reference's root mean square. Float32 in another order: 1e-6 a layer, over the steps of a generation.
LATENTS_LIMIT: Final = 1e-3
AUDIO_LIMIT: Final = 1e-3
# The same rows in an execute of another size.
BESIDE_LIMIT: Final = 1e-4
# Of finished music: -16 LUFS.
SILENCE_DBFS: Final = -60.0
# Where steps may be left out: from so many on, if what is made is as near to that of all as with this share of them.
MANY_STEPS: Final = 20
NEAR_SHARE: Final = 0.6
BUNDLE: Final = "bundle"
SOUND: Final = "sound.wav"

T = TypeVar("T")
SourceType = TypeVar("SourceType", bound="Checkpoint")


@dataclass(frozen=True)
class CheckOptions:
    """Options of a check.

    out: a folder for the bundle, its engines, the report and the sound. audio: music for what needs some; None: a clip
    of our own. calibrates: bundle.toml names the steps that can be left out, where the model has many.
    """

    out: Path
    seconds: float = 10.0
    target: Target = "cpu"
    audio: Path | None = None
    calibrates: bool = False

    @property
    def deployment(self) -> Path:
        """The bundle's deployment file."""
        return self.out / f"{BUNDLE}.toml"


@dataclass(frozen=True)
class Asked:
    """A generation as TickRT's options. text: what a prompt is and says; how: what only the comparison sets."""

    prompt: str
    text: Mapping[str, Any] = field(default_factory=dict)
    how: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """What the pipeline made: latents `[T, C]` of each seed, audio `[N, channels]` of the first, and its times."""

    latents: list[Latents]
    audio: Pcm
    generation_s: float
    decode_s: float


class CheckpointCheck(ABC, Generic[SourceType, FactsType]):
    """A check of a family's checkpoint on this machine: its bundle against diffusers' pipeline, times, one sound.

    It exports the bundle into `options.out`, and runs it.
    """

    title: ClassVar[str]
    name: ClassVar[str]
    needed: ClassVar[tuple[str, ...]]

    def __init__(self, source: SourceType, options: CheckOptions, on_progress: OnProgress = print) -> None:
        self.source, self.options, self.on_progress = source, options, on_progress

    def report(self) -> CheckReport:
        """The finished check.

        Raises ConfigError where the checkpoint lacks a part, EngineError where the target has no GPU, RequestError
        where `options.audio` is no audio, BuildError where a graph differs from its module.
        """
        self._need_parts()
        music(self.options, 8000, 1, 1)  # what is no music is refused before the export
        machine = this_machine(self.options.target)  # a GPU that is missing is told before the export
        export = self.export()
        options = ExportOptions(f"{self.name}-check", self.options.seconds, description=self.source.description)
        facts = write_bundle(export, self.options.out / BUNDLE, options, self.on_progress)
        questions = list(self.questions(facts))
        self.on_progress("diffusers' pipeline ...")
        asked, reference = self.asked(facts), self.reference(facts)
        text = facts.deployment_text(self.options.out / BUNDLE, self.options.deployment)
        checks, figures = compare(text, self.options, asked, reference, self.on_progress)
        error = facts.figures["decoder_max_error"]
        detail = "largest difference"
        graph = measured("the decoder's graph equals its module", error, at_most=ERROR_LIMIT, detail=detail)
        return CheckReport(
            self.title,
            {"checkpoint": self.source.layout, **self.about(facts), "SHA-256 of its files": self.source.fingerprint()},
            machine,
            versions_of(self.options.target),
            [*questions, graph, *checks],
            [*figures, *self.more_figures(facts), *(calibrated(self.options) if self.options.calibrates else ())],
        )

    @abstractmethod
    def export(self) -> BundleExport[FactsType]:
        """What is exported."""

    @abstractmethod
    def asked(self, facts: FactsType) -> Asked:
        """The generation that both make."""

    @abstractmethod
    def reference(self, facts: FactsType) -> Reference:
        """What diffusers' pipeline makes of the same weights, in float32."""

    @abstractmethod
    def about(self, facts: FactsType) -> Mapping[str, str]:
        """What the checkpoint is, without its name: that may be anything."""

    def questions(self, facts: FactsType) -> Iterator[Check]:
        """Checks of the checkpoint beside the comparison."""
        yield from ()

    def more_figures(self, facts: FactsType) -> Iterator[CheckFigure]:
        """Figures of the checkpoint beside the comparison's."""
        yield from ()

    def how_to_complete(self) -> str:
        """What to do where the checkpoint lacks a part."""
        return "copy or download the whole checkpoint"

    def _need_parts(self) -> None:
        if missing := [part for part in self.needed if not self.source.has(part)]:
            lacks = f"{self.source.folder} has no {', '.join(missing)}"
            what = f"{lacks}, which a check needs: it compares music that is made from a text"
            raise ConfigError(what, fix=self.how_to_complete())


def reference_of(latents: Callable[[int], Latents], audio: Callable[[Latents], Pcm]) -> Reference:
    """Run a pipeline. latents: of a seed; audio: of latents, before it is made loud."""
    first, generation_s = with_seconds(lambda: latents(SEEDS[0]))
    others = [latents(seed) for seed in SEEDS[1:]]
    sound, decode_s = with_seconds(lambda: audio(first))
    return Reference([first, *others], sound, generation_s, decode_s)


def compare(
    text: str, options: CheckOptions, asked: Asked, reference: Reference, on_progress: OnProgress
) -> tuple[list[Check], list[CheckFigure]]:
    """Build the bundle's engines, and compare them with the reference. text: of the deployment file, for the CPU."""
    options.deployment.write_text(text.replace('target = "cpu"', f'target = "{options.target}"'), encoding="utf-8")
    deployment = load_deployment(options.deployment)
    gc.collect()  # the pipeline, which refers to itself
    on_progress("engines ...")
    build_deployment(deployment)
    on_progress("generations ...")
    with open_pipeline(deployment) as opened:
        return _compare(opened, options, asked, reference)


def _compare(
    opened: Pipeline, options: CheckOptions, asked: Asked, reference: Reference
) -> tuple[list[Check], list[CheckFigure]]:
    plain, codec = _without_correction(opened), opened.codec
    assert codec is not None

    def requests(*seeds: int) -> list[GenerationRequest]:
        return [plain.request(asked.prompt, seed=seed, **asked.text, **asked.how) for seed in seeds]

    generate_requests(plain, requests(SEEDS[0]))  # what is done once is no part of the time
    (alone,), alone_s = with_seconds(lambda: generate_requests(plain, requests(SEEDS[0])))
    together, together_s = with_seconds(lambda: generate_requests(plain, requests(*SEEDS)))
    errors = [relative(found, wanted) for found, wanted in zip(together, reference.latents, strict=True)]
    pcm, decode_s = with_seconds(lambda: codec.decode(reference.latents[0]))
    sound, served_s = with_seconds(lambda: _sound(opened, options, asked))
    _write_sound(options.out / SOUND, sound, opened)
    frames, canvas_s = len(alone), opened.bundle.canvas_s
    noun = f"of {canvas_s:.3g} s ({frames} frames)"
    checks = [
        measured(
            "latents equal diffusers' pipeline",
            max(errors),
            at_most=LATENTS_LIMIT,
            detail=f"rms of the difference over rms, the worst of {len(SEEDS)} generations in flight together",
        ),
        measured(
            "a generation is the same beside another",
            relative(alone, together[0]),
            at_most=BESIDE_LIMIT,
            detail="rms of the difference over rms",
        ),
        measured(
            "audio in windows equals the whole in torch",
            relative(pcm, reference.audio),
            at_most=AUDIO_LIMIT,
            detail="of the same latents, before it is made loud",
        ),
        measured("there is sound", level_db(sound), at_least=SILENCE_DBFS, unit="dBFS", detail="rms of the WAV file"),
    ]
    figures = [
        CheckFigure(
            f"diffusers, float32 on the CPU: one generation {noun}, text included", reference.generation_s, "s"
        ),
        CheckFigure(f"TickRT on {options.target}: the same generation, its text known", alone_s, "s"),
        CheckFigure(f"TickRT on {options.target}: {len(SEEDS)} of them together", together_s, "s"),
        CheckFigure("torch, float32 on the CPU: decoding the latents", reference.decode_s, "s"),
        CheckFigure(f"TickRT on {options.target}: decoding the latents", decode_s, "s"),
        CheckFigure(f"TickRT on {options.target}: the WAV file, with the bundle's own defaults", served_s, "s"),
    ]
    return checks, figures


def calibrated(options: CheckOptions, prompts: Sequence[str] = ()) -> list[CheckFigure]:
    """Find which steps a model of many can leave out, as `tickrt-bench skip` does, and write them into bundle.toml.

    prompts: what is tried; (): that command's own. Raises ConfigError where it fails.
    """
    steps = load_deployment(options.deployment).loaded_bundle.sampler.steps
    if steps < MANY_STEPS:
        return []
    plain = round(NEAR_SHARE * steps)
    words = [f"--steps={steps}", f"--plain={plain}", *(f"--prompt={each}" for each in prompts)]
    code = "from runtime.commands.startup import bench; bench()"
    with start_python(code, "skip", str(options.deployment), *words, "--json", "-", stdout=subprocess.PIPE) as process:
        printed = process.communicate()[0]
    if process.returncode:
        raise ConfigError("tickrt-bench skip has failed", fix=f"tickrt-bench skip {options.deployment}")
    best = json.loads(printed)["best"] or {"fewer": 1.0}
    if "kept" in best:
        path = options.out / BUNDLE / BUNDLE_FILE
        values = {"guidance_mode": best["mode"], "kept": {str(steps): best["kept"]}}
        lines = "".join(f"{name} = {value_text(value)}\n" for name, value in values.items())
        head, table, rest = path.read_text(encoding="utf-8").partition("[sampler]\n")
        path.write_text(head + table + lines + rest, encoding="utf-8")
    return [CheckFigure(f"rows of {steps} steps over rows of those kept, as near as {plain} steps", best["fewer"])]


def _without_correction(opened: Pipeline) -> Pipeline:
    """The same pipeline without wavelet-domain correction, which diffusers' pipelines do not have."""
    sampler = opened.bundle.sampler.model_copy(update={"dcw": DcwSpec()})
    return replace(opened, bundle=opened.bundle.model_copy(update={"sampler": sampler}))


def generate_requests(opened: Pipeline, requests: Iterable[GenerationRequest]) -> list[Latents]:
    """The latents `[T, C]` of generations that are in flight together. Raises what one of them failed with."""
    events: SimpleQueue[Event] = SimpleQueue()
    ids = [opened.loop.submit(request, events.put) for request in requests]
    done: dict[str, Latents] = {}
    while len(done) < len(ids):
        event = events.get()  # until a generation ends; all of them do
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            done[event.request_id] = event.latents
    return [done[each] for each in ids]


def _sound(opened: Pipeline, options: CheckOptions, asked: Asked) -> Pcm:
    """A piece as it is served: the bundle's own steps, guidance and finishing."""
    values = {"prompt": asked.prompt, "seconds": options.seconds, "seed": SEEDS[0], **asked.text}
    return np.concatenate(list(generate_audio(opened, LongGeneration(opened, parse_options(values)))))


def _write_sound(path: Path, pcm: Pcm, opened: Pipeline) -> None:
    codec = opened.bundle.codec
    assert codec is not None
    writer = AudioWriter("wav", codec.sample_rate_hz, codec.channels, total_samples=len(pcm))
    with complete_file(path) as file:
        write_audio(file, writer, [pcm])


def music(options: CheckOptions, sample_rate_hz: int, channels: int, samples: int) -> Pcm:
    """`[samples, channels]`: the given file's beginning, repeated where it is shorter, or a clip of our own.

    Raises RequestError for a file that cannot be read.
    """
    if options.audio is None:
        return clip(sample_rate_hz, channels, samples)
    pcm = read_audio(options.audio, sample_rate_hz, channels, math.inf)
    resized: Pcm = np.resize(pcm, (samples, channels))
    return resized


def clip(sample_rate_hz: int, channels: int, samples: int) -> Pcm:
    """`[samples, channels]`: chords that are struck twice a second over noise, a little different in each channel."""
    seconds = np.arange(samples) / sample_rate_hz  # [N]
    decay = np.exp(-6.0 * (seconds % 0.5))
    beat = (seconds // 0.5).astype(np.int64)
    chord = np.array([[220.0, 277.2, 329.6], [174.6, 220.0, 261.6]])[beat // 4 % 2]  # [N, 3]
    hiss = np.random.default_rng(0).standard_normal((samples, channels))
    shift = np.linspace(0.0, 0.5, channels)
    tones = np.sin(2 * np.pi * (chord * seconds[:, None])[..., None] + shift).sum(axis=1)  # [N, channels]
    pcm: Pcm = (0.2 * decay[:, None] * tones + 0.01 * hiss).astype(np.float32)
    return pcm


def with_seconds(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and its seconds."""
    started = time.perf_counter()
    found = call()
    return found, time.perf_counter() - started


def relative(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The root mean square of the difference over that of what was wanted."""
    return rms(found.astype(np.float64) - wanted) / max(rms(wanted), 1e-30)


def rms(values: NDArray[Any]) -> float:
    """The root mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def level_db(values: NDArray[Any]) -> float:
    """The root mean square in dB; full scale is 0."""
    return 20.0 * math.log10(max(rms(values), 1e-30))
