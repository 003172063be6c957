"""ONNX Runtime's CUDA provider on the simulated GPU.

Sessions are real sessions of the CPU provider on the host memory behind the simulated device memory. As with the real
provider, work is put on the session's stream, in order, and Run() waits for it unless that is disabled. Errors are of
the classes that test_onnxruntime_errors finds in the real library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from simulator.fixture import Machine

import engine_build.compile.environment as environment
import engine_build.compile.onnxruntime_compiler as compiler
import engine_build.graphs.reference_session as reference
import runtime.engines.onnxruntime as engines
from runtime.engines.onnxruntime_cuda import CPU_PROVIDER, CUDA_PROVIDER, NOTHING_TO_RECORD

SYNCHRONOUS = "disable_synchronize_execution_providers"
RECORD = "external_device_graph_capture"


@dataclass
class Provider:
    """The simulated provider. `recordable`: its executes can be captured by the caller.

    `on_host`: operators without a CUDA kernel. `starts`: its libraries load. `sessions`: the sessions on the GPU.
    fails_with: what the next sessions raise. refuses: why an execute of these shapes, by name, fails; "" where it does
    not.
    """

    machine: Machine
    recordable: bool = False
    on_host: frozenset[str] = frozenset()
    starts: bool = True
    fails_with: Exception | None = None
    refuses: Callable[[Mapping[str, tuple[int, ...]]], str] = lambda shapes: ""
    sessions: list[GpuSession] = field(default_factory=list)

    def session(self, source: Any, options: Any, providers: Any) -> Any:
        """InferenceSession."""
        if providers == [CPU_PROVIDER]:
            return onnxruntime.InferenceSession(source, options, providers=providers)
        ((name, provider_options),) = providers
        assert name == CUDA_PROVIDER
        if self.fails_with is not None:
            raise self.fails_with
        self.sessions.append(GpuSession(self, source, options, provider_options))
        return self.sessions[-1]


class GpuSession:
    """A session of the CUDA provider."""

    def __init__(self, provider: Provider, source: Any, options: Any, provider_options: dict[str, str]) -> None:
        self.provider, self.options, self.provider_options = provider, options, provider_options
        self.label = Path(options.optimized_model_filepath or str(source)).stem
        self._real = onnxruntime.InferenceSession(source, options, providers=[CPU_PROVIDER])
        machine = provider.machine
        named = provider_options.get("user_compute_stream")
        self.stream = machine.create_stream() if named is None else int(named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_providers(self) -> list[str]:
        return [CUDA_PROVIDER, CPU_PROVIDER] if self.provider.starts else [CPU_PROVIDER]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [node for part in self._real.get_provider_graph_assignment_info() for node in part.get_nodes()]
        on_host = [node for node in nodes if node.op_type in self.provider.on_host or node.op_type == "Shape"]
        on_gpu = [node for node in nodes if node not in on_host]
        return [_Part(CUDA_PROVIDER, on_gpu), _Part(CPU_PROVIDER, on_host)]

    def io_binding(self) -> _Binding:
        tensors = self._real.get_inputs(), self._real.get_outputs()
        return _Binding(*({tensor.name for tensor in each} for each in tensors))

    def run(self, names: Any, feeds: dict[str, Any], run_options: Any = None) -> Any:
        """Uploads, one execute and downloads on the session's stream; the host waits."""
        assert not self.provider.machine.is_capturing(self.stream)
        results: list[Any] = []
        self.provider.machine.enqueue(
            self.stream, lambda: results.extend(self._real.run(names, feeds)), what="an execute for host arrays"
        )
        self.provider.machine.synchronize(self.stream)
        return results

    def run_with_iobinding(self, binding: _Binding, run_options: Any = None) -> None:
        machine, entries = self.provider.machine, _entries(run_options)
        capturing = machine.is_capturing(self.stream)
        if capturing and not self.provider.recordable:
            machine.break_rule(
                "an execute in a capture, which this release of ONNX Runtime does not support: the process ends"
            )
        if entries[RECORD] == "1" and self.provider.recordable and not capturing:
            raise RuntimeError(f"Error in execution: {NOTHING_TO_RECORD} on the session's stream")
        if reason := self.provider.refuses(binding.shapes):
            raise RuntimeError(f"Error in execution: {reason}")
        machine.enqueue(
            self.stream,
            lambda: binding.execute(self._real, machine),
            reads=binding.reads,
            writes=binding.writes,
            what="an execute",
        )
        if entries[SYNCHRONOUS] != "1":
            machine.synchronize(self.stream)


class _Binding:
    """Device addresses by name."""

    def __init__(self, inputs: set[str], outputs: set[str]) -> None:
        self._names = inputs, outputs
        self.sim_inputs: dict[str, _Place] = {}
        self._outputs: dict[str, _Place] = {}

    @property
    def reads(self) -> list[tuple[int, int]]:
        return [place.range for place in self.sim_inputs.values()]

    @property
    def writes(self) -> list[tuple[int, int]]:
        return [place.range for place in self._outputs.values()]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(place.shape) for name, place in (self.sim_inputs | self._outputs).items()}

    def bind_input(self, name: str, *place: Any) -> None:
        if name not in self._names[0]:
            raise RuntimeError(f"Error when binding input: Failed to find input name in the mapping: {name}")
        self.sim_inputs[name] = _Place(*place)

    def bind_output(self, name: str, *place: Any) -> None:
        if name not in self._names[1]:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self._outputs[name] = _Place(*place)

    def execute(self, session: Any, machine: Machine) -> None:
        feeds = {name: place.array(machine).copy() for name, place in self.sim_inputs.items()}
        for address, size in self.writes:
            machine.memory(address, size, "an output of an execute").fill(0xFF)
        results = session.run(list(self._outputs), feeds)
        for place, result in zip(self._outputs.values(), results, strict=True):
            place.array(machine)[...] = result


@dataclass
class _Place:
    """Where a tensor is bound."""

    device: str
    index: int
    dtype: Any
    shape: tuple[int, ...]
    address: int

    def __post_init__(self) -> None:
        assert (self.device, self.index) == ("cuda", 0)

    @property
    def range(self) -> tuple[int, int]:
        return self.address, prod(self.shape) * np.dtype(self.dtype).itemsize

    def array(self, machine: Machine) -> Any:
        return machine.memory(*self.range, "a tensor of an execute").view(self.dtype).reshape(self.shape)


@dataclass
class _Part:
    ep_name: str
    nodes: list[Any]

    def get_nodes(self) -> list[Any]:
        return self.nodes


class _Module:
    """The module onnxruntime, with a CUDA provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def InferenceSession(  # noqa: N802
        self, source: Any, options: Any = None, providers: Any = None, *, enable_fallback: int = 1
    ) -> Any:
        assert providers == [CPU_PROVIDER] or not enable_fallback, "what fails on the GPU is repeated on the CPU"
        return self._provider.session(str(source) if isinstance(source, Path) else source, options, providers)

    def get_available_providers(self) -> list[str]:
        return [CUDA_PROVIDER, CPU_PROVIDER]

    def preload_dlls(self) -> None:
        """Loads nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)


@contextmanager
def simulated_provider(machine: Machine, **options: Any) -> Iterator[Provider]:
    """The simulated provider in place of ONNX Runtime's, in the builder and in the runtime."""
    provider = Provider(machine, **options)
    module = _Module(provider)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ort", module)
        for importer in (compiler, environment, reference):
            patch.setattr(importer, "onnxruntime", lambda: module)
        yield provider


def _entries(run_options: Any) -> dict[str, str]:
    found = {}
    for name in (SYNCHRONOUS, RECORD):
        try:
            found[name] = run_options.get_run_config_entry(name)
        except (RuntimeError, AttributeError):
            found[name] = ""
    return found
