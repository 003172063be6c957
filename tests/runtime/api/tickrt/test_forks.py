"""A process that was forked while a model was open: nothing that it calls waits for threads of the other process."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tickrt
from runtime.base.errors import ForkedError

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there are no forks"),
    pytest.mark.filterwarnings("ignore:This process"),  # Python's, of threads and forks
]
# Longer than any of these calls takes, on a machine that has more to do.
TIMEOUT_S = 60.0
# Public methods -> arguments; those that are not here have none.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "generate": ("a",),
    "stream": ("a",),
    "generate_many": (["a"],),
    "read": (48_000,),
    "record": (1.0,),
    "prompts": ("b",),
    "write": (np.zeros((8, 2), np.float32), 0.0),
    "band": (None, None),
    "adapter": ("soft", 1.0),
    "seek": (0.0,),
    **dict.fromkeys(("source", "timbre", "structure"), (None,)),
    **dict.fromkeys(("mute", "sections"), ([],)),
}


@pytest.fixture(scope="module")
def live(model: tickrt.Model) -> Iterator[tickrt.Live]:
    with model.live("a") as session:
        session.read(100)
        yield session


def in_a_fork(call: Callable[[], object]) -> str:
    """The name of the error that a call raises in a forked process, "" for none; "hangs" where it does not end."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            call()
            os.write(writing, b"ok")
        except BaseException as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], TIMEOUT_S)
        answer = os.read(reading, 100).decode() if ready else "hangs"
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return answer.replace("ok", "")


def public_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def use(thing: object, name: str) -> None:
    value = getattr(thing, name)
    if callable(value):
        value = value(*ARGUMENTS.get(name, ()))
    if isinstance(value, Iterator):
        next(value)


@pytest.mark.parametrize("name", public_names(tickrt.Model))
def test_nothing_of_a_model_hangs_in_a_fork(name: str, model: tickrt.Model) -> None:
    needs_threads = name in ("generate", "generate_many", "stream", "live")
    assert in_a_fork(lambda: use(model, name)) == (ForkedError.__name__ if needs_threads else "")


@pytest.mark.parametrize("name", public_names(tickrt.Live))
def test_nothing_of_a_live_session_hangs_in_a_fork(name: str, live: tickrt.Live) -> None:
    assert in_a_fork(lambda: use(live, name)) in (ForkedError.__name__, "", "TypeError")
    assert in_a_fork(lambda: live.read(48_000)) == ForkedError.__name__


def test_a_stream_that_began_before_the_fork_ends_there_and_goes_on_here(model: tickrt.Model) -> None:
    stream = model.stream("a", seconds=3.0, seed=1)
    first = next(stream)
    assert in_a_fork(lambda: next(stream)) == ForkedError.__name__
    wanted = model.generate("a", seconds=3.0, seed=1).pcm
    np.testing.assert_allclose(np.concatenate([first, *stream]), wanted, atol=1e-4)


def test_audio_that_was_made_before_has_no_codec_in_a_fork(model: tickrt.Model) -> None:
    codec = model._pipeline.codec
    assert codec is not None
    latents = model.generate("a", seed=1).latents
    assert in_a_fork(lambda: codec.decode(latents)) == ForkedError.__name__


def test_a_fork_can_end_and_open_a_model_of_its_own(model: tickrt.Model) -> None:
    path = model._pipeline.deployment.path

    def again() -> None:
        model.close()
        with tickrt.open(path) as own:
            own.generate("a")

    assert in_a_fork(again) == ""
    assert len(model.generate("a").latents)


def work(_: int) -> int:
    """What a pool's process is given."""
    assert _model is not None
    return len(_model.generate("a").latents)


_model: tickrt.Model | None = None


def test_a_pool_of_multiprocessing_that_forks_tells_the_error_and_ends(model: tickrt.Model) -> None:
    global _model
    _model = model
    with multiprocessing.get_context("fork").Pool(2) as pool:
        with pytest.raises(ForkedError, match=r"(?s)forked.*spawn.*--preload"):
            pool.map_async(work, [0, 1]).get(TIMEOUT_S)
        pool.close()
        pool.join()
    _model = None
