"""The first execute of every plan on a card, in a process of its own: what a plan does to its process happens there.

What happened is kept beside the engine, by card: it is tried once, and a build lowers the optimization level of a plan
that ended its process (tickrt-build tries what it builds itself).
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.base.errors import EngineError, TickError
from runtime.base.files import own_entries, read_stored
from runtime.base.threads import end_with_parent, start_python
from runtime.config.deployment import Target
from runtime.devices.machine import driver_release
from runtime.engines.loading import open_engine, tool_versions
from runtime.engines.manifest import MANIFEST_SUFFIX, Identity, Manifest, read_manifest, write_atomically

TRIED_SUFFIX = ".tried.json"
# Of all plans of a deployment together; kernels of RTX plans are compiled within it.
LIMIT_S = 900.0
KEPT = 32
BEGIN, END, FAILED = "tickrt begins ", "tickrt ends ", "tickrt fails "


class Trial(BaseModel):
    """The first execute of an engine on a card. crash: how the process ended; "" where the engine ran."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    card: dict[str, str]
    graph_sha256: str
    precision: str
    level: int
    engine_sha256: str = ""
    crash: str = ""


class _Trials(BaseModel):
    trials: tuple[Trial, ...] = ()


def card_here(target: Target) -> dict[str, str]:
    """What a fault of a plan may depend on: the card, its memory, its driver, the library. Raises EngineError."""
    from runtime.devices.cuda_calls import probe

    gpu = probe()
    about = {"gpu": gpu.name, "memory_bytes": str(gpu.memory_bytes), "driver": driver_release() or gpu.driver_version}
    return about | tool_versions(target)


def trial_of(engine: Identity, card: Mapping[str, str], crash: str = "") -> Trial:
    """What is kept of an engine's first execute; without `crash`, of a Manifest."""
    sha256 = engine.engine_sha256 if isinstance(engine, Manifest) else ""
    build = engine.build
    return Trial(
        card=dict(card),
        graph_sha256=engine.graph_sha256,
        precision=str(build.get("precision", "")),
        level=int(build.get("optimization_level", 0)),
        engine_sha256=sha256,
        crash=crash,
    )


def trials_path(folder: Path, name: str) -> Path:
    """The path of the trials of engine `name`."""
    return folder / f"{name}{TRIED_SUFFIX}"


def read_trials(folder: Path, name: str) -> tuple[Trial, ...]:
    """The trials of an engine, on all cards, the newest last. Raises StoreUnavailableError."""
    try:
        return _Trials.model_validate_json(read_stored(trials_path(folder, name)) or b"{}").trials
    except ValidationError:
        return ()


def keep_trial(folder: Path, name: str, trial: Trial) -> None:
    """Add a trial; the oldest above KEPT are dropped. Raises OSError, StoreUnavailableError."""
    others = (other for other in read_trials(folder, name) if other != trial)
    kept = _Trials(trials=(*others, trial)[-KEPT:])
    write_atomically(trials_path(folder, name), kept.model_dump_json(indent=1).encode() + b"\n")


def crashed_levels(engine: Identity, folder: Path, card: Mapping[str, str]) -> set[int]:
    """The optimization levels at which this engine ended its process on a card. Raises StoreUnavailableError."""
    wanted = trial_of(engine, card)
    return {
        trial.level
        for trial in read_trials(folder, engine.name)
        if trial.crash
        and (trial.card, trial.graph_sha256, trial.precision) == (wanted.card, wanted.graph_sha256, wanted.precision)
    }


def first_executes(folder: Path, target: Target, limit_s: float = LIMIT_S) -> dict[str, str]:
    """Execute every plan in a folder that this card has not executed, at the usual and the largest shapes.

    Returns the engines that ended their process, now or before, with how it ended. What fails with an error is not
    tried: it is told where it is opened. Raises StoreUnavailableError.
    """
    if not folder.is_dir():
        return {}
    try:
        card = card_here(target)
    except EngineError:
        return {}
    waiting, crashed = dict[str, Manifest](), dict[str, str]()
    for path in own_entries(folder, MANIFEST_SUFFIX):
        with contextlib.suppress(EngineError):
            manifest = read_manifest(path)
            known = [trial for trial in read_trials(folder, manifest.name) if trial.card == card]
            found = [trial for trial in known if trial.engine_sha256 == manifest.engine_sha256]
            if not found:
                waiting[manifest.name] = manifest
            elif found[-1].crash:
                crashed[manifest.name] = found[-1].crash
    while waiting:
        ran, last, how = _run(folder, list(waiting), limit_s)
        for name in ran:
            _keep(folder, trial_of(waiting.pop(name), card), name)
        if not last:
            break
        crashed[last] = how
        _keep(folder, trial_of(waiting.pop(last), card, how), last)
    return crashed


def refuse_crashing(folder: Path, target: Target) -> None:
    """As first_executes(). Raises EngineError that names a plan that ends its process, StoreUnavailableError."""
    for name, how in first_executes(folder, target).items():
        raise EngineError(
            f"engine {name!r} ended its process ({how}) at its first execute on this card",
            fix="tickrt-build builds it again, at a lower optimization level; then another precision for its kind of "
            "engine in [build], or another release of the library",
        )


def _keep(folder: Path, trial: Trial, name: str) -> None:
    """Where the folder cannot be written, the engine is tried at the next start again."""
    with contextlib.suppress(OSError):
        keep_trial(folder, name, trial)


def _run(folder: Path, names: Sequence[str], limit_s: float) -> tuple[list[str], str, str]:
    """The engines that ran; the one that ended the process ("": none), and how it did."""
    code = f"from {__name__} import main; main()"
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        with start_python(code, str(folder), *names, stdin=subprocess.PIPE, stdout=said, stderr=said) as process:
            try:
                status = process.wait(limit_s)
                how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
            except subprocess.TimeoutExpired:
                process.kill()
                how = f"no end within {limit_s:g} s"
            except BaseException:
                process.kill()
                raise
        said.seek(0)
        lines = said.read().splitlines()
    ended = {line.partition(mark)[2] for line in lines for mark in (END, FAILED) if line.startswith(mark)}
    begun = [line.removeprefix(BEGIN) for line in lines if line.startswith(BEGIN)]
    last = begun[-1] if begun and begun[-1] not in ended else ""
    return [line.removeprefix(END) for line in lines if line.startswith(END)], last, how


def main() -> None:
    """The process: `FOLDER NAME ...`; says which engine begins, and which has ended. Ends with its parent."""
    end_with_parent()
    from runtime.devices.cuda import CudaDevice

    folder, *names = sys.argv[1:]
    device = CudaDevice()
    for name in names:
        print(f"{BEGIN}{name}", flush=True)
        try:
            engine = open_engine(Path(folder), name, device)
            for feeds in _inputs(engine.manifest):
                engine.run(feeds)
            engine.close()
        except TickError:
            print(f"{FAILED}{name}", flush=True)
        else:
            print(f"{END}{name}", flush=True)
    device.close()


def _inputs(manifest: Manifest) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Zeros, at the usual and the largest shapes of every range."""
    dtypes = {info.name: np.dtype(info.dtype) for info in manifest.inputs}
    for profile in manifest.build.get("profiles", ()):
        for place in (1, 2):
            shapes = {name: tuple(map(int, text.split()[place].split("x"))) for name, text in profile.items()}
            yield {name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
