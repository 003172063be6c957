"""What only an RTX card shows of TensorRT-RTX: what kernels take, the end of a context while they compile, a reload.

A row of a result is what was measured, its value, unit, and limit where it has one.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from profiling.bench.steady_stream import SteadyStream, check_equal
from profiling.bench.workload import workload_of
from profiling.output import write_json
from runtime.commands.command_line import CommandLine, Config, Group
from runtime.config.deployment import Target, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines
from runtime.engines.manifest import manifest_path, read_manifest
from runtime.engines.tensorrt.binding import bind

if TYPE_CHECKING:
    from runtime.engines.tensorrt.rtx.loaded_engine import RtxContext

# Of generations that share ticks while engines are replaced.
DEPTH = 4
# A context that has not ended then never does: the thread that compiles waits for what its end holds.
WATCHDOG_S = 12.0

app = CommandLine(add_completion=False, cls=Group)
Json = Annotated[Path, typer.Option("--json", help="Where the result is written.")]
OnTarget = Annotated[Target, typer.Option("--target")]
Execute = Callable[["RtxContext | None", str], "RtxContext"]
Row = tuple[str, float, str, float | None]
T = TypeVar("T")


@app.command()
def kernels(config: Config, json_path: Json, target: OnTarget = "tensorrt-rtx") -> None:
    """What kernels take at the decoder's largest shapes, and whether an execute with them can be captured."""
    rows = list[Row]()
    with _decoder(config, target) as (execute, capturable):
        for name, strategy in (("fallback", "NONE"), ("compiled", "EAGER"), ("from the cache", "EAGER")):
            first_ms, context = _timed(partial(execute, None, strategy))
            second_ms, _ = _timed(partial(execute, context, strategy))
            rows.append((f"{name}, context and first execute", first_ms, "ms", None))
            rows.append((f"{name}, next execute", second_ms, "ms", None))
            rows.append((f"{name}, not capturable", float(not capturable(context)), "", 0.0))
            context.close()
    write_json(json_path, rows)


@app.command()
def close(config: Config, json_path: Json, target: OnTarget = "tensorrt-rtx") -> None:
    """The end of a context whose kernels a thread of the library compiles; the process ends where it does not."""
    with _decoder(config, target) as (execute, _):
        context = execute(None, "LAZY")
        with watchdog(WATCHDOG_S):
            ms, _ = _timed(context.close)
    write_json(json_path, [("end of a context that compiles", ms, "ms", None)])


@app.command("reload")
def reload_engines(config: Config, json_path: Json, target: OnTarget = "tensorrt-rtx") -> None:
    """Engines opened again and swapped below a loop, while those before them still compile: the same latents."""
    deployment = load_deployment(config).model_copy(update={"target": target})
    with ExitStack() as stack:
        device = open_device(target)
        stack.callback(device.close)
        first_ms, engines = _timed(partial(open_engines, deployment, device))
        stream = SteadyStream(deployment.loaded_bundle, deployment, engines, device, workload_of(deployment, DEPTH))
        stack.callback(stream.loop.close)
        before = stream.play()
        again_ms, fresh = _timed(partial(open_engines, deployment, device))
        swapped = stream.loop.swap(fresh)
        with watchdog(WATCHDOG_S):
            swap_ms, after = _timed(stream.play)
        swapped.result(0)
        off = check_equal("a generation after a reload", "before it", after, before, fresh)
    write_json(json_path, [
        ("engines opened", first_ms, "ms", None),
        ("engines opened again", again_ms, "ms", None),
        ("swap, and generations behind it", swap_ms, "ms", None),
        ("largest difference to before", off, "", None),
    ])  # fmt: skip


@contextmanager
def watchdog(limit_s: float) -> Iterator[None]:
    """End the process, with the stack of every thread, where the body takes longer: also with Python's lock held."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _decoder(config: Path, target: Target) -> Iterator[tuple[Execute, Callable[[RtxContext], bool]]]:
    """Executes the decoder at its largest shapes on a context, or on a new one, and waits; with no kernels before it.

    Then whether a context's executes can be captured.
    """
    bind(target)
    from runtime.engines.tensorrt.engine import reserve_activation
    from runtime.engines.tensorrt.rtx.loaded_engine import RtxLoadedEngine
    from runtime.engines.tensorrt.rtx.specializer import Specializer

    folder = load_deployment(config).engine_folder(target)
    with ExitStack() as stack:
        fresh = Path(stack.enter_context(TemporaryDirectory()))
        device = open_device(target)
        stack.callback(device.close)
        specializer = Specializer(fresh / "engines", device)
        stack.callback(specializer.close)
        plan = RtxLoadedEngine(read_manifest(manifest_path(folder, "decoder")), folder, "", specializer.cache)
        stack.callback(plan.close)
        index = len(plan.ranges) - 1
        activation = partial(reserve_activation, device, plan.range_bytes(index))

        def execute(context: RtxContext | None, kernels: str) -> RtxContext:
            shapes = plan.ranges[index].largest
            return specializer.submit(
                lambda: specializer.execute(plan, index, shapes, context, kernels, activation)
            ).result()

        yield execute, lambda context: context.is_capturable(device.main)


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - began), result


if __name__ == "__main__":
    app(prog_name="python -m profiling.gpu_check.rtx")
