"""Where a test's ticks run: the CPU, variants of the simulated GPU, or a real GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest
from helpers import simulated_build
from simulator.fixture import SITE, Machine, simulated, simulated_machine

from engine_build.compile.builder import build_deployment
from engine_build.compile.worker import BuildLog, Worker
from engine_build.graphs.reference_session import onnxruntime
from runtime.base.errors import TickError
from runtime.config.deployment import HOST_TARGETS, Deployment, Target
from runtime.devices.machine import open_device
from runtime.engines.onnxruntime_cuda import need_provider

# Enough variants to take a small one and a superset; the full one is always built.
FEW_VARIANTS = '[build]\nstep_variants = ["plain", "dcw+guidance"]\n'


@dataclass(frozen=True)
class Backend:
    """A target, and whether its GPU is simulated. `late`: simulated work runs only when it is waited for."""

    target: Target = "cpu"
    is_simulated: bool = False
    late: bool = True
    capture: bool = True

    def __str__(self) -> str:
        variant = f"{'late' if self.late else 'early'}-{'captured' if self.capture else 'plain'}"
        variant = f"rtx-{variant}" if self.target == "tensorrt-rtx" else variant
        return f"simulated-{variant}" if self.is_simulated else self.target

    def skip_where_it_is_missing(self) -> Self:
        """Skips the test, and says why, where this needs a GPU, or a provider, that is not there."""
        if self.target not in HOST_TARGETS and not self.is_simulated:
            try:
                if self.target == "cuda":
                    need_provider(onnxruntime())
                open_device(self.target).close()
            except TickError as error:
                pytest.skip(error.what)
        return self

    @contextmanager
    def running(self) -> Iterator[Machine | None]:
        """The GPU, for the time of a test."""
        with (
            simulated(late=self.late, rtx=self.target == "tensorrt-rtx")
            if self.is_simulated
            else compiled_once()
            if self.target == "openvino"
            else nullcontext() as machine
        ):
            yield machine

    def build(self, deployment: Deployment) -> None:
        """Build a deployment's engines. For the simulated GPU in a process that sees nothing else."""
        if not self.is_simulated:
            build_deployment(deployment)
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(SITE)
            options = {name: value for name, value in os.environ.items() if name.startswith("SIMULATED_")}
            options.pop(simulated_machine.CHILDREN, None)
            worker = _builder(self.target, *sorted(options.items()))
            worker.run(simulated_build.build, (deployment.path, self.target), BuildLog())


# The processes that build for the simulated GPU: to start one takes longer than most builds.
builders = ExitStack()


@cache
def _builder(*options: object) -> Worker:
    return builders.enter_context(Worker())


_compiled: dict[object, Any] = {}


@contextmanager
def compiled_once() -> Iterator[None]:
    """OpenVINO compiles an engine once per process, which takes long."""
    import runtime.engines.openvino as engines

    core = engines.core()

    class Shared:
        available_devices = core.available_devices

        def read_model(self, path: Path) -> Path:
            return path

        def compile_model(self, path: Path, *options: Any) -> Any:
            key = path, path.stat().st_mtime_ns, repr(options)
            if key not in _compiled:
                _compiled[key] = core.compile_model(core.read_model(path), *options)
            return _compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "core", Shared)
        yield


CPU = Backend()
OPENVINO = pytest.param(
    Backend("openvino"),
    marks=pytest.mark.skipif(find_spec("openvino") is None, reason="needs pip install 'tickrt[openvino]'"),
)
SIMULATED = (
    Backend("tensorrt", is_simulated=True),
    Backend("tensorrt", is_simulated=True, capture=False),
    Backend("tensorrt", is_simulated=True, late=False),
)
ALSO_SIMULATED = pytest.mark.parametrize("backend", [CPU, SIMULATED[0]], indirect=True, ids=str)
SIMULATED_RTX = Backend("tensorrt-rtx", is_simulated=True)
REAL = tuple(pytest.param(Backend(target), marks=pytest.mark.gpu) for target in ("cuda", "tensorrt"))
BACKENDS = (CPU, OPENVINO, *SIMULATED, *REAL)
