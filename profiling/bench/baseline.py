"""The bare engine: the decoder alone, on its own buffers, for as many rows as a tick executes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from profiling.bench.workload import Workload
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device, Replay, Tensor
from runtime.engines.engine import EngineSet, Execution
from runtime.errors import CaptureError


class BareEngine:
    """The decoder on its own buffers, for as many rows as a tick executes, in as few executes as fit.

    Where ticks are captured as graphs, so is this: what is compared is what the tick adds.
    """

    def __init__(
        self, engines: EngineSet, bundle: Bundle, deployment: Deployment, device: Device, load: Workload, rows: int
    ) -> None:
        self._stream = device.main
        limit = deployment.rows_limit(load.frames, load.tokens)
        parts = [min(limit, rows - begin) for begin in range(0, rows, limit)]
        self._executions = [_bind_decoder(engines, bundle, device, load, part) for part in parts]
        self._replay = self._captured(device) if deployment.runtime.capture and device.kind != "cpu" else None

    def time_ms(self, times: int = 1) -> float:
        """Wall time of all rows once, mean of so many in a row."""
        begin_s = time.perf_counter()
        for _ in range(times):
            self._launch()
        self._stream.record().wait()
        return (time.perf_counter() - begin_s) * 1e3 / times

    def close(self) -> None:
        """Let go of the graph, and of what it held. Nothing of it may be pending."""
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

    def _captured(self, device: Device) -> Replay | None:
        for execution in self._executions:
            execution.warm_up(self._stream)
        try:
            return device.capture(self._stream, self._launch_each)
        except CaptureError:
            return None

    def _launch_each(self) -> None:
        for execution in self._executions:
            execution.launch(self._stream)


def _bind_decoder(engines: EngineSet, bundle: Bundle, device: Device, load: Workload, rows: int) -> Execution:
    decoder, stream, random = engines.decoder, device.main, np.random.default_rng(rows)
    sizes = {"rows": rows, "frames": load.frames, "tokens": load.tokens}
    free = dict(zip(_free_dimensions(engines, bundle), (sizes["rows"], sizes["frames"], sizes["tokens"]), strict=True))
    tensors: dict[str, Tensor] = {}
    for name, info in {**decoder.inputs, **decoder.outputs}.items():
        shape = tuple(size if isinstance(size, int) else free[size] for size in info.shape)
        tensors[name] = device.zeros(shape, info.dtype)
        values = np.ones(shape) if name == bundle.decoder.inputs.condition_mask else random.uniform(0.1, 1.0, shape)
        device.upload(tensors[name], values.astype(info.dtype), stream)
    return decoder.bind(tensors)


def _free_dimensions(engines: EngineSet, bundle: Bundle) -> Iterator[str]:
    """Names that the decoder's graph gives to R, T and L."""
    roles, inputs = bundle.decoder.inputs, engines.decoder.inputs
    yield str(inputs[roles.latents].shape[0])
    yield str(inputs[roles.latents].shape[1])
    yield str(inputs[roles.condition].shape[1])
