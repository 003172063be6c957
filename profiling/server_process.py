"""A tickrt-serve process for a benchmark: started, ready, and stopped."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from runtime.base.errors import EngineError

METRICS_TIMEOUT_S = 10.0
STOP_S = 60.0
SERVE = ("-m", "server")


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that is ready: its address and its process id."""

    url: str
    pid: int

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: "name" or "name{label=value}" -> value."""
        with urlopen(f"{self.url}/metrics", timeout=METRICS_TIMEOUT_S) as answer:
            text = answer.read().decode()
        return {
            sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@contextmanager
def server_process(
    config: Path,
    settings: Mapping[str, str] | None = None,
    *,
    options: Sequence[str] = (),
    program: Sequence[str] = SERVE,
) -> Iterator[ServerProcess]:
    """Run tickrt-serve on a free loopback port until the block ends.

    settings: TICKRT_ variables. options: of tickrt-serve. program: what the interpreter runs, by default the server.
    """
    command = [sys.executable, *program, str(config), "--port", "0", "--log-level", "warning", *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(settings or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            server = ServerProcess(_ready_url(process), process.pid)
            gc.freeze()  # a full collection of all that is imported here would stop the server's clients for 0.1 s
            yield server
        finally:
            gc.unfreeze()
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def _ready_url(process: subprocess.Popen[str]) -> str:
    """The address that the server prints; reads its output until then."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"ready on (https?://\S+)", line)
        if found:
            return found.group(1)
    code = process.wait()
    raise EngineError(f"the server ended with status {code} before it was ready", fix="see its message above")
