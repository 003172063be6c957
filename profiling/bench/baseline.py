"""The bare engine: the decoder alone, on its own buffers, for as many rows as a tick executes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiling.bench.workload import SCALE, Workload
from runtime.base.errors import CaptureError
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device, Replay
from runtime.engines.engine import EngineSet, Execution, decoder_shapes


class DecoderBaseline:
    """The decoder on its own buffers, for the rows R of a tick, in as few executes as the shape ranges allow.

    Where the runtime captures ticks as CUDA graphs, so does this: the difference to a tick is what the tick adds.
    """

    def __init__(
        self, engines: EngineSet, bundle: Bundle, deployment: Deployment, device: Device, load: Workload, rows: int
    ) -> None:
        self._stream = device.main
        limit = deployment.rows_limit(load.frames, load.tokens)
        parts = [min(limit, rows - begin) for begin in range(0, rows, limit)]
        self._executions = [_bind_decoder(engines, bundle, device, load, part) for part in parts]
        self._replay = self._capture(device) if deployment.runtime.capture and device.kind != "cpu" else None

    def time_ms(self, times: int = 1) -> float:
        """Wall time of one pass over all rows, mean of `times` in a row, in milliseconds."""
        begin_s = time.perf_counter()
        for _ in range(times):
            self._launch()
        self._stream.record().wait()
        return (time.perf_counter() - begin_s) * 1e3 / times

    def close(self) -> None:
        """Release the graph and the executions; none of them may be pending."""
        if self._replay is not None:
            self._replay.close()
            self._replay = None
        for execution in self._executions:
            execution.release()

    def _launch(self) -> None:
        if self._replay is not None:
            self._replay.launch(self._stream)
        else:
            self._launch_each()

    def _capture(self, device: Device) -> Replay | None:
        try:
            self._warm_up_each()
            return device.capture(self._stream, self._warm_up_each)
        except CaptureError:
            return None

    def _warm_up_each(self) -> None:
        for execution in self._executions:
            execution.warm_up(self._stream)

    def _launch_each(self) -> None:
        for execution in self._executions:
            execution.launch(self._stream)


def decoder_inputs(engines: EngineSet, bundle: Bundle, load: Workload, rows: int) -> dict[str, NDArray[Any]]:
    """Every input of the decoder by name: random, the same at every call; the mask is 1 everywhere."""
    decoder, roles, random = engines.decoder, bundle.decoder.inputs, np.random.default_rng(rows)
    shapes = decoder_shapes(decoder, roles, rows=rows, frames=load.frames, tokens=load.tokens)
    inputs = {
        name: (np.ones(shapes[name]) if name == roles.condition_mask else random.uniform(0.1, 1.0, shapes[name]))
        .astype(info.dtype)
        for name, info in decoder.inputs.items()
    }  # fmt: skip
    if roles.condition is not None:
        inputs[roles.condition] *= SCALE
    return inputs


def _bind_decoder(engines: EngineSet, bundle: Bundle, device: Device, load: Workload, rows: int) -> Execution:
    decoder, inputs = engines.decoder, decoder_inputs(engines, bundle, load, rows)
    tensors = {name: device.zeros(array.shape, array.dtype) for name, array in inputs.items()}
    for name, array in inputs.items():
        device.upload(tensors[name], array, device.main)
    velocity, shape = bundle.decoder.outputs.velocity, tensors[bundle.decoder.inputs.latents].shape
    tensors[velocity] = device.zeros(shape, decoder.outputs[velocity].dtype)
    return decoder.bind(tensors)
