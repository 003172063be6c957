"""A server in a process of its own: ready, measured, stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from helpers.factories import tiny_deployment

from profiling.server_process import server_process
from runtime.config.deployment import Deployment
from runtime.errors import EngineError

pytestmark = pytest.mark.shipped


def test_it_answers_while_the_block_runs_and_is_gone_after(built: Callable[..., Deployment]) -> None:
    with server_process(built(max_rows=16).path, {"TICKRT_MAX_CONNECTIONS": "7"}) as server:
        with urlopen(f"{server.url}/health/ready") as answer:
            assert answer.status == 200
        metrics = server.metrics()
        assert metrics["tickrt_generations_started_total"] == 0
        assert metrics["tickrt_generations_total{outcome=ok}"] == 0
        assert psutil.Process(server.pid).environ()["TICKRT_MAX_CONNECTIONS"] == "7"
    assert not psutil.pid_exists(server.pid)


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="ended with status 3 before it was ready"),
        server_process(tiny_deployment(tmp_path)),
    ):
        pass
