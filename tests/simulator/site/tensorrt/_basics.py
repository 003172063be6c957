"""Loggers, callbacks, dimensions and host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ._enums import Severity, TrtEnum


class _Callback(type):
    """Raises TypeError for a subclass that does not call its base's __init__, as pybind11 does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        if not getattr(made, "_base_called", False):
            base = next(kind for kind in cls.__mro__ if kind.__module__.startswith("tensorrt"))
            raise TypeError(f"tensorrt.{base.__name__}.__init__() must be called when overriding __init__")
        return made


class Callback(metaclass=_Callback):
    """Base of the callback interfaces."""

    def __init__(self) -> None:
        self._base_called = True


class ILogger(Callback):
    """Takes log messages."""

    Severity = Severity
    INTERNAL_ERROR = Severity.INTERNAL_ERROR
    ERROR = Severity.ERROR
    WARNING = Severity.WARNING
    INFO = Severity.INFO
    VERBOSE = Severity.VERBOSE

    def log(self, severity: TrtEnum, msg: str) -> None:
        """Take one message. To be overridden."""
        raise NotImplementedError("ILogger.log is pure virtual")


class Logger(ILogger):
    """Prints messages that are at least as severe as `min_severity`."""

    def __init__(self, min_severity: TrtEnum = Severity.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity: TrtEnum, msg: str) -> None:
        """Print one message."""
        if int(severity) <= int(self.min_severity):
            print(f"[TRT] [{severity.name[0]}] {msg}")


class IProfiler(Callback):
    """Takes the times of layers."""

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Take one layer's time. To be overridden."""
        raise NotImplementedError("IProfiler.report_layer_time is pure virtual")


class IProgressMonitor(Callback):
    """Takes the progress of a build, from threads of the builder; a step that returns False ends the build."""

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase begins. To be overridden."""
        raise NotImplementedError("IProgressMonitor.phase_start is pure virtual")

    def step_complete(self, phase_name: str, step: int) -> bool:
        """One step is done; False cancels. To be overridden."""
        raise NotImplementedError("IProgressMonitor.step_complete is pure virtual")

    def phase_finish(self, phase_name: str) -> None:
        """A phase ends. To be overridden."""
        raise NotImplementedError("IProgressMonitor.phase_finish is pure virtual")


class IStreamWriter(Callback):
    """Takes a serialized engine in pieces."""

    def write(self, data: bytes) -> int:
        """Take one piece; returns how many bytes were taken. To be overridden."""
        raise NotImplementedError("IStreamWriter.write is pure virtual")


class Dims(Sequence[int]):
    """A shape. Compares with tuples and lists; with another Dims it raises TypeError, as the real one."""

    MAX_DIMS = 8

    def __init__(self, shape: Sequence[int] = ()) -> None:
        if len(shape) > self.MAX_DIMS:
            raise ValueError(f"at most {self.MAX_DIMS} dimensions")
        self._shape = tuple(int(size) for size in shape)

    def __getitem__(self, index: Any) -> Any:
        return self._shape[index]

    def __len__(self) -> int:
        return len(self._shape)

    def __iter__(self) -> Iterator[int]:
        return iter(self._shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, list)):
            raise TypeError("__eq__(): incompatible function arguments: compare tuple(dims)")
        return self._shape == tuple(other)

    def __hash__(self) -> int:
        return hash(self._shape)

    def __repr__(self) -> str:
        return repr(self._shape)


class IHostMemory(bytes):
    """Memory of the library: a buffer with `nbytes`, without the methods of bytes."""

    @property
    def nbytes(self) -> int:
        """Its size."""
        return bytes.__len__(self)

    def __getattribute__(self, name: str) -> Any:
        if name in ("decode", "startswith", "endswith", "find", "split", "hex", "join"):
            raise AttributeError(f"'IHostMemory' object has no attribute {name!r}")
        return super().__getattribute__(name)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("'IHostMemory' object is not subscriptable")

    def __add__(self, other: Any) -> Any:
        raise TypeError("unsupported operand type(s) for +: 'IHostMemory'")
