"""The difference of whole generations with a recipe's decoder and with the float32 decoder, through the tick loop."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from engine_build.compile.builder import build_deployment
from engine_build.graphs.graph_file import decoder_graph
from engine_build.precision.error import write_emulated
from engine_build.precision.quantization import Quantization
from engine_build.precision.recipe import RecipeName, without_kernel
from engine_build.shipping import copy_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.events import Event, Failed, Finished

Latents = NDArray[np.float32]
# How far below a piece's loudest mel band levels still count.
FLOOR_DB = 60.0

_DEPLOYMENT = """\
[deployment]
bundle = "{bundle}"
target = "cpu"

[[shapes]]
rows = {{ min = 1, opt = 4, max = 8 }}
frames = {{ min = {multiple}, opt = {canvas}, max = {canvas} }}
tokens = {{ min = 1, opt = {tokens}, max = {tokens} }}

[runtime]
depth = 4
queue = 256

[build]
tolerance = 0.5
optimization = "basic"
step_variants = ["guidance"]
"""


FloatArray = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]
SAMPLE_RATE_HZ: Final = 48_000
SIZE: Final = 2048
HOP: Final = 960
NUM_MELS: Final = 40


@dataclass(frozen=True)
class EndToEndComparison:
    """Latents `[N, T, C]` of the same requests, by the float32 decoder and by the recipe's, and their audio.

    audio: of each request `[samples, channels]` by both decoders; none where the bundle has no codec.
    """

    exact: Latents
    rounded: Latents
    audio: Sequence[tuple[Latents, Latents]] = ()

    @property
    def rms_rel(self) -> NDArray[np.float64]:
        """Per generation: root mean square of the difference over the standard deviation of the float32 latents."""
        difference = np.sqrt(np.mean((self.rounded - self.exact).astype(np.float64) ** 2, axis=(1, 2)))
        variation = np.sqrt(np.var(self.exact.astype(np.float64), axis=(1, 2)))
        return np.asarray(difference / variation)

    @property
    def mel_db(self) -> NDArray[np.float64]:
        """Per generation: root mean square of the difference of the audio's mel spectra, in dB."""
        return np.array([mel_distance_db(*pair) for pair in self.audio])


def mel_distance_db(audio: Latents, other: Latents) -> float:
    """How much the levels of two pieces `[samples, channels]` differ, over their frames and mel bands."""
    levels = [10 * np.log10(np.maximum(mel_bands(piece), 1e-12)) for piece in (audio, other)]
    floor = max(float(level.max()) for level in levels) - FLOOR_DB
    first, second = (np.maximum(level, floor) for level in levels)
    return float(np.sqrt(np.mean((first - second) ** 2)))


def compare_end_to_end(
    deployment: Deployment,
    recipe: RecipeName,
    prompts: Sequence[str],
    *,
    target: str = "tensorrt",
    quantization: Quantization | None = None,
    seed: int = 0,
    steps: int | None = None,
) -> EndToEndComparison:
    """Generate every prompt twice, with seeds `seed`, `seed + 1` and so on. Raises BuildError, EngineError.

    quantization: of 8 bits, by quantization_for.

    Both run the step, rows and text_encoder engines of the target cpu; only the decoder differs, which is that of
    `target`, emulated. The engines are built in a temporary folder.
    """
    with TemporaryDirectory() as scratch:
        names: tuple[RecipeName, RecipeName] = ("fp32", recipe)
        paths = [_copy(deployment, Path(scratch) / name, name, target, quantization) for name in names]
        exact, exact_audio = _generate(paths[0], prompts, seed, steps)
        # Only the decoder's graph differs, so the build reuses the other engines.
        shutil.copytree(load_deployment(paths[0]).engines, load_deployment(paths[1]).engines)
        rounded, rounded_audio = _generate(paths[1], prompts, seed, steps)
        return EndToEndComparison(exact, rounded, list(zip(exact_audio, rounded_audio, strict=True)))


def _copy(
    deployment: Deployment, folder: Path, recipe: RecipeName, target: str, quantization: Quantization | None
) -> Path:
    """Write a deployment with a copy of the bundle whose decoder is the emulated recipe."""
    copied = copy_bundle(deployment.bundle, folder / "bundle")
    bundle = deployment.loaded_bundle
    if recipe != "fp32":
        path, without = copied / bundle.decoder.graph, without_kernel(target, recipe)
        write_emulated(decoder_graph(bundle), recipe, path, without=without, quantization=quantization)
    path = folder / "end_to_end.toml"
    latents, tokens = bundle.latents, deployment.max_tokens
    path.write_text(
        _DEPLOYMENT.format(
            bundle=copied.relative_to(folder).as_posix(),
            multiple=latents.frame_multiple,
            canvas=latents.canvas_frames,
            tokens=tokens,
        ),
        encoding="utf-8",
    )
    return path


def _generate(path: Path, prompts: Sequence[str], seed: int, steps: int | None) -> tuple[Latents, list[Latents]]:
    """Latents of all prompts, and the audio of each."""
    deployment = load_deployment(path)
    build_deployment(deployment)
    options: dict[str, Any] = {} if steps is None else {"steps": steps}
    with open_pipeline(deployment) as pipeline:
        requests = [pipeline.request(prompt, seed=seed + index, **options) for index, prompt in enumerate(prompts)]
        latents = _finished(pipeline, [replace(request, id=str(index)) for index, request in enumerate(requests)])
        return latents, [pipeline.codec.decode(item) for item in latents] if pipeline.codec is not None else []


def _finished(pipeline: Pipeline, requests: Sequence[GenerationRequest]) -> Latents:
    """Submit all requests at once; the latents of each. Raises the error of one that failed."""
    ended: dict[str, Event] = {}
    all_ended = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            ended[event.request_id] = event
        if len(ended) == len(requests):
            all_ended.set()

    for request in requests:
        pipeline.loop.submit(request, on_event)
    all_ended.wait()
    events = [ended[request.id] for request in requests]
    for event in events:
        if isinstance(event, Failed):
            raise event.error
    return np.stack([event.latents for event in events if isinstance(event, Finished)])


def mel_bands(audio: FloatArray) -> Values:
    """Energy `[frames, NUM_MELS]`, 50 frames a second."""
    bands: Values = spectrogram(audio, SIZE, HOP) @ _mel_weights() / SIZE
    return bands


@cache
def _mel_weights() -> Values:
    """Triangles `[bins, NUM_MELS]` at equal distances in mel from 40 Hz to 12 kHz (O'Shaughnessy's formula)."""
    low_mel, high_mel = 2595 * np.log10(1 + np.array([40.0, 12_000.0]) / 700)
    edges = 700 * (10 ** (np.linspace(float(low_mel), float(high_mel), NUM_MELS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(SIZE, 1 / SAMPLE_RATE_HZ)[:, None]
    low, peak, high = edges[:-2], edges[1:-1], edges[2:]
    triangles: Values = np.maximum(
        0.0, np.minimum((frequencies - low) / (peak - low), (high - frequencies) / (high - peak))
    )
    return triangles


def spectrogram(audio: FloatArray, size: int, hop: int) -> Values:
    """Power `[frames, size // 2 + 1]` of the mono mix, Hann window."""
    mono = np.pad(audio.mean(axis=1, dtype=np.float64), (0, max(0, size - len(audio))))
    frames = np.lib.stride_tricks.sliding_window_view(mono, size)[::hop] * np.hanning(size)
    power: Values = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    return power
