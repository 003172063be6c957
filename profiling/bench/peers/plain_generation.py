"""Text to audio by the bundle's own graphs, as a short program has it: texts, a loop over the steps, the codec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from runtime.config.bundle import Bundle
from runtime.config.codec import Latents, Pcm
from runtime.config.sampler import GuidanceSpec
from runtime.devices.device import Level
from runtime.engines.engine import RunnableGraph, run_once
from runtime.engines.manifest import TensorInfo
from runtime.pipeline.compose import RequestComposer
from runtime.pipeline.meanings import PromptReader
from runtime.pipeline.pipeline import text_encoder_of
from runtime.requests.options import GenerationOptions
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment
from runtime.requests.timesteps import noise, schedule

TINY = 1e-12
F32 = NDArray[np.float32]
DTYPES: Final = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}


def can_run_plainly(bundle: Bundle) -> bool:
    """Whether PlainGeneration has all its parts: texts, a decoder that masks condition tokens, a codec."""
    return None not in (bundle.text_encoder, bundle.decoder.inputs.condition_mask, bundle.codec)


class PlainGeneration:
    """One request after the other on one library's graphs: Euler's steps, guidance in the same batch, the codec once.

    open_graph: opens a file. Its requests are those that TickRT composes, with the same noise: results can be compared.
    bundle: one that can_run_plainly().
    """

    def __init__(self, bundle: Bundle, open_graph: Callable[[Path], RunnableGraph]) -> None:
        conditions = {name: open_graph(bundle.graph_path(spec.graph)) for name, spec in bundle.condition_graphs.items()}
        texts = text_encoder_of(bundle, conditions)
        assert texts is not None
        assert bundle.codec is not None
        self._bundle, self._prompts, self._codec = bundle, PromptReader(bundle, texts), bundle.codec
        self._composer = RequestComposer(bundle, texts)
        self._decoder = open_graph(bundle.graph_path(bundle.decoder.graph))
        self._decode = open_graph(bundle.graph_path(bundle.codec.decode.graph))

    def audio(self, options: GenerationOptions, frames: int) -> Pcm:
        """`[N, channels]`, as the codec decodes it. Raises RequestError."""
        roles, latents = self._codec.decode.inputs, self.latents(options, frames)
        feeds: dict[str, NDArray[np.generic]] = {roles.latents: latents[None]}
        if roles.start_frame is not None:
            feeds[roles.start_frame] = np.zeros(1, np.int64)
        audio: Pcm = run_once(self._decode, feeds)[self._codec.decode.outputs.audio][0].T
        return audio

    def latents(self, options: GenerationOptions, frames: int) -> Latents:
        """`[T, C]` of `frames` T, a whole generation. Raises RequestError."""
        drawn = self._prompts.drawn(options, options.seed or 0)
        request = self._composer.compose(drawn, Segment(0, frames, total_frames=frames))
        scale = request.parameters.guidance
        assert isinstance(scale, float)
        jumps, roles = request.solver == "jump", self._bundle.decoder.inputs
        given = self._inputs(request, is_guided=scale != 1.0 and not jumps)
        x: F32 = noise(frames, self._bundle.latents.channels, request.seed)
        momentum: F32 = np.zeros_like(x)
        times = schedule(request.steps, shift=request.shift) if request.timesteps is None else request.timesteps
        times = np.array([*times[: request.steps], 0.0], np.float32)  # [K + 1]
        for time, later in itertools.pairwise(times):
            numbers = roles.numbers(time, *((later, scale) if jumps else (time, 1.0)))
            velocity = self._velocities(x, numbers, given)  # [R, T, C]
            v = velocity[0]
            if len(velocity) > 1:
                v, momentum = guided(v, velocity[1], momentum, scale, self._bundle.guidance)
            x = x + (later - time) * v
        return x

    def _velocities(self, x: F32, numbers: Mapping[str, float], given: dict[str, NDArray[np.generic]]) -> F32:
        """`[R, T, C]`, one row per condition. numbers: what each row tells the decoder."""
        spec, rows = self._bundle.decoder, len(next(iter(given.values())))
        feeds = {spec.inputs.latents: np.repeat(x[None], rows, axis=0), **given, **spec.inputs.steady(rows, len(x))}
        feeds |= {name: np.full(rows, value, np.float32) for name, value in numbers.items()}
        velocity: F32 = run_once(self._decoder, feeds)[spec.outputs.velocity]
        return velocity

    def _inputs(self, request: GenerationRequest, *, is_guided: bool) -> dict[str, NDArray[np.generic]]:
        """What every step reads: conditions `[R, L, D]`, padded, with their mask `[R, L]`, and context `[R, T, X]`."""
        roles = self._bundle.decoder.inputs
        assert roles.condition is not None
        assert roles.condition_mask is not None
        conditions = [each.tokens for each in (*request.conditions, *(request.negatives if is_guided else ()))]
        shape = (len(conditions), max(map(len, conditions)))
        tokens = np.zeros((*shape, conditions[0].shape[1]), np.float32)
        mask = np.zeros(shape, self._decoder.inputs[roles.condition_mask].dtype)
        for row, each in enumerate(conditions):
            tokens[row, : len(each)], mask[row, : len(each)] = each, 1
        given: dict[str, NDArray[np.generic]] = {roles.condition: tokens, roles.condition_mask: mask}
        if roles.context is not None:
            assert request.context is not None
            given[roles.context] = np.repeat(np.asarray(request.context)[None], shape[0], axis=0)
        return given


def guided(positive: F32, negative: F32, momentum: F32, scale: float, spec: GuidanceSpec) -> tuple[F32, F32]:
    """The velocity `[T, C]` and the new momentum, by the bundle's rule."""
    difference, axes = positive - negative, 0 if spec.norms == "channel" else (0, 1)

    def norm(values: F32) -> F32:  # [1, C] or [1, 1]
        found: F32 = np.maximum(np.sqrt((values * values).sum(axis=axes, keepdims=True)), TINY)
        return found

    def size(values: F32) -> F32:
        return norm(values if axes == 0 else values - values.mean())

    if spec.momentum is not None and spec.parallel is not None:
        momentum = difference + spec.momentum * momentum
        difference = momentum * np.minimum(1.0, (spec.norm_limit or np.inf) / norm(momentum))
        unit = positive / norm(positive)
        difference = difference - (1.0 - spec.parallel) * (difference * unit).sum(axis=axes, keepdims=True) * unit
    v = positive + (scale - 1.0) * difference
    return v * (1.0 + spec.rescale * (size(positive) / size(v) - 1.0)), momentum


class OnnxRuntimeGraph:
    """A RunnableGraph of a file, on the CPU. threads: of an execute, 0 is all cores."""

    def __init__(self, path: Path, threads: int = 0) -> None:
        self.name = path.stem
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs: Mapping[str, TensorInfo] = {each.name: _info(each) for each in self._session.get_inputs()}
        self.outputs: Mapping[str, TensorInfo] = {each.name: _info(each) for each in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, NDArray[Any]], level: Level = Level.TICK) -> dict[str, NDArray[Any]]:
        """One blocking execute with new outputs."""
        return dict(zip(self.outputs, self._session.run(list(self.outputs), dict(feeds)), strict=True))


def _info(tensor: Any) -> TensorInfo:
    shape = tuple(f"{tensor.name}.{axis}" if size is None else size for axis, size in enumerate(tensor.shape))
    return TensorInfo(name=tensor.name, dtype=DTYPES[tensor.type], shape=shape)
