"""tickrt-serve with a socket at KILL_AT, over which a test ends threads of the process by an injected error."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
KILL_AT = "TICKRT_TEST_KILL_AT"


def threads_at(address: str) -> dict[str, bool]:
    """The threads of the process by name, and whether the service watches them."""
    with Client(address) as connection:
        connection.send("")
        return dict(connection.recv())


def kill_at(address: str, name: str) -> None:
    """Raise a panic in a thread, as soon as it carries out its next instruction."""
    with Client(address) as connection:
        connection.send(name)
        connection.recv()


def _obey(address: str) -> None:
    with Listener(address) as listener:
        while True:
            with listener.accept() as connection:
                name = connection.recv()
                connection.send({name: _kill(name)} if name else _watched())


def _kill(name: str) -> int:
    from helpers.panics import Panic

    idents = [thread.ident or 0 for thread in threading.enumerate() if thread.name == name]
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return sum(raise_in(ctypes.c_ulong(ident), ctypes.py_object(Panic)) for ident in idents)


def _watched() -> dict[str, bool]:
    from runtime.base.threads import Workers
    from server.service.service import Service

    gc.unfreeze()  # the server has hidden what it began with
    (service,) = (item for item in gc.get_objects() if isinstance(item, Service))
    watched = [
        thread for each in service.threads for thread in (each._entered if isinstance(each, Workers) else [each])
    ]
    return {thread.name: thread in watched for thread in threading.enumerate()}


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    threading.Thread(target=_obey, args=(os.environ.pop(KILL_AT),), name="killer", daemon=True).start()
    from runtime.commands.startup import serve

    serve()
