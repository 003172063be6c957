"""How many threads an execute of the decoder takes, where two virtual cores of the processor are one physical core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine_build.compile.verify import inputs_at
from engine_build.specs.engine_spec import EngineSpec, Sizes, sizes_at
from runtime.devices.device import Device, HostDevice, Tensor
from runtime.devices.machine import num_cores, num_physical_cores
from runtime.engines.engine import Engine
from runtime.engines.loading import open_engine
from runtime.engines.manifest import THREAD_TIMES, THREADS

ROUNDS, WARM_UP_RUNS = 7, 2
# More threads are worth it where they save so much of the time: they take cores from the codec and the server.
WORTH = 0.9


class ThreadTime(NamedTuple):
    """Of one execute: how long it takes, and of how many cores together."""

    wall_s: float
    cpu_s: float


def choose_threads(counts: Sequence[int], time_execute: Callable[[int], ThreadTime]) -> dict[str, Any]:
    """Facts for the manifest: the number of threads, and what was measured of each of `counts`, in milliseconds.

    They take turns, so that what else the machine does meets all of them; the best round of each counts. Of two, the
    larger number is taken where it is faster by a tenth.
    """
    rounds = [{count: time_execute(count) for count in counts} for _ in range(ROUNDS)]
    best = {count: ThreadTime(*map(min, zip(*(each[count] for each in rounds), strict=True))) for count in counts}
    chosen, *more = sorted(counts)
    for count in more:
        if best[count].wall_s <= WORTH * best[chosen].wall_s:
            chosen = count
    measured = {str(count): [round(1e3 * seconds, 3) for seconds in best[count]] for count in sorted(counts)}
    return {THREADS: chosen, THREAD_TIMES: measured}


def thread_facts(folder: Path, spec: EngineSpec) -> dict[str, Any]:
    """What choose_threads says of a decoder in `folder`, at the usual sizes of its first shape range.

    {} of other engines, and where every core has one thread. Raises EngineError.
    """
    counts, device = (num_physical_cores(), num_cores()), HostDevice()
    if spec.kind != "decoder" or counts[0] == counts[1]:
        return {}
    sizes = sizes_at(spec, spec.ranges[0], 1)
    engines = {count: open_engine(folder, spec.name, device, threads=count, in_tick=True) for count in counts}
    try:
        tensors = _tensors(spec, sizes, engines[counts[0]], device)
        executions = {count: engine.bind(tensors) for count, engine in engines.items()}

        def time_execute(count: int) -> ThreadTime:
            for _ in range(WARM_UP_RUNS):
                executions[count].launch(device.main)
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            executions[count].launch(device.main)
            return ThreadTime(time.perf_counter() - wall_s, time.process_time() - cpu_s)

        return choose_threads(counts, time_execute)
    finally:
        for engine in engines.values():
            engine.close()


def _tensors(spec: EngineSpec, sizes: Sizes, engine: Engine, device: Device) -> Mapping[str, Tensor]:
    """Its inputs, with the values that its error is measured with, and its outputs."""
    found: dict[str, Tensor] = {}
    for name, array in inputs_at(spec.inputs, [sizes], 0).items():
        found[name] = device.zeros(array.shape, engine.inputs[name].dtype)
        device.upload(found[name], array.astype(engine.inputs[name].dtype), device.main)
    for port in spec.outputs:
        shape = tuple(sizes[letter] for letter in port.letters)
        found[port.name] = device.zeros(shape, engine.outputs[port.name].dtype)
    return found
