"""Built engines for tests: tiny bundles, compiled once per run and shared by every test that asks for the same one."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import onnxruntime as ort
import polygraphy.util.array
import pytest
import typer.testing
from filelock import FileLock
from helpers.backends import CPU, FEW_VARIANTS, Backend, builders
from helpers.factories import tiny_deployment
from helpers.paths import DEMO
from hypothesis import HealthCheck, settings
from onnxruntime.capi import onnxruntime_pybind11_state
from simulator.fixture import Machine

from engine_build.compile.builder import build_deployment
from runtime.config.deployment import HOST_TARGETS, Deployment, load_deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines
from runtime.engines.onnxruntime import OnnxRuntimeEngine
from runtime.tick.denoise.bucket import FASTEST, DenoiseParts
from runtime.tick.loop.tick_loop import TickLoop

# Tests are rewritten as they are collected: to look for cycles among their syntax trees takes as long as to make them.
gc.disable()
# A run in the background inherits SIGINT as ignored, and would pass that on to the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine is slow, not wrong.
settings.register_profile("at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("at any speed")
# Polygraphy looks for torch on the disk for every array of every engine that a build checks.
_torch = type(polygraphy.util.array.torch)
_torch.is_installed = cache(_torch.is_installed)

# httpx reads the machine's certificates for every request that has no client of its own.
vars(httpx._transports.default)["create_ssl_context"] = cache(httpx.create_ssl_context)

NO_SHELL = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
SMALL_ENGINE_BYTES = 1 << 20
FEW: dict[str, Any] = {"more": FEW_VARIANTS}
FOR_A_GPU: dict[str, Any] = {**FEW, "depth": 8, "codec": False, "text_encoder": False}
Built = Callable[..., Deployment]
Loops = Callable[..., TickLoop]


@cache
def _parser(app: typer.Typer, shell: str | None) -> Any:
    return typer.main.get_command(app)


def _fresh(command: Any) -> Any:
    """A parser as it was made: `--help` writes a bundle's facts into its options."""
    made = copy(command)
    made.params = [copy(option) for option in command.params]
    if hasattr(command, "commands"):
        made.commands = {name: _fresh(item) for name, item in command.commands.items()}
    return made


# A process runs a command once; tests run it often, and making its parser takes longer than most of them.
vars(typer.testing)["_get_command"] = lambda app: _fresh(_parser(app, os.environ.get(NO_SHELL)))


class _Sessions(onnxruntime_pybind11_state.SessionOptions):
    """Threads that wait for work do not spin: beside graphs as small as the tests' they would do little else.

    Of ONNX Runtime's own class: pytest may import this module under two names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")


vars(ort)["SessionOptions"] = _Sessions

_sessions: dict[tuple[Path, int, int, int], ort.InferenceSession] = {}
_open_session = OnnxRuntimeEngine._open


def _open_once(engine: OnnxRuntimeEngine, options: ort.SessionOptions, stream: int | None) -> ort.InferenceSession:
    """A tiny engine's session, shared by all that open the same file: it has no state, and takes long to make."""
    if not _is_shared(engine, options):
        return _open_session(engine, options, stream)
    file = engine._path.stat()
    key = engine._path, file.st_mtime_ns, file.st_size, options.intra_op_num_threads
    if key not in _sessions:
        _sessions[key] = _open_session(engine, options, stream)
    return _sessions[key]


def _is_shared(engine: OnnxRuntimeEngine, options: ort.SessionOptions) -> bool:
    is_plain = engine._graph is None and not engine.is_on_gpu and not options.enable_profiling
    return is_plain and engine.manifest.size_bytes <= SMALL_ENGINE_BYTES and engine._path.exists()


OnnxRuntimeEngine._open = _open_once  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Of several processes (pytest-xdist) one compiles the tests; the others wait, and read what it has written."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    done = session.config._tmp_path_factory.getbasetemp().parent / "collected"
    with ExitStack() as first:
        first.enter_context(FileLock(f"{done}.lock"))
        if done.exists():
            first.close()
        result = yield
        done.touch()
    return result


def pytest_itemcollected(item: pytest.Item) -> None:
    """`make test` does not build the shipped demo, which takes longer than any of its tests."""
    marks = {mark.name for mark in item.iter_markers()}
    is_elsewhere = "recipe" in item.path.parts or marks & {"shipped", "docs", "slow"}
    if "built_demo" in getattr(item, "fixturenames", ()) and not is_elsewhere:
        raise pytest.UsageError(f"{item.nodeid} builds the shipped demo: mark it as shipped")


def pytest_collection_finish() -> None:
    """What was imported stays: collections that tests ask for, and all others, which are rare, pass over it."""
    gc.enable()
    gc.set_threshold(10_000, 20, 20)
    gc.freeze()
    gc.unfreeze = lambda: None  # a bench that ends would make every later collection pass over all modules again


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """`built(**changes)` gives a tiny deployment with its engines built; equal changes give the same one."""
    made: dict[str, Deployment] = {}

    def build(path: Path | None = None, backend: Backend = CPU, **changes: Any) -> Deployment:
        key = repr((path, backend.target, sorted(changes.items())))
        if key not in made:
            made[key] = at(path, backend) if path is not None else shared(key, backend, changes)
        return made[key]

    def at(path: Path, backend: Backend) -> Deployment:
        deployment = load_deployment(path).model_copy(update={"target": backend.target})
        backend.build(deployment)
        return deployment

    def shared(key: str, backend: Backend, changes: dict[str, Any]) -> Deployment:
        def make(folder: Path) -> None:
            at(
                tiny_deployment(folder, **{**(FEW if backend.target in HOST_TARGETS else FOR_A_GPU), **changes}),
                backend,
            )

        folder = made_once(tmp_path_factory, f"built-{hashlib.sha256(key.encode()).hexdigest()[:16]}", make)
        return load_deployment(folder / "tiny.toml").model_copy(update={"target": backend.target})

    with builders:
        yield build


@pytest.fixture(scope="session")
def built_demo(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The shipped demo with engines of its own; read-only. One thread per engine: other tests use the other cores."""
    demo = load_deployment(DEMO)
    demo = demo.model_copy(update={"runtime": demo.runtime.model_copy(update={"threads": 1})})

    def make(folder: Path) -> None:
        build_deployment(demo.model_copy(update={"engines": folder}))

    return demo.model_copy(update={"engines": made_once(tmp_path_factory, "demo", make)})


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A temporary folder that is made once per run, also where several processes share it (pytest-xdist)."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not folder.with_suffix(".done").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            folder.with_suffix(".done").touch()
    return folder


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """Where ticks run: the test's parameter. A module that runs everywhere has a fixture of this name with BACKENDS."""
    wanted: Backend = getattr(request, "param", CPU)
    return wanted


def resized(deployment: Deployment, depth: int, max_rows: int) -> Deployment:
    """The same engines with another number of slots and of rows per execute."""
    shapes = deployment.shapes[0]
    rows = shapes.rows.model_copy(update={"opt": min(shapes.rows.opt, max_rows), "max": max_rows})
    runtime = deployment.runtime.model_copy(update={"depth": depth})
    return deployment.model_copy(update={"runtime": runtime, "shapes": (shapes.model_copy(update={"rows": rows}),)})


@pytest.fixture
def machine(backend: Backend) -> Iterator[Machine | None]:
    """The simulated GPU of this test, if it has one."""
    with backend.running() as found:
        yield found


@pytest.fixture
def loops(built: Built, backend: Backend, machine: Machine | None) -> Iterator[Loops]:
    """`loops(**changes)` gives a tick loop on a tiny deployment, without a thread; closed at the end of the test."""
    closing = ExitStack()

    def open_loop(
        deployment: Deployment | None = None,
        *,
        depth: int = 4,
        max_rows: int = 8,
        parts: DenoiseParts = FASTEST,
        **changes: Any,
    ) -> TickLoop:
        deployment = deployment or resized(built(max_rows=16, backend=backend, **changes), depth, max_rows)
        deployment = captured(deployment, backend.capture)
        device = open_device(backend.target)
        closing.callback(device.close)
        loop = TickLoop(open_engines(deployment, device), deployment.loaded_bundle, deployment, device, parts)
        closing.callback(loop.close)
        return loop

    with closing:
        yield open_loop


def captured(deployment: Deployment, capture: bool) -> Deployment:
    """The same deployment with captured graphs or without."""
    runtime = deployment.runtime.model_copy(update={"capture": capture})
    return deployment.model_copy(update={"runtime": runtime})
