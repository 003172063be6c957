"""A server process that is killed, as by kill -9."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def killed_server(config: Path, state: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server process that is ready; killed, not stopped, at the end of the block."""
    command = [sys.executable, "-m", "server", str(config), "--port", "0", "--log-level", "warning"]
    environment = {**os.environ, **(settings or {}), "PYTHONUNBUFFERED": "1", "TICKRT_STATE": str(state)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            matches = (re.search(r"ready on (http://\S+)", line) for line in process.stdout)
            found = next((match for match in matches if match), None)
            assert found is not None, f"the server ended with status {process.wait()} before it was ready"
            yield found.group(1)
        finally:
            process.send_signal(signal.SIGKILL)
